"""The JSON of rocprofv3: one document with the agents, kernels and events of each process.

Source: rocprofiler-sdk, `rocprofv3 --output-format json`; a recording in AMD-AGI/TraceLens, `tests/rocprof`.
"""

import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from triplepoint.errors import UserError
from triplepoint.trace.kineto import Category
from triplepoint.trace.profilers import Facts, Part
from triplepoint.trace.profilers.emitter import Emitter, Times, numbers
from triplepoint.trace.profilers.rocpd import Regions, copy_name, give_regions, in_blocks


class _Handle(msgspec.Struct):
    handle: int = 0


class _Correlation(msgspec.Struct):
    internal: int = -1


class _Size(msgspec.Struct):
    x: int = -1
    y: int = -1
    z: int = -1


class _Dispatch(msgspec.Struct):
    agent_id: _Handle
    queue_id: _Handle
    kernel_id: int
    workgroup_size: _Size
    grid_size: _Size


class _KernelRecord(msgspec.Struct):
    start_timestamp: int
    end_timestamp: int
    correlation_id: _Correlation
    dispatch_info: _Dispatch


class _CopyRecord(msgspec.Struct):
    start_timestamp: int
    end_timestamp: int
    correlation_id: _Correlation
    kind: int
    operation: int
    src_agent_id: _Handle
    dst_agent_id: _Handle


class _CallRecord(msgspec.Struct):
    start_timestamp: int
    end_timestamp: int
    correlation_id: _Correlation
    kind: int
    operation: int
    thread_id: int = -1


class _Records(msgspec.Struct):
    kernel_dispatch: list[_KernelRecord] = []
    memory_copy: list[_CopyRecord] = []
    hip_api: list[_CallRecord] = []
    marker_api: list[_CallRecord] = []
    rccl_api: list[_CallRecord] = []


class _Symbol(msgspec.Struct):
    kernel_id: int
    formatted_kernel_name: str = ""
    kernel_name: str = ""
    arch_vgpr_count: int = -1
    group_segment_size: int = -1


class _Kind(msgspec.Struct):
    kind: str
    operations: list[str]


class _Marker(msgspec.Struct):
    key: int
    value: str


class _Strings(msgspec.Struct):
    buffer_records: list[_Kind] = []
    marker_api: list[_Marker] = []


class _Agent(msgspec.Struct):
    id: _Handle
    type: int = 0
    product_name: str = ""


class _Process(msgspec.Struct):
    pid: int = 0


class _Tool(msgspec.Struct):
    metadata: _Process
    agents: list[_Agent]
    strings: _Strings
    kernel_symbols: list[_Symbol]
    buffer_records: _Records


class Document(msgspec.Struct):
    """What one call of rocprofv3 wrote."""

    tools: list[_Tool] = msgspec.field(name="rocprofiler-sdk-tool")


JSON_START = re.compile(rb'\s*\{\s*"rocprofiler-sdk-tool"')
"""How the JSON of rocprofv3 begins."""


def decode(path: Path, text: bytes) -> Document:
    """Return the document of rocprofv3's JSON.

    Raises:
        UserError: If it is cut off or not of this layout.
    """
    try:
        return msgspec.json.decode(text, type=Document)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UserError(
            f"{path.name}: damaged JSON of rocprofv3 ({error}); copy it again, or export it as CSV"
        ) from None


def parts(document: Document) -> list[Part]:
    """Return every process with each GPU it ran a kernel on."""
    found = []
    for tool in document.tools:
        gpus = {agent.id.handle: agent.product_name for agent in tool.agents}
        used = sorted({one.dispatch_info.agent_id.handle for one in tool.buffer_records.kernel_dispatch})
        found += [Part(tool.metadata.pid, handle, gpus.get(handle, "")) for handle in used]
    return found


def read(document: Document, part: Part, emitter: Emitter) -> Facts:
    """Give the events of a part to an emitter."""
    tool = next(one for one in document.tools if one.metadata.pid == part.process)
    _json_kernels(tool, part, emitter)
    operations = [kind.operations for kind in tool.strings.buffer_records]
    records = tool.buffer_records
    copies = [one for one in records.memory_copy if _gpu_of(one, operations) == part.device]
    if copies:
        name = numbers([emitter.name(copy_name(operations[one.kind][one.operation])) for one in copies])
        emitter.work(Category.MEMCPY, _times(copies), name, -1 - name)
    _json_regions(tool, emitter)
    return Facts(0, {"deviceProperties": [{"id": part.device, "name": part.gpu_name}]} if part.gpu_name else {})


def _gpu_of(copy: _CopyRecord, operations: list[list[str]]) -> int:
    is_to_host = "TO_HOST" in operations[copy.kind][copy.operation]
    return (copy.src_agent_id if is_to_host else copy.dst_agent_id).handle


def _times(records: list[Any]) -> Times:
    return Times(
        numbers([one.start_timestamp for one in records]),
        numbers([one.end_timestamp for one in records]),
        numbers([one.correlation_id.internal for one in records]),
    )


def _json_kernels(tool: _Tool, part: Part, emitter: Emitter) -> None:
    symbols = {one.kernel_id: one for one in tool.kernel_symbols}
    own = [one for one in tool.buffer_records.kernel_dispatch if one.dispatch_info.agent_id.handle == part.device]
    launched = [one.dispatch_info for one in own]
    of_kernel = [symbols.get(one.kernel_id, _Symbol(one.kernel_id)) for one in launched]
    sizes = numbers(
        [(*msgspec.structs.astuple(one.grid_size), *msgspec.structs.astuple(one.workgroup_size)) for one in launched]
    ).reshape(-1, 6)
    rest = numbers([(one.arch_vgpr_count, one.group_segment_size) for one in of_kernel]).reshape(-1, 2)
    geometry = emitter.geometry(np.column_stack((in_blocks(sizes), sizes[:, 3:], rest)))
    name = numbers(
        [emitter.name((one.formatted_kernel_name or one.kernel_name).removesuffix(".kd")) for one in of_kernel]
    )
    queue = numbers([one.queue_id.handle for one in launched])
    emitter.work(Category.KERNEL, _times(own), name, queue, geometry)


def _json_regions(tool: _Tool, emitter: Emitter) -> None:
    kinds, records = tool.strings.buffer_records, tool.buffer_records
    texts = {one.key: one.value for one in tool.strings.marker_api}
    calls = [*records.hip_api, *records.marker_api, *records.rccl_api]
    if not calls:
        return
    start, end, correlation = _times(calls)
    domains = [kinds[one.kind].kind for one in calls]
    names = [texts.get(one.correlation_id.internal, kinds[one.kind].operations[one.operation]) for one in calls]
    give_regions(emitter, Regions(start, end, [one.thread_id for one in calls], correlation, domains, names))
