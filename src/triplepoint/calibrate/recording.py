"""Recording of one GPU that `triplepoint characterise --record` wrote: reading and checking its tables."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from triplepoint.calibrate.power import KernelTable, StepLog
from triplepoint.config.gpu import GpuConfig
from triplepoint.errors import UserError
from triplepoint.simulate.power.gpu import Activity, Float, Number
from triplepoint.simulate.power.work import FP8_ENERGY, OVERLAP_EXPONENT, uncounted_flops
from triplepoint.tables.schema import Column, Table, amount, duration, text
from triplepoint.units import NS_PER_S

_SPAN = (duration("t_start_ns", "begin"), duration("t_end_ns", "end"))
_WINDOWS = Table("windows", "a stage of the recording", (text("stage", "name"), *_SPAN))
_KERNELS = Table(
    "kernels",
    "a kernel, run again and again",
    (
        *(text(name, "what was run") for name in ("family", "dtype", "shape", "operands")),
        amount("flops", "FLOP", "of a call", nullable=False),
        amount("min_bytes", "byte", "of a call", nullable=False),
        amount("call_s", "s", "duration of a call", nullable=False),
        *_SPAN,
    ),
)
_SAMPLES = Table(
    "samples",
    "what the sensors of a GPU showed",
    (
        duration("t_ns", "when"),
        Column("gpu_power_w", "float", "W", "power", nullable=True, minimum=0.0),
        Column("gpu_temp_c", "float", "degC", "die temperature", nullable=True, minimum=-20.0, maximum=150.0),
        Column("sm_clock_mhz", "float", "MHz", "clock", nullable=True, minimum=0.0),
    ),
)
_MOST_OVER_LIMIT = 1.5
"""Power over the power limit above which the samples have another unit or come from another GPU type. Real excursions
stay well below."""
_SETTLING_NS = NS_PER_S * 3 // 10
"""Start of a kernel's run that means leave out: clocks settle, and sensors still show the load before. Unit: ns."""
_IDLE_STAGES = ("idle", "idle_without_context")
_STEP_STAGES = ("before_heating", "heating", "cooling")
_TENSOR_FAMILIES = ("gemm", "attention", "grouped")


@dataclass(frozen=True)
class Peaks:
    """Peak rates of one device, as in `config/gpus/`.

    Attributes:
        tensor_flops: Rate of GEMMs at the kernel's precision. Unit: FLOP/s.
        sm_flops: Rate of all other arithmetic. Unit: FLOP/s.
        hbm: Memory bandwidth. Unit: byte/s.
    """

    tensor_flops: float
    sm_flops: float
    hbm: float


def kernel_activity(
    is_tensor: Number, flops: Number, num_bytes: Number, duration_s: Number, peaks: Peaks, randomness: Number = 1.0
) -> Activity:
    """Return the activity of kernels on the units of a device.

    Args:
        is_tensor: 1 for kernels on tensor cores (GEMM, attention), else 0.
        flops: Arithmetic of each kernel. Unit: FLOP.
        num_bytes: Bytes that each kernel reads from and writes to memory. Unit: byte.
        duration_s: Duration at the highest clock. Unit: s.
        peaks: Peak rates of the device.
        randomness: Randomness of the operands, 0 to 1.
    """
    on_tensor = np.asarray(is_tensor, dtype=float)
    tensor = on_tensor * flops / (np.asarray(duration_s) * peaks.tensor_flops)
    sm = (1.0 - on_tensor) * flops / (np.asarray(duration_s) * peaks.sm_flops)
    hbm = np.minimum(np.asarray(num_bytes) / (np.asarray(duration_s) * peaks.hbm), 1.0)
    core = np.maximum(tensor, sm) ** OVERLAP_EXPONENT
    # Dependence of time on the clock where core and memory overlap in a p-norm. A kernel with neither is bound by
    # latency, which may not depend on memory but does on the clock.
    clock_bound = core / np.maximum(core + hbm**OVERLAP_EXPONENT, 1e-30)
    return Activity(np.ones_like(tensor), tensor, sm, hbm, 0.0 * tensor, np.broadcast_to(randomness, tensor.shape),
                    clock_bound)  # fmt: skip


def read_kernel_table(folder: Path, gpu: GpuConfig) -> KernelTable:
    """Return the kernels and the idle stages of a recording, with mean power, clock and temperature.

    Raises:
        UserError: If a file is missing or damaged, or no kernel has samples.
    """
    samples = read_samples(folder, "quick", gpu.package_power_limit.value)
    rows = read_kernels(folder)
    idle = [row for row in read_windows(folder) if row["stage"] in _IDLE_STAGES]
    names, activities, means = [], [], []
    for row in rows + idle:
        mean = _means(samples, row["t_start_ns"] + _SETTLING_NS, row["t_end_ns"])
        if mean is None:
            continue
        means.append(mean)
        # Without operands in the name, zero and random operands of a kernel are held out together.
        names.append(f"{row['family']} {row['dtype']} {row['shape']}" if "family" in row else "rest")
        activities.append(_activity(row, gpu) if "family" in row else Activity(0.0))
    if not means:
        raise UserError(f"{folder}: no samples fall into the kernels' runs; record both with the same clock")
    columns = {
        part.name: np.array([float(getattr(activity, part.name)) for activity in activities])
        for part in fields(Activity)
    }
    power, clock, temp = (np.array(column) for column in zip(*means, strict=True))
    return KernelTable(tuple(names), Activity(**columns), clock, temp, power)


