"""Content of a synthetic trace: training of a transformer on one rank, and the schedule of its GPU."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]

START_NS = 4_458_676_000_000_000
NUM_LAYERS = 32
COMPUTE_STREAM, COMM_STREAM = 7, 40
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
    stream: int = COMPUTE_STREAM
    more: str = ""
    cat: str = "kernel"


def _collective(name: str, kernel: str, group: str, description: str) -> Op:
    operators = (f"c10d::{name}_", "record_param_comms", f"nccl:{name}", "aten::view", "aten::detach", "detach")
    more = _MESSAGE % (name, group, description)
    return Op(operators, f"ncclDevKernel_{kernel}(ncclDevKernelArgsStorage<4096ul>)", 180_000, COMM_STREAM, more)


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


def _layer(variant: int) -> tuple[Op, ...]:
    """Return a layer's forward pass; layers differ in the tiles their matrix products were tuned to."""
    tile = f"{64 << variant % 3}x{64 << variant // 3}"
    return (
        _NORM,
        _matmul(f"ampere_bf16_s16816gemm_bf16_{tile}_ldg8_f2f_stages_64x3_tn", 140_000),
        Op(
            ("RotaryEmbedding", "triton_poi_fused_cat_mul_0", "aten::empty"),
            f"triton_poi_fused_cat_mul_{variant}",
            7_000,
        ),
        _FLASH,
        _matmul(f"ampere_bf16_s16816gemm_bf16_{tile}_ldg8_f2f_stages_32x5_nn", 60_000),
        _collective("allreduce", "AllReduce_Sum_bf16_RING_LL", "3", "TENSOR_MODEL_PARALLEL_GROUP"),
        _elementwise("CUDAFunctor_add", "add"),
        _NORM,
        _matmul(f"sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize{tile}x64_stage4_warpsize2x2x1", 190_000),
        _elementwise("GeluCUDAKernelImpl", "gelu"),
        _matmul(f"ampere_bf16_s16816gemm_bf16_{tile}_ldg8_f2f_stages_64x4_nt", 185_000),
        _elementwise("CUDAFunctor_add", "add_"),
    )


_LAYERS = tuple(op for layer in range(NUM_LAYERS) for op in _layer(layer // 4))
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

_FORWARD = (_COPY, _FILL, *_LAYERS, _SEND)
_BACKWARD = tuple(_backward(op) for op in (_SEND, *_LAYERS[::-1], *_LAYERS[::-1]))
OPTIMIZER = (_REDUCE, _ADAM) * 40
NUM_PER_MICROBATCH = len(_FORWARD) + len(_BACKWARD)

OPS = list(dict.fromkeys((*_FORWARD, *_BACKWARD, *OPTIMIZER)))


class Part(NamedTuple):
    """A stretch of the training, one annotation; shape of every array (number of pieces of GPU work,).

    Attributes:
        label: Of its annotation.
        is_last: Whether it ends its step.
        step: Number of that.
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
    launch_end, stream_free, number = START_NS, {COMPUTE_STREAM: START_NS, COMM_STREAM: START_NS}, 57_541
    labels = [f"{phase} stage=0 microbatch={mb}" for mb in range(num_microbatches) for phase in ("forward", "backward")]
    phases = {"forward": _FORWARD, "backward": _BACKWARD, "optimizer": OPTIMIZER}
    for step in range(5, 5 + num_steps):
        for label in [*labels, "optimizer"]:
            ops = phases[label.split()[0]]
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
    """Return the start of each operation of a queue: once it is ready and the previous one has ended."""
    before = np.cumsum(duration) - duration
    earliest: Int64 = np.maximum(np.maximum.accumulate(ready - before), free)
    return earliest + before
