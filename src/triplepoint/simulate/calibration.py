"""Calibrated constants and intervals, read from `config/calibration/`, where `triplepoint calibrate` writes them."""

import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from triplepoint.config.base import Strict
from triplepoint.config.yaml_file import read
from triplepoint.simulate import intervals
from triplepoint.simulate.costs import Constants
from triplepoint.simulate.inference import InferenceStep, Serving
from triplepoint.simulate.intervals import Features, Uncertainty
from triplepoint.simulate.job import Job
from triplepoint.simulate.stacks import find_stack

Positive = Annotated[float, Field(gt=0)]


class StackConstant(Strict):
    """The one constant of a version of a software stack."""

    stack: str
    """Framework and version, as the table spells it."""
    constant: Literal["kernels", "host"]
    """Which constant was fitted: a factor on the time of kernels, or the time the host takes to launch an operation."""
    value: Positive
    """Of the constant; unit 1 for kernels, s for host."""
    num_rows: Annotated[int, Field(ge=1)]
    """Rows it was fitted to."""
    gpu: str
    """GPU type of most of them."""
    spread: Annotated[float, Field(ge=0)]
    """Robust standard deviation of the log errors that are left. Unit: 1."""

    @property
    def constants(self) -> Constants:
        """The constant, the other as tables have it."""
        return Constants(factor=self.value) if self.constant == "kernels" else Constants(host_s=self.value)


class Place(Strict):
    """A calibrated configuration, for the distance of others."""

    stack: str
    """Framework and version."""
    gpu: str
    """GPU type and precision."""
    num_gpus: Positive
    """World size."""
    sequence_length: Positive
    """Tokens per sequence."""
    num_parameters: Positive
    """Of the model."""


class Fitted(Strict):
    """What `fitted.yaml` holds."""

    fitted_to: str
    """Table and selection the constants were fitted to."""
    num_rows: Annotated[int, Field(ge=1)]
    """Rows of it."""
    quantile: Positive
    """90 % of errors, each predicted from other models, are smaller than this many of their scales. Unit: 1."""
    unknown_stack_spread: Annotated[float, Field(ge=0)]
    """Standard deviation of the log factors of stacks: what is not known of a stack never seen. Unit: 1."""
    stacks: list[StackConstant]
    """By version of the stack."""
    places: list[Place]
    """What was calibrated."""


@dataclass(frozen=True)
class Calibration:
    """Constants of stacks, and how far predictions can be trusted.

    Attributes:
        fitted: What was fitted.
        config: Folder of the configuration.
    """

    fitted: Fitted
    config: Path

    @classmethod
    def load(cls, config: Path) -> "Calibration":
        """Return the calibration of a configuration folder. Raises `UserError` if it is missing or wrong."""
        return cls(read(Fitted, config / "calibration" / "fitted.yaml"), config)

    @cached_property
    def _known(self) -> list[Features]:
        return [features_at(place) for place in self.fitted.places]

    @property
    def quantile(self) -> float:
        """Score that 90 % of new predictions stay below."""
        return self.fitted.quantile

    def constants(self, job: Job) -> Constants:
        """Return the constants of a job: of its stack's version, the nearest version, or the usual ones of its GPU.

        The host's time is that of the stack where its entry states one.
        """
        found, stated = self._fitted_constants(job), job.software.host_time
        if stated is None:
            return found
        return replace(found, host_s=stated.value, host_sigma=job.software.host_time_sigma)

    def _fitted_constants(self, job: Job) -> Constants:
        known = {constant.stack: constant for constant in self.fitted.stacks}
        for stack in (job.stack, job.software.calibrated_as):
            if stack in known:
                return known[stack].constants
        family = job.software.name
        kin = [known[stack] for stack in known if find_stack(stack, self.config).name == family]
        if kin:
            return min(kin, key=lambda other: abs(version(other.stack) - version(job.stack))).constants
        return Constants(factor=usual_factor(self.fitted.stacks, job.gpu.kernels_of))

    def is_known(self, stack: str) -> bool:
        """Return whether this version of the stack was calibrated."""
        return any(constant.stack == stack for constant in self.fitted.stacks)

    def scale(self, job: Job, uncertainty: Uncertainty) -> float:
        """Return the width errors of this job are measured in, in log; wider away from what was calibrated."""
        features = features_of(job)
        width = intervals.scale(uncertainty, features, self._known)
        # Added in full: a stack that is not known also differs in what no factor says, such as what it overlaps.
        return width if self.is_known(job.stack) else width + self.fitted.unknown_stack_spread


