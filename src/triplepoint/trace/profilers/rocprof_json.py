"""Read the JSON of rocprofv3: one document with the agents, kernels and events of each process.

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
from triplepoint.trace.profilers.rocpd import Regions, copy_name, emit_regions, in_blocks


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
    """The output of one call of rocprofv3."""

    tools: list[_Tool] = msgspec.field(name="rocprofiler-sdk-tool")


JSON_START = re.compile(rb'\s*\{\s*"rocprofiler-sdk-tool"')
"""First bytes of rocprofv3's JSON."""


def decode(path: Path, text: bytes) -> Document:
    """Decode rocprofv3's JSON.

    Raises:
        UserError: If the text is truncated or has another layout.
    """
    try:
        return msgspec.json.decode(text, type=Document)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UserError(
            f"{path.name}: damaged JSON of rocprofv3 ({error}); copy it again, or export it as CSV"
        ) from None


def parts(document: Document) -> list[Part]:
    """Return every process with each GPU it ran a kernel on."""
    result = []
    for tool in document.tools:
        product_names = {agent.id.handle: agent.product_name for agent in tool.agents}
        used = sorted({kernel.dispatch_info.agent_id.handle for kernel in tool.buffer_records.kernel_dispatch})
        result += [Part(tool.metadata.pid, handle, product_names.get(handle, "")) for handle in used]
    return result


def read(document: Document, part: Part, emitter: Emitter) -> Facts:
    """Emit the events of a part."""
    tool = next(tool for tool in document.tools if tool.metadata.pid == part.process)
    _read_kernels(tool, part, emitter)
    operations = [kind.operations for kind in tool.strings.buffer_records]
    copies = [copy for copy in tool.buffer_records.memory_copy if _gpu_of(copy, operations) == part.device]
    if copies:
        name = numbers([emitter.name(copy_name(operations[copy.kind][copy.operation])) for copy in copies])
        # Copies have no queue; one is assumed per direction.
        emitter.work(Category.MEMCPY, _times(copies), name, -1 - name)
    _read_regions(tool, emitter)
    return Facts(0, {"deviceProperties": [{"id": part.device, "name": part.gpu_name}]} if part.gpu_name else {})


def _gpu_of(copy: _CopyRecord, operations: list[list[str]]) -> int:
    is_to_host = "TO_HOST" in operations[copy.kind][copy.operation]
    return (copy.src_agent_id if is_to_host else copy.dst_agent_id).handle


def _times(records: list[Any]) -> Times:
    return Times(
        numbers([record.start_timestamp for record in records]),
        numbers([record.end_timestamp for record in records]),
        numbers([record.correlation_id.internal for record in records]),
    )


def _read_kernels(tool: _Tool, part: Part, emitter: Emitter) -> None:
    symbols = {symbol.kernel_id: symbol for symbol in tool.kernel_symbols}
    kernels = [
        kernel for kernel in tool.buffer_records.kernel_dispatch if kernel.dispatch_info.agent_id.handle == part.device
    ]
    dispatches = [kernel.dispatch_info for kernel in kernels]
    kernel_symbols = [symbols.get(dispatch.kernel_id, _Symbol(dispatch.kernel_id)) for dispatch in dispatches]
    as_tuple = msgspec.structs.astuple
    sizes = numbers(
        [(*as_tuple(dispatch.grid_size), *as_tuple(dispatch.workgroup_size)) for dispatch in dispatches]
    ).reshape(-1, 6)
    resources = numbers([(symbol.arch_vgpr_count, symbol.group_segment_size) for symbol in kernel_symbols])
    geometry = emitter.geometry(np.column_stack((in_blocks(sizes), sizes[:, 3:], resources.reshape(-1, 2))))
    texts = [(symbol.formatted_kernel_name or symbol.kernel_name).removesuffix(".kd") for symbol in kernel_symbols]
    name = numbers([emitter.name(text) for text in texts])
    queue = numbers([dispatch.queue_id.handle for dispatch in dispatches])
    emitter.work(Category.KERNEL, _times(kernels), name, queue, geometry)


def _read_regions(tool: _Tool, emitter: Emitter) -> None:
    kinds, records = tool.strings.buffer_records, tool.buffer_records
    marker_texts = {marker.key: marker.value for marker in tool.strings.marker_api}
    calls = [*records.hip_api, *records.marker_api, *records.rccl_api]
    if not calls:
        return
    start, end, correlation = _times(calls)
    domains = [kinds[call.kind].kind for call in calls]
    names = [
        marker_texts.get(call.correlation_id.internal, kinds[call.kind].operations[call.operation]) for call in calls
    ]
    emit_regions(emitter, Regions(start, end, [call.thread_id for call in calls], correlation, domains, names))
