"""How far predictions of inference can be trusted, read from `config/calibration/inference.yaml`."""

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
        trained = Calibration.load(config).fitted.widths.stack
        return cls(read(FittedServing, config / "calibration" / "inference.yaml"), trained)

    @cached_property
    def _known(self) -> Calibrated:
        return Calibrated.of([features_at(place) for place in self.fitted.places])

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
