"""Calibrated constants and intervals of training: `config/calibration/fitted.yaml`, from `triplepoint calibrate`."""

import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from triplepoint.config.base import Strict
from triplepoint.config.gpu import Architecture
from triplepoint.config.point import Precision
from triplepoint.config.yaml_file import read
from triplepoint.simulate import intervals
from triplepoint.simulate.costs import Constants
from triplepoint.simulate.intervals import Calibrated, Features, Uncertainty
from triplepoint.simulate.job import Job
from triplepoint.simulate.layouts import Laid, LayoutWidths, recomputes_more
from triplepoint.simulate.stacks import find_stack

LEAST_FACTOR = 0.8
"""Smallest factor on kernel times: below it, GEMMs of the tables would come close to the peak of the GPU. Fits to few
rows of an unusual kind sometimes ask for less."""

_PARENTS: Mapping[Precision, Precision] = MappingProxyType({"nvfp4": "fp8", "fp8": "bf16"})
"""The next wider number format, whose GEMMs are the nearest measured ones."""

Positive = Annotated[float, Field(gt=0)]


class GpuFactor(Strict):
    """The usual factor on kernel times of a GPU type: hours of training over the short runs of kernel tables."""

    gpu: str
    """GPU type."""
    architecture: Architecture
    """Its architecture."""
    factor: Positive
    """Median over software stacks. Unit: 1."""
    num_stacks: Annotated[int, Field(ge=1)]
    """Number of stacks in the median; versions of one stack count once."""
    kernel_sigma: Annotated[float, Field(ge=0)]
    """Relative standard deviation of the step of a usual row due to kernel tables; the factor has absorbed it."""


class StackConstant(Strict):
    """Constants fitted to a version of a software stack."""

    stack: str
    """Framework and version, as spelled in the table."""
    ratio: Positive
    """Kernel time over the usual one on the GPU type. Unit: 1."""
    experts_ratio: Positive
    """Kernel time of models with experts over that of others. Unit: 1."""
    host_s: Positive | None = None
    """Time of the host to launch one operation, if that was fitted instead of the ratio. Unit: s."""
    num_rows: Annotated[int, Field(ge=1)]
    """Number of fitted rows."""
    kinds: list[str]
    """Kinds of the fitted rows, see `Kind`."""
    spread: Annotated[float, Field(ge=0)]
    """Standard deviation of the log errors of its rows, each predicted from other models. Unit: 1."""


class KindSpread(Strict):
    """Scatter of rows of one kind on one stack, all versions together."""

    stack: str
    """Name of the stack; empty for all stacks together."""
    kind: str
    """Kind of the rows, see `Kind`."""
    num_rows: Annotated[int, Field(ge=1)]
    """Number of rows."""
    spread: Annotated[float, Field(ge=0)]
    """Standard deviation of the log errors of the rows, each predicted from other models. Unit: 1."""


class Widths(Strict):
    """Standard deviations of the log error of jobs unlike the calibrated ones; they add in squares.

    Each is the spread of mean errors of groups that were left out of the fit. Unit: 1.
    """

    row: Annotated[float, Field(ge=0)]
    """Of a row of a calibrated stack."""
    version: Annotated[float, Field(ge=0)]
    """Additional width if this version of the stack was not measured."""
    stack: Annotated[float, Field(ge=0)]
    """Additional width if the stack was not measured."""
    gpu: Annotated[float, Field(ge=0)]
    """Additional width on a GPU architecture on which no stack was measured."""
    stack_on_gpu: Annotated[float, Field(ge=0)]
    """Additional width if the stack was measured on other GPU types only."""
    experts: Annotated[float, Field(ge=0)]
    """Additional width if the stack was measured without experts only, or with experts only."""
    precision: Annotated[float, Field(ge=0)]
    """Additional width if the stack was not measured at the precision."""


class Kind(NamedTuple):
    """Kind of a job or row, written as three words.

    Attributes:
        gpu: GPU type.
        precision: Number format.
        experts: Whether the model has experts.
    """

    gpu: str
    precision: str
    experts: Literal["dense", "experts"]

    def __str__(self) -> str:
        return " ".join(self)


def kind_of(job: Job) -> Kind:
    """Return the kind of a job."""
    return Kind(job.gpu.name, job.precision, "experts" if job.model.moe else "dense")


class Place(Strict):
    """A calibrated configuration, from which the distance of jobs is computed."""

    stack: str
    """Framework and version."""
    gpu: str
    """GPU type and precision."""
    num_gpus: Positive
    """World size."""
    sequence_length: Positive
    """Tokens per sequence."""
    num_parameters: Positive
    """Parameters of the model."""


