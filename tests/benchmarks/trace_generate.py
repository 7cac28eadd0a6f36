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
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]

START_NS = 4_458_676_000_000_000
NUM_LAYERS = 32
BYTES_PER_GPU_EVENT = 2_630
"""Text per piece of GPU work, all that belongs to it included: measured on what this script writes."""
_STEPS_PER_GB = 10
_COMPUTE, _COMM = 7, 40
_MESSAGE = (
    ', "Collective name": "%s", "In msg nelems": 6637568, "Out msg nelems": 6637568, "Group size": 8, '
    '"dtype": "BFloat16", "In split size": "[]", "Out split size": "[]", "Process Group Name": "%s", '
    '"Process Group Description": "%s", "Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]"'
)


class Op(NamedTuple):
    """One piece of GPU work: nested operators (outermost first), its name, how long, on which stream, its arguments."""

    operators: tuple[str, ...]
    name: str
    duration_ns: int
    stream: int = _COMPUTE
    more: str = ""
    cat: str = "kernel"


def _collective(name: str, kernel: str, group: str, description: str) -> Op:
    operators = (f"c10d::{name}_", "record_param_comms", f"nccl:{name}", "aten::view", "aten::detach", "detach")
    more = _MESSAGE % (name, group, description)
    return Op(operators, f"ncclDevKernel_{kernel}(ncclDevKernelArgsStorage<4096ul>)", 180_000, _COMM, more)


def _matmul(name: str, duration_ns: int) -> Op:
    operators = (
        "aten::linear",
        "aten::t",
        "aten::transpose",
        "aten::as_strided",
        "aten::view",
        "aten::mm",
        "aten::empty",
    )
    return Op(operators, name, duration_ns)


def _elementwise(functor: str, operator: str, duration_ns: int = 9_000) -> Op:
    arguments = f"at::native::{functor}<c10::BFloat16>, std::array<char*, 3ul>"
    name = f"void at::native::vectorized_elementwise_kernel<4, {arguments} >(int, {arguments})"
    operators = (
        "aten::to",
        "aten::_to_copy",
        "aten::empty_strided",
        f"aten::{operator}",
        "aten::result_type",
        "aten::empty",
    )
    return Op(operators, name, duration_ns)


def _backward(op: Op) -> Op:
    node = op.operators[0].removeprefix("aten::").title() + "Backward0"
    return op._replace(operators=(f"autograd::engine::evaluate_function: {node}", node, *op.operators[1:]))