def read_step_log(folder: Path, gpu: GpuConfig) -> StepLog:
    """Return the step of load in a recording, from before heating to the end of cooling.

    Raises:
        UserError: If a file or a stage is missing, or there are too few samples.
    """
    windows = {row["stage"]: row for row in read_windows(folder)}
    if missing := [stage for stage in _STEP_STAGES if stage not in windows]:
        raise UserError(f"{folder / 'windows.parquet'}: no stage {', '.join(missing)}, which fitting heat needs")
    samples = read_samples(folder, "default", gpu.package_power_limit.value)
    t_ns = samples["t_ns"]
    inside = (t_ns >= windows[_STEP_STAGES[0]]["t_start_ns"]) & (t_ns <= windows[_STEP_STAGES[-1]]["t_end_ns"])
    if inside.sum() < 10:
        raise UserError(
            f"{folder / 'samples.parquet'}: {inside.sum()} samples of heating and cooling; at least some minutes are "
            "needed; record again"
        )
    t_s = (t_ns[inside] - t_ns[inside][0]) / NS_PER_S
    return StepLog(t_s, samples["gpu_power_w"][inside], samples["gpu_temp_c"][inside])


def read_kernels(folder: Path) -> list[dict[str, Any]]:
    """Read the kernels that ran without error.

    Raises:
        UserError: If the file is missing, damaged or has other columns.
    """
    table, path = _read(folder, _KERNELS, ("error",))
    return list(_checked(table.filter(pc.is_null(table["error"])), _KERNELS, path).to_pylist())


def read_windows(folder: Path) -> list[dict[str, Any]]:
    """Read the stages of a recording. Raises `UserError` if the file is missing, damaged or has other columns."""
    table, path = _read(folder, _WINDOWS)
    return list(_checked(table, _WINDOWS, path).to_pylist())


def read_samples(folder: Path, recording: str, power_limit_w: float) -> dict[str, Float]:
    """Read time, power, temperature and clock of the first GPU from samples that have all of them.

    Args:
        folder: Folder of the recording.
        recording: `quick`, made while kernels ran one after the other, or `default`.
        power_limit_w: Power limit of the GPU type, to detect samples of another type. Unit: W.

    Raises:
        UserError: If the file is missing, damaged or has other columns, or its power does not fit the GPU type.
    """
    table, path = _read(folder, _SAMPLES, ("recording", "device"))
    is_wanted = pc.and_(pc.equal(table["recording"], recording), pc.equal(table["device"], "gpu0"))
    table = _checked(table.filter(is_wanted), _SAMPLES, path)
    columns = {name: np.asarray(table[name].to_pandas(), dtype=float) for name in table.column_names}
    is_complete = np.all([np.isfinite(values) for values in columns.values()], axis=0)
    columns = {name: values[is_complete] for name, values in columns.items()}
    if not is_complete.any():
        raise UserError(f"{path}: recording {recording!r} has no sample of gpu0 with power, temperature and clock")
    most_w = float(columns["gpu_power_w"].max())
    if not 0.0 < most_w < _MOST_OVER_LIMIT * power_limit_w:
        raise UserError(
            f"{path}: column gpu_power_w holds {most_w:g} W at most, and the GPU's power limit is {power_limit_w:g} W; "
            "name the type that was recorded with --gpu"
        )
    return columns


def _read(folder: Path, wanted: Table, others: tuple[str, ...] = ()) -> tuple[pa.Table, Path]:
    import pyarrow.parquet as pq

    path = folder / f"{wanted.name}.parquet"
    try:
        table = pq.read_table(path)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; record it with triplepoint characterise --record") from None
    except (pa.ArrowInvalid, OSError) as error:
        why = " ".join(str(error).split())
        raise UserError(f"{path}: not a whole Parquet file ({why}); record it again") from None
    names = [*(column.name for column in wanted.columns), *others]
    if missing := [name for name in names if name not in table.column_names]:
        raise UserError(
            f"{path}: columns {', '.join(missing)} are missing; the driver gave none, or it is another file"
        )
    return table.select(names), path


def _checked(table: pa.Table, wanted: Table, path: Path) -> pa.Table:
    return wanted.check(table.select([column.name for column in wanted.columns]), path)


def _activity(row: dict[str, Any], gpu: GpuConfig) -> Activity:
    tensor = {"fp8": gpu.peak_fp8_flops, "tf32": None}.get(row["dtype"], gpu.peak_bf16_flops)
    # TF32 has half the rate of bf16 (NVIDIA's data sheets of A100 to H200).
    tensor_flops = tensor.value if tensor else gpu.peak_bf16_flops.value / 2
    is_tensor = row["family"] in _TENSOR_FAMILIES and row["dtype"] != "fp32"
    peaks = Peaks(tensor_flops, gpu.peak_fp32_flops.value, gpu.memory_bandwidth.value)
    randomness = 1.0 if row["operands"] == "random" else 0.0
    activity = kernel_activity(float(is_tensor), row["flops"], row["min_bytes"], row["call_s"], peaks, randomness)
    uncounted = uncounted_flops(row["family"], row["flops"], row["min_bytes"]) / (row["call_s"] * peaks.sm_flops)
    # Rates of tensor cores count by energy, as for simulated kernels.
    energy = 2 * FP8_ENERGY if row["dtype"] == "fp8" else 1.0
    return replace(activity, tensor=activity.tensor * energy, sm=np.minimum(activity.sm + uncounted, 1.0))


def _means(samples: dict[str, Float], start_ns: int, end_ns: int) -> tuple[float, float, float] | None:
    """Return mean power, clock and temperature between two times; None with fewer than three samples."""
    inside = (samples["t_ns"] >= start_ns) & (samples["t_ns"] <= end_ns)
    if inside.sum() < 3:
        return None
    power, clock, temp = (samples[name][inside].mean() for name in ("gpu_power_w", "sm_clock_mhz", "gpu_temp_c"))
    return float(power), float(clock), float(temp)
