"""Fit of a GPU type's kernels to measured times, for `triplepoint calibrate --kernels`."""

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from triplepoint.calibrate.protocol import positive, rounded, soft, to_yaml
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.gpu import GpuConfig
from triplepoint.config.yaml_file import read_measured
from triplepoint.errors import UserError
from triplepoint.simulate.kernels.formula import Gemm, Machine, attention_s, gemm_s
from triplepoint.simulate.kernels.parameters import (
    AttentionKernel,
    AttentionPass,
    Fit,
    GemmParameters,
    KernelConfig,
    MemoryParameters,
    read_kernels,
)
from triplepoint.simulate.operations import Kernel
from triplepoint.text import percent
from triplepoint.units import US_PER_S

Array = npt.NDArray[np.float64]

FOLDS = 5
"""Parts of the shapes, each held out in turn."""
_STEP = 1e-3
"""Step of finite differences in the logarithm of a parameter, wider than the steps that tiles and waves cause."""
_PRIOR = 0.5
"""Weight of the prior: residuals per unit of a parameter's logarithm."""
_NOISE = 0.04
"""Relative error above which a row counts linearly. Measurements of one shape by different people differ so much."""


@dataclass(frozen=True)
class MeasuredKernels:
    """Kernels measured on one GPU type.

    Attributes:
        gpu: The GPU type.
        rows: New rows, one for each kernel and library, without the gap to the next kernel.
        before: Rows of `config/kernels/measured.csv` on the same GPU type, library and precision.
    """

    gpu: GpuConfig
    rows: list["Measurement"]
    before: list["Measurement"]

    @property
    def precisions(self) -> list[str]:
        """Precisions of the new rows."""
        return sorted({row.kernel.precision for row in self.rows})


@dataclass(frozen=True)
class KernelFit:
    """Kernels fitted to measurements.

    Attributes:
        config: Kernels of the GPU type.
        precisions: Precisions that were measured.
    """

    config: KernelConfig
    precisions: list[str]


@dataclass(frozen=True)
class KernelTimes:
    """The procedure: see `calibrate.protocol`.

    Attributes:
        table: `kernels.csv` of `triplepoint doctor`.
        config: Folder of the configuration.
    """

    table: Path
    config: Path

    def read(self) -> MeasuredKernels:
        """Return the median over the measured GPUs, and earlier rows of that GPU type and library.

        Raises:
            UserError: If the table is missing or not of one GPU type in the configuration.
        """
        if not self.table.is_file():
            raise UserError(f"{self.table}: no such file; write one with 'triplepoint doctor --cluster NAME --measure'")
        rows = _medians(read_measurements(self.table))
        names = sorted({row.gpu for row in rows})
        if len(names) != 1 or names == ["cpu"]:
            raise UserError(
                f"{self.table}: measured on {', '.join(names) or 'nothing'}; expected one GPU type of config/gpus"
            )
        gpu = Catalogue(self.config).gpu(names[0], self.table)
        libraries = {row.library for row in rows}
        before = [
            row
            for row in read_measurements(self.config / "kernels" / "measured.csv")
            if row.gpu == gpu.name and row.library in libraries and row.kernel.precision == rows[0].kernel.precision
        ]
        gap_s = read_kernels(gpu, self.config).launch_gap.value / US_PER_S
        # The doctor times back-to-back launches, so each time includes the gap to the next launch.
        return MeasuredKernels(gpu, [replace(row, time_s=max(row.time_s - gap_s, gap_s)) for row in rows], before)

    def fit(self, measured: MeasuredKernels) -> KernelFit:
        """Return the parameters, with the errors on held-out shapes."""
        rows, before = measured.rows, measured.before
        source = f"{len(rows)} rows of {rows[0].source}" + (f", {len(before)} of measured.csv" if before else "")
        known = read_kernels(measured.gpu, self.config)
        return KernelFit(fit_kernels([*before, *rows], measured.gpu, known, source), measured.precisions)

    def report(self, fitted: KernelFit) -> list[str]:
        """Return a line of text on each precision, with the error on held-out shapes."""
        fits = {precision: fitted.config.gemm[precision].fit for precision in fitted.precisions}
        return [
            f"{self._path(fitted)}: {precision} GEMMs fitted to {fit.source}; median error of shapes held out "
            f"{percent(fit.held_out_median)}"
            for precision, fit in fits.items()
            if fit.held_out_median is not None
        ]

    def files(self, fitted: KernelFit) -> dict[Path, str]:
        """Return the file of the GPU type."""
        return {self._path(fitted): to_yaml(fitted.config.model_dump(mode="json", exclude_defaults=True))}

    def _path(self, fitted: KernelFit) -> Path:
        return self.config / "kernels" / f"{fitted.config.name}.yaml"


