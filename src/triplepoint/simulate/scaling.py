"""How far predictions hold beyond the sizes they were fitted at: `config/calibration/scaling.yaml`."""

import math
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from triplepoint.config.base import Strict
from triplepoint.config.yaml_file import read

Known = Literal["all", "stack", "training"]
"""Larger rows: all, those whose stack had smaller ones, those whose model, stack, GPU type and number format had."""


class LeftOut(Strict):
    """Errors of larger rows, predicted by constants and widths fitted to smaller ones alone."""

    known: Known
    """Which rows."""
    num_rows: Annotated[int, Field(ge=1)]
    """How many."""
    median_error: Annotated[float, Field(ge=0)]
    """Median absolute error of the step time. Unit: 1."""
    bias: Annotated[float, Field(gt=0)]
    """Geometric mean of predicted over measured time. Unit: 1."""
    coverage: Annotated[float, Field(ge=0, le=1)]
    """Share of the rows in their 90 % interval."""


class ScalingKnown(Strict):
    """What leaving scale out of the fit showed."""

    fitted_to: str
    """Tables of measured step times."""
    most_gpus: Annotated[int, Field(ge=1)]
    """Rows of so many GPUs or fewer were fitted to."""
    num_fitted: Annotated[int, Field(ge=1)]
    """Their number."""
    left_out: list[LeftOut]
    """Errors of the larger rows."""
    per_octave: Annotated[float, Field(gt=0)]
    """90 % of errors of the ratio of step times, of a larger row and the smaller ones of its training, are within this
    many times the root of the octaves of GPUs between them. Unit: 1, in log."""
    ratio_error: Annotated[float, Field(ge=0)]
    """Median absolute error of that ratio. Unit: 1."""
    ratio_coverage: Annotated[float, Field(ge=0, le=1)]
    """Share of ratios within `per_octave` as fitted without their training."""
    num_ratios: Annotated[int, Field(ge=1)]
    """Ratios it comes from."""
    num_trainings: Annotated[int, Field(ge=1)]
    """Trainings they are of."""

    def ratio_width(self, num_gpus: int, start: int) -> float:
        """Return half the 90 % interval, in log, of the ratio of step times at two numbers of GPUs of a training."""
        return self.per_octave * math.sqrt(abs(math.log2(num_gpus / start)))


def read_scaling(config: Path) -> ScalingKnown:
    """Return what is known of scaling. Raises `UserError` if the file is missing or wrong."""
    return read(ScalingKnown, config / "calibration" / "scaling.yaml")
