"""What step times were calibrated to: `config/calibration/fitted.yaml`, which `triplepoint calibrate` writes."""

import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from triplepoint.config.base import Strict
from triplepoint.config.yaml_file import read
from triplepoint.simulate.calibration import intervals
from triplepoint.simulate.calibration.intervals import Features, Uncertainty
from triplepoint.simulate.costs import Constants
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
        """Return the constants of a job: of its stack's version, the nearest version, or the usual ones of its GPU."""
        known = {one.stack: one for one in self.fitted.stacks}
        if job.stack in known:
            return known[job.stack].constants
        family = job.software.name
        kin = [one for one in self.fitted.stacks if find_stack(one.stack, self.config).name == family]
        if kin:
            return min(kin, key=lambda one: abs(version(one.stack) - version(job.stack))).constants
        return Constants(factor=usual_factor(self.fitted.stacks, job.gpu.name))

    def is_known(self, stack: str) -> bool:
        """Return whether this version of the stack was calibrated."""
        return any(one.stack == stack for one in self.fitted.stacks)

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
    factors = [one for one in stacks if one.constant == "kernels"]
    own = [one.value for one in factors if one.gpu == gpu] or [one.value for one in factors]
    return math.exp(statistics.median(map(math.log, own))) if own else 1.0


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
    found = re.search(r"(\d+)(?:\.(\d+))?", stack)
    return int(found[1][:6]) + int((found[2] or "0")[:3]) / 1000 if found else 0.0
