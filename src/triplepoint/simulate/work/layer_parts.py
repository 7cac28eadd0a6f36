"""Building blocks of layer work: the share of one rank, GEMMs, memory-bound kernels, communication."""

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
"""Bytes of one number of a GEMM operand, for formats that operands are cast to. In NVFP4, 16 numbers share a 1-byte
scale."""

EXPOSED_OF_SCATTER = 0.25
"""Share of a reduce-scatter that stays exposed when tensor parallel communication is overlapped: the last of four
pieces. Source: NVIDIA/TransformerEngine initialize_ub, num_splits 4 of the pipelined reduce-scatter."""

Operations = tuple[Operation, ...]


@dataclass(frozen=True)
class Weights:
    """Number of parameters on one rank, by how many ranks hold the same ones.

    Attributes:
        split: Parameters that differ on every tensor parallel rank.
        shared: Parameters that all tensor parallel ranks hold alike.
        experts: Parameters that differ on every rank of the expert and expert tensor parallel groups.
    """

    split: float = 0.0
    shared: float = 0.0
    experts: float = 0.0

    @property
    def dense(self) -> float:
        """Parameters that all data parallel ranks hold alike."""
        return self.split + self.shared

    @property
    def total(self) -> float:
        """All parameters on the rank."""
        return self.dense + self.experts

    def __add__(self, other: "Weights") -> "Weights":
        return Weights(self.split + other.split, self.shared + other.shared, self.experts + other.experts)

    def times(self, count: int) -> "Weights":
        """Return the weights of `count` equal parts."""
        return Weights(self.split * count, self.shared * count, self.experts * count)


@dataclass(frozen=True)
class Part:
    """Work, kept activations and parameters of one part of a layer, for one micro-batch on one rank.

    Attributes:
        forward: Operations of the forward pass.
        backward_input: Operations of the backward pass up to the gradient of the part's input.
        backward_weight: Operations that compute the weight gradients.
        saved: Activations kept from the forward to the backward pass. Unit: byte.
        weights: Parameters on the rank.
        adapters: Trainable LoRA parameters on the rank.
    """

    forward: Operations = ()
    backward_input: Operations = ()
    backward_weight: Operations = ()
    saved: float = 0.0
    weights: Weights = Weights()
    adapters: float = 0.0


def join(parts: Iterable[Part]) -> Part:
    """Return consecutive parts as one part; its backward pass runs them in reverse order."""
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
    """Sizes and number formats of one rank's share of a micro-batch and of the model.

    Attributes:
        job: The job.
        cached: Cached tokens of each sequence in a decoding pass; None in other passes.
        cache_element: Bytes of a number in the KV cache.
        software: Properties of the software stack.
        tp: Tensor parallel degree.
        is_sequence_parallel: Whether the sequence is split outside of tensor parallel regions.
        tokens: Tokens of a micro-batch inside tensor parallel regions.
        split_tokens: Tokens outside of tensor parallel regions: 1/tp of them with sequence parallelism.
        element: Bytes of one activation.
        gemm_precision: Number format of the GEMMs of layers.
        gemm_element: Bytes of one number of their operands.
        gradient_element: Bytes of one accumulated gradient.
        is_quantized: Whether GEMM operands are cast to 8 or 4 bits.
        recipe: Recipe of that cast.
        has_adapters: Whether only LoRA adapters are trained.
        overlaps_tp: Whether tensor parallel communication is overlapped with GEMMs.
        gathers_once: Whether sharded parameters are gathered once a step, not in every micro-batch.
    """

    def __init__(self, job: Job, cached: int | None = None, cache_element: int = 2) -> None:
        """Compute the share of a job.

        Args:
            job: The job.
            cached: Cached tokens of each sequence in a decoding pass; None in other passes.
            cache_element: Bytes of a number in the KV cache.
        """
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
        self.gradient_element = self.software.gradient_bytes(job.precision, _reduction_kinds(job))
        self.is_quantized = job.precision in GEMM_BYTES
        self.recipe = NVFP4 if job.precision == "nvfp4" else RECIPES[self.software.fp8_recipe]
        self.has_adapters = job.trainable == "lora"
        self.overlaps_tp = "tp" in job.overlap and self.is_sequence_parallel
        self.gathers_once = bool(set(_gathering_kinds(job)) & set(self.software.gathers_once))

    @property
    def wide_precision(self) -> str:
        """Number format of the GEMMs that are not cast to 8 or 4 bits: attention, router, output projection."""
        return "bf16" if self.is_quantized else self.job.precision