_NORM = Op(
    ("aten::layer_norm", "aten::native_layer_norm", "aten::empty", "aten::empty", "aten::view", "aten::view"),
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>(int, float, "
    "c10::BFloat16 const*, c10::BFloat16 const*, c10::BFloat16 const*, float*, float*, c10::BFloat16*)",
    12_000,
)
_FLASH = Op(
    ("aten::scaled_dot_product_attention", "aten::_scaled_dot_product_flash_attention", "aten::transpose")
    + ("aten::as_strided", "aten::_flash_attention_forward", "aten::empty_like", "aten::empty_strided", "aten::empty"),
    "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, "
    "cutlass::bfloat16_t, pytorch_flash::Flash_kernel_traits<128, 128, 64, 4, cutlass::bfloat16_t> >, false, true, "
    "false, false, true, true, false>(pytorch_flash::Flash_fwd_params)",
    95_000,
)
_LAYER = (
    _NORM,
    _matmul("ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn", 140_000),
    Op(("RotaryEmbedding", "triton_poi_fused_cat_mul_0", "aten::empty"), "triton_poi_fused_cat_mul_0", 7_000),
    _FLASH,
    _matmul("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn", 60_000),
    _collective("allreduce", "AllReduce_Sum_bf16_RING_LL", "3", "TENSOR_MODEL_PARALLEL_GROUP"),
    _elementwise("CUDAFunctor_add", "add"),
    _NORM,
    _matmul("sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_stage4_warpsize2x2x1_tensor16x8x16", 190_000),
    _elementwise("GeluCUDAKernelImpl", "gelu"),
    _matmul("ampere_bf16_s16816gemm_bf16_256x128_ldg8_f2f_stages_64x3_tn", 185_000),
    _elementwise("CUDAFunctor_add", "add_"),
)
_COPY = Op(
    ("aten::to", "aten::_to_copy", "aten::empty_strided", "aten::copy_", "aten::pin_memory", "aten::as_strided"),
    "Memcpy HtoD (Pinned -> Device)",
    20_000,
    cat="gpu_memcpy",
)
_FILL = Op(("aten::zeros", "aten::empty", "aten::zero_", "aten::fill_"), "Memset (Device)", 1_500, cat="gpu_memset")
_ADAM = Op(
    ("Optimizer.step#AdamW.step", "aten::_fused_adamw_", "aten::empty", "aten::empty", "aten::detach", "detach"),
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
    "FusedOptimizerTensorListMetadata<4>, at::native::(anonymous namespace)::FusedAdamMathFunctor<float, 4, "
    "(at::native::ADAM_MODE)1, false>, float const*, double, double, double, double, double, bool, float*, float*, "
    "(at::native::ADAM_MODE)1>",
    70_000,
)
_SEND = _collective("send", "SendRecv", "7", "PIPELINE_MODEL_PARALLEL_GROUP")
_REDUCE = _collective("reduce_scatter", "ReduceScatter_Sum_f32_RING_LL", "11", "DATA_PARALLEL_GROUP")

_FORWARD = (_COPY, _FILL, *(_LAYER * NUM_LAYERS), _SEND)
_BACKWARD = tuple(_backward(op) for op in (_SEND, *(_LAYER[::-1] * 2 * NUM_LAYERS)))
_OPTIMIZER = (_REDUCE, _ADAM) * 40
_NUM_PER_MICROBATCH = len(_FORWARD) + len(_BACKWARD)

OPS = list(dict.fromkeys((*_FORWARD, *_BACKWARD, *_OPTIMIZER)))


class Part(NamedTuple):
    """A stretch of the training, one annotation; shape of every array (number of pieces of GPU work,).

    Attributes:
        label: Of its annotation.
        is_last: Whether it ends a step, the number of which is `step`.
        step: Number of the step.
        op: Index into `OPS`.
        launch: When the CPU launched it. Unit: ns.
        start: When it began on the GPU. Unit: ns.
        duration: Unit: ns.
        number: Correlation.
        jitter: Noise for whatever else needs some, 0 to 999.
    """

    label: str
    is_last: bool
    step: int
    op: Int64
    launch: Int64
    start: Int64
    duration: Int64
    number: Int64
    jitter: Int64


def parts(num_steps: int, num_microbatches: int) -> Iterator[Part]:
    """Yield the training, the same at every call."""
    random = np.random.default_rng(20261121)
    index = {op: number for number, op in enumerate(OPS)}
    launch_end, stream_free, number = START_NS, {_COMPUTE: START_NS, _COMM: START_NS}, 57_541
    labels = [f"{phase} stage=0 microbatch={mb}" for mb in range(num_microbatches) for phase in ("forward", "backward")]
    for step in range(5, 5 + num_steps):
        for label in [*labels, "optimizer"]:
            ops = _FORWARD if label[0] == "f" else _BACKWARD if label[0] == "b" else _OPTIMIZER
            launch = launch_end + np.cumsum(random.integers(60_000, 90_000, len(ops)))
            duration = np.array([op.duration_ns for op in ops]) * random.integers(9_000, 11_000, len(ops)) // 10_000
            start = np.empty(len(ops), dtype=np.int64)
            for stream in stream_free:
                rows = np.flatnonzero([op.stream == stream for op in ops])
                start[rows] = _queue(launch[rows] + 5_000, duration[rows], stream_free[stream])
                stream_free[stream] = int(start[rows[-1]] + duration[rows[-1]])
            launch_end = int(launch[-1]) + 40_000
            numbers = number + np.cumsum(random.integers(8, 20, len(ops)))
            number = int(numbers[-1])
            jitter = random.integers(0, 1_000, len(ops))
            kind = np.array([index[op] for op in ops])
            yield Part(label, label == "optimizer", step, kind, launch, start, duration, numbers, jitter)


def _queue(ready: Int64, duration: Int64, free: int) -> Int64:
    """Return when each of a queue starts: once it is ready and the one before it is done."""
    before = np.cumsum(duration) - duration
    earliest: Int64 = np.maximum(np.maximum.accumulate(ready - before), free)
    return earliest + before


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
        call = "cudaLaunchKernelExC" if op.stream == _COMM else "cudaLaunchKernel"
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
    num_microbatches = max(1, round((num_events / num_steps - len(_OPTIMIZER)) / _NUM_PER_MICROBATCH))
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
