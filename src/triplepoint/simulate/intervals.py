"""Intervals of predicted times: symmetric in the logarithm, wider far from calibrated configurations."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from triplepoint.metrics import Interval

Float = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Features:
    """Position of a job, for its distance from calibrated configurations; numbers are log2.

    Attributes:
        stack: Framework and version.
        gpu: GPU type and precision, on which kernel times depend.
        num_gpus: World size.
        sequence_length: Tokens per sequence.
        num_parameters: Parameters of the model.
    """

    stack: str
    gpu: str
    num_gpus: float
    sequence_length: float
    num_parameters: float

    @property
    def place(self) -> tuple[float, float, float]:
        """The numbers only."""
        return self.num_gpus, self.sequence_length, self.num_parameters


@dataclass(frozen=True)
class Uncertainty:
    """Relative standard deviations of the parts of a prediction, from their fits.

    Attributes:
        kernel_sigma: Uncertainty of kernel times.
        collective_sigma: Uncertainty of collective times.
        compute_share: Share of the step that is computation, 0 to 1.
        host_sigma: Uncertainty of the step time due to the launch time of the host.
    """

    kernel_sigma: float
    collective_sigma: float
    compute_share: float
    host_sigma: float = 0.0

    @property
    def tables_sigma(self) -> float:
        """Uncertainty of the step time due to kernel and collective tables, which are independent."""
        return math.hypot(self.kernel_sigma * self.compute_share, self.collective_sigma * (1 - self.compute_share))

    @property
    def sigma(self) -> float:
        """Uncertainty of the step time, all parts together; they are independent."""
        return math.hypot(self.tables_sigma, self.host_sigma)


PER_OCTAVE = 0.10
"""Relative widening of an interval per factor of two beyond the calibrated range. A prior, not a fit; the coverage of
held-out sources is reported with it."""

FLOOR = 0.02
"""Smallest scale: the step time of one job varies by this much between runs. Unit: 1, in log."""


@dataclass(frozen=True, eq=False)
class Calibrated:
    """Positions of calibrated configurations, to find the one nearest to a job.

    Attributes:
        places: Positions of all configurations; shape (num_places, 3).
        by_gpu: Positions by GPU type and precision; shapes (num_places, 3).
    """

    places: Float
    by_gpu: Mapping[str, Float]

    @classmethod
    def of(cls, calibrated: Sequence[Features]) -> "Calibrated":
        """Return the positions of calibrated configurations."""
        by_gpu: dict[str, list[tuple[float, float, float]]] = {}
        for features in calibrated:
            by_gpu.setdefault(features.gpu, []).append(features.place)
        places = np.array([features.place for features in calibrated]).reshape(-1, 3)
        return cls(places, {gpu: np.array(rows) for gpu, rows in by_gpu.items()})


def distance(features: Features, places: Float) -> float:
    """Return the distance of a job from the nearest calibrated one, in octaves of GPUs, sequence length and model size.

    Args:
        features: Position of the job.
        places: Calibrated positions, shape (num_places, 3); with none the distance is large.
    """
    if not len(places):
        return 10.0
    return float(np.abs(places - np.array(features.place)).sum(axis=1).min())


def widening(features: Features, calibrated: Calibrated) -> float:
    """Return the factor on the scale of a job by its distance from calibrated jobs, on the same GPU type if any."""
    return 1 + PER_OCTAVE * distance(features, calibrated.by_gpu.get(features.gpu, calibrated.places))


def scale(uncertainty: Uncertainty, features: Features, calibrated: Calibrated) -> float:
    """Return the scale of the log error of a job: the uncertainty of its parts, widened by its distance."""
    return (FLOOR + uncertainty.sigma) * widening(features, calibrated)


def interval(time_s: float, quantile: float, scale: float) -> Interval:
    """Return the interval around a predicted time. Unit: s.

    Args:
        time_s: Predicted time. Unit: s.
        quantile: Half the width in units of `scale`.
        scale: Scale of the log error. Unit: 1.
    """
    factor = math.exp(min(quantile * scale, 3.0))
    return Interval(time_s / factor, time_s * factor)
