"""Writes what a Kineto trace holds as other profilers would have written it, by their published schemas.

No recording of Nsight Systems or rocpd under a free licence is at hand; tables and columns are those of the sources
named in the readers. Kernels, copies, launches and ranges are those of the Kineto trace, so the tables must be, too.
"""

import csv
import gzip
import json
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

PID = 4711
GLOBAL_PID = PID << 24
START_NS = 1_694_128_000_000_000_000
"""Wall clock at which a recorded session of Nsight Systems began."""

_COPY_KINDS = {"HtoD": 1, "DtoH": 2, "DtoD": 8}
_MEMORY_KINDS = {"Pageable": 1, "Pinned": 2, "Device": 3}
_COPY_DIRECTIONS = {"HtoD": "HOST_TO_DEVICE", "DtoH": "DEVICE_TO_HOST", "DtoD": "DEVICE_TO_DEVICE"}

NSIGHT_SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT, localTime TEXT);
CREATE TABLE TARGET_INFO_GPU (vmId INTEGER, id INTEGER, name TEXT, busLocation TEXT);
CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId INTEGER, cudaId INTEGER, pid INTEGER, uuid TEXT);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
    demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, registersPerThread INTEGER NOT NULL,
    gridX INTEGER NOT NULL, gridY INTEGER NOT NULL, gridZ INTEGER NOT NULL,
    blockX INTEGER NOT NULL, blockY INTEGER NOT NULL, blockZ INTEGER NOT NULL,
    staticSharedMemory INTEGER NOT NULL, dynamicSharedMemory INTEGER NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
    bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL, srcKind INTEGER, dstKind INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL,
    globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, text TEXT,
    globalTid INTEGER, textId INTEGER, domainId INTEGER);
"""

ROCPD_SCHEMA = """
CREATE TABLE rocpd_string_{u} (id INTEGER PRIMARY KEY, guid TEXT, string TEXT NOT NULL UNIQUE);
CREATE TABLE rocpd_info_agent_{u} (id INTEGER PRIMARY KEY, guid TEXT, nid INTEGER, pid INTEGER, type TEXT,
    absolute_index INTEGER, logical_index INTEGER, type_index INTEGER, name TEXT, product_name TEXT);
CREATE TABLE rocpd_info_kernel_symbol_{u} (id INTEGER PRIMARY KEY, guid TEXT, kernel_name TEXT, display_name TEXT);
CREATE TABLE rocpd_event_{u} (id INTEGER PRIMARY KEY, guid TEXT, category_id INTEGER, stack_id INTEGER,
    parent_stack_id INTEGER, correlation_id INTEGER, extdata JSONB DEFAULT '{{}}' NOT NULL);
CREATE TABLE rocpd_region_{u} (id INTEGER PRIMARY KEY, guid TEXT, nid INTEGER, pid INTEGER, tid INTEGER, start BIGINT,
    end BIGINT, name_id INTEGER, event_id INTEGER, extdata JSONB DEFAULT '{{}}' NOT NULL);
CREATE TABLE rocpd_kernel_dispatch_{u} (id INTEGER PRIMARY KEY, guid TEXT, nid INTEGER, pid INTEGER, tid INTEGER,
    agent_id INTEGER, kernel_id INTEGER, dispatch_id INTEGER, queue_id INTEGER, stream_id INTEGER, start BIGINT,
    end BIGINT, workgroup_size_x INTEGER, workgroup_size_y INTEGER, workgroup_size_z INTEGER, grid_size_x INTEGER,
    grid_size_y INTEGER, grid_size_z INTEGER, event_id INTEGER);
CREATE TABLE rocpd_memory_copy_{u} (id INTEGER PRIMARY KEY, guid TEXT, nid INTEGER, pid INTEGER, tid INTEGER,
    start BIGINT, end BIGINT, name_id INTEGER, dst_agent_id INTEGER, src_agent_id INTEGER, size INTEGER,
    queue_id INTEGER, stream_id INTEGER, event_id INTEGER);
