"""What step times were calibrated to: `config/calibration/fitted.yaml`, which `triplepoint calibrate` writes."""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from triplepoint.config.base import Strict
from triplepoint.config.yaml_file import read
from triplepoint.simulate import intervals
from triplepoint.simulate.intervals import Features, Uncertainty
from triplepoint.simulate.job import Job
from triplepoint.simulate.stacks import find_stack

Positive = Annotated[float, Field(gt=0)]


class StackConstant(Strict):
    """The one constant of a version of a software stack."""

    stack: str
    """Framework and version, as the table spells it."""
    factor: Positive
    """Measured over modelled time of kernels. Unit: 1."""
    num_rows: Annotated[int, Field(ge=1)]
    """Rows it was fitted to."""
    spread: Annotated[float, Field(ge=0)]
    """Robust standard deviation of the log errors that are left. Unit: 1."""


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

    @property
    def quantile(self) -> float:
        """Score that 90 % of new predictions stay below."""
        return self.fitted.quantile

    def factor(self, stack: str) -> float:
        """Return the factor on kernels: of the stack's version, of its nearest version, of all where none is known."""
        known = {one.stack: one for one in self.fitted.stacks}
        if stack in known:
            return known[stack].factor
        family = find_stack(stack, self.config).name
        kin = [one for one in self.fitted.stacks if find_stack(one.stack, self.config).name == family]
        if kin:
            return min(kin, key=lambda one: abs(version(one.stack) - version(stack))).factor
        logs = sorted(math.log(one.factor) for one in self.fitted.stacks)
        return math.exp(logs[len(logs) // 2]) if logs else 1.0

    def is_known(self, stack: str) -> bool:
        """Return whether this version of the stack was calibrated."""
        return any(one.stack == stack for one in self.fitted.stacks)

    def scale(self, job: Job, uncertainty: Uncertainty) -> float:
        """Return the width errors of this job are measured in, in log; wider away from what was calibrated."""
        features = features_of(job)
        known = [_features(place) for place in self.fitted.places]
        width = intervals.scale(uncertainty, features, known)
        return width if self.is_known(job.stack) else math.hypot(width, self.fitted.unknown_stack_spread)


def features_of(job: Job) -> Features:
    """Return where a job stands."""
    return Features(
        job.stack,
        f"{job.gpu.name} {job.precision}",
        math.log2(job.num_gpus),
        math.log2(job.sequence_length),
        math.log2(job.model.num_parameters),
    )


def _features(place: Place) -> Features:
    numbers = place.num_gpus, place.sequence_length, place.num_parameters
    return Features(place.stack, place.gpu, *map(math.log2, numbers))


def version(stack: str) -> float:
    """Return the number that orders versions of one stack: 24.11 of `v24.11.1`, 0 where there is none."""
    found = re.search(r"(\d+)(?:\.(\d+))?", stack)
    return int(found[1][:6]) + int((found[2] or "0")[:3]) / 1000 if found else 0.0
