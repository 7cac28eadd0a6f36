"""Kernel traces of AMD's rocprof as CSV, of all three generations.

rocprofv3 writes a file a kind of event, with a common start of the name (`8_kernel_trace.csv`,
`8_memory_copy_trace.csv`, `8_marker_api_trace.csv`, `8_hip_api_trace.csv`, `8_agent_info.csv`); those beside the kernel
trace are read with it. rocprof and rocprofv2 write one results.csv of kernels. Grids are in work items, times in ns
since the machine started.

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
from triplepoint.trace.profilers.rocpd import Regions, copy_name, give_regions, in_blocks

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
"""A column's names in rocprofv3, rocprofv2 and rocprof."""
_CALL_KINDS: Final = ("hip_api_trace", "hip_runtime_trace", "marker_api_trace", "rccl_api_trace")
"""Kinds of files of calls and markers of the host."""
_CALL_COLUMNS: Final = ("Start_Timestamp", "End_Timestamp", "Thread_Id", "Correlation_Id")
_NEEDED: Final = ("name", "start", "end")
_SIZES: Final = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")


def is_kernel_csv(head: bytes) -> bool:
    """Return whether a text begins like the kernel trace of a rocprof."""
    line = head.lstrip(b"\xef\xbb\xbf").split(b"\n", 1)[0].decode(errors="replace")
    return any(alias in line for alias in _ALIASES["name"]) and "," in line


def _columns(path: Path) -> dict[str, str]:
    """Return the columns of a kernel trace, by what they hold.

    Raises:
        UserError: If one that is needed is missing.
    """
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        header = next(csv.reader(file), [])
    found = {key: one for key, aliases in _ALIASES.items() for one in aliases if one in header}
    lost = [key for key in _NEEDED if key not in found]
    if lost:
        wanted = " or ".join(_ALIASES[lost[0]])
        advice = "record with 'rocprof --timestamp on'" if lost[0] != "name" else "is it a kernel trace?"
        raise UserError(
            f"{path.name}: no column {wanted}, which a kernel trace needs{nearest(wanted, header)}; {advice}"
        )
    return found


def _table(path: Path, columns: list[str]) -> pa.Table:
    """Return columns of a CSV: numbers where they are ones, texts otherwise. A last line that is cut off is left out.

    Raises:
        UserError: If a row has more or fewer values than there are columns.
    """
    damaged: list[Any] = []

    def note(row: Any) -> str:
        damaged.append(row)
        return "skip"

    options = arrow_csv.ConvertOptions(include_columns=columns)
    try:
        table = arrow_csv.read_csv(
            path, parse_options=arrow_csv.ParseOptions(invalid_row_handler=note, newlines_in_values=False),
            convert_options=options,
        )  # fmt: skip
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:
        raise UserError(f"{path.name}: damaged CSV ({str(error).splitlines()[0]}); export it again") from None
    return table.append_column("damaged", pa.nulls(table.num_rows)) if damaged else table


def _integers(path: Path, table: pa.Table, column: str | None) -> Int64:
    """Return a column as integers, -1 where it has none; of an agent (`Agent 4`) its number.

    Raises:
        UserError: If it holds anything else.
    """
    if column is None or column not in table.column_names:
        return np.full(table.num_rows, -1)
    values = table[column]
    if pa.types.is_string(values.type):
        numbered = pc.struct_field(pc.extract_regex(values, r"^(?:Agent )?(?P<number>-?\d{1,18})$"), "number")
        odd = values.filter(pc.and_(pc.is_null(numbered), pc.is_valid(values)))
        if len(odd):
            raise UserError(
                f"{path.name}: column {column} holds {shown(odd[0].as_py())}, expected whole numbers; export it again"
            )
        values = numbered
    return np.asarray(pc.fill_null(pc.cast(values, pa.int64(), safe=False), -1).to_numpy(), dtype=np.int64)


def parts(path: Path) -> list[Part]:
    """Return every process with each GPU it ran a kernel on."""
    columns = _columns(path)
    wanted = [columns[one] for one in ("device", "process") if one in columns]
    if not wanted:
        return [Part(0, 0)]
    table = _table(path, wanted)
    processes, devices = (_integers(path, table, columns.get(one)) for one in ("process", "device"))
    names = _gpu_names(path)
    found = sorted(set(zip(devices.tolist(), processes.tolist(), strict=True)))
    return [Part(process, device, names.get(device, "")) for device, process in found]