def usual_factor(stacks: Sequence[StackConstant], gpu: str) -> float:
    """Return the median factor of stacks on a GPU type, of all stacks where it has none: what a new one would have.

    Kernel tables are measured in short runs; under the heat and power of hours of training, clocks are lower.
    """
    factors = [stack for stack in stacks if stack.constant == "kernels"]
    values = [stack.value for stack in factors if stack.gpu == gpu] or [stack.value for stack in factors]
    return math.exp(statistics.median(map(math.log, values))) if values else 1.0


def features_of(job: Job) -> Features:
    """Return where a job stands."""
    return Features(
        job.stack,
        f"{job.gpu.name} {job.precision}",
        math.log2(job.num_gpus),
        math.log2(job.sequence_length),
        math.log2(job.model.num_parameters),
    )


def features_at(place: Place) -> Features:
    """Return where a calibrated configuration stands."""
    numbers = place.num_gpus, place.sequence_length, place.num_parameters
    return Features(place.stack, place.gpu, *map(math.log2, numbers))


def version(stack: str) -> float:
    """Return the number that orders versions of one stack: 24.11 of `v24.11.1`, 0 where there is none."""
    match = re.search(r"(\d+)(?:\.(\d+))?", stack)
    return int(match[1][:6]) + int((match[2] or "0")[:3]) / 1000 if match else 0.0


class FittedServing(Strict):
    """What `inference.yaml` holds."""

    fitted_to: str
    """Table and selection the errors are of."""
    num_rows: Annotated[int, Field(ge=1)]
    """Rows of it."""
    quantile: Positive
    """90 % of errors are smaller than this many of their scales, each seen from rows of other models. Unit: 1."""
    places: list[Place]
    """What was measured; `sequence_length` is prompt and output."""


@dataclass(frozen=True)
class KnownTo:
    """90 % intervals of a batch: lower and upper end. Unit: s.

    Attributes:
        first_token_s: Of the time to the first token.
        per_token_s: Of the time per token after it.
        whole_s: Of the batch from its start to its end.
    """

    first_token_s: tuple[float, float]
    per_token_s: tuple[float, float]
    whole_s: tuple[float, float]


@dataclass(frozen=True)
class ServingCalibration:
    """How far predictions of inference can be trusted.

    Attributes:
        fitted: What errors were like.
        unknown_stack_spread: What is not known of software that was not measured, as in training. Unit: 1, in log.
    """

    fitted: FittedServing
    unknown_stack_spread: float

    @classmethod
    def load(cls, config: Path) -> "ServingCalibration":
        """Return the calibration of a configuration folder. Raises `UserError` if it is missing or wrong."""
        trained = Calibration.load(config).fitted.unknown_stack_spread
        return cls(read(FittedServing, config / "calibration" / "inference.yaml"), trained)

    @cached_property
    def _known(self) -> list[Features]:
        return [features_at(place) for place in self.fitted.places]

    def known_to(self, job: Job, serving: Serving, step: InferenceStep) -> KnownTo:
        """Return the intervals around what is predicted."""
        first, each, whole = self.scales(job, serving, step)
        times = ((step.prefill_s, first), (step.time_per_output_token_s, each), (step.whole_s, whole))
        return KnownTo(*(intervals.interval(time_s, self.fitted.quantile, scale) for time_s, scale in times))

    def scales(self, job: Job, serving: Serving, step: InferenceStep) -> tuple[float, float, float]:
        """Return the widths that errors of prefill, decode and both are measured in, in log.

        Where tables are off they are so in both, so that errors of the whole are the mean of those of its parts.
        """
        features = features_at(place_of(job, serving))
        known = any(place.stack == job.stack for place in self.fitted.places)
        first, each = (
            intervals.scale(uncertainty, features, self._known) + (0.0 if known else self.unknown_stack_spread)
            for uncertainty in (step.prefill_uncertainty, step.decode_uncertainty)
        )
        return first, each, (step.prefill_s * first + step.decode_s * each) / step.whole_s


def place_of(job: Job, serving: Serving) -> Place:
    """Return where a batch stands."""
    return Place(
        stack=job.stack,
        gpu=f"{job.gpu.name} {job.precision}",
        num_gpus=job.num_gpus,
        sequence_length=serving.total_tokens,
        num_parameters=float(f"{job.model.num_parameters:.3g}"),
    )
