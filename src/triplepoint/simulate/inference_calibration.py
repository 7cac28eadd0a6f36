"""Uncertainty of predictions of inference, from `config/calibration/inference.yaml`."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

from pydantic import Field

from triplepoint.config.base import Strict
from triplepoint.config.yaml_file import read
from triplepoint.simulate import intervals
from triplepoint.simulate.calibration import Calibration, Place, Positive, features_at
from triplepoint.simulate.inference import InferenceStep, Serving
from triplepoint.simulate.intervals import Calibrated
from triplepoint.simulate.job import Job


class FittedServing(Strict):
    """Content of `inference.yaml`."""

    fitted_to: str
    """Table and selection of rows of the errors."""
    num_rows: Annotated[int, Field(ge=1)]
    """Number of these rows."""
    quantile: Positive
    """90 % of the errors, each predicted from rows of other models, are within this many of their scales. Unit: 1."""
    places: list[Place]
    """Measured configurations; `sequence_length` is prompt and output."""


@dataclass(frozen=True)
class ServingIntervals:
    """Lower and upper end of the 90 % intervals of a batch. Unit: s.

    Attributes:
        first_token_s: Interval of the time to first token.
        per_token_s: Interval of the time per output token.
        whole_s: Interval of the time of the batch from start to end.
    """

    first_token_s: tuple[float, float]
    per_token_s: tuple[float, float]
    whole_s: tuple[float, float]


@dataclass(frozen=True)
class ServingCalibration:
    """Uncertainty of predictions of inference.

    Attributes:
        fitted: Content of `inference.yaml`.
        unknown_stack_spread: Additional width of unmeasured software, as in training. Unit: 1, in log.
    """

    fitted: FittedServing
    unknown_stack_spread: float

    @classmethod
    def load(cls, config: Path) -> "ServingCalibration":
        """Return the calibration of a configuration folder. Raises `UserError` if it is missing or wrong."""
        unknown_stack_spread = Calibration.load(config).fitted.widths.stack
        return cls(read(FittedServing, config / "calibration" / "inference.yaml"), unknown_stack_spread)

    @cached_property
    def _calibrated(self) -> Calibrated:
        return Calibrated.of([features_at(place) for place in self.fitted.places])

    def intervals_of(self, job: Job, serving: Serving, step: InferenceStep) -> ServingIntervals:
        """Return the intervals of the predicted times."""
        prefill, decode, whole = self.scales(job, serving, step)
        times = ((step.prefill_s, prefill), (step.time_per_output_token_s, decode), (step.whole_s, whole))
        return ServingIntervals(*(intervals.interval(time_s, self.fitted.quantile, scale) for time_s, scale in times))

    def scales(self, job: Job, serving: Serving, step: InferenceStep) -> tuple[float, float, float]:
        """Return the scales of the log errors of prefill, decode and the whole batch.

        Errors of kernel tables affect both, so the scale of the whole is the mean of those of its parts, by time.
        """
        features = features_at(place_of(job, serving))
        is_measured = any(place.stack == job.stack for place in self.fitted.places)
        prefill, decode = (
            intervals.scale(uncertainty, features, self._calibrated)
            + (0.0 if is_measured else self.unknown_stack_spread)
            for uncertainty in (step.prefill_uncertainty, step.decode_uncertainty)
        )
        return prefill, decode, (step.prefill_s * prefill + step.decode_s * decode) / step.whole_s


def place_of(job: Job, serving: Serving) -> Place:
    """Return the position of a batch among calibrated configurations."""
    return Place(
        stack=job.stack,
        gpu=f"{job.gpu.name} {job.precision}",
        num_gpus=job.num_gpus,
        sequence_length=serving.total_tokens,
        num_parameters=float(f"{job.model.num_parameters:.3g}"),
    )
