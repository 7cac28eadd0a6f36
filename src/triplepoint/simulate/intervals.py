"""Intervals of predicted times: one width up and down in the logarithm, wider away from what was calibrated."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Features:
    """Where a job stands, for its distance from what was calibrated; all in log2 but the stack.

    Attributes:
        stack: Framework and version.
        gpu: GPU type and precision: what kernel times depend on.
        num_gpus: World size.
        sequence_length: Tokens per sequence.
        num_parameters: Of the model.
    """

    stack: str
    gpu: str
    num_gpus: float
    sequence_length: float
    num_parameters: float

    @property
    def place(self) -> tuple[float, float, float]:
        """The numbers alone."""
        return self.num_gpus, self.sequence_length, self.num_parameters


@dataclass(frozen=True)
class Uncertainty:
    """Relative standard deviations of the parts of a prediction, as their fits left them.

    Attributes:
        kernel_sigma: Of kernel times.
        collective_sigma: Of collectives.
        compute_share: Part of the step that is computation, 0 to 1.
        host_sigma: Of the step, from the time the host takes to launch.
    """

    kernel_sigma: float
    collective_sigma: float
    compute_share: float
    host_sigma: float = 0.0

    @property
    def tables_sigma(self) -> float:
        """Of the step, from tables of kernels and collectives, independent of each other."""
        return math.hypot(self.kernel_sigma * self.compute_share, self.collective_sigma * (1 - self.compute_share))

    @property
    def sigma(self) -> float:
        """Of the step, its parts independent."""
        return math.hypot(self.tables_sigma, self.host_sigma)


PER_OCTAVE = 0.10
"""How much wider an interval is for every factor of two beyond the calibrated range. Ours: a prior, not a fit; the
coverage on sources left out is reported with it."""

FLOOR = 0.02
"""Smallest scale: steps of one job vary by so much between runs. Unit: 1, in log."""


@dataclass(frozen=True, eq=False)
class Calibrated:
    """What was calibrated, to find what is nearest to a job.

    Attributes:
        places: Of all; shape (num_places, 3).
        by_gpu: Of those on each GPU type and precision; shapes (num_places, 3).
    """

    places: Float
    by_gpu: Mapping[str, Float]

    @classmethod
    def of(cls, known: Sequence[Features]) -> "Calibrated":
        """Return it from where jobs stood."""
        by_gpu: dict[str, list[tuple[float, float, float]]] = {}
        for one in known:
            by_gpu.setdefault(one.gpu, []).append(one.place)
        places = np.array([one.place for one in known]).reshape(-1, 3)
        return cls(places, {gpu: np.array(rows) for gpu, rows in by_gpu.items()})


def distance(features: Features, places: Float) -> float:
    """Return how far a job is from the nearest calibrated one, in octaves of GPUs, sequence length and size.

    Args:
        features: Of the job.
        places: What was calibrated, shape (num_places, 3); none counts as far.
    """
    if not len(places):
        return 10.0
    return float(np.abs(places - np.array(features.place)).sum(axis=1).min())


def widening(features: Features, known: Calibrated) -> float:
    """Return the factor on the scale of a job by its distance, from jobs on the same GPU type where there are any."""
    return 1 + PER_OCTAVE * distance(features, known.by_gpu.get(features.gpu, known.places))


def scale(uncertainty: Uncertainty, features: Features, known: Calibrated) -> float:
    """Return the width that scores of the job are measured in: of the parts, widened by the distance."""
    return (FLOOR + uncertainty.sigma) * widening(features, known)


def interval(time_s: float, quantile: float, scale: float) -> tuple[float, float]:
    """Return the lower and upper end around a predicted time, in s; the factor is the same up and down."""
    factor = math.exp(min(quantile * scale, 3.0))
    return time_s / factor, time_s * factor