def _medians(rows: Sequence["Measurement"]) -> list["Measurement"]:
    """Return one row for each kernel, GPU type and library: the median over GPUs."""
    groups: dict[object, list[Measurement]] = defaultdict(list)
    for row in rows:
        groups[row.gpu, row.library, row.kernel].append(row)
    return [replace(group[0], time_s=statistics.median(row.time_s for row in group)) for group in groups.values()]


@dataclass(frozen=True)
class Measurement:
    """One measured kernel.

    Attributes:
        gpu: GPU type.
        library: Library with the kernel, or the implementation of attention.
        kernel: The kernel.
        time_s: Duration without the gap to the next kernel. Unit: s.
        source: Short name of the source.
    """

    gpu: str
    library: str
    kernel: Kernel
    time_s: float
    source: str

    @property
    def family(self) -> tuple[int, ...]:
        """Group of rows that are held out together: a shape with all its transposes, from all sources."""
        return tuple(sorted(self.kernel.shape)) or (int(self.kernel.num_bytes),)


def read_measurements(path: Path) -> list[Measurement]:
    """Read the rows of a table of measured kernels.

    Raises:
        UserError: If the table is missing or lacks a column, or a row has no number where one is due.
    """
    measured = []
    for line, row in read_measured(path, _COLUMNS):
        try:
            measured.append(_measurement(row))
        except ValueError as error:
            raise UserError(f"{path}:{line}: {error}") from None
    return measured


_COLUMNS = (
    "gpu", "library", "cls", "kind", "flops", "num_bytes", "shape", "precision", "is_causal", "time_us", "source",
)  # fmt: skip


def _measurement(row: dict[str, str]) -> Measurement:
    shape = tuple(int(part) for part in row["shape"].split("x") if part)
    kernel = Kernel(
        row["cls"], row["kind"], float(row["flops"]), float(row["num_bytes"]), shape, row["precision"],
        row["is_causal"] == "1",
    )  # fmt: skip
    return Measurement(row["gpu"], row["library"], kernel, positive(row["time_us"]) * 1e-6, row["source"])


@dataclass(frozen=True)
class Space:
    """Positive parameters of a fit, which searches their logarithms.

    Attributes:
        names: Names of the parameters.
        start: Values at which the search starts; also the means of the priors.
        least: Lower bounds.
        most: Upper bounds.
    """

    names: tuple[str, ...]
    start: tuple[float, ...]
    least: tuple[float, ...]
    most: tuple[float, ...]


GEMM = Space(
    ("efficiency", "tile_penalty", "tile_overhead_us", "wave_quantisation", "overlap_exponent", "memory_efficiency",
     "output_cost", "fixed_us", "split_k_efficiency"),
    (0.8, 5.0, 0.5, 0.5, 3.0, 0.85, 0.3, 4.0, 1.0),
    (0.2, 0.1, 0.01, 0.05, 1.5, 0.75, 0.01, 3.0, 0.3),
    (1.0, 100.0, 20.0, 1.0, 6.0, 0.98, 1.0, 12.0, 4.0),
)  # fmt: skip

