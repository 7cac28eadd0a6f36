"""Write a synthetic Kineto trace of any size, in constant memory.

Run from the repository: python -m tests.benchmarks.trace_generate --raw-gb 1 /tmp/trace.json.gz

One rank of a transformer's training: steps of micro-batches of layers. The mix follows a trace of distributed
data-parallel training on A100 (torch 2.4): for every piece of GPU work the call that launched it, the flow between the
two, and a nest of CPU operators; text and order as Kineto writes them, operators first, then the GPU with its calls.
About 4 million events a GB, 9 % of them on the GPU.
"""

import argparse
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from tests.benchmarks.trace_schedule import COMM_STREAM, NUM_PER_MICROBATCH, OPS, OPTIMIZER, Int64, Op, Part, parts

BYTES_PER_GPU_EVENT = 2_630
"""Text per piece of GPU work, all that belongs to it included: measured on what this script writes."""
_STEPS_PER_GB = 10
_FLOW = (
    b'  {\n    "ph": "%s", "id": %%d, "pid": %d, "tid": %d, "ts": %%d.%%03d,\n'
    b'    "cat": "ac2g", "name": "ac2g"%s\n  },\n'
)
_COMPLETE = (
    '  {{\n    "ph": "X", "cat": "{cat}", "name": "{name}", "pid": {pid}, "tid": {tid},\n'
    '    "ts": %d.%03d, "dur": %d.%03d,\n    "args": {{\n      {args}\n    }}\n  }},\n'
)
_PID = 2_910_249


def _complete(cat: str, name: str, pid: int, tid: int, args: str) -> bytes:
    return _COMPLETE.format(cat=cat, name=name, pid=pid, tid=tid, args=args).encode()


def _cpu_template(op: Op) -> bytes:
    """Return the text of an op's nested operators; each takes start, duration and two numbers."""
    thread = _PID if "Backward" not in op.operators[0] else _PID + 9_503
    text = b""
    for depth, name in enumerate(op.operators):
        cat = "user_annotation" if name.startswith(("nccl:", "Optimizer.")) else "cpu_op"
        more = '"Sequence number": 1080, "Fwd thread id": 1, ' if "Backward" in name and depth == 0 else ""
        shapes = ', "Input Dims": [[4096, 8192], [8192, 8192]]' if name == "aten::mm" else ""
        args = f'"External id": %d,{more}"Ev Idx": %d{shapes}'
        text += _complete(cat, name, _PID, thread, args)
    return text


def _gpu_template(op: Op) -> bytes:
    """Return the text of an op's GPU work, the call that launched it and their flow."""
    where = f'"stream": {op.stream}, "correlation": %d'
    if op.cat == "kernel":
        args = (
            f'"External id": %d,      "queued": 0, "device": 0, "context": 1,      {where},      '
            '"registers per thread": 96,      "shared memory": 87568,      "blocks per SM": 4.740741,      '
            '"warps per SM": 75.851852,      "grid": [512, 1, 1],      "block": [512, 1, 1],      '
            f'"est. achieved occupancy %%": 75{op.more}'
        )
        call = "cudaLaunchKernelExC" if op.stream == COMM_STREAM else "cudaLaunchKernel"
    else:
        bandwidth = '"bytes": 8192000, "memory bandwidth (GB/s)": 486.6920152091255'
        args = f'"External id": %d,      "device": 0, "context": 1,      {where},      {bandwidth}'
        call = "cudaMemcpyAsync" if op.cat == "gpu_memcpy" else "cudaMemsetAsync"
    launch_args = '"External id": %d,      "cbid": 211, "correlation": %d'
    return b"".join(
        (
            _complete(op.cat, op.name.replace("%", "%%"), 0, op.stream, args),
            _FLOW % (b"f", 0, op.stream, b', "bp": "e"'),
            _complete("cuda_runtime", call, _PID, _PID, launch_args),
            _FLOW % (b"s", _PID, _PID, b""),
        )
    )


def _split(ns: Int64) -> tuple[Int64, Int64]:
    return ns // 1_000, ns % 1_000


