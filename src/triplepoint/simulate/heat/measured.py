"""Calibrates power and heat of a GPU type with a recording of one."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from triplepoint.config.gpu import GpuConfig
from triplepoint.errors import UserError
from triplepoint.simulate.heat.config import CoolingConfig, HeatConfig
from triplepoint.simulate.heat.fit import HeatFit, StepLog, delayed, fit_heat, simulate_log
from triplepoint.simulate.heat.recorded import read_kernels, read_samples, read_windows
from triplepoint.simulate.power.config import PowerConfig
from triplepoint.simulate.power.fit import KernelTable, PowerFit, fit_power
from triplepoint.simulate.power.model import Activity, Float, clock_at_limit, rate_at
from triplepoint.simulate.power.segments import Peaks, kernel_activity
from triplepoint.simulate.power.work import FP8_ENERGY, flops_beside
from triplepoint.units import NS_PER_S

_SETTLING_NS = NS_PER_S * 3 // 10
"""Start of a kernel's run that is left out: clocks settle, and sensors still show what was before."""
_CAPPED = 0.97
"""Share of the power limit from which a kernel counts as held by it."""
_RESTING = ("idle", "idle_without_context")
_STEP = ("before_heating", "heating", "cooling")
_ON_TENSOR = ("gemm", "attention", "grouped")


@dataclass(frozen=True, eq=False)
class Calibrated:
    """What a recording says of a GPU type.

    Attributes:
        power: Fitted to kernels, with errors of kernels left out.
        heat: Fitted to heating and cooling.
        sustained: By capped kernel, its FLOP/s from the power limit over the measured ones less 1; each by a fit that
            has not seen its shape.
        energy_error: Modelled over measured energy of the whole grid less 1, each kernel by a fit without it.
        cooling_rmse_k: Error of the temperature after the load, by a fit to what came before.
    """

    power: PowerFit
    heat: HeatFit
    sustained: dict[str, float]
    energy_error: float
    cooling_rmse_k: float


def read_kernel_table(folder: Path, gpu: GpuConfig) -> KernelTable:
    """Return the kernels of a recording, and its rest, with mean power, clock and temperature.

    Raises:
        UserError: If a file is missing or damaged, or no kernel has samples.
    """
    samples = read_samples(folder, "quick", gpu.package_power_limit.value)
    rows = read_kernels(folder)
    rest = [row for row in read_windows(folder) if row["stage"] in _RESTING]
    names, activities, means = [], [], []
    for row in rows + rest:
        mean = _means(samples, row["t_start_ns"] + _SETTLING_NS, row["t_end_ns"])
        if mean is None:
            continue
        means.append(mean)
        # Operands are no part of the name: zeros and random numbers are held out together.
        names.append(f"{row['family']} {row['dtype']} {row['shape']}" if "family" in row else "rest")
        activities.append(_activity(row, gpu) if "family" in row else Activity(0.0))
    if not means:
        raise UserError(f"{folder}: no samples fall into the kernels' runs; record both with the same clock")
    columns = {part.name: np.array([float(getattr(one, part.name)) for one in activities]) for part in fields(Activity)}
    power, clock, temp = (np.array(column) for column in zip(*means, strict=True))
    return KernelTable(tuple(names), Activity(**columns), clock, temp, power)


def read_step_log(folder: Path, gpu: GpuConfig) -> StepLog:
    """Return heating and cooling of a recording.

    Raises:
        UserError: If a file or a stage is missing, or there are too few samples.
    """
    windows = {row["stage"]: row for row in read_windows(folder)}
    if missing := [stage for stage in _STEP if stage not in windows]:
        raise UserError(f"{folder / 'windows.parquet'}: no stage {', '.join(missing)}, which fitting heat needs")
    samples = read_samples(folder, "default", gpu.package_power_limit.value)
    t_ns = samples["t_ns"]
    inside = (t_ns >= windows[_STEP[0]]["t_start_ns"]) & (t_ns <= windows[_STEP[-1]]["t_end_ns"])
    if inside.sum() < 10:
        raise UserError(
            f"{folder / 'samples.parquet'}: {inside.sum()} samples of heating and cooling; expected minutes"
        )
    t_s = (t_ns[inside] - t_ns[inside][0]) / NS_PER_S
    return StepLog(t_s, samples["gpu_power_w"][inside], samples["gpu_temp_c"][inside])


