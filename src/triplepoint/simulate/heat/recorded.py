"""Reads and checks the files that `triplepoint characterise --record` records of one GPU."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from triplepoint.errors import UserError
from triplepoint.simulate.power.model import Float
from triplepoint.tables.schema import Column, Table, amount, duration, text

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
