"""Calibrated constants and intervals, read from `config/calibration/`, where `triplepoint calibrate` writes them."""

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
"""Smallest factor on the time of kernels: below it GEMMs of the tables would come near to the peak of the GPU. Fits of
few rows of another kind ask for less now and then."""

_PARENTS: Mapping[Precision, Precision] = MappingProxyType({"nvfp4": "fp8", "fp8": "bf16"})
"""The wider number format whose GEMMs are the nearest measured ones."""

Positive = Annotated[float, Field(gt=0)]


class GpuFactor(Strict):
    """The usual factor on the time of kernels on a GPU type: of hours of training over the short runs of tables."""

    gpu: str
    """GPU type."""
    architecture: Architecture
    """Its architecture."""
    factor: Positive
    """Median over stacks. Unit: 1."""
    num_stacks: Annotated[int, Field(ge=1)]
    """Stacks it is the median of, versions of one counted as one."""
    kernel_sigma: Annotated[float, Field(ge=0)]
    """Relative standard deviation that kernel tables give the step of a usual row; the factor has taken it up."""


class StackConstant(Strict):
    """What was fitted to a version of a software stack."""

    stack: str
    """Framework and version, as the table spells it."""
    ratio: Positive
    """Time of its kernels over that usual on the GPU type. Unit: 1."""
    experts_ratio: Positive
    """The same of models with experts over others. Unit: 1."""
    host_s: Positive | None = None
    """Time the host takes to launch one operation, where that was fitted instead of the ratio. Unit: s."""
    num_rows: Annotated[int, Field(ge=1)]
    """Rows it was fitted to."""
    kinds: list[str]
    """Kinds of those rows, see `Kind`."""
    spread: Annotated[float, Field(ge=0)]
    """Standard deviation of log errors of its rows, each seen from other models. Unit: 1."""


class KindSpread(Strict):
    """How far rows of one kind on one stack scatter, all its versions together."""

    stack: str
    """Name of the stack; empty for all of them together."""
    kind: str
    """Kind of the rows, see `Kind`."""
    num_rows: Annotated[int, Field(ge=1)]
    """Rows."""
    spread: Annotated[float, Field(ge=0)]
    """Standard deviation of their log errors, each seen from other models. Unit: 1."""


class Widths(Strict):
    """Standard deviations, in log, of what is not known of a job unlike those calibrated; they add in squares.

    Each is the spread of mean errors of groups that were left out of the fit. Unit: 1.
    """

    row: Annotated[float, Field(ge=0)]
    """Of a row of a stack that is known."""
    version: Annotated[float, Field(ge=0)]
    """More where this version of a stack was not measured."""
    stack: Annotated[float, Field(ge=0)]
    """More where the stack was not."""
    gpu: Annotated[float, Field(ge=0)]
    """More on a GPU type, and architecture, without any stack that was."""
    stack_on_gpu: Annotated[float, Field(ge=0)]
    """More where the stack was measured on other GPU types only."""
    experts: Annotated[float, Field(ge=0)]
    """More where the stack was measured without experts only, or with them only."""
    precision: Annotated[float, Field(ge=0)]
    """More where the stack was not measured at the precision."""


class Kind(NamedTuple):
    """What kind of a job a row is; written as three words."""

    gpu: str
    precision: str
    experts: Literal["dense", "experts"]

    def __str__(self) -> str:
        return " ".join(self)


