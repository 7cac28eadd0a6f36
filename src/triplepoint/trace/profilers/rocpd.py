"""AMD's SQLite files: rocpd of rocprofv3, RPD of rocmProfileData, and the results of rocprof with `--hip-trace`.

rocpd keeps a process's tables under names that end in an identifier, with views over them without it. A dispatch and
the HIP call that made it have one `stack_id`; a marker's text stands in its event's `extdata`. Grids are in work items.
Times are of a clock that starts with the machine, so nothing tells the wall clock.

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
from triplepoint.trace.profilers.database import Database, Texts
from triplepoint.trace.profilers.emitter import Emitter, Times, named_range, numbers

ROCPD, RPD, RESULTS = "rocpd_kernel_dispatch", "rocpd_op", "OPS"
"""Tables that only files of rocprofv3, of rocmProfileData and of rocprof have."""

COPY_NAMES: Final = {
    "MEMORY_COPY_HOST_TO_DEVICE": "Memcpy HtoD (Host -> Device)",
    "MEMORY_COPY_DEVICE_TO_HOST": "Memcpy DtoH (Device -> Host)",
    "MEMORY_COPY_DEVICE_TO_DEVICE": "Memcpy DtoD (Device -> Device)",
    "MEMORY_COPY_HOST_TO_HOST": "Memcpy HtoH (Host -> Host)",
}
"""Copies as rocprofv3 names them, and as Kineto does on AMD."""
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
"""What rocmProfileData samples of a GPU, as this package calls it, with its unit."""


def in_blocks(sizes: Int64) -> Int64:
    """Return grids in blocks, from grids in work items; -1 where not told.

    Args:
        sizes: Work items and block in three directions each, shape (num_rows, 6).
    """
    grid, block = sizes[:, :3], sizes[:, 3:]
    return np.where((grid < 0) | (block <= 0), -1, -(-grid // np.maximum(block, 1)))


def parts(database: Database) -> list[Part]:
    """Return every process with each GPU it ran something on."""
    if ROCPD in database.tables:
        return _rocpd_parts(database)
    if RPD in database.tables:
        found = database.rows("SELECT DISTINCT gpuId FROM rocpd_op ORDER BY 1")
        return [Part(0, int(gpu or 0)) for (gpu,) in found]
    found = database.rows('SELECT DISTINCT pid, "dev-id" FROM OPS UNION SELECT DISTINCT pid, "dev-id" FROM COPY')
    return [Part(int(process or 0), int(gpu or 0)) for process, gpu in sorted(found, key=lambda one: (one[1], one[0]))]


def read(database: Database, part: Part, emitter: Emitter) -> Facts:
    """Give the events of a part to an emitter."""
    if ROCPD in database.tables:
        _read_rocpd(database, part, emitter)
    elif RPD in database.tables:
        _read_rpd(database, part, emitter)
    else:
        _read_results(database, part, emitter)
    return Facts(0, {"deviceProperties": [{"id": part.device, "name": part.gpu_name}]} if part.gpu_name else {})


def counters(database: Database, part: Part) -> list[Counter]:
    """Return what rocmProfileData sampled of the GPU of a part: clock, power, temperature."""
    if "rocpd_monitor" not in database.tables:
        return []
    monitored = [
        gpu for (gpu,) in database.rows("SELECT DISTINCT deviceId FROM rocpd_monitor WHERE deviceType = 'gpu'")
    ]
    devices = [one.device for one in parts(database)]
    if len(monitored) != len(devices):
        return []
    # Operations count GPUs after the CPUs, samples do not: their order is the same.
    gpu = sorted(int(one or 0) for one in monitored)[devices.index(part.device)]
    of_gpu = "FROM rocpd_monitor WHERE deviceType = 'gpu' AND deviceId = ? AND monitorType = ?"
    found = []
    for kind, (name, unit) in _MONITORED.items():
        rows = np.array(database.rows(f"SELECT start, value {of_gpu} ORDER BY 1", gpu, kind), dtype=np.float64).reshape(
            -1, 2
        )
        if len(rows):
            found.append(Counter(name, unit, rows[:, 0].astype(np.int64), rows[:, 1]))
    return found


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
    kernels = Texts(database, "SELECT display_name FROM rocpd_info_kernel_symbol WHERE id = ?", emitter.name)
    columns = ", ".join(f"ifnull(D.{one}, -1)" for one in ("start", '"end"', "kernel_id", "queue_id", *_SIZES))
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
    """Give the copies to and from the GPU; one between two GPUs is work of the one it goes to."""
    if "rocpd_memory_copy" not in database.tables:
        return
    names = Texts(database, "SELECT string FROM rocpd_string WHERE id = ?", lambda text: emitter.name(copy_name(text)))
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
    """Return the name of a copy as Kineto has it."""
    return COPY_NAMES.get(text, f"Memcpy ({text})")


def _read_rocpd_regions(database: Database, part: Part, emitter: Emitter) -> None:
    """Give calls of HIP as launches; markers and calls of RCCL as ranges."""
    query = (
        'SELECT R.start, R."end", ifnull(R.tid, -1), ifnull(E.stack_id, -1), C.string, '
        "coalesce(json_extract(E.extdata, '$.message'), json_extract(R.extdata, '$.message'), S.string) "
        "FROM rocpd_region R LEFT JOIN rocpd_event E ON E.id = R.event_id AND E.guid = R.guid "
        "LEFT JOIN rocpd_string C ON C.id = E.category_id AND C.guid = E.guid "
        "LEFT JOIN rocpd_string S ON S.id = R.name_id AND S.guid = R.guid WHERE R.pid = ?"
    )
    for columns in database.columns_of(query, 4, part.process):
        give_regions(emitter, Regions(*columns))


class Regions(NamedTuple):
    """Calls and markers of the host, shape of each (num_regions,).

    Attributes:
        start: Unit: ns as the file counts.
        end: Unit: ns as the file counts.
        thread: Number of the thread.
        correlation: What work of the GPU refers to the call by.
        domain: `HIP_RUNTIME_API`, `MARKER_CORE_API`, `RCCL_API`, ...
        name: Text of the marker, or the function called.
    """

    start: Sequence[int] | Int64
    end: Sequence[int] | Int64
    thread: Sequence[int] | Int64
    correlation: Sequence[int] | Int64
    domain: Sequence[str | None]
    name: Sequence[str | None]


def give_regions(emitter: Emitter, regions: Regions) -> None:
    """Give calls of HIP as launches, markers and calls of RCCL as ranges."""
    domains = [one or "" for one in regions.domain]
    is_call = np.array([one.startswith(_CALLS) for one in domains], dtype=bool)
    is_range = np.array([one.startswith((_MARKERS, "RCCL")) for one in domains], dtype=bool)
    start, end, thread, correlation = map(numbers, regions[:4])
    emitter.launches(start[is_call], correlation[is_call], thread[is_call])
    texts = [emitter.name(named_range(text or "")) for text, one in zip(regions.name, is_range, strict=True) if one]
    emitter.ranges(start[is_range], end[is_range], numbers(texts), thread[is_range])


def _read_rpd(database: Database, part: Part, emitter: Emitter) -> None:
    """Give a GPU's operations; one without a description, a copy or a barrier, is called by its type."""
    texts = Texts(database, "SELECT string FROM rocpd_string WHERE id = ?", lambda text: emitter.name(_op_name(text)))
    empty = [number for (number,) in database.rows("SELECT id FROM rocpd_string WHERE string = ''")]
    name = (
        f"CASE WHEN O.description_id IN ({', '.join(map(str, empty)) or -1}) THEN O.opType_id ELSE O.description_id END"
    )
    sizes = ("gridX", "gridY", "gridZ", "workgroupX", "workgroupY", "workgroupZ")
    query = (
        f'SELECT O.start, O."end", {name}, O.queueId, ifnull(L.api_id, -1), '
        f"{', '.join(f'ifnull(K.{one}, -1)' for one in sizes)}, ifnull(N.string LIKE 'hipExtModule%', 0) FROM rocpd_op "
        "O LEFT JOIN rocpd_api_ops L ON L.op_id = O.id LEFT JOIN rocpd_kernelapi K ON K.api_ptr_id = L.api_id LEFT "
        "JOIN rocpd_api I ON I.id = L.api_id LEFT JOIN rocpd_string N ON N.id = I.apiName_id WHERE O.gpuId = ?"
    )
    for rows in database.batches(query, part.device):
        start, end, named, queue, correlation = rows[:, :5].T
        # HIP's launches count blocks; only those of hipExtModuleLaunchKernel count work items.
        sizes_of = rows[:, 5:11]
        grid = np.where(rows[:, 11:] > 0, in_blocks(sizes_of), sizes_of[:, :3])
        geometry = emitter.geometry(np.column_stack((grid, sizes_of[:, 3:], np.full((len(rows), 2), -1))))
        _give_ops(emitter, Times(start, end, correlation), texts.numbers(named), queue, geometry)
    calls = (
        "SELECT start, \"end\", tid, rocpd_api.id, CASE N.string WHEN 'UserMarker' THEN 'MARKER' ELSE 'HIP' END, "
        "A.string FROM rocpd_api JOIN rocpd_string N ON N.id = apiName_id JOIN rocpd_string A ON A.id = args_id"
    )
    for columns in database.columns_of(calls, 4):
        give_regions(emitter, Regions(*columns))