"""
_ROCPD_TABLES = ("string", "info_agent", "info_kernel_symbol", "event", "region", "kernel_dispatch", "memory_copy")


class Event(NamedTuple):
    """One event of a Kineto trace; times in ns."""

    name: str
    start: int
    end: int
    tid: int
    args: dict[str, Any]

    @property
    def correlation(self) -> int:
        return int(self.args.get("correlation", 0))

    @property
    def blocks(self) -> list[int]:
        return list(self.args["grid"])

    @property
    def threads(self) -> list[int]:
        return list(self.args["block"])

    @property
    def direction(self) -> str:
        return self.name.split()[1]


class Recording(NamedTuple):
    """What a Kineto trace of whole microseconds holds, by kind of event."""

    kernels: list[Event]
    copies: list[Event]
    calls: list[Event]
    ranges: list[Event]


def read_recording(path: Path) -> Recording:
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    return Recording(*(_of(events, cat) for cat in ("kernel", "gpu_memcpy", "cuda_runtime", "user_annotation")))


def _of(events: list[dict[str, Any]], cat: str) -> list[Event]:
    return [
        Event(one["name"], one["ts"] * 1000, (one["ts"] + one["dur"]) * 1000, one["tid"], one["args"])
        for one in events
        if one.get("cat") == cat
    ]


def insert(connection: sqlite3.Connection, table: str, rows: Iterable[dict[str, Any]]) -> None:
    for row in rows:
        marks = ", ".join("?" * len(row))
        connection.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", list(row.values()))


def write_nsight(path: Path, recording: Recording, *, device: int = 0, pid: int = PID) -> Path:
    """Write, or add another process to, what `nsys export --type sqlite` writes."""
    is_new = not path.exists()
    connection = sqlite3.connect(path)
    if is_new:
        connection.executescript(NSIGHT_SCHEMA)
        insert(connection, "TARGET_INFO_SESSION_START_TIME", [{"utcEpochNs": START_NS}])
    insert(connection, "TARGET_INFO_GPU", [{"vmId": 0, "id": device, "name": "Tesla V100-SXM2-32GB"}])
    insert(connection, "TARGET_INFO_CUDA_DEVICE", [{"gpuId": device, "cudaId": device, "pid": pid}])
    strings = _Strings(connection, "StringIds", "value")
    common = {"deviceId": device, "contextId": 1, "globalPid": pid << 24}
    for one in recording.kernels:
        size = {f"grid{axis}": blocks for axis, blocks in zip("XYZ", one.blocks, strict=True)}
        size |= {f"block{axis}": threads for axis, threads in zip("XYZ", one.threads, strict=True)}
        memory = {
            "staticSharedMemory": one.args["shared memory"] // 2,
            "registersPerThread": one.args["registers per thread"],
        }
        memory["dynamicSharedMemory"] = one.args["shared memory"] - memory["staticSharedMemory"]
        name = {"demangledName": strings.number(one.name), "shortName": strings.number(one.name.split("<")[0])}
        insert(connection, "CUPTI_ACTIVITY_KIND_KERNEL", [_timed(one) | common | name | size | memory])
    for one in recording.copies:
        source, target = one.name.partition("(")[2].rstrip(")").split(" -> ")
        kinds = {"copyKind": _COPY_KINDS[one.direction], "bytes": one.args["bytes"]}
        kinds |= {"srcKind": _MEMORY_KINDS[source], "dstKind": _MEMORY_KINDS[target]}
        insert(connection, "CUPTI_ACTIVITY_KIND_MEMCPY", [_timed(one) | common | kinds])
    for one in recording.calls:
        call = {"start": one.start - START_NS, "end": one.end - START_NS, "eventClass": 0, "returnValue": 0}
        call |= {"globalTid": pid << 24 | one.tid, "correlationId": one.correlation, "nameId": strings.number(one.name)}
        insert(connection, "CUPTI_ACTIVITY_KIND_RUNTIME", [call])
    for index, one in enumerate(recording.ranges):
        marked = {"start": one.start - START_NS, "end": one.end - START_NS, "eventType": 59 + index % 2}
        text = {"text": one.name} if index % 3 else {"textId": strings.number(one.name)}
        insert(connection, "NVTX_EVENTS", [marked | text | {"globalTid": pid << 24 | one.tid}])
    connection.commit()
    connection.close()
    return path


def _timed(one: Event) -> dict[str, int]:
    times = {"start": one.start - START_NS, "end": one.end - START_NS}
    return times | {"streamId": one.args["stream"], "correlationId": one.correlation}


class _Strings:
    """Texts in a table of their own, each once."""

    def __init__(self, connection: sqlite3.Connection, table: str, column: str, **more: Any) -> None:
        self._connection, self._table, self._column, self._more = connection, table, column, more
        self._known = dict(connection.execute(f"SELECT {column}, id FROM {table}").fetchall())

    def number(self, text: str) -> int:
        if text not in self._known:
            self._known[text] = len(self._known) + 1
            insert(self._connection, self._table, [{"id": self._known[text], self._column: text, **self._more}])
        return int(self._known[text])


def write_rocpd(path: Path, recording: Recording) -> Path:
    """Write what rocprofv3 writes by default: schema 3, tables of one process with views over them."""
    unique = "0192_ab"
    connection = sqlite3.connect(path)
    connection.executescript(ROCPD_SCHEMA.format(u=unique))
    for table in _ROCPD_TABLES:
        connection.execute(f"CREATE VIEW rocpd_{table} AS SELECT * FROM rocpd_{table}_{unique}")
    guid = {"guid": "0192-ab"}
    strings = _Strings(connection, f"rocpd_string_{unique}", "string", **guid)
    kernels = _Strings(connection, f"rocpd_info_kernel_symbol_{unique}", "display_name", **guid)
    agents = [{"id": 1, "type": "CPU", "type_index": 0}, {"id": 5, "type": "GPU", "type_index": 0}]
    insert(
        connection,
        f"rocpd_info_agent_{unique}",
        [one | guid | {"product_name": "AMD Instinct MI300X"} for one in agents],
    )
    for event, (table, row, more) in enumerate(_rocpd_rows(recording, strings, kernels), 1):
        insert(connection, f"rocpd_event_{unique}", [{"id": event} | guid | more])
        insert(connection, f"rocpd_{table}_{unique}", [row | guid | {"nid": 1, "pid": 1, "event_id": event}])
    connection.commit()
    connection.close()
    return path


def _rocpd_rows(
    recording: Recording, strings: _Strings, kernels: _Strings
) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    for one in recording.kernels:
        row = {"start": one.start, "end": one.end, "agent_id": 5, "kernel_id": kernels.number(one.name)}
        row |= {"queue_id": one.args["stream"], "dispatch_id": one.correlation}
        for axis, blocks, threads in zip("xyz", one.blocks, one.threads, strict=True):
            row |= {f"grid_size_{axis}": blocks * threads, f"workgroup_size_{axis}": threads}
        yield "kernel_dispatch", row, {"stack_id": one.correlation}
    for one in recording.copies:
        row = {"start": one.start, "end": one.end, "name_id": strings.number(_copy(one)), "queue_id": 0, "size": 1}
        source, target = (1 if side == "H" else 5 for side in one.direction.split("to"))
        yield "memory_copy", row | {"src_agent_id": source, "dst_agent_id": target}, {"stack_id": one.correlation}
    for one in recording.calls:
        row = {"start": one.start, "end": one.end, "tid": one.tid, "name_id": strings.number(one.name)}
        more = {"stack_id": one.correlation, "category_id": strings.number("HIP_RUNTIME_API")}
        yield "region", row, more
    for one in recording.ranges:
        row = {"start": one.start, "end": one.end, "tid": one.tid, "name_id": strings.number("roctxRangePushA")}
        more = {"stack_id": 0, "category_id": strings.number("MARKER_CORE_RANGE_API")}
        yield "region", row, more | {"extdata": json.dumps({"message": one.name})}


def _copy(one: Event) -> str:
    return f"MEMORY_COPY_{_COPY_DIRECTIONS[one.direction]}"


def write_rocprofv3(folder: Path, recording: Recording, *, agent: int = 4) -> Path:
    """Write what `rocprofv3 --sys-trace --output-format csv` writes; return the kernel trace."""
    folder.mkdir(parents=True, exist_ok=True)
    of_agent = f"Agent {agent}"
    kernels = [
        {
            **{"Kind": "KERNEL_DISPATCH", "Agent_Id": of_agent, "Queue_Id": one.args["stream"], "Thread_Id": PID},
            **{"Dispatch_Id": index, "Kernel_Id": 1, "Kernel_Name": one.name, "Correlation_Id": one.correlation},
            **{"Start_Timestamp": one.start, "End_Timestamp": one.end},
            **{"LDS_Block_Size": one.args["shared memory"], "VGPR_Count": one.args["registers per thread"]},
            **{f"Workgroup_Size_{axis}": threads for axis, threads in zip("XYZ", one.threads, strict=True)},
            **{f"Grid_Size_{axis}": b * t for axis, b, t in zip("XYZ", one.blocks, one.threads, strict=True)},
        }
        for index, one in enumerate(recording.kernels, 1)
    ]
    copies = [
        {
            **{"Kind": "MEMORY_COPY", "Direction": _copy(one)},
            "Source_Agent_Id": "Agent 0" if one.direction[0] == "H" else of_agent,
            "Destination_Agent_Id": "Agent 0" if one.direction[-1] == "H" else of_agent,
            **{"Correlation_Id": one.correlation, "Start_Timestamp": one.start, "End_Timestamp": one.end},
        }
        for one in recording.copies
    ]
    write_csv(folder / f"{PID}_memory_copy_trace.csv", copies)
    write_csv(folder / f"{PID}_hip_api_trace.csv", [_call("HIP_RUNTIME_API", one) for one in recording.calls])
    write_csv(folder / f"{PID}_marker_api_trace.csv", [_call("MARKER_CORE_API", one) for one in recording.ranges])
    info = {"Node_Id": agent, "Logical_Node_Id": agent, "Agent_Type": "GPU", "Product_Name": "AMD Instinct MI300X"}
    write_csv(folder / f"{PID}_agent_info.csv", [info])
    return write_csv(folder / f"{PID}_kernel_trace.csv", kernels)


def _call(domain: str, one: Event) -> dict[str, Any]:
    row = {"Domain": domain, "Function": one.name, "Process_Id": PID, "Thread_Id": one.tid}
    return row | {"Correlation_Id": one.correlation, "Start_Timestamp": one.start, "End_Timestamp": one.end}


def write_csv(path: Path, rows: list[dict[str, Any]]) -> Path:
    with path.open("w", newline="") as file:
        out = csv.DictWriter(file, list(rows[0]), quoting=csv.QUOTE_NONNUMERIC)
        out.writeheader()
        out.writerows(rows)
    return path
