"""Errors of predictions beyond the number of GPUs that they were fitted at: `config/calibration/scaling.yaml`."""

import math
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from triplepoint.config.base import Strict
from triplepoint.config.yaml_file import read

Known = Literal["all", "stack", "training"]
"""Groups of larger rows: all; those whose stack has smaller rows; those whose model, stack, GPU type and number format
have smaller rows."""


class LeftOut(Strict):
    """Errors of larger rows, predicted with constants and widths fitted to smaller rows only."""

    known: Known
    """The group of rows."""
    num_rows: Annotated[int, Field(ge=1)]
    """Number of rows."""
    median_error: Annotated[float, Field(ge=0)]
    """Median absolute error of the step time. Unit: 1."""
    bias: Annotated[float, Field(gt=0)]
    """Geometric mean of predicted over measured time. Unit: 1."""
    coverage: Annotated[float, Field(ge=0, le=1)]
    """Share of the rows within their 90 % interval."""


class ScalingKnown(Strict):
    """Results of leaving larger rows out of the fit."""

    fitted_to: str
    """Tables of measured step times."""
    most_gpus: Annotated[int, Field(ge=1)]
    """Largest number of GPUs of the fitted rows."""
    num_fitted: Annotated[int, Field(ge=1)]
    """Number of fitted rows."""
    left_out: list[LeftOut]
    """Errors of the larger rows."""
    per_octave: Annotated[float, Field(gt=0)]
    """Of the errors of the step time ratio of a larger row and the smaller rows of its training, 90 % are within this
    many times the square root of the octaves of GPUs between them. Unit: 1, in log."""
    ratio_error: Annotated[float, Field(ge=0)]
    """Median absolute error of that ratio. Unit: 1."""
    ratio_coverage: Annotated[float, Field(ge=0, le=1)]
    """Share of ratios within `per_octave`, fitted without their training."""
    num_ratios: Annotated[int, Field(ge=1)]
    """Number of ratios."""
    num_trainings: Annotated[int, Field(ge=1)]
    """Number of trainings with such ratios."""

    def ratio_width(self, num_gpus: int, start: int) -> float:
        """Return half the 90 % interval, in log, of the step time ratio of a training at two numbers of GPUs.

        Args:
            num_gpus: One number of GPUs.
            start: The other number of GPUs.
        """
        return self.per_octave * math.sqrt(abs(math.log2(num_gpus / start)))


def read_scaling(config: Path) -> ScalingKnown:
    """Return the scaling errors of a configuration folder. Raises `UserError` if the file is missing or wrong."""
    return read(ScalingKnown, config / "calibration" / "scaling.yaml")