def _beside(path: Path, kind: str) -> Path | None:
    """Return the file of another kind of event that belongs to a kernel trace, None where there is none."""
    if not path.name.endswith(_KERNELS):
        return None
    beside = path.with_name(path.name.removesuffix(_KERNELS) + f"_{kind}.csv")
    return beside if beside.is_file() else None


def files_beside(path: Path) -> dict[str, Path]:
    """Return the files that are read with a kernel trace of rocprofv3, by the end of their names."""
    found = {f"_{kind}.csv": _beside(path, kind) for kind in ("agent_info", "memory_copy_trace", *_CALL_KINDS)}
    return {end: beside for end, beside in found.items() if beside is not None}


def _gpu_names(path: Path) -> dict[int, str]:
    info = _beside(path, "agent_info")
    if info is None:
        return {}
    with info.open(encoding="utf-8-sig", newline="") as file:
        return {
            int(row["Node_Id"]): row.get("Product_Name") or row.get("Name") or ""
            for row in csv.DictReader(file)
            if re.fullmatch(r"\d+", row.get("Node_Id") or "")
        }


def read(path: Path, part: Part, emitter: Emitter) -> Facts:
    """Give the events of a part to an emitter: kernels, and what stands in the files beside."""
    columns = _columns(path)
    table = _table(path, list(columns.values()))
    held = {key: _integers(path, table, columns.get(key)) for key in _ALIASES if key != "name"}
    own = np.flatnonzero((held["device"] == part.device) & (held["process"] == part.process))
    name = _name_numbers(table[columns["name"]].take(own), emitter)
    sizes = np.column_stack([held[one][own] for one in _SIZES])
    if "grid_y" not in columns:  # rocprof and rocprofv2 tell all work items of a launch, and all of a block
        sizes[:, [1, 2, 4, 5]] = 1
    geometry = emitter.geometry(
        np.column_stack((in_blocks(sizes), sizes[:, 3:], held["registers"][own], held["shared_memory"][own]))
    )
    times = Times(*(held[one][own] for one in ("start", "end", "correlation")))
    emitter.work(Category.KERNEL, times, name, held["queue"][own], geometry)
    emitter.num_damaged += "damaged" in table.column_names
    _read_copies(path, part, emitter)
    _read_regions(path, emitter)
    return Facts(0, {"deviceProperties": [{"id": part.device, "name": part.gpu_name}]} if part.gpu_name else {})


def _name_numbers(names: pa.ChunkedArray, emitter: Emitter) -> Int64:
    encoded = pc.cast(names, pa.string()).combine_chunks().dictionary_encode()
    distinct = numbers([emitter.name(str(text or "").removesuffix(".kd")) for text in encoded.dictionary.to_pylist()])
    return distinct[encoded.indices.to_numpy()] if len(distinct) else np.empty(0, dtype=np.int64)


def _read_copies(path: Path, part: Part, emitter: Emitter) -> None:
    copies = _beside(path, "memory_copy_trace")
    if copies is None:
        return
    table = _table(copies, _header(copies))
    if table.num_rows == 0:
        return
    source, target = (_integers(path, table, f"{side}_Agent_Id") for side in ("Source", "Destination"))
    to_host = np.array([str(one).endswith("TO_HOST") for one in table["Direction"].to_pylist()], dtype=bool)
    own = np.flatnonzero(np.where(to_host, source, target) == part.device)
    name = numbers([emitter.name(copy_name(str(one))) for one in table["Direction"].take(own).to_pylist()])
    times = Times(*(_integers(path, table, one)[own] for one in ("Start_Timestamp", "End_Timestamp", "Correlation_Id")))
    # A copy has no queue; those of a direction follow one another.
    emitter.work(Category.MEMCPY, times, name, -1 - name)


def _read_regions(path: Path, emitter: Emitter) -> None:
    for kind in _CALL_KINDS:
        beside = _beside(path, kind)
        if beside is None:
            continue
        table = _table(beside, _header(beside))
        start, end, thread, correlation = (_integers(path, table, one) for one in _CALL_COLUMNS)
        domain, name = (table[one].to_pylist() for one in ("Domain", "Function"))
        give_regions(emitter, Regions(start, end, thread, correlation, domain, name))


def _header(path: Path) -> list[str]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        return next(csv.reader(file), [])
