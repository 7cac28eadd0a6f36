"""Read AMD's SQLite files: rocpd of rocprofv3, RPD of rocmProfileData, and results of rocprof with `--hip-trace`.

In rocpd the tables of a process have names that end in an identifier, and there are views over them without it. A
dispatch and the HIP call that made it have the same `stack_id`; a marker's text is in its event's `extdata`. Grids are
in work items. Times are on a clock that starts with the machine, so the wall clock is unknown.

Source: schema of rocpd, rocprofiler-sdk (`share/rocprofiler-sdk-rocpd/rocpd_tables.sql`, schema version 3); of RPD,
ROCm/rocmProfileData (`rocpd_python/rocpd/schema_data`).
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from triplepoint.errors import UserError
from triplepoint.trace import Int64
from triplepoint.trace.kineto import Category
from triplepoint.trace.profilers import Counter, Facts, Part
from triplepoint.trace.profilers.database import Database, StringTable
from triplepoint.trace.profilers.emitter import Emitter, Times, named_range, numbers

ROCPD, RPD, RESULTS = "rocpd_kernel_dispatch", "rocpd_op", "OPS"
"""Tables by which files of rocprofv3, rocmProfileData and rocprof are recognised."""

COPY_NAMES: Final = {
    "MEMORY_COPY_HOST_TO_DEVICE": "Memcpy HtoD (Host -> Device)",
    "MEMORY_COPY_DEVICE_TO_HOST": "Memcpy DtoH (Device -> Host)",
    "MEMORY_COPY_DEVICE_TO_DEVICE": "Memcpy DtoD (Device -> Device)",
    "MEMORY_COPY_HOST_TO_HOST": "Memcpy HtoH (Host -> Host)",
}
"""Kineto's names of copies on AMD, by rocprofv3's names."""
_SIZES: Final = (
    "grid_size_x",
    "grid_size_y",
    "grid_size_z",
    "workgroup_size_x",
    "workgroup_size_y",
    "workgroup_size_z",
)
_MARKERS, _CALLS = "MARKER", "HIP"
_MONITORED: Final = {"sclk": ("GPU clock", "MHz"), "power": ("GPU power", "W"), "temp": ("GPU temperature", "degC")}
"""Title and unit of the quantities that rocmProfileData samples, by its name."""


def in_blocks(sizes: Int64) -> Int64:
    """Convert grids from work items to blocks; -1 if unknown.

    Args:
        sizes: Size of the grid in work items and size of a block, in three dimensions each; shape (num_rows, 6).
    """
    grid, block = sizes[:, :3], sizes[:, 3:]
    return np.where((grid < 0) | (block <= 0), -1, -(-grid // np.maximum(block, 1)))


def parts(database: Database) -> list[Part]:
    """Return every process with each GPU it used."""
    if ROCPD in database.tables:
        return _rocpd_parts(database)
    if RPD in database.tables:
        gpus = database.rows("SELECT DISTINCT gpuId FROM rocpd_op ORDER BY 1")
        return [Part(0, int(gpu or 0)) for (gpu,) in gpus]
    pairs = database.rows('SELECT DISTINCT pid, "dev-id" FROM OPS UNION SELECT DISTINCT pid, "dev-id" FROM COPY')
    by_gpu = sorted(pairs, key=lambda pair: (pair[1], pair[0]))
    return [Part(int(process or 0), int(gpu or 0)) for process, gpu in by_gpu]


def read(database: Database, part: Part, emitter: Emitter) -> Facts:
    """Emit the events of a part."""
    if ROCPD in database.tables:
        _read_rocpd(database, part, emitter)
    elif RPD in database.tables:
        _read_rpd(database, part, emitter)
    else:
        _read_results(database, part, emitter)
    return Facts(0, {"deviceProperties": [{"id": part.device, "name": part.gpu_name}]} if part.gpu_name else {})


def counters(database: Database, part: Part) -> list[Counter]:
    """Return rocmProfileData's samples of the part's GPU: clock, power, temperature."""
    if "rocpd_monitor" not in database.tables:
        return []
    monitored = [
        gpu for (gpu,) in database.rows("SELECT DISTINCT deviceId FROM rocpd_monitor WHERE deviceType = 'gpu'")
    ]
    devices = [other.device for other in parts(database)]
    if len(monitored) != len(devices):
        return []
    # Operations number GPUs after the CPUs, samples from 0. The order is the same.
    gpu = sorted(int(number or 0) for number in monitored)[devices.index(part.device)]
    query = "SELECT start, value FROM rocpd_monitor WHERE deviceType = 'gpu' AND deviceId = ? AND monitorType = ? "
    result = []
    for kind, (name, unit) in _MONITORED.items():
        rows = np.array(database.rows(f"{query}ORDER BY 1", gpu, kind), dtype=np.float64).reshape(-1, 2)
        if len(rows):
            result.append(Counter(name, unit, rows[:, 0].astype(np.int64), rows[:, 1]))
    return result


def _rocpd_parts(database: Database) -> list[Part]:
    if "start" not in database.columns(ROCPD):
        raise UserError(
            f"{database.path.name}: rocpd without times of its dispatches, expected schema version 3; convert it "
            "with 'rocpd convert -f csv' and pass the kernel_trace.csv"
        )
    query = (
        "SELECT DISTINCT D.pid, D.agent_id, A.type_index, A.product_name FROM rocpd_kernel_dispatch D "
        "LEFT JOIN rocpd_info_agent A ON A.id = D.agent_id AND A.guid = D.guid ORDER BY 3, 1"
    )
    return [
        Part(int(process or 0), int(agent or 0), str(name or "")) for process, agent, _, name in database.rows(query)
    ]


def _read_rocpd(database: Database, part: Part, emitter: Emitter) -> None:
    kernels = StringTable(database, "SELECT display_name FROM rocpd_info_kernel_symbol WHERE id = ?", emitter.name)
    names = ("start", '"end"', "kernel_id", "queue_id", *_SIZES)
    columns = ", ".join(f"ifnull(D.{name}, -1)" for name in names)
    query = (
        f"SELECT {columns}, ifnull(E.stack_id, -1) FROM rocpd_kernel_dispatch D "
        "LEFT JOIN rocpd_event E ON E.id = D.event_id AND E.guid = D.guid WHERE D.pid = ? AND D.agent_id = ?"
    )
    for rows in database.batches(query, part.process, part.device):
        start, end, kernel, queue = rows[:, :4].T
        geometry = _geometry(emitter, rows[:, 4:10])
        emitter.work(Category.KERNEL, Times(start, end, rows[:, 10]), kernels.numbers(kernel), queue, geometry)
    _read_rocpd_copies(database, part, emitter)
    _read_rocpd_regions(database, part, emitter)


def _geometry(emitter: Emitter, sizes: Int64) -> Int64:
    unknown = np.full((len(sizes), 2), -1)
    return emitter.geometry(np.column_stack((in_blocks(sizes), sizes[:, 3:], unknown)))


def _read_rocpd_copies(database: Database, part: Part, emitter: Emitter) -> None:
    """Emit the copies from and to the GPU. A copy between two GPUs is work of its target."""
    if "rocpd_memory_copy" not in database.tables:
        return
    names = StringTable(
        database, "SELECT string FROM rocpd_string WHERE id = ?", lambda text: emitter.name(copy_name(text))
    )
    query = (
        'SELECT M.start, M."end", M.name_id, ifnull(M.queue_id, -1), ifnull(E.stack_id, -1) FROM rocpd_memory_copy M '
        "LEFT JOIN rocpd_event E ON E.id = M.event_id AND E.guid = M.guid "
        "LEFT JOIN rocpd_info_agent A ON A.id = M.dst_agent_id AND A.guid = M.guid "
        "WHERE M.pid = ? AND ? = CASE A.type WHEN 'GPU' THEN M.dst_agent_id ELSE M.src_agent_id END"
    )
    for rows in database.batches(query, part.process, part.device):
        start, end, name, queue, correlation = rows.T
        emitter.work(Category.MEMCPY, Times(start, end, correlation), names.numbers(name), queue)


def copy_name(text: str) -> str:
    """Return Kineto's name of a copy, given rocprofv3's."""
    return COPY_NAMES.get(text, f"Memcpy ({text})")


def _read_rocpd_regions(database: Database, part: Part, emitter: Emitter) -> None:
    """Emit HIP calls as launches, and markers and RCCL calls as ranges."""
    query = (
        'SELECT R.start, R."end", ifnull(R.tid, -1), ifnull(E.stack_id, -1), C.string, '
        "coalesce(json_extract(E.extdata, '$.message'), json_extract(R.extdata, '$.message'), S.string) "
        "FROM rocpd_region R LEFT JOIN rocpd_event E ON E.id = R.event_id AND E.guid = R.guid "
        "LEFT JOIN rocpd_string C ON C.id = E.category_id AND C.guid = E.guid "
        "LEFT JOIN rocpd_string S ON S.id = R.name_id AND S.guid = R.guid WHERE R.pid = ?"
    )
    for columns in database.columns_of(query, 4, part.process):
        emit_regions(emitter, Regions(*columns))


class Regions(NamedTuple):
    """Calls and markers of the host; shape of each (num_regions,).

    Attributes:
        start: Unit: ns as the file counts.
        end: Unit: ns as the file counts.
        thread: Number of the thread.
        correlation: Correlation by which GPU work refers to the call.
        domain: `HIP_RUNTIME_API`, `MARKER_CORE_API`, `RCCL_API`, ...
        name: Text of the marker, or name of the called function.
    """

    start: Sequence[int] | Int64
    end: Sequence[int] | Int64
    thread: Sequence[int] | Int64
    correlation: Sequence[int] | Int64
    domain: Sequence[str | None]
    name: Sequence[str | None]


def emit_regions(emitter: Emitter, regions: Regions) -> None:
    """Emit HIP calls as launches, and markers and RCCL calls as ranges."""
    domains = [domain or "" for domain in regions.domain]
    is_call = np.array([domain.startswith(_CALLS) for domain in domains], dtype=bool)
    is_range = np.array([domain.startswith((_MARKERS, "RCCL")) for domain in domains], dtype=bool)
    start, end, thread, correlation = map(numbers, regions[:4])
    emitter.launches(start[is_call], correlation[is_call], thread[is_call])
    range_names = [name or "" for name, is_one in zip(regions.name, is_range, strict=True) if is_one]
    name_numbers = numbers([emitter.name(named_range(name)) for name in range_names])
    emitter.ranges(start[is_range], end[is_range], name_numbers, thread[is_range])


def _read_rpd(database: Database, part: Part, emitter: Emitter) -> None:
    """Emit a GPU's operations. Those without a description, copies and barriers, are named by their type."""
    texts = StringTable(
        database, "SELECT string FROM rocpd_string WHERE id = ?", lambda text: emitter.name(_operation_name(text))
    )
    empty = [number for (number,) in database.rows("SELECT id FROM rocpd_string WHERE string = ''")]
    name = (
        f"CASE WHEN O.description_id IN ({', '.join(map(str, empty)) or -1}) THEN O.opType_id ELSE O.description_id END"
    )
    sizes = ("gridX", "gridY", "gridZ", "workgroupX", "workgroupY", "workgroupZ")
    query = (
        f'SELECT O.start, O."end", {name}, O.queueId, ifnull(L.api_id, -1), '
        f"{', '.join(f'ifnull(K.{size}, -1)' for size in sizes)}, ifnull(N.string LIKE 'hipExtModule%', 0) "
        "FROM rocpd_op O "
        "LEFT JOIN rocpd_api_ops L ON L.op_id = O.id LEFT JOIN rocpd_kernelapi K ON K.api_ptr_id = L.api_id "
        "LEFT JOIN rocpd_api I ON I.id = L.api_id LEFT JOIN rocpd_string N ON N.id = I.apiName_id WHERE O.gpuId = ?"
    )
    for rows in database.batches(query, part.device):
        start, end, text, queue, correlation = rows[:, :5].T
        # HIP's launches have grids in blocks; only hipExtModuleLaunchKernel has them in work items.
        row_sizes = rows[:, 5:11]
        grid = np.where(rows[:, 11:] > 0, in_blocks(row_sizes), row_sizes[:, :3])
        geometry = emitter.geometry(np.column_stack((grid, row_sizes[:, 3:], np.full((len(rows), 2), -1))))
        _emit_operations(emitter, Times(start, end, correlation), texts.numbers(text), queue, geometry)
    calls = (
        "SELECT start, \"end\", tid, rocpd_api.id, CASE N.string WHEN 'UserMarker' THEN 'MARKER' ELSE 'HIP' END, "
        "A.string FROM rocpd_api JOIN rocpd_string N ON N.id = apiName_id JOIN rocpd_string A ON A.id = args_id"
    )
    for columns in database.columns_of(calls, 4):
        emit_regions(emitter, Regions(*columns))