def _reduction_kinds(job: Job) -> list[Reduced]:
    """Return the kinds of training, as `Stack.reduces_16bit` names them, that a job is."""
    kinds: list[Reduced] = ["experts"] if job.model.moe else []
    is_sharded = job.layout.data_parallel_sharding == "optim_grads_params"
    return [*kinds, "sharded_parameters"] if is_sharded else kinds


def _gathering_kinds(job: Job) -> list[Gathered]:
    """Return the kinds of training, as `Stack.gathers_once` names them, that a job is."""
    kinds: list[Gathered] = ["experts"] if job.model.moe else []
    return [*kinds, "pipelines"] if job.layout.pp > 1 else kinds


def ceil_div(dividend: int, divisor: int) -> int:
    """Return the quotient, rounded up."""
    return -(-dividend // divisor)


def gemm(shape: tuple[int, int, int], kind: str, precision: str, elements: tuple[float, float, float]) -> Kernel:
    """Return the GEMM of an m x k and a k x n matrix.

    Args:
        shape: m, n, k.
        kind: forward, backward (input gradient) or weight (weight gradient).
        precision: Number format.
        elements: Bytes of one number of the first input, the second input and the output.
    """
    m, n, k = shape
    num_bytes = m * k * elements[0] + k * n * elements[1] + m * n * elements[2]
    return Kernel("gemm", kind, float(FLOPS_PER_MAC * m * n * k), float(num_bytes), shape, precision)


def streaming(cls: str, kind: str, num_bytes: float) -> Kernel:
    """Return a memory-bound kernel."""
    return Kernel(cls, kind, 0.0, float(num_bytes))


def cast(share: Share, num_elements: int, with_transpose: bool) -> Operations:
    """Return the kernels that cast 16-bit numbers to the format of GEMM operands.

    Args:
        share: Share of the rank.
        num_elements: Numbers to cast.
        with_transpose: Whether the transpose, which weight-gradient GEMMs read, is written too.
    """
    bytes_each = share.recipe.cast_bytes(share.element, with_transpose)
    cast_kernel = streaming("elementwise", "cast", num_elements * bytes_each)
    if share.recipe.reads_first:
        return (streaming("elementwise", "largest", num_elements * share.element), cast_kernel)
    return (cast_kernel,)


def communication(kind: CommKind, group: str, num_bytes: float, overlapped: bool = False) -> Communication:
    """Return one collective or send; arguments are those of `Communication`."""
    return Communication(kind, group, float(num_bytes), overlapped)


def repeat(operation: Operation, count: int) -> Operation:
    """Return the operation with `count` times as many runs."""
    # `dataclasses.replace` takes twice as long, and this runs for every operation of every layer.
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


def gather_sequence(share: Share, num_bytes: float, overlapped: bool = False) -> Operations:
    """Return the all-gather of a split sequence before a tensor parallel region; empty without sequence parallelism.

    Args:
        share: Share of the rank.
        num_bytes: Size of the gathered tensor. Unit: byte.
        overlapped: Whether computation overlaps all of it, whatever the job's overlap setting says.
    """
    if not share.is_sequence_parallel:
        return ()
    hidden = share.software.tp_overlap_hidden
    if overlapped or not share.overlaps_tp or hidden == 1:
        return (communication("all_gather", "tp", num_bytes, overlapped or share.overlaps_tp),)
    return (
        communication("all_gather", "tp", num_bytes * hidden, True),
        communication("all_gather", "tp", num_bytes * (1 - hidden)),
    )


def reduce_partials(share: Share, num_bytes: float, overlapped: bool = False) -> Operations:
    """Return the reduction of partial results after a tensor parallel region: all-reduce, or reduce-scatter.

    Args:
        share: Share of the rank.
        num_bytes: Size of the tensor before the reduction. Unit: byte.
        overlapped: Whether computation overlaps all of it, whatever the job's overlap setting says.
    """
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
