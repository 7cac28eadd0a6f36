"""Read kernel traces in CSV of all three generations of AMD's rocprof.

rocprofv3 writes a file per kind of event, with the same prefix (`8_kernel_trace.csv`, `8_memory_copy_trace.csv`,
`8_marker_api_trace.csv`, `8_hip_api_trace.csv`, `8_agent_info.csv`). The other files are read along with the kernel
trace. rocprof and rocprofv2 write one results.csv of kernels. Grids are in work items, times in ns since the machine
started.

Source: rocprofiler-sdk, `source/docs/data/*.csv`; ROCm/rocm-blogs, `roc-profiling/tracing_output_examples`.
"""

import csv
import re
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv

from triplepoint.errors import UserError, nearest, shown
from triplepoint.trace import Int64
from triplepoint.trace.kineto import Category
from triplepoint.trace.profilers import Facts, Part
from triplepoint.trace.profilers.emitter import Emitter, Times, numbers
from triplepoint.trace.profilers.rocpd import Regions, copy_name, emit_regions, in_blocks

_KERNELS = "_kernel_trace.csv"
_ALIASES: Final = {
    "name": ("Kernel_Name", "KernelName"),
    "start": ("Start_Timestamp", "BeginNs"),
    "end": ("End_Timestamp", "EndNs"),
    "device": ("Agent_Id", "GPU_ID", "gpu-id"),
    "queue": ("Queue_Id", "Queue_ID", "queue-id"),
    "process": ("Process_Id", "PID", "pid"),
    "correlation": ("Correlation_Id", "Correlation_ID"),
    "registers": ("VGPR_Count", "Arch_VGPR", "arch_vgpr"),
    "shared_memory": ("LDS_Block_Size", "Group_Segment_Size", "LDS_Per_Workgroup", "lds"),
    "grid_x": ("Grid_Size_X", "Grid_Size", "grd"),
    "grid_y": ("Grid_Size_Y",),
    "grid_z": ("Grid_Size_Z",),
    "block_x": ("Workgroup_Size_X", "Workgroup_Size", "wgr"),
    "block_y": ("Workgroup_Size_Y",),
    "block_z": ("Workgroup_Size_Z",),
}
"""Names of each column in rocprofv3, rocprofv2 and rocprof."""
_CALL_KINDS: Final = ("hip_api_trace", "hip_runtime_trace", "marker_api_trace", "rccl_api_trace")
"""Kinds of files with calls and markers of the host."""
_CALL_COLUMNS: Final = ("Start_Timestamp", "End_Timestamp", "Thread_Id", "Correlation_Id")
_REQUIRED: Final = ("name", "start", "end")
_SIZES: Final = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")


def is_kernel_csv(head: bytes) -> bool:
    """Return whether the first bytes of a file are those of a kernel trace."""
    line = head.lstrip(b"\xef\xbb\xbf").split(b"\n", 1)[0].decode(errors="replace")
    return any(alias in line for alias in _ALIASES["name"]) and "," in line


def _columns(path: Path) -> dict[str, str]:
    """Return the names of the columns in a kernel trace, by the keys of `_ALIASES`.

    Raises:
        UserError: If a required column is missing.
    """
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        header = next(csv.reader(file), [])
    columns = {key: alias for key, aliases in _ALIASES.items() for alias in aliases if alias in header}
    missing = [key for key in _REQUIRED if key not in columns]
    if missing:
        expected = " or ".join(_ALIASES[missing[0]])
        advice = "record with 'rocprof --timestamp on'" if missing[0] != "name" else "is it a kernel trace?"
        raise UserError(
            f"{path.name}: no column {expected}, which a kernel trace needs{nearest(expected, header)}; {advice}"
        )
    return columns


def _table(path: Path, columns: list[str]) -> pa.Table:
    """Return columns of a CSV as numbers, or else as texts. Damaged rows are left out and add a column `damaged`.

    Raises:
        UserError: If the CSV cannot be read.
    """
    damaged: list[Any] = []

    def skip(row: Any) -> str:
        damaged.append(row)
        return "skip"

    options = arrow_csv.ConvertOptions(include_columns=columns)
    try:
        table = arrow_csv.read_csv(
            path, parse_options=arrow_csv.ParseOptions(invalid_row_handler=skip, newlines_in_values=False),
            convert_options=options,
        )  # fmt: skip
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:
        raise UserError(f"{path.name}: damaged CSV ({str(error).splitlines()[0]}); export it again") from None
    return table.append_column("damaged", pa.nulls(table.num_rows)) if damaged else table


def _integers(path: Path, table: pa.Table, column: str | None) -> Int64:
    """Return a column as integers, -1 for empty cells and missing columns. `Agent 4` is read as 4.

    Raises:
        UserError: If a cell has another value.
    """
    if column is None or column not in table.column_names:
        return np.full(table.num_rows, -1)
    values = table[column]
    if pa.types.is_string(values.type):
        integers = pc.struct_field(pc.extract_regex(values, r"^(?:Agent )?(?P<number>-?\d{1,18})$"), "number")
        invalid = values.filter(pc.and_(pc.is_null(integers), pc.is_valid(values)))
        if len(invalid):
            value = shown(invalid[0].as_py())
            raise UserError(f"{path.name}: column {column} holds {value}, expected whole numbers; export it again")
        values = integers
    return np.asarray(pc.fill_null(pc.cast(values, pa.int64(), safe=False), -1).to_numpy(), dtype=np.int64)