def _operation_name(text: str) -> str:
    """Return the name of an operation, for copies Kineto's."""
    name = f"MEMORY_COPY_{text.removeprefix('Copy')}" if text.startswith("Copy") else ""
    for side in ("Host", "Device"):
        name = name.replace(side, side.upper()).replace(f"{side.upper()}To", f"{side.upper()}_TO_")
    return COPY_NAMES.get(name, text)


def _emit_operations(emitter: Emitter, times: Times, name: Int64, queue: Int64, geometry: Int64) -> None:
    """Emit operations of a GPU, which are kernels or copies by their name."""
    is_copy = np.array([text.startswith("Memcpy ") for text in emitter.names], dtype=bool)[name]
    for rows, category in ((~is_copy, Category.KERNEL), (is_copy, Category.MEMCPY)):
        emitter.work(category, Times(*(column[rows] for column in times)), name[rows], queue[rows], geometry[rows])


def _read_results(database: Database, part: Part, emitter: Emitter) -> None:
    for table in ("OPS", "COPY"):
        for columns in _result_columns(database, table, part):
            start, end, queue, correlation, name = columns
            names = numbers([emitter.name(_operation_name(str(text))) for text in name])
            unknown = np.full(len(names), -1)
            _emit_operations(emitter, Times(start, end, correlation), names, queue, unknown)
    if "HIP" in database.tables:
        calls = "SELECT BeginNs, EndNs, tid, \"Index\", 'HIP', Name FROM HIP WHERE pid = ?"
        for columns in database.columns_of(calls, 4, part.process):
            emit_regions(emitter, Regions(*columns))


def _result_columns(database: Database, table: str, part: Part) -> Iterator[list[Any]]:
    if table not in database.tables:
        return iter([])
    columns = 'BeginNs, EndNs, "queue-id", "Index", Name'
    return database.columns_of(
        f'SELECT {columns} FROM {table} WHERE pid = ? AND "dev-id" = ?', 4, part.process, part.device
    )