def _cpu_columns(part: Part, rows: Int64, op: Op) -> list[Int64]:
    columns = []
    depth = len(op.operators)
    for level in range(depth):
        start = part.launch[rows] - 2_100 * (depth - level) + part.jitter[rows] * (7_919 * level + 1) % 1_000
        duration = 9_300 + 4_700 * (depth - level) + part.jitter[rows] * (6_007 * level + 3) % 1_000
        number = part.number[rows] + level
        columns += [*_split(start), *_split(duration), number, number - 2_049]
    return columns


def _gpu_columns(part: Part, rows: Int64, op: Op) -> list[Int64]:
    start, launch, number = _split(part.start[rows]), _split(part.launch[rows]), part.number[rows]
    call = _split(4_000 + part.jitter[rows] * 5)
    kernel = [*start, *_split(part.duration[rows]), number - 7, number]
    return [*kernel, number, *start, *launch, *call, number - 7, number, number, *launch]


def _fill(part: Part, templates: list[bytes], columns: Callable[[Part, Int64, Op], list[Int64]]) -> bytes:
    texts = [b""] * len(part.op)
    for kind in np.unique(part.op).tolist():
        rows = np.flatnonzero(part.op == kind)
        values = np.column_stack(columns(part, rows, OPS[kind])).tolist()
        for row, value in zip(rows.tolist(), values, strict=True):
            texts[row] = templates[kind] % tuple(value)
    return b"".join(texts)


_ANNOTATION = '"External id": %d,"Ev Idx": %d'
_HEAD = b"""{
  "schemaVersion": 1,
  "deviceProperties": [
    {
      "id": 0, "name": "NVIDIA A100-SXM4-80GB", "totalGlobalMem": 84987740160,
      "computeMajor": 8, "computeMinor": 0, "numSms": 108
    }
  ],
  "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 64},
  "displayTimeUnit": "ms",
  "baseTimeNanoseconds": 1711964646000000000,
  "traceEvents": [
"""
_TAIL = b"""  {
    "name": "Record Window End", "ph": "i", "s": "g",
    "pid": "", "tid": "", "ts": 4458676000000.000
  }
  ],
  "traceName": "/tmp/synthetic.json"
}
"""


def trace_text(raw_gb: float) -> Iterator[bytes]:
    """Yield the text of a trace of about this size. Unit: 1e9 bytes."""
    num_events = raw_gb * 1e9 / BYTES_PER_GPU_EVENT
    num_steps = max(2, round(raw_gb * _STEPS_PER_GB))
    num_microbatches = max(1, round((num_events / num_steps - len(OPTIMIZER)) / NUM_PER_MICROBATCH))
    cpu, gpu = [_cpu_template(op) for op in OPS], [_gpu_template(op) for op in OPS]
    yield _HEAD
    begin = None
    for part in parts(num_steps, num_microbatches):
        first, last = int(part.launch[0]) - 20_000, int(part.launch[-1]) + 34_000
        begin = first - 500 if begin is None else begin
        yield _annotate(part.label, first, last, part)
        yield _fill(part, cpu, _cpu_columns)
        if part.is_last:
            yield _annotate(f"ProfilerStep#{part.step}", begin, last + 400, part)
            begin = None
    for part in parts(num_steps, num_microbatches):
        yield _fill(part, gpu, _gpu_columns)
    yield _TAIL


def _annotate(label: str, start: int, end: int, part: Part) -> bytes:
    number = int(part.number[0])
    values = (*divmod(start, 1_000), *divmod(end - start, 1_000), number, number)
    return _complete("user_annotation", label, _PID, _PID, _ANNOTATION) % values


def write_trace(path: Path, raw_gb: float) -> int:
    """Write a trace, gzip level 6 if its name ends in .gz, and return its length as text. Unit: bytes."""
    packer = zlib.compressobj(6, wbits=31) if path.suffix == ".gz" else None
    length = 0
    with path.open("wb") as file:
        for block in trace_text(raw_gb):
            length += len(block)
            file.write(packer.compress(block) if packer else block)
        file.write(packer.flush() if packer else b"")
    return length


def main() -> None:
    """Write the trace the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--raw-gb", type=float, default=1.0, help="size of the text in 1e9 bytes")
    parser.add_argument("out", type=Path, help="file to write, .json or .json.gz")
    arguments = parser.parse_args()
    length = write_trace(arguments.out, arguments.raw_gb)
    print(f"{arguments.out}: {length} bytes of text, {arguments.out.stat().st_size} in the file")


if __name__ == "__main__":
    main()
