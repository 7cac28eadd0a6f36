"""Peak memory of a training step on the rank that needs most: what is held, and what is kept for the backward pass."""

import math
from abc import abstractmethod
from dataclasses import dataclass, fields, replace
from functools import lru_cache

from triplepoint.metrics import Z90
from triplepoint.simulate.job import Job
from triplepoint.simulate.memory.activations import Activations, activations
from triplepoint.simulate.work.blocks import Blocks, Chunk, blocks_of, split_layers
from triplepoint.simulate.work.layer_parts import FP32_BYTES, Share, Weights
from triplepoint.simulate.work.sync import shards_of
from triplepoint.units import GIB, MIB


@dataclass(frozen=True, kw_only=True)
class Need:
    """Memory of the rank that needs most; subclasses name the parts. Unit of all parts: byte.

    Attributes:
        stage: The pipeline stage it is.
        num_stages: How many there are.
        capacity: Of the GPU.
        is_like_measured: Whether what is handed out was measured of jobs of its kind: of models without experts whose
            parameters are not sharded.
    """

    stage: int
    num_stages: int
    capacity: float
    is_like_measured: bool = True

    @property
    def parts(self) -> dict[str, float]:
        """The parts by name, in their order."""
        known = {part.name for part in fields(Need)}
        return {part.name: getattr(self, part.name) for part in fields(self) if part.name not in known}

    @property
    def total(self) -> float:
        """All of it."""
        return sum(self.parts.values())

    @property
    @abstractmethod
    def allocated(self) -> float:
        """Peak that the framework's allocator hands out."""

    @property
    def half_width(self) -> float:
        """Half the width of the 90 % interval of the sum. Unit: byte."""
        allocated = ALLOCATED_90 if self.is_like_measured else UNLIKE * ALLOCATED_90
        return self.allocated * math.hypot(allocated, FRAGMENTATION_90)

    @property
    def fits(self) -> bool:
        """Whether the GPU has it."""
        return self.total <= self.capacity

    @property
    def is_decided(self) -> bool:
        """Whether the capacity lies outside of the interval."""
        return abs(self.total - self.capacity) > self.half_width

    @property
    def is_out_of_memory(self) -> bool:
        """Whether it does not fit even at the lower end of the interval."""
        return self.is_decided and not self.fits

    @property
    def fits_probability(self) -> float:
        """Probability that the GPU has it, 0 to 1: of a normal error with the same 90 %."""
        return 0.5 * (1.0 + math.erf(Z90 * (self.capacity - self.total) / self.half_width / math.sqrt(2.0)))

    @property
    def undecided(self) -> str | None:
        """What to say where it is not decided; None where it is."""
        return None if self.is_decided else f"may not fit on a rank of stage {self.stage}: {self.explain()}"

    def explain(self) -> str:
        """Return the sum in one line, such as `weights 21.9 + ... = 118.8 GiB of 79.6 GiB (stage 0 of 4)`.

        One that is not decided has its width: `... = 138.9 GiB +- 4.3 of 140.4 GiB`.
        """
        shown = " + ".join(f"{name} {value / GIB:.1f}" for name, value in self.parts.items())
        where = f" (stage {self.stage} of {self.num_stages})" if self.num_stages > 1 else ""
        width = "" if self.is_decided else f" +- {self.half_width / GIB:.1f}"
        return f"{shown} = {self.total / GIB:.1f} GiB{width} of {self.capacity / GIB:.1f} GiB{where}"


_MOMENTS = 2
"""Moments of Adam of a parameter."""

CONTEXT_BYTES = 1343 * MIB
"""Driver context and loaded kernels of one process. Source: Hugging Face Transformers, Model training anatomy: 1343 MB
in use after a tensor of one number is put on the GPU."""

_CHANNELS = 16
_PEERS = 2
_CHANNEL_BYTES = 4 * MIB
"""Buffer of a communicator per channel and peer. Source: NCCL user guide, NCCL_BUFFSIZE 4 MiB. The number of channels
is an assumption: NCCL logs 16 to 24 on NVSwitch nodes."""

FRAGMENTATION = 0.03
"""Memory the allocator holds but cannot hand out, over what it handed out. Source: logs of nanotron/bench_cluster and
nanotron/old_bench on Hugging Face, llama-1B, peak reserved over peak allocated: 1.053 (tp 4), 1.015 (tp 4, pp 2), 1.010
(tp 8, pp 8); rounded up from their mean."""