class Fitted(Strict):
    """Content of `fitted.yaml`."""

    fitted_to: str
    """Table and selection of rows of the fit."""
    num_rows: Annotated[int, Field(ge=1)]
    """Number of these rows."""
    quantile: Positive
    """90 % of the errors, each predicted from other models, are within this many of their scales. Unit: 1."""
    widths: Widths
    """Uncertainty of jobs unlike the calibrated ones."""
    layouts: LayoutWidths
    """Uncertainty of one layout relative to another."""
    experts_ratio: Positive
    """Usual factor on kernel times of models with experts over others. Unit: 1."""
    gpus: list[GpuFactor]
    """Factors by GPU type."""
    stacks: list[StackConstant]
    """Constants by version of the stack."""
    kinds: list[KindSpread] = []
    """Scatter by kind of row, per stack and over all stacks."""
    places: list[Place]
    """Calibrated configurations."""


@dataclass(frozen=True)
class Calibration:
    """Calibrated constants of software stacks, and the uncertainty of predictions.

    Attributes:
        fitted: Content of `fitted.yaml`.
        config: Folder of the configuration.
    """

    fitted: Fitted
    config: Path

    @classmethod
    def load(cls, config: Path) -> "Calibration":
        """Return the calibration of a configuration folder. Raises `UserError` if it is missing or wrong."""
        return cls(read(Fitted, config / "calibration" / "fitted.yaml"), config)

    @cached_property
    def _calibrated(self) -> Calibrated:
        return Calibrated.of([features_at(place) for place in self.fitted.places])

    @cached_property
    def _by_family(self) -> dict[str, list[StackConstant]]:
        families: dict[str, list[StackConstant]] = defaultdict(list)
        for constant in self.fitted.stacks:
            families[find_stack(constant.stack, self.config).family(constant.stack)].append(constant)
        return families

    @property
    def quantile(self) -> float:
        """Half the width of a 90 % interval of the log error, over its scale. Unit: 1."""
        return self.fitted.quantile

    def constants(self, job: Job) -> Constants:
        """Return the constants of a job: the usual factor of its GPU type, times the ratio of its stack.

        The ratio is that of the stack's version, or of the median of its versions, or 1. The launch time of the host is
        the one that the stack's entry states, if any.
        """
        fitted, stated = self._constant(job), job.software.host_time
        usual = usual_factor(self.fitted.gpus, job.gpu.name, job.gpu.architecture)
        experts = (fitted or self.fitted).experts_ratio if job.model.moe else 1.0
        factor = usual * experts * (fitted.ratio if fitted else 1.0)
        constants = Constants(factor=max(factor, LEAST_FACTOR))
        if stated is not None:
            return replace(constants, host_s=stated.value, host_sigma=job.software.host_time_sigma)
        return replace(constants, host_s=fitted.host_s) if fitted and fitted.host_s else constants

    def scale(self, job: Job, uncertainty: Uncertainty) -> float:
        """Return the standard deviation of the log error of a job; it is larger far from calibrated configurations.

        At a number format at which its stack was not measured, it is at least that at the next wider one.
        """
        scale, parent = self._scale(job, uncertainty), _PARENTS.get(job.precision)
        if parent is None or (job.family, str(kind_of(job))) in self._by_kind:
            return scale
        return max(scale, self.scale(replace(job, precision=parent), uncertainty))

    def _scale(self, job: Job, uncertainty: Uncertainty) -> float:
        spread = self.spread(job) * intervals.widening(features_of(job), self._calibrated)
        widths = [getattr(self.fitted.widths, name) for name in self.uncalibrated(job)]
        return math.hypot(spread, *widths, self._excess(job, uncertainty))

    def layout_width(self, first: Laid, second: Laid) -> float:
        """Return half the 90 % interval of the log error of the difference of two layouts of a training."""
        return self.fitted.layouts.quantile * self.fitted.layouts.scale(first, second, self.spread(first.job))

    def is_tied(self, first: Laid, other: Laid, slower: float) -> bool:
        """Return whether a layout is as fast as the first with a probability of 10 % or more.

        Never one that recomputes more.

        Args:
            first: The layout predicted fastest.
            other: Another layout of the same training.
            slower: Logarithm of its predicted time over the first's.
        """
        widths = self.fitted.layouts
        width = widths.tie_quantile * widths.scale(first, other, self.spread(first.job))
        return slower <= width and not recomputes_more(first.job, other.job)

    def layout_scale(self, job: Job) -> float:
        """Return the standard deviation of the log error of a job's layout, without the error common to all layouts."""
        return self.fitted.layouts.scale_of_single(self.spread(job))

    def spread(self, job: Job) -> float:
        """Return the scatter of rows like a job: of its kind on its stack; else the larger one of its kind and stack.

        A GPU type without rows has the scatter of the type whose kernels it has.
        """
        kind = kind_of(job)
        if spread := self._by_kind.get((job.family, str(kind))):
            return spread
        fitted = self._constant(job)
        usual = fitted.spread if fitted else self.fitted.widths.row
        if all(gpu.gpu != job.gpu.name for gpu in self.fitted.gpus):
            kind = kind._replace(gpu=job.gpu.kernels_of)
        return max(usual, self._by_kind.get(("", str(kind)), 0.0))

    @cached_property
    def _by_kind(self) -> dict[tuple[str, str], float]:
        return {(kind.stack, kind.kind): kind.spread for kind in self.fitted.kinds}

    def uncalibrated(self, job: Job) -> list[str]:
        """Return the names of `Widths` that apply to a job, since it is unlike the calibrated ones."""
        gpus, kind, versions = self.fitted.gpus, kind_of(job), self._versions(job)
        names = [] if any(gpu.architecture == job.gpu.architecture for gpu in gpus) else ["gpu"]
        if not versions:
            is_gpu_covered = bool(names) or any(gpu.gpu == job.gpu.name for gpu in gpus)
            return [*names, "stack", *([] if is_gpu_covered else ["stack_on_gpu"])]
        fitted = self._constant(job)
        if fitted is None or fitted.stack != job.stack:
            names.append("version")
        measured = [words.split() for version in versions for words in version.kinds]
        for position, name in enumerate(("stack_on_gpu", "precision", "experts")):
            if all(words[position] != kind[position] for words in measured):
                names.append(name)
        return names

    def _excess(self, job: Job, uncertainty: Uncertainty) -> float:
        """Return the uncertainty due to launch time, and to tables beyond the part that the usual factor absorbed."""
        gpus = self.fitted.gpus
        usual = [gpu.kernel_sigma for gpu in gpus if gpu.gpu == job.gpu.name] or [gpu.kernel_sigma for gpu in gpus]
        absorbed = statistics.median(usual) if usual else 0.0
        tables = math.sqrt(max(uncertainty.tables_sigma**2 - absorbed**2, 0.0))
        return math.hypot(tables, uncertainty.host_sigma)

    def _versions(self, job: Job) -> list[StackConstant]:
        """Return the constants of all versions of a job's stack, or of the stack that it is calibrated as."""
        versions = self._by_family.get(job.family)
        if versions is None and job.software.calibrated_as:
            versions = self._by_family.get(find_stack(job.software.calibrated_as, self.config).name)
        return versions or []

    def _constant(self, job: Job) -> StackConstant | None:
        """Return the constants of a job's stack: of its version, or of the median version by rows; None without any."""
        names = (job.stack, job.software.calibrated_as)
        versions = sorted(self._versions(job), key=lambda version: version.ratio)
        exact = [version for name in names for version in versions if version.stack == name]
        if exact or not versions:
            return exact[0] if exact else None
        num_rows = list(itertools.accumulate(version.num_rows for version in versions))
        return next(version for version, up_to in zip(versions, num_rows, strict=True) if 2 * up_to >= num_rows[-1])


def usual_factor(gpus: Sequence[GpuFactor], gpu: str, architecture: Architecture) -> float:
    """Return the factor of a GPU type: its own, else the mean of its architecture, else that of all.

    Kernel tables are measured in short runs. In hours of training, heat and power lower the clocks.

    Args:
        gpus: Fitted factors.
        gpu: Name of the GPU type.
        architecture: Its architecture.
    """
    factors = (
        [known.factor for known in gpus if known.gpu == gpu]
        or [known.factor for known in gpus if known.architecture == architecture]
        or [known.factor for known in gpus]
    )
    return statistics.geometric_mean(factors) if factors else 1.0


def features_of(job: Job) -> Features:
    """Return the position of a job."""
    return Features(
        job.stack,
        f"{job.gpu.name} {job.precision}",
        math.log2(job.num_gpus),
        math.log2(job.sequence_length),
        math.log2(job.model.num_parameters),
    )


def features_at(place: Place) -> Features:
    """Return the position of a calibrated configuration."""
    numbers = place.num_gpus, place.sequence_length, place.num_parameters
    return Features(place.stack, place.gpu, *map(math.log2, numbers))
