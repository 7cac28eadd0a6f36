"""Uncertainty of the difference between two layouts of one training: common errors cancel."""

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Annotated

from pydantic import Field

from triplepoint.config.base import Strict
from triplepoint.metrics import Z90
from triplepoint.simulate.job import Job

_Width = Annotated[float, Field(ge=0)]


class LayoutWidths(Strict):
    """Standard deviations of the log error of one layout relative to another layout of the same training.

    They add in squares. Those per doubling hold for a factor of two between the degrees; their squares add too.
    """

    repeat: _Width
    """Between two runs of one layout. Unit: 1."""
    stack: _Width
    """Between any two layouts, over the spread of the stack's rows. Unit: 1."""
    gradients: _Width
    """Per difference in the share of the step that reduces gradients. Unit: 1."""
    tp: _Width
    """Per doubling of tensor parallelism. Unit: 1."""
    pp: _Width
    """Per doubling of pipeline stages. Unit: 1."""
    vp: _Width
    """Per doubling of chunks per stage. Unit: 1."""
    cp: _Width
    """Per doubling of context parallelism. Unit: 1."""
    ep: _Width
    """Per doubling of expert parallelism. Unit: 1."""
    micro_batch_size: _Width
    """Per doubling of the micro-batch. Unit: 1."""
    software: _Width
    """Between layouts with different recomputation, sharding, overlap or software settings. Unit: 1."""
    quantile: Annotated[float, Field(gt=0)]
    """90 % of the differences of held-out trainings are within this many standard deviations. Unit: 1."""

    tie_quantile: Annotated[float, Field(ge=0)]
    """Of layouts that are predicted slower than the first, 90 % are measured to gain less than this many standard
    deviations on it. Unit: 1."""

    def scale(self, first: "Laid", second: "Laid", spread: float) -> float:
        """Return the standard deviation of the log error of the difference of two layouts.

        Args:
            first: A layout.
            second: Another layout of the same training.
            spread: Standard deviation of log errors of the stack's rows.
        """
        weights = differences(first, second, spread).items()
        return math.sqrt(sum(getattr(self, name) ** 2 * weight for name, weight in weights))

    def scale_of_single(self, spread: float) -> float:
        """Return the standard deviation of the log error of one layout, without the error that all layouts share.

        It is that of a normal with the same 90 % interval. Two layouts are assumed to differ by a doubling of tp, of pp
        and of the micro-batch.

        Args:
            spread: Standard deviation of log errors of the stack's rows.
        """
        squares = self.repeat**2 + (self.stack * spread) ** 2 + self.tp**2 + self.pp**2 + self.micro_batch_size**2
        return math.sqrt(squares / 2) * self.quantile / Z90


@dataclass(frozen=True)
class Laid:
    """A training with its layout.

    Attributes:
        job: The job.
        gradient_share: Share of the step that gradient reduction takes, 0 to 1, see `Step.gradient_share`.
    """

    job: Job
    gradient_share: float


def same_training(job: Job) -> Hashable:
    """Return a key that jobs share if they differ only in their layout."""
    of_model = job.model.name, job.trainable, job.precision, job.sequence_length, job.global_batch_size
    return (*of_model, job.stack, job.gpu.name, job.num_gpus)


def recomputes_more(first: Job, second: Job) -> bool:
    """Return whether the second job equals the first except for more recomputation, so that it runs all its kernels."""
    if replace(second, recompute=first.recompute, recompute_layers=first.recompute_layers) != first:
        return False
    less, more = ((job.recompute, job.recompute_layers) for job in (first, second))
    if less == more or more[0] == "none":
        return False
    if less[0] == "none":
        return True
    return more == ("full", None) or (less[0] == more[0] == "full" and None not in (less[1], more[1]) and less < more)


_DEGREES: Mapping[str, Callable[[Job], int]] = MappingProxyType(
    {
        "tp": lambda job: job.layout.tp,
        "pp": lambda job: job.layout.pp,
        "vp": lambda job: job.layout.vp,
        "cp": lambda job: job.layout.cp,
        "ep": lambda job: job.layout.ep,
        "micro_batch_size": lambda job: job.micro_batch_size,
    }
)


def differences(first: Laid, second: Laid, spread: float) -> dict[str, float]:
    """Return the weight of the square of each of `LayoutWidths` for two layouts.

    Args:
        first: A layout.
        second: Another layout of the same training.
        spread: Standard deviation of log errors of the stack's rows.
    """
    weights = {name: abs(math.log2(degree(first.job) / degree(second.job))) for name, degree in _DEGREES.items()}
    is_other_software = _software_settings(first.job) != _software_settings(second.job)
    if first.job.layout.tp == second.job.layout.tp:
        is_other_software |= first.job.layout.sequence_parallel != second.job.layout.sequence_parallel
    weights["software"] = float(is_other_software)
    weights["gradients"] = (first.gradient_share - second.gradient_share) ** 2
    return {"repeat": 1.0, "stack": spread**2, **weights}


def _software_settings(job: Job) -> tuple[object, ...]:
    sharding = job.layout.data_parallel_sharding, job.num_copies, job.keeps_gathered
    return job.recompute, job.recompute_layers, job.overlap, job.software, sharding