ALLOCATED_90 = 0.023
"""Half the width of the 90 % interval of what is handed out, over it. Source: 15 measured peaks of Megatron-Core in
tests/unit/simulate/test_memory.py, which nothing was fitted to: 1.3 % standard deviation, 1.75 of them for 15 rows."""

UNLIKE = 2.0
"""How many times as wide it is with experts or sharded parameters, of which no peak was measured: assumed."""

FRAGMENTATION_90 = 0.022
"""The same of fragmentation. Source: the range of the three logs above, 1.010 to 1.053."""


@dataclass(frozen=True, kw_only=True)
class MemoryUse(Need):
    """Peak memory of the rank that needs most, by what it is for. Unit of all parts: byte.

    Attributes:
        weights: Parameters, and their copies in fp8.
        gradients: Accumulated gradients.
        optimizer: fp32 parameters and moments of Adam.
        activations: Kept for the backward pass, of all micro-batches in flight.
        buffers: Short-lived: logits and loss, gradients of activations, gathered parameters, pipeline receives.
        runtime: Driver context, loaded kernels, communicators.
        fragmentation: Held by the allocator and of no use.
    """

    weights: float
    gradients: float
    optimizer: float
    activations: float
    buffers: float
    runtime: float
    fragmentation: float

    @property
    def allocated(self) -> float:
        """Peak that the framework's allocator reports."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.buffers


def peak_memory(job: Job) -> MemoryUse:
    """Return the peak memory of the pipeline stage that needs most."""
    return max(memory_by_stage(job), key=lambda use: use.total)


def memory_by_stage(job: Job) -> list[MemoryUse]:
    """Return the peak memory of every pipeline stage; stages that hold the same are named after the first of them."""
    blocks = blocks_of(job)
    known: dict[object, MemoryUse] = {}
    found = []
    stages = split_layers(job)
    for stage, chunks in enumerate(stages):
        if job.software.has_two_directions and job.layout.pp > 1:
            chunks += stages[-1 - stage]
        kept = activations(job, blocks, chunks, stage)
        if (chunks, kept) not in known:
            known[chunks, kept] = _stage_memory(blocks, chunks, stage, kept)
        found.append(known[chunks, kept])
    return found


def _stage_memory(blocks: Blocks, chunks: tuple[Chunk, ...], stage: int, kept: Activations) -> MemoryUse:
    share, job = blocks.share, blocks.share.job
    held, gathered = _of_chunks(blocks, chunks)
    if job.software.has_two_directions and job.layout.pp > 1 and job.layout.data_parallel_sharding != "no_shard":
        # Both ranks that hold a stage are of its data parallel group.
        held = replace(held, optimizer=held.optimizer / 2, owned=held.owned / 2)
    if "optim" in job.offload:
        held = replace(held, optimizer=0.0, owned=0.0)
    buffers = kept.buffers + gathered
    # The update makes fp32 copies of 16-bit gradients, when activations are gone.
    updated = FP32_BYTES * held.owned if share.gradient_element != FP32_BYTES else 0.0
    buffers = max(buffers, updated - kept.saved)
    allocated = held.weights + held.gradients + held.optimizer + kept.saved + buffers
    is_gathered = job.layout.data_parallel_sharding == "optim_grads_params"
    lost = FRAGMENTATION + share.software.shards_fragmentation * is_gathered
    return MemoryUse(
        weights=held.weights,
        gradients=held.gradients,
        optimizer=held.optimizer,
        activations=kept.saved,
        buffers=buffers,
        runtime=CONTEXT_BYTES + communicator_bytes(job),
        fragmentation=lost * allocated,
        stage=stage,
        num_stages=job.layout.pp,
        capacity=job.gpu.memory_capacity.value,
        is_like_measured=not (is_gathered or job.model.moe),
    )


@lru_cache(maxsize=64)  # for stages that are alike, of all splits of layers
def _of_chunks(blocks: Blocks, chunks: tuple[Chunk, ...]) -> tuple["_Held", float]:
    """Return what a rank with some chunks holds, and what it gathers or hands out for a while. Unit: byte."""
    held = _held(blocks.share, blocks.weights(chunks), blocks.adapters(chunks))
    return held, _gathered(blocks, chunks) + _placeholders(blocks, chunks)


@dataclass(frozen=True)
class _Held:
    """Memory that a rank holds throughout the step. Unit: byte, but for `owned`.

    Attributes:
        weights: Parameters.
        gradients: Accumulated gradients.
        optimizer: fp32 parameters and moments.
        owned: Parameters the rank updates.
    """

    weights: float
    gradients: float
    optimizer: float
    owned: float


def _held(share: Share, weights: Weights, adapters: float) -> _Held:
    """Return what a rank holds of its parameters.

    Mixed precision with Adam: 16-bit parameters, gradients, and fp32 parameters and moments: 18 bytes with fp32
    gradients, 16 with 16-bit ones; 2 less where the optimizer keeps remainders. With all sharded the fp32 parameters
    are the only ones, and gradients are fp32 too; some software keeps all of them in 16 bits. Frozen parameters are in
    16 bits.

    Source:
        NVIDIA/Megatron-LM docs, distributed optimizer; Rajbhandari et al. 2020, arXiv:1910.02054; PyTorch FSDP.
    """
    sharding = share.job.layout.data_parallel_sharding
    all_shards = shards_of(share, weights)
    trained = shards_of(share, Weights(shared=adapters)) if share.has_adapters else all_shards
    whole = sum(part.count for part in trained)
    owned = sum(part.count / part.size for part in trained) if sharding != "no_shard" else whole
    is_single = share.element == FP32_BYTES
    if sharding == "optim_grads_params":
        stored = sum(part.count / part.size for part in all_shards)
        own = share.element if share.software.has_16bit_state else FP32_BYTES
        held = stored * share.element + owned * own if share.has_adapters else stored * own
        moments = own if share.software.has_16bit_state else share.software.moment_bytes
        return _Held(held, owned * own, owned * _MOMENTS * moments, owned)
    gradients = share.gradient_element * (owned if sharding == "optim_grads" else whole)
    has_remainders = share.software.has_16bit_remainders and not share.job.model.moe and not share.has_adapters
    master = 0 if is_single else FP32_BYTES - share.element * has_remainders
    stored = weights.total * share.element + share.element * (whole if share.has_adapters else 0)
    if share.is_quantized and not (share.job.precision == "fp8" and share.software.has_fp8_parameters):
        # GEMMs read a copy in fewer bits and its transpose, made once a step; of fp8 kept alone, both are as large as
        # 16 bits.
        stored += 2 * share.gemm_element * (weights.split + weights.experts)
    return _Held(stored, gradients, owned * (master + _MOMENTS * share.software.moment_bytes), owned)


def _gathered(blocks: Blocks, chunks: tuple[Chunk, ...]) -> float:
    """Return what is gathered for a while with all sharded: a layer, the next, its gradient, and the root unit.

    All of it where it is kept from forward to backward; where that is once a step, gradients are added up whole too.
    Experts that all ranks together have once are held whole as they are.
    """
    share = blocks.share
    if share.job.layout.data_parallel_sharding != "optim_grads_params":
        return 0.0
    whole = blocks.weights(chunks)
    if share.gathers_once:
        trained = blocks.adapters(chunks) if share.has_adapters else whole.total
        return _sharded(share, whole) * share.element + trained * share.gradient_element
    root = sum(blocks.end_weights(chunk).total for chunk in chunks)
    layers = (found.whole.weights.total for chunk in chunks for found, _ in blocks.in_chunk(chunk))
    layer = max(layers, default=0.0)
    gradient = 0 if share.has_adapters else share.element + share.gradient_element
    if share.job.keeps_gathered:
        return whole.total * share.element + layer * gradient
    return (2 * layer + root) * share.element + layer * gradient


def _sharded(share: Share, weights: Weights) -> float:
    """Return the parameters that ranks hold shards of."""
    return sum(part.count for part in shards_of(share, weights) if part.size > 1)


def _placeholders(blocks: Blocks, chunks: tuple[Chunk, ...]) -> float:
    """Return unused gradients that layers hand out: one of each shape of weight, so one layer's."""
    share = blocks.share
    if not share.software.has_placeholder_gradients or share.has_adapters:
        return 0.0
    kinds = {layer.kind: layer.whole.weights for chunk in chunks for layer, _ in blocks.in_chunk(chunk)}
    return sum(weights.split + weights.experts for weights in kinds.values()) * share.element


def communicator_bytes(job: Job) -> float:
    """Return the buffers of all process groups the rank is in."""
    names = ("tp", "cp", "dp_cp", "pp", "ep", "edp") if job.model.moe else ("tp", "cp", "dp_cp", "pp")
    number = sum(job.mesh.group(name).size > 1 for name in names)
    return float(number * _CHANNELS * _PEERS * _CHANNEL_BYTES)
