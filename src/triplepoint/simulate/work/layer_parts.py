"""Parts of a layer: the share of one rank, GEMMs, kernels bound by memory, communication."""

from collections.abc import Iterable
from dataclasses import dataclass

from triplepoint.simulate.job import Job
from triplepoint.simulate.operations import CommKind, Communication, Kernel, Operation
from triplepoint.simulate.stacks import Gathered, Reduced
from triplepoint.simulate.work.fp8 import NVFP4, RECIPES

FLOPS_PER_MAC = 2
FP32_BYTES = 4
MASK_BYTES = 1

GEMM_BYTES = {"fp8": 1.0, "nvfp4": 0.5 + 1 / 16}
"""Of a number that GEMMs read, by formats that are cast to; in 4 bits with its share of the scale of 16 numbers."""

EXPOSED_OF_SCATTER = 0.25
"""Share of a reduce-scatter that no GEMM hides where tensor parallel communication is overlapped: the last of four
pieces. Source: NVIDIA/TransformerEngine initialize_ub, num_splits 4 of the pipelined reduce-scatter."""

Operations = tuple[Operation, ...]


@dataclass(frozen=True)
class Weights:
    """Parameters on one rank, by how many ranks hold the same ones.

    Attributes:
        split: Every tensor parallel rank has its own.
        shared: Tensor parallel ranks have the same.
        experts: Every rank of the expert and expert tensor parallel groups has its own.
    """

    split: float = 0.0
    shared: float = 0.0
    experts: float = 0.0

    @property
    def dense(self) -> float:
        """Parameters that all data parallel ranks have."""
        return self.split + self.shared

    @property
    def total(self) -> float:
        """All parameters on the rank."""
        return self.dense + self.experts

    def __add__(self, other: "Weights") -> "Weights":
        return Weights(self.split + other.split, self.shared + other.shared, self.experts + other.experts)

    def times(self, count: int) -> "Weights":
        """Return the weights of `count` such parts."""
        return Weights(self.split * count, self.shared * count, self.experts * count)


@dataclass(frozen=True)
class Part:
    """One part of a layer: what it runs for a micro-batch, what it keeps for the backward pass, what it learns.

    Attributes:
        forward: Forward pass.
        backward_input: Backward pass up to the gradient of its input.
        backward_weight: Gradients of its weights.
        saved: Kept from forward to backward. Unit: byte.
        weights: Its parameters on one rank.
        adapters: Its trainable parameters on one rank with LoRA.
    """

    forward: Operations = ()
    backward_input: Operations = ()
    backward_weight: Operations = ()
    saved: float = 0.0
    weights: Weights = Weights()
    adapters: float = 0.0


def join(parts: Iterable[Part]) -> Part:
    """Return parts one after the other as one part; the backward pass goes through them in reverse."""
    parts = tuple(parts)
    return Part(
        tuple(op for part in parts for op in part.forward),
        tuple(op for part in reversed(parts) for op in part.backward_input),
        tuple(op for part in reversed(parts) for op in part.backward_weight),
        sum(part.saved for part in parts),
        sum((part.weights for part in parts), Weights()),
        sum(part.adapters for part in parts),
    )


class Share:
    """What one rank has of a micro-batch and of the model.

    Attributes:
        job: The job.
        software: What its framework does.
        tokens: Of a micro-batch in tensor parallel regions.
        split_tokens: Outside of them: 1/tp with sequence parallelism.
        tp: Tensor parallel degree.
        element: Bytes of an activation.
        gemm_precision: Number format of the GEMMs of layers.
        gemm_element: Bytes of their inputs.
        is_quantized: Whether GEMMs of layers are in 8 or 4 bits, which what they read is cast to.
        recipe: What training does to cast.
        cached: Tokens before the new one of each sequence where tokens are generated; None elsewhere.
        cache_element: Bytes of a number in the cache of keys and values.
    """

    def __init__(self, job: Job, cached: int | None = None, cache_element: int = 2) -> None:
        """Work out the share of `job`; the last two are of a pass that generates tokens."""
        self.job = job
        self.cached = cached
        self.cache_element = cache_element
        self.software = job.software
        self.tp = job.layout.tp
        self.is_sequence_parallel = job.layout.sequence_parallel and self.tp > 1
        self.tokens = job.tokens_per_microbatch
        self.split_tokens = ceil_div(self.tokens, self.tp) if self.is_sequence_parallel else self.tokens
        self.element = FP32_BYTES if job.precision == "fp32" else 2
        self.gemm_precision = job.precision
        self.gemm_element: float = GEMM_BYTES.get(job.precision, self.element)
        self.gradient_element = self.software.gradient_bytes(job.precision, _reduced(job))
        self.is_quantized = job.precision in GEMM_BYTES
        self.recipe = NVFP4 if job.precision == "nvfp4" else RECIPES[self.software.fp8_recipe]
        self.has_adapters = job.trainable == "lora"
        self.overlaps_tp = "tp" in job.overlap and self.is_sequence_parallel
        self.gathers_once = bool(set(_gathered(job)) & set(self.software.gathers_once))

    @property
    def wide_precision(self) -> str:
        """Number format of the GEMMs that training in 8 or 4 bits leaves alone: attention, router, output."""
        return "bf16" if self.is_quantized else self.job.precision