_PASS = ("efficiency", "softmax_extent", "tile_overhead", "tail")
ATTENTION = Space(
    tuple(f"{direction}_{name}" for direction in ("forward", "backward") for name in _PASS),
    (0.8, 30.0, 1.0, 0.5) * 2,
    (0.1, 0.5, 0.05, 0.05) * 2,
    (1.0, 200.0, 20.0, 1.0) * 2,
)
MEMORY = Space(
    ("efficiency", "fixed_us", "ramp_us", "ramp_bytes"),
    (0.9, 4.0, 13.0, 40e6),
    (0.1, 0.5, 0.1, 1e6),
    (1.0, 30.0, 100.0, 1e9),
)

Predict = Callable[[dict[str, float], Measurement], float]
"""Returns the time of a kernel with given parameters. Unit: s."""


def fit_gemm(rows: Sequence[Measurement], machine: Machine, source: str) -> GemmParameters:
    """Fit the GEMM parameters of one precision.

    Args:
        rows: Measured GEMMs of that precision.
        machine: Peak rates of the GPU type.
        source: Source of the rows.
    """
    unknown = Fit(source=source, rows=0, sigma=1)

    def predict(values: dict[str, float], row: Measurement) -> float:
        return gemm_s(_gemm_of(row.kernel), GemmParameters(**values, fit=unknown), machine)

    values, fit = _fit(GEMM, predict, rows, source)
    return GemmParameters(**values, fit=fit)


def fit_attention(rows: Sequence[Measurement], machine: Machine, fixed_us: float, source: str) -> AttentionKernel:
    """Fit the parameters of one implementation of attention.

    Args:
        rows: Measured kernels of that implementation. Kind `both` is a forward and a backward pass together.
        machine: Peak rates of the GPU type.
        fixed_us: Fixed time of a kernel. Unit: us.
        source: Source of the rows.
    """

    def predict(values: dict[str, float], row: Measurement) -> float:
        total_s = 0.0
        for direction in ("forward", "backward") if row.kernel.kind == "both" else (row.kernel.kind,):
            total_s += attention_s(row.kernel.shape, row.kernel.is_causal, direction, _pass(values, direction), machine)
            total_s += fixed_us * 1e-6
        return total_s

    values, fit = _fit(ATTENTION, predict, rows, source)
    return AttentionKernel(forward=_pass(values, "forward"), backward=_pass(values, "backward"), fit=fit)


def fit_memory(rows: Sequence[Measurement], machine: Machine, source: str) -> MemoryParameters:
    """Fit the rate and ramp-up of memory-bound kernels to kernels with almost no arithmetic."""

    def predict(values: dict[str, float], row: Measurement) -> float:
        ramped = replace(machine, ramp_us=values["ramp_us"], ramp_bytes=values["ramp_bytes"])
        return ramped.memory_s(row.kernel.num_bytes, values["efficiency"]) + values["fixed_us"] * 1e-6

    values, fit = _fit(MEMORY, predict, rows, source)
    return MemoryParameters.model_validate({**values, "fit": fit})


def fit_kernels(rows: Sequence[Measurement], gpu: GpuConfig, known: KernelConfig, source: str) -> KernelConfig:
    """Fit the kernels of a GPU type where there are rows, and keep the known parameters elsewhere.

    Args:
        rows: Kernels measured on that GPU type; the library of attention is its implementation. GEMMs with one row
            (m = 1) and kernels without a shape determine the memory rate.
        gpu: GPU type, with its peak rates.
        known: Kernels before the fit.
        source: Source of the rows.
    """
    peaks = {"bf16": gpu.peak_bf16_flops, "fp8": gpu.peak_fp8_flops, "fp32": gpu.peak_fp32_flops}
    machines = {
        precision: Machine(peak.value, gpu.memory_bandwidth.value, int(known.num_sms.value))
        for precision, peak in peaks.items()
        if peak is not None
    }
    gemm, attention, memory = dict(known.gemm), dict(known.attention), known.memory
    gemms = [row for row in rows if row.kernel.cls == "gemm" and len(row.kernel.shape) == 3]
    if streams := [row for row in rows if not row.kernel.shape or (row in gemms and row.kernel.shape[0] == 1)]:
        memory = fit_memory(streams, machines["bf16"], source).model_copy(update={"classes": memory.classes})
    ramped = {
        precision: replace(machine, ramp_us=memory.ramp_us, ramp_bytes=memory.ramp_bytes)
        for precision, machine in machines.items()
    }
    for precision in sorted({row.kernel.precision for row in gemms} & set(machines)):
        selected = [row for row in gemms if row.kernel.precision == precision]
        gemm[precision] = fit_gemm(selected, ramped[precision], source)
        if precision in known.gemm:
            kept = {"batched_efficiency": known.gemm[precision].batched_efficiency}
            gemm[precision] = gemm[precision].model_copy(update=kept)
    attentions = [row for row in rows if row.kernel.cls == "attention"]
    for library in sorted({row.library for row in attentions}):
        selected = [row for row in attentions if row.library == library]
        attention[library] = fit_attention(selected, ramped["bf16"], memory.fixed_us, source)
    return known.model_copy(update={"gemm": gemm, "attention": attention, "memory": memory})