def kind_of(job: Job) -> Kind:
    """Return the kind of a job."""
    return Kind(job.gpu.name, job.precision, "experts" if job.model.moe else "dense")


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
    widths: Widths
    """What is not known of other jobs."""
    layouts: LayoutWidths
    """What is not known of one layout against another."""
    experts_ratio: Positive
    """Usual factor on the time of kernels of models with experts over others. Unit: 1."""
    gpus: list[GpuFactor]
    """By GPU type."""
    stacks: list[StackConstant]
    """By version of the stack."""
    kinds: list[KindSpread] = []
    """Scatter by kind of row, of stacks and of all of them together."""
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

    @cached_property
    def _known(self) -> Calibrated:
        return Calibrated.of([features_at(place) for place in self.fitted.places])

    @cached_property
    def _by_family(self) -> dict[str, list[StackConstant]]:
        families: dict[str, list[StackConstant]] = defaultdict(list)
        for one in self.fitted.stacks:
            families[find_stack(one.stack, self.config).family(one.stack)].append(one)
        return families

    @property
    def quantile(self) -> float:
        """Score that 90 % of new predictions stay below."""
        return self.fitted.quantile

    def constants(self, job: Job) -> Constants:
        """Return the constants of a job: the usual factor of its GPU type, times the ratio of its stack.

        The stack's is that of its version, or of the middle one of its versions, 1 where there is none. The host's time
        is that of the stack where its entry states one.
        """
        known, stated = self._constant(job), job.software.host_time
        usual = usual_factor(self.fitted.gpus, job.gpu.name, job.gpu.architecture)
        experts = (known or self.fitted).experts_ratio if job.model.moe else 1.0
        factor = usual * experts * (known.ratio if known else 1.0)
        constants = Constants(factor=max(factor, LEAST_FACTOR))
        if stated is not None:
            return replace(constants, host_s=stated.value, host_sigma=job.software.host_time_sigma)
        return replace(constants, host_s=known.host_s) if known and known.host_s else constants

    def scale(self, job: Job, uncertainty: Uncertainty) -> float:
        """Return the standard deviation of the log error of this job; larger away from what was calibrated.

        At a number format that its stack was not measured at, it is no less than at the next wider one.
        """
        scale, parent = self._scale(job, uncertainty), _PARENTS.get(job.precision)
        if parent is None or (job.family, str(kind_of(job))) in self._by_kind:
            return scale
        return max(scale, self.scale(replace(job, precision=parent), uncertainty))

    def _scale(self, job: Job, uncertainty: Uncertainty) -> float:
        own = self.spread(job) * intervals.widening(features_of(job), self._known)
        new = [getattr(self.fitted.widths, name) for name in self.new_of(job)]
        return math.hypot(own, *new, self._excess(job, uncertainty))

    def layout_width(self, one: Laid, other: Laid) -> float:
        """Return half the 90 % interval of the log error of the difference of two layouts of a training."""
        return self.fitted.layouts.quantile * self.fitted.layouts.scale(one, other, self.spread(one.job))

    def is_tied(self, first: Laid, other: Laid, slower: float) -> bool:
        """Return whether a layout is as fast as the first with a chance of 10 % or more; not with more recomputation.

        Args:
            first: The layout predicted fastest.
            other: Another one of the same training.
            slower: Logarithm of its predicted time over the first's.
        """
        widths = self.fitted.layouts
        width = widths.tie_quantile * widths.scale(first, other, self.spread(first.job))
        return slower <= width and not recomputes_more(first.job, other.job)

    def layout_scale(self, job: Job) -> float:
        """Return the standard deviation of the log error of one layout of a job, without what all of them share."""
        return self.fitted.layouts.of_one(self.spread(job))

    def spread(self, job: Job) -> float:
        """Return the scatter of rows like a job: of its kind on its stack; else of its kind, or its stack, or all.

        A GPU type without rows scatters as its relative.
        """
        kind = kind_of(job)
        if found := self._by_kind.get((job.family, str(kind))):
            return found
        known = self._constant(job)
        usual = known.spread if known else self.fitted.widths.row
        relative = kind._replace(gpu=job.gpu.kernels_of)
        return max(usual, self._by_kind.get(("", str(kind)), self._by_kind.get(("", str(relative)), 0.0)))

    @cached_property
    def _by_kind(self) -> dict[tuple[str, str], float]:
        return {(one.stack, one.kind): one.spread for one in self.fitted.kinds}

    def new_of(self, job: Job) -> list[str]:
        """Return what of a job was not calibrated: names of `Widths`."""
        gpus, kind, kin = self.fitted.gpus, kind_of(job), self._kin(job)
        new = [] if any(gpu.architecture == job.gpu.architecture for gpu in gpus) else ["gpu"]
        if not kin:
            is_fitted = bool(new) or any(gpu.gpu == job.gpu.name for gpu in gpus)
            return [*new, "stack", *([] if is_fitted else ["stack_on_gpu"])]
        known = self._constant(job)
        if known is None or known.stack != job.stack:
            new.append("version")
        kinds = [one.split() for stack in kin for one in stack.kinds]
        names = ("stack_on_gpu", "precision", "experts")
        return new + [name for place, name in enumerate(names) if all(one[place] != kind[place] for one in kinds)]

    def _excess(self, job: Job, uncertainty: Uncertainty) -> float:
        """Return what is not known of the host's time, and of tables more than of those behind the usual factors."""
        gpus = self.fitted.gpus
        usual = [gpu.kernel_sigma for gpu in gpus if gpu.gpu == job.gpu.name] or [gpu.kernel_sigma for gpu in gpus]
        taken_up = statistics.median(usual) if usual else 0.0
        tables = math.sqrt(max(uncertainty.tables_sigma**2 - taken_up**2, 0.0))
        return math.hypot(tables, uncertainty.host_sigma)

    def _kin(self, job: Job) -> list[StackConstant]:
        """Return what was fitted to versions of a job's stack, or of the one it is calibrated as."""
        kin = self._by_family.get(job.family)
        if kin is None and job.software.calibrated_as:
            kin = self._by_family.get(find_stack(job.software.calibrated_as, self.config).name)
        return kin or []

    def _constant(self, job: Job) -> StackConstant | None:
        """Return what was fitted to a job's stack: to its version, or to the middle one by rows; None if none was."""
        asked = (job.stack, job.software.calibrated_as)
        kin = sorted(self._kin(job), key=lambda one: one.ratio)
        exact = [one for name in asked for one in kin if one.stack == name]
        if exact or not kin:
            return exact[0] if exact else None
        rows = list(itertools.accumulate(one.num_rows for one in kin))
        return next(one for one, up_to in zip(kin, rows, strict=True) if 2 * up_to >= rows[-1])


def usual_factor(gpus: Sequence[GpuFactor], gpu: str, architecture: Architecture) -> float:
    """Return the factor of a GPU type: its own, the mean of its architecture where it has none, else that of all.

    Kernel tables are measured in short runs; under the heat and power of hours of training, clocks are lower.
    """
    factors = (
        [one.factor for one in gpus if one.gpu == gpu]
        or [one.factor for one in gpus if one.architecture == architecture]
        or [one.factor for one in gpus]
    )
    return statistics.geometric_mean(factors) if factors else 1.0


def features_of(job: Job) -> Features:
    """Return where a job stands."""
    return Features(
        job.stack,
        f"{job.gpu.name} {job.precision}",
        math.log2(job.num_gpus),
        math.log2(job.sequence_length),
        math.log2(job.model.num_parameters),
    )


def features_at(place: Place) -> Features:
    """Return where a calibrated configuration stands."""
    numbers = place.num_gpus, place.sequence_length, place.num_parameters
    return Features(place.stack, place.gpu, *map(math.log2, numbers))