def _reduced(job: Job) -> list[Reduced]:
    found: list[Reduced] = ["experts"] if job.model.moe else []
    is_sharded = job.layout.data_parallel_sharding == "optim_grads_params"
    return [*found, "sharded_parameters"] if is_sharded else found


def _gathered(job: Job) -> list[Gathered]:
    found: list[Gathered] = ["experts"] if job.model.moe else []
    return [*found, "pipelines"] if job.layout.pp > 1 else found


def ceil_div(number: int, by: int) -> int:
    """Return the quotient, rounded up."""
    return -(-number // by)


def gemm(
    shape: tuple[int, int, int], kind: str, precision: str, elements: tuple[float, float, float], cls: str = "gemm"
) -> Kernel:
    """Return the GEMM of an m x k and a k x n matrix.

    Args:
        shape: m, n, k.
        kind: forward, backward (input gradient) or weight.
        precision: Number format.
        elements: Bytes of one element of both inputs and the output.
        cls: Class of the kernel.
    """
    m, n, k = shape
    num_bytes = m * k * elements[0] + k * n * elements[1] + m * n * elements[2]
    return Kernel(cls, kind, float(FLOPS_PER_MAC * m * n * k), float(num_bytes), shape, precision)


def streaming(cls: str, kind: str, num_bytes: float) -> Kernel:
    """Return a kernel bound by memory."""
    return Kernel(cls, kind, 0.0, float(num_bytes))


def cast(share: Share, elements: int, across: bool) -> Operations:
    """Return the casts of 16-bit numbers to fp8, with their copy for GEMMs along tokens where `across`."""
    found = streaming("elementwise", "cast", elements * share.recipe.cast_bytes(share.element, across))
    if share.recipe.reads_first:
        return (streaming("elementwise", "largest", elements * share.element), found)
    return (found,)


def communication(kind: CommKind, group: str, num_bytes: float, overlapped: bool = False) -> Communication:
    """Return one collective or send; its arguments are those of `Communication`."""
    return Communication(kind, group, float(num_bytes), overlapped)


def repeat(operation: Operation, count: int) -> Operation:
    """Return the operation, run `count` times as often."""
    if isinstance(operation, Communication):
        return Communication(
            operation.kind, operation.group, operation.num_bytes, operation.is_overlapped, operation.count * count
        )
    return Kernel(
        operation.cls,
        operation.kind,
        operation.flops,
        operation.num_bytes,
        operation.shape,
        operation.precision,
        operation.is_causal,
        operation.count * count,
    )


def gather(share: Share, num_bytes: float, overlapped: bool = False) -> Operations:
    """Return what brings the split sequence together before a tensor parallel region, nothing without the split."""
    if not share.is_sequence_parallel:
        return ()
    hidden = share.software.tp_overlap_hidden
    if overlapped or not share.overlaps_tp or hidden == 1:
        return (communication("all_gather", "tp", num_bytes, overlapped or share.overlaps_tp),)
    return (
        communication("all_gather", "tp", num_bytes * hidden, True),
        communication("all_gather", "tp", num_bytes * (1 - hidden)),
    )


def scatter(share: Share, num_bytes: float, overlapped: bool = False) -> Operations:
    """Return what adds up partial results after a tensor parallel region."""
    if share.tp == 1:
        return ()
    if not share.is_sequence_parallel:
        return (communication("all_reduce", "tp", num_bytes, overlapped),)
    if overlapped or not share.overlaps_tp:
        return (communication("reduce_scatter", "tp", num_bytes, overlapped),)
    hidden = share.software.tp_overlap_hidden
    exposed = (EXPOSED_OF_SCATTER if hidden == 1 else 1 - hidden) * num_bytes
    return (
        communication("reduce_scatter", "tp", num_bytes - exposed, True),
        communication("reduce_scatter", "tp", exposed),
    )