def _gemm_of(kernel: Kernel) -> Gemm:
    groups, m, n, k = kernel.shape if len(kernel.shape) == 4 else (1, *kernel.shape)
    element = {"fp8": 1, "fp32": 4}.get(kernel.precision, 2)
    output = max(0.0, kernel.num_bytes - groups * (m * k + k * n) * element)
    return Gemm(groups, m, n, k, kernel.num_bytes, output)


def _pass(values: dict[str, float], direction: str) -> AttentionPass:
    return AttentionPass(**{name: values[f"{direction}_{name}"] for name in _PASS})


def _fit(space: Space, predict: Predict, rows: Sequence[Measurement], source: str) -> tuple[dict[str, float], Fit]:
    """Return the fitted parameters by name, and a summary with the held-out errors."""
    errors = _held_out_errors(space, predict, rows)
    relative = np.abs(np.expm1(errors))
    flops = [row.kernel.flops for row in rows]
    fit = Fit(
        source=source,
        rows=len(rows),
        sigma=rounded(float(np.std(errors)), 4),
        held_out_median=rounded(float(np.median(relative)), 4),
        held_out_p90=rounded(float(np.quantile(relative, 0.9)), 4),
        flops_range=(min(flops), max(flops)),
    )
    return {name: rounded(value, 4) for name, value in _search(space, predict, rows).items()}, fit


def _held_out_errors(space: Space, predict: Predict, rows: Sequence[Measurement]) -> Array:
    """Return the log error of every row, by a fit without its family; shape (num_rows,)."""
    families = sorted({row.family for row in rows})
    np.random.default_rng(0).shuffle(families)
    fold_of = {tuple(family): number % FOLDS for number, family in enumerate(families)}
    errors = np.zeros(len(rows))
    for fold in range(min(FOLDS, len(families))):
        values = _search(space, predict, [row for row in rows if fold_of[row.family] != fold])
        for index, row in enumerate(rows):
            if fold_of[row.family] == fold:
                errors[index] = math.log(predict(values, row) / row.time_s)
    return errors


def _search(space: Space, predict: Predict, rows: Sequence[Measurement]) -> dict[str, float]:
    """Return the parameters that fit best, by least squares of log errors with outliers discounted."""
    from scipy.optimize import approx_fprime, least_squares

    start = np.log(space.start)
    least, most = np.log(space.least), np.log(space.most)

    def residuals(at: Array) -> Array:
        values = dict(zip(space.names, np.exp(at).tolist(), strict=True))
        errors = [math.log(predict(values, row) / row.time_s) / _NOISE for row in rows]
        # The prior keeps parameters that the rows do not determine at their start.
        return np.concatenate([soft(np.array(errors)), _PRIOR * (at - start)])

    def slopes(at: Array) -> Array:
        # Downwards, because the parameters' models reject values above their upper bounds.
        return np.asarray(approx_fprime(at, residuals, -_STEP))

    best = least_squares(residuals, start, slopes, bounds=(least, most), ftol=1e-6)
    return dict(zip(space.names, np.exp(best.x).tolist(), strict=True))