def parts(path: Path) -> list[Part]:
    """Return every process with each GPU it ran a kernel on."""
    columns = _columns(path)
    part_columns = [columns[key] for key in ("device", "process") if key in columns]
    if not part_columns:
        return [Part(0, 0)]
    table = _table(path, part_columns)
    processes, devices = (_integers(path, table, columns.get(key)) for key in ("process", "device"))
    names = _gpu_names(path)
    pairs = sorted(set(zip(devices.tolist(), processes.tolist(), strict=True)))
    return [Part(process, device, names.get(device, "")) for device, process in pairs]


def _companion(path: Path, kind: str) -> Path | None:
    """Return the file with another kind of event that belongs to a kernel trace, None if there is none."""
    if not path.name.endswith(_KERNELS):
        return None
    companion = path.with_name(path.name.removesuffix(_KERNELS) + f"_{kind}.csv")
    return companion if companion.is_file() else None


def files_beside(path: Path) -> dict[str, Path]:
    """Return the files that are read along with a kernel trace of rocprofv3, by suffix."""
    companions = {f"_{kind}.csv": _companion(path, kind) for kind in ("agent_info", "memory_copy_trace", *_CALL_KINDS)}
    return {suffix: companion for suffix, companion in companions.items() if companion is not None}


def _gpu_names(path: Path) -> dict[int, str]:
    """Return the product names of GPUs by the number of their agent."""
    info = _companion(path, "agent_info")
    if info is None:
        return {}
    with info.open(encoding="utf-8-sig", newline="") as file:
        return {
            int(row["Node_Id"]): row.get("Product_Name") or row.get("Name") or ""
            for row in csv.DictReader(file)
            if re.fullmatch(r"\d+", row.get("Node_Id") or "")
        }


def read(path: Path, part: Part, emitter: Emitter) -> Facts:
    """Emit the events of a part: kernels, and the events in the other files of rocprofv3."""
    columns = _columns(path)
    table = _table(path, list(columns.values()))
    values = {key: _integers(path, table, columns.get(key)) for key in _ALIASES if key != "name"}
    of_part = np.flatnonzero((values["device"] == part.device) & (values["process"] == part.process))
    values = {key: column[of_part] for key, column in values.items()}
    name = _name_numbers(table[columns["name"]].take(of_part), emitter)
    sizes = np.column_stack([values[key] for key in _SIZES])
    if "grid_y" not in columns:  # rocprof and rocprofv2 have only the total work items of a launch and of a block
        sizes[:, [1, 2, 4, 5]] = 1
    geometry = emitter.geometry(
        np.column_stack((in_blocks(sizes), sizes[:, 3:], values["registers"], values["shared_memory"]))
    )
    times = Times(values["start"], values["end"], values["correlation"])
    emitter.work(Category.KERNEL, times, name, values["queue"], geometry)
    emitter.num_damaged += "damaged" in table.column_names
    _read_copies(path, part, emitter)
    _read_regions(path, emitter)
    return Facts(0, {"deviceProperties": [{"id": part.device, "name": part.gpu_name}]} if part.gpu_name else {})


def _name_numbers(names: pa.ChunkedArray, emitter: Emitter) -> Int64:
    encoded = pc.cast(names, pa.string()).combine_chunks().dictionary_encode()
    distinct = numbers([emitter.name(str(text or "").removesuffix(".kd")) for text in encoded.dictionary.to_pylist()])
    return distinct[encoded.indices.to_numpy()] if len(distinct) else np.empty(0, dtype=np.int64)


def _read_copies(path: Path, part: Part, emitter: Emitter) -> None:
    copies = _companion(path, "memory_copy_trace")
    if copies is None:
        return
    table = _table(copies, _header(copies))
    if table.num_rows == 0:
        return
    source, target = (_integers(path, table, f"{side}_Agent_Id") for side in ("Source", "Destination"))
    to_host = np.array([str(direction).endswith("TO_HOST") for direction in table["Direction"].to_pylist()], dtype=bool)
    of_part = np.flatnonzero(np.where(to_host, source, target) == part.device)
    directions = table["Direction"].take(of_part).to_pylist()
    name = numbers([emitter.name(copy_name(str(direction))) for direction in directions])
    time_columns = ("Start_Timestamp", "End_Timestamp", "Correlation_Id")
    times = Times(*(_integers(path, table, column)[of_part] for column in time_columns))
    # Copies have no queue; one is assumed per direction.
    emitter.work(Category.MEMCPY, times, name, -1 - name)


def _read_regions(path: Path, emitter: Emitter) -> None:
    for kind in _CALL_KINDS:
        companion = _companion(path, kind)
        if companion is None:
            continue
        table = _table(companion, _header(companion))
        start, end, thread, correlation = (_integers(path, table, column) for column in _CALL_COLUMNS)
        domain, name = (table[column].to_pylist() for column in ("Domain", "Function"))
        emit_regions(emitter, Regions(start, end, thread, correlation, domain, name))


def _header(path: Path) -> list[str]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        return next(csv.reader(file), [])
