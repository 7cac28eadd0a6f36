"""Difference between two layouts of one training: what both have in common cancels, the rest is by what differs."""

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
    """Standard deviations, in log, of the error of one layout against another of the same training.

    They add in squares. Those per doubling are of one factor of two between the degrees; their squares add too.
    """

    repeat: _Width
    """Of one layout run twice. Unit: 1."""
    stack: _Width
    """Of any other one, over the spread of the stack's rows. Unit: 1."""
    gradients: _Width
    """Of a difference in the part of the step that reduces gradients. Unit: 1."""
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
    """Where recomputation, sharding, overlap or ways of the software differ. Unit: 1."""
    quantile: Annotated[float, Field(gt=0)]
    """90 % of differences of trainings left out are within this many standard deviations. Unit: 1."""

    tie_quantile: Annotated[float, Field(ge=0)]
    """90 % of layouts that are predicted slower than the first gain less on it than this many standard deviations.
    Unit: 1."""

    def scale(self, one: "Laid", other: "Laid", spread: float) -> float:
        """Return the standard deviation of the log error of the difference of two layouts.

        Args:
            one: A layout.
            other: Another one of the same training.
            spread: Standard deviation of log errors of the stack's rows.
        """
        parts = differences(one, other, spread).items()
        return math.sqrt(sum(getattr(self, name) ** 2 * times for name, times in parts))

    def of_one(self, spread: float) -> float:
        """Return the standard deviation of one layout's own error, as of a normal with the same 90 %.

        For values that stand alone: two of them are taken to be a doubling of tp, of pp and of the micro-batch apart.

        Args:
            spread: Standard deviation of log errors of the stack's rows.
        """
        squares = self.repeat**2 + (self.stack * spread) ** 2 + self.tp**2 + self.pp**2 + self.micro_batch_size**2
        return math.sqrt(squares / 2) * self.quantile / Z90


@dataclass(frozen=True)
class Laid:
    """A training as it is laid out.

    Attributes:
        job: The job.
        gradient_share: Part of its step that reducing gradients takes, 0 to 1, see `Step.gradient_share`.
    """

    job: Job
    gradient_share: float


def same_training(job: Job) -> Hashable:
    """Return what jobs have in common that are alternatives to each other: all but how they are laid out."""
    of_model = job.model.name, job.trainable, job.precision, job.sequence_length, job.global_batch_size
    return (*of_model, job.stack, job.gpu.name, job.num_gpus)


def recomputes_more(one: Job, other: Job) -> bool:
    """Return whether the other job is the same one but for more recomputation: it runs all of the first's kernels."""
    if replace(other, recompute=one.recompute, recompute_layers=one.recompute_layers) != one:
        return False
    less, more = ((job.recompute, job.recompute_layers) for job in (one, other))
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


def differences(one: Laid, other: Laid, spread: float) -> dict[str, float]:
    """Return how often the square of each of `LayoutWidths` counts for two layouts.

    Args:
        one: A layout.
        other: Another one of the same training.
        spread: Standard deviation of log errors of the stack's rows.
    """
    found = {name: abs(math.log2(of(one.job) / of(other.job))) for name, of in _DEGREES.items()}
    has_other_ways = _ways(one.job) != _ways(other.job)
    if one.job.layout.tp == other.job.layout.tp:
        has_other_ways |= one.job.layout.sequence_parallel != other.job.layout.sequence_parallel
    found["software"] = float(has_other_ways)
    found["gradients"] = (one.gradient_share - other.gradient_share) ** 2
    return {"repeat": 1.0, "stack": spread**2, **found}


def _ways(job: Job) -> tuple[object, ...]:
    sharded = job.layout.data_parallel_sharding, job.num_copies, job.keeps_gathered
    return job.recompute, job.recompute_layers, job.overlap, job.software, sharded