def _op_name(text: str) -> str:
    """Return the name of an operation: copies as Kineto names them, kernels as they are."""
    name = f"MEMORY_COPY_{text.removeprefix('Copy')}" if text.startswith("Copy") else ""
    for side in ("Host", "Device"):
        name = name.replace(side, side.upper()).replace(f"{side.upper()}To", f"{side.upper()}_TO_")
    return COPY_NAMES.get(name, text)


def _give_ops(emitter: Emitter, times: Times, name: Int64, queue: Int64, geometry: Int64) -> None:
    """Give operations of a GPU, kernels and copies told apart by their name."""
    is_copy = np.array([text.startswith("Memcpy ") for text in emitter.names], dtype=bool)[name]
    for own, category in ((~is_copy, Category.KERNEL), (is_copy, Category.MEMCPY)):
        emitter.work(category, Times(*(one[own] for one in times)), name[own], queue[own], geometry[own])


def _read_results(database: Database, part: Part, emitter: Emitter) -> None:
    for table in ("OPS", "COPY"):
        for columns in _result_columns(database, table, part):
            start, end, queue, correlation, name = columns
            names = numbers([emitter.name(_op_name(str(text))) for text in name])
            unknown = np.full(len(names), -1)
            _give_ops(emitter, Times(start, end, correlation), names, queue, unknown)
    if "HIP" in database.tables:
        calls = "SELECT BeginNs, EndNs, tid, \"Index\", 'HIP', Name FROM HIP WHERE pid = ?"
        for columns in database.columns_of(calls, 4, part.process):
            give_regions(emitter, Regions(*columns))


def _result_columns(database: Database, table: str, part: Part) -> Iterator[list[Any]]:
    if table not in database.tables:
        return iter([])
    columns = 'BeginNs, EndNs, "queue-id", "Index", Name'
    return database.columns_of(
        f'SELECT {columns} FROM {table} WHERE pid = ? AND "dev-id" = ?', 4, part.process, part.device
    )
