"""Reads a recording of one GPU, as `triplepoint characterise --record` writes it."""

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
_OVER = 1.5
"""Power over the limit from which it is taken for another unit or another GPU: excursions stay well below."""
_SETTLING_NS = NS_PER_S * 3 // 10
"""Start of a kernel's run that is left out: clocks settle, and sensors still show what was before."""
_RESTING = ("idle", "idle_without_context")
_STEP = ("before_heating", "heating", "cooling")
_ON_TENSOR = ("gemm", "attention", "grouped")


@dataclass(frozen=True)
class Peaks:
    """Peak rates of one device, as `config/gpus/` has them.

    Attributes:
        tensor_flops: Of GEMMs at the kernel's precision. Unit: FLOP/s.
        sm_flops: Of everything else. Unit: FLOP/s.
        hbm: Memory. Unit: byte/s.
        link: Links to other GPUs, both directions together. Unit: byte/s.
    """

    tensor_flops: float
    sm_flops: float
    hbm: float
    link: float


def kernel_activity(
    is_tensor: Number, flops: Number, num_bytes: Number, duration_s: Number, peaks: Peaks, randomness: Number = 1.0
) -> Activity:
    """Return what kernels do to the units of a device.

    Args:
        is_tensor: Whether they are GEMMs (gemm, attention), 0 or 1.
        flops: Of every kernel. Unit: FLOP.
        num_bytes: Read from and written to memory. Unit: byte.
        duration_s: At the highest clock. Unit: s.
        peaks: Of the device.
        randomness: Of operands, 0-1.
    """
    matrix = np.asarray(is_tensor, dtype=float)
    tensor = matrix * flops / (np.asarray(duration_s) * peaks.tensor_flops)
    sm = (1.0 - matrix) * flops / (np.asarray(duration_s) * peaks.sm_flops)
    hbm = np.minimum(np.asarray(num_bytes) / (np.asarray(duration_s) * peaks.hbm), 1.0)
    core = np.maximum(tensor, sm) ** OVERLAP_EXPONENT
    # How time answers to the clock where core and memory overlap in a p-norm. Nothing on either side: latency, which
    # the clock is part of but memory perhaps not.
    clock_bound = core / np.maximum(core + hbm**OVERLAP_EXPONENT, 1e-30)
    return Activity(np.ones_like(tensor), tensor, sm, hbm, 0.0 * tensor, np.broadcast_to(randomness, tensor.shape),
                    clock_bound)  # fmt: skip


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
    columns = {
        part.name: np.array([float(getattr(activity, part.name)) for activity in activities])
        for part in fields(Activity)
    }
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
            f"{folder / 'samples.parquet'}: {inside.sum()} samples of heating and cooling; at least some minutes are "
            "needed; record again"
        )
    t_s = (t_ns[inside] - t_ns[inside][0]) / NS_PER_S
    return StepLog(t_s, samples["gpu_power_w"][inside], samples["gpu_temp_c"][inside])


def read_kernels(folder: Path) -> list[dict[str, Any]]:
    """Return the kernels that ran. Raises `UserError` if the file is missing, damaged or has other columns."""
    table, path = _read(folder, _KERNELS, ("error",))
    return list(_checked(table.filter(pc.is_null(table["error"])), _KERNELS, path).to_pylist())


def read_windows(folder: Path) -> list[dict[str, Any]]:
    """Return the stages. Raises `UserError` if the file is missing, damaged or has other columns."""
    table, path = _read(folder, _WINDOWS)
    return list(_checked(table, _WINDOWS, path).to_pylist())


def read_samples(folder: Path, recording: str, power_limit_w: float) -> dict[str, Float]:
    """Return time, power, temperature and clock of the first GPU where it shows all of them.

    Args:
        folder: Recording.
        recording: `quick`, made while kernels ran one by one, or `default`.
        power_limit_w: Of the GPU type, to notice samples of another one. Unit: W.

    Raises:
        UserError: If the file is missing, damaged or has other columns, or power is not that of such a GPU.
    """
    table, path = _read(folder, _SAMPLES, ("recording", "device"))
    is_own = pc.and_(pc.equal(table["recording"], recording), pc.equal(table["device"], "gpu0"))
    table = _checked(table.filter(is_own), _SAMPLES, path)
    columns = {name: np.asarray(table[name].to_pandas(), dtype=float) for name in table.column_names}
    is_whole = np.all([np.isfinite(values) for values in columns.values()], axis=0)
    columns = {name: values[is_whole] for name, values in columns.items()}
    if not is_whole.any():
        raise UserError(f"{path}: recording {recording!r} has no sample of gpu0 with power, temperature and clock")
    most_w = float(columns["gpu_power_w"].max())
    if not 0.0 < most_w < _OVER * power_limit_w:
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
    is_tensor = row["family"] in _ON_TENSOR and row["dtype"] != "fp32"
    peaks = Peaks(tensor_flops, gpu.peak_fp32_flops.value, gpu.memory_bandwidth.value, 1.0)
    randomness = 1.0 if row["operands"] == "random" else 0.0
    activity = kernel_activity(float(is_tensor), row["flops"], row["min_bytes"], row["call_s"], peaks, randomness)
    overlapped = uncounted_flops(row["family"], row["flops"], row["min_bytes"]) / (row["call_s"] * peaks.sm_flops)
    # By energy, as simulated kernels are counted.
    energy = 2 * FP8_ENERGY if row["dtype"] == "fp8" else 1.0
    return replace(activity, tensor=activity.tensor * energy, sm=np.minimum(activity.sm + overlapped, 1.0))


def _means(samples: dict[str, Float], start_ns: int, end_ns: int) -> tuple[float, float, float] | None:
    inside = (samples["t_ns"] >= start_ns) & (samples["t_ns"] <= end_ns)
    if inside.sum() < 3:
        return None
    power, clock, temp = (samples[name][inside].mean() for name in ("gpu_power_w", "sm_clock_mhz", "gpu_temp_c"))
    return float(power), float(clock), float(temp)