def calibrate(folder: Path, gpu: GpuConfig, power: PowerConfig, heat: HeatConfig) -> Calibrated:
    """Return power and cooling fitted to a recording, with errors on what was left out.

    Args:
        folder: Recording.
        gpu: Of the GPU type, for its peaks.
        power: What is known so far.
        heat: What is known so far.
    """
    table, source = read_kernel_table(folder, gpu), f"recording {folder}"
    found = fit_power(table, power, source)
    weight = table.power_w / table.power_w.sum()
    log, known = read_step_log(folder, gpu), heat.cooling["air"]
    return Calibrated(
        power=found,
        heat=fit_heat([log], known, source),
        sustained=sustained_error(table, found),
        energy_error=float(weight @ found.held_out_error),
        cooling_rmse_k=_cooling_rmse_k(log, known, source),
    )


def _cooling_rmse_k(log: StepLog, known: CoolingConfig, source: str) -> float:
    """Return the error of the part of a log after its load, by a fit that has not seen it."""
    high = log.power_w > (log.power_w.min() + log.power_w.max()) / 2
    seen = slice(0, int(np.flatnonzero(high)[-1]) + 1)
    blind = fit_heat([StepLog(log.t_s[seen], log.power_w[seen], log.temp_c[seen])], known, source)
    away = log.temp_c - simulate_log(delayed(log, blind.delay_s), blind.cooling, blind.inlet_c[0])
    return float(np.sqrt((away[seen.stop :] ** 2).mean()))


def sustained_error(table: KernelTable, found: PowerFit) -> dict[str, float]:
    """Return for kernels held by the power limit their modelled over measured speed less 1, by the blind fits."""
    limit, top = found.config.power_limit.value, found.config.clocks.max_clock.value
    errors = {}
    for row in np.flatnonzero((table.power_w > _CAPPED * limit) & (table.clock_mhz < 0.99 * top)):
        one = table.pick(np.array([row]))
        measured = rate_at(one.clock_mhz / top, one.activity.clock_bound)
        # The kernel at the highest clock, where it would take more than the limit.
        free = one.activity.at_rate(1.0 / measured)
        clock = clock_at_limit(found.blind[table.kernel[row]], free, limit, one.temp_c)
        operands = "random" if np.all(one.activity.randomness) else "zero"
        speed = rate_at(clock / top, one.activity.clock_bound) / measured
        errors[f"{table.kernel[row]} {operands}"] = float(speed[0] - 1.0)
    return errors


def _activity(row: dict[str, Any], gpu: GpuConfig) -> Activity:
    tensor = {"fp8": gpu.peak_fp8_flops, "tf32": None}.get(row["dtype"], gpu.peak_bf16_flops)
    # TF32 has half the rate of bf16 (NVIDIA's data sheets of A100 to H200).
    tensor_flops = tensor.value if tensor else gpu.peak_bf16_flops.value / 2
    is_tensor = row["family"] in _ON_TENSOR and row["dtype"] != "fp32"
    peaks = Peaks(tensor_flops, gpu.peak_fp32_flops.value, gpu.memory_bandwidth.value, 1.0)
    randomness = 1.0 if row["operands"] == "random" else 0.0
    found = kernel_activity(float(is_tensor), row["flops"], row["min_bytes"], row["call_s"], peaks, randomness)
    beside = flops_beside(row["family"], row["flops"], row["min_bytes"]) / (row["call_s"] * peaks.sm_flops)
    # By energy, as simulated kernels are counted.
    energy = 2 * FP8_ENERGY if row["dtype"] == "fp8" else 1.0
    return replace(found, tensor=found.tensor * energy, sm=np.minimum(found.sm + beside, 1.0))


def _means(samples: dict[str, Float], start_ns: int, end_ns: int) -> tuple[float, float, float] | None:
    inside = (samples["t_ns"] >= start_ns) & (samples["t_ns"] <= end_ns)
    if inside.sum() < 3:
        return None
    power, clock, temp = (samples[name][inside].mean() for name in ("gpu_power_w", "sm_clock_mhz", "gpu_temp_c"))
    return float(power), float(clock), float(temp)
