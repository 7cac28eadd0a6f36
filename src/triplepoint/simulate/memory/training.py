"""Peak memory of a training step: parameters, gradients, optimizer state, activations and overheads of a rank."""

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
    """Memory of one rank; the other fields of subclasses are its parts. Unit of all parts: byte.

    Attributes:
        stage: Pipeline stage of the rank.
        num_stages: Number of pipeline stages.
        capacity: Memory of the GPU. Unit: byte.
        is_like_measured: Whether peaks were measured of such jobs: without experts and with unsharded parameters.
    """

    stage: int
    num_stages: int
    capacity: float
    is_like_measured: bool = True

    @property
    def parts(self) -> dict[str, float]:
        """The parts by name, in their order. Unit: byte."""
        common = {field.name for field in fields(Need)}
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name not in common}

    @property
    def total(self) -> float:
        """Sum of the parts. Unit: byte."""
        return sum(self.parts.values())

    @property
    @abstractmethod
    def allocated(self) -> float:
        """Peak that the framework's allocator hands out. Unit: byte."""

    @property
    def half_width(self) -> float:
        """Half the width of the 90 % interval of `total`. Unit: byte."""
        relative = _ALLOCATED_90 if self.is_like_measured else _UNMEASURED_FACTOR * _ALLOCATED_90
        return self.allocated * math.hypot(relative, _FRAGMENTATION_90)

    @property
    def fits(self) -> bool:
        """Whether `total` fits in the memory of the GPU."""
        return self.total <= self.capacity

    @property
    def is_decided(self) -> bool:
        """Whether the capacity lies outside the 90 % interval of `total`."""
        return abs(self.total - self.capacity) > self.half_width

    @property
    def is_out_of_memory(self) -> bool:
        """Whether even the lower end of the interval does not fit."""
        return self.is_decided and not self.fits

    @property
    def fits_probability(self) -> float:
        """Probability of fitting in memory, 0 to 1, with a normal error of the same 90 % interval."""
        return 0.5 * (1.0 + math.erf(Z90 * (self.capacity - self.total) / self.half_width / math.sqrt(2.0)))

    @property
    def undecided(self) -> str | None:
        """Reason why it is undecided whether the rank fits; None if it is decided."""
        return None if self.is_decided else f"may not fit on a rank of stage {self.stage}: {self.explain()}"

    def explain(self) -> str:
        """Return the sum in one line, such as `weights 21.9 + ... = 118.8 GiB of 79.6 GiB (stage 0 of 4)`.

        An undecided sum has its half width: `... = 138.9 GiB +- 4.3 of 140.4 GiB`.
        """
        parts = " + ".join(f"{name} {value / GIB:.1f}" for name, value in self.parts.items())
        stage = f" (stage {self.stage} of {self.num_stages})" if self.num_stages > 1 else ""
        width = "" if self.is_decided else f" +- {self.half_width / GIB:.1f}"
        return f"{parts} = {self.total / GIB:.1f} GiB{width} of {self.capacity / GIB:.1f} GiB{stage}"


_MOMENTS = 2
"""Moments of Adam per parameter."""

CONTEXT_BYTES = 1343 * MIB
"""Driver context and loaded kernels of one process. Source: Hugging Face Transformers, Model training anatomy: 1343 MB
in use after a tensor of one number is put on the GPU."""

_CHANNELS = 16
_PEERS = 2
_CHANNEL_BYTES = 4 * MIB
"""Buffer of a communicator per channel and peer. Source: NCCL user guide, NCCL_BUFFSIZE 4 MiB. The number of channels
is an assumption: NCCL logs 16 to 24 on NVSwitch nodes."""

FRAGMENTATION = 0.03
"""Memory that the allocator reserves but cannot hand out, over the memory it hands out. Source: logs of
nanotron/bench_cluster and nanotron/old_bench on Hugging Face, llama-1B, peak reserved over peak allocated: 1.053
(tp 4), 1.015 (tp 4, pp 2), 1.010 (tp 8, pp 8); rounded up from their mean."""

_ALLOCATED_90 = 0.023
"""Half the width of the 90 % interval of `allocated`, relative. Source: 15 measured peaks of Megatron-Core in
tests/unit/simulate/test_memory.py, which nothing was fitted to: 1.3 % standard deviation, times 1.75 for 15 rows."""

_UNMEASURED_FACTOR = 2.0
"""Factor on this half width with experts or sharded parameters: an assumption, no such peak was measured."""

_FRAGMENTATION_90 = 0.022
"""Half the width of the 90 % interval of fragmentation, over `allocated`. Source: the range of the three logs above,
1.010 to 1.053."""


@dataclass(frozen=True, kw_only=True)
class MemoryUse(Need):
    """Peak memory of a rank in training, by purpose. Unit of all parts: byte.

    Attributes:
        weights: Parameters, and their copies in fp8.
        gradients: Accumulated gradients.
        optimizer: fp32 parameters and moments of Adam.
        activations: Activations saved for the backward pass, of all micro-batches in flight.
        buffers: Transient memory: logits and loss, gradients of activations, gathered parameters, pipeline receives.
        runtime: Driver context, loaded kernels, communicators.
        fragmentation: Memory that the allocator reserves but cannot hand out.
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
        """Peak that the framework's allocator hands out. Unit: byte."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.buffers


def peak_memory(job: Job) -> MemoryUse:
    """Return the peak memory of the pipeline stage that needs most."""
    return max(memory_by_stage(job), key=lambda memory: memory.total)


def memory_by_stage(job: Job) -> list[MemoryUse]:
    """Return the peak memory of every pipeline stage; equal stages share the object of the first of them."""
    blocks = blocks_of(job)
    cache: dict[object, MemoryUse] = {}
    by_stage = []
    stages = split_layers(job)
    for stage, chunks in enumerate(stages):
        if job.software.has_two_directions and job.layout.pp > 1:
            chunks += stages[-1 - stage]
        stage_activations = activations(job, blocks, chunks, stage)
        if (chunks, stage_activations) not in cache:
            cache[chunks, stage_activations] = _stage_memory(blocks, chunks, stage, stage_activations)
        by_stage.append(cache[chunks, stage_activations])
    return by_stage


def _stage_memory(blocks: Blocks, chunks: tuple[Chunk, ...], stage: int, stage_activations: Activations) -> MemoryUse:
    share, job = blocks.share, blocks.share.job
    state, gathered = _state_and_buffers(blocks, chunks)
    if job.software.has_two_directions and job.layout.pp > 1 and job.layout.data_parallel_sharding != "no_shard":
        # Both ranks that hold a stage are in its data parallel group.
        state = replace(state, optimizer=state.optimizer / 2, num_updated=state.num_updated / 2)
    if "optim" in job.offload:
        state = replace(state, optimizer=0.0, num_updated=0.0)
    buffers = stage_activations.buffers + gathered
    # The update makes fp32 copies of 16-bit gradients after the activations are freed.
    copies = FP32_BYTES * state.num_updated if share.gradient_element != FP32_BYTES else 0.0
    buffers = max(buffers, copies - stage_activations.saved)
    allocated = state.weights + state.gradients + state.optimizer + stage_activations.saved + buffers
    is_gathered = job.layout.data_parallel_sharding == "optim_grads_params"
    fragmentation = FRAGMENTATION + share.software.shards_fragmentation * is_gathered
    return MemoryUse(
        weights=state.weights,
        gradients=state.gradients,
        optimizer=state.optimizer,
        activations=stage_activations.saved,
        buffers=buffers,
        runtime=CONTEXT_BYTES + communicator_bytes(job),
        fragmentation=fragmentation * allocated,
        stage=stage,
        num_stages=job.layout.pp,
        capacity=job.gpu.memory_capacity.value,
        is_like_measured=not (is_gathered or job.model.moe),
    )


@lru_cache(maxsize=64)  # equal stages, in all splits of layers
def _state_and_buffers(blocks: Blocks, chunks: tuple[Chunk, ...]) -> tuple["_State", float]:
    """Return the model state of a rank with some chunks, and the transient bytes of parameters and gradients."""
    state = _model_state(blocks.share, blocks.weights(chunks), blocks.adapters(chunks))
    return state, _gathered_bytes(blocks, chunks) + _placeholder_bytes(blocks, chunks)


@dataclass(frozen=True)
class _State:
    """Model state of a rank, in memory throughout the step. Unit: byte, except `num_updated`.

    Attributes:
        weights: Parameters.
        gradients: Accumulated gradients.
        optimizer: fp32 parameters and moments.
        num_updated: Number of parameters that the rank updates.
    """

    weights: float
    gradients: float
    optimizer: float
    num_updated: float


def _model_state(share: Share, weights: Weights, adapters: float) -> _State:
    """Return the model state of a rank.

    Mixed precision with Adam has 16-bit parameters, gradients, and fp32 parameters and moments: 18 bytes per parameter
    with fp32 gradients, 16 with 16-bit gradients, 2 less where the optimizer keeps 16-bit remainders. With sharded
    parameters (FSDP) only the fp32 parameters exist, and gradients are fp32 too; some software keeps all of these in
    16 bits. Frozen parameters have 16 bits.

    Args:
        share: Share of the model on the rank.
        weights: Parameters of its chunks.
        adapters: Parameters of their adapters, with LoRA.

    Source:
        NVIDIA/Megatron-LM docs, distributed optimizer; Rajbhandari et al. 2020, arXiv:1910.02054; PyTorch FSDP.
    """
    sharding = share.job.layout.data_parallel_sharding
    all_shards = shards_of(share, weights)
    trained = shards_of(share, Weights(shared=adapters)) if share.has_adapters else all_shards
    num_trained = sum(part.count for part in trained)
    num_updated = sum(part.count / part.size for part in trained) if sharding != "no_shard" else num_trained
    if sharding == "optim_grads_params":
        num_stored = sum(part.count / part.size for part in all_shards)
        element = share.element if share.software.has_16bit_state else FP32_BYTES
        weight_bytes = num_stored * element
        if share.has_adapters:
            weight_bytes = num_stored * share.element + num_updated * element
        moment_bytes = element if share.software.has_16bit_state else share.software.moment_bytes
        return _State(weight_bytes, num_updated * element, num_updated * _MOMENTS * moment_bytes, num_updated)
    gradients = share.gradient_element * (num_updated if sharding == "optim_grads" else num_trained)
    has_remainders = share.software.has_16bit_remainders and not share.job.model.moe and not share.has_adapters
    master_bytes = 0 if share.element == FP32_BYTES else FP32_BYTES - share.element * has_remainders
    weight_bytes = weights.total * share.element + share.element * (num_trained if share.has_adapters else 0)
    if share.is_quantized and not (share.job.precision == "fp8" and share.software.has_fp8_parameters):
        # GEMMs read a copy in fewer bits and its transpose, made once a step. Software that keeps only fp8
        # parameters needs no more: a parameter and its transpose have 16 bits together.
        weight_bytes += 2 * share.gemm_element * (weights.split + weights.experts)
    optimizer = num_updated * (master_bytes + _MOMENTS * share.software.moment_bytes)
    return _State(weight_bytes, gradients, optimizer, num_updated)


def _gathered_bytes(blocks: Blocks, chunks: tuple[Chunk, ...]) -> float:
    """Return the bytes of gathered parameters with FSDP: a layer, the next one, its gradient, and the root unit.

    Where gathered parameters stay until the backward pass, all of them count. Where they are gathered once a step,
    unsharded gradients are accumulated too. Experts on a single rank are not sharded and not gathered.
    """
    share = blocks.share
    if share.job.layout.data_parallel_sharding != "optim_grads_params":
        return 0.0
    whole = blocks.weights(chunks)
    if share.gathers_once:
        trained = blocks.adapters(chunks) if share.has_adapters else whole.total
        sharded = sum(part.count for part in shards_of(share, whole) if part.size > 1)
        return sharded * share.element + trained * share.gradient_element
    root = sum(blocks.end_weights(chunk).total for chunk in chunks)
    layers = (layer.whole.weights.total for chunk in chunks for layer, _ in blocks.in_chunk(chunk))
    largest = max(layers, default=0.0)
    gradient_element = 0 if share.has_adapters else share.element + share.gradient_element
    if share.job.keeps_gathered:
        return whole.total * share.element + largest * gradient_element
    return (2 * largest + root) * share.element + largest * gradient_element


def _placeholder_bytes(blocks: Blocks, chunks: tuple[Chunk, ...]) -> float:
    """Return the bytes of placeholder gradients: one per shape of weight, so those of one layer of each kind."""
    share = blocks.share
    if not share.software.has_placeholder_gradients or share.has_adapters:
        return 0.0
    kinds = {layer.kind: layer.whole.weights for chunk in chunks for layer, _ in blocks.in_chunk(chunk)}
    return sum(weights.split + weights.experts for weights in kinds.values()) * share.element


def communicator_bytes(job: Job) -> float:
    """Return the bytes of communication buffers of all process groups that a rank is in."""
    names = ("tp", "cp", "dp_cp", "pp", "ep", "edp") if job.model.moe else ("tp", "cp", "dp_cp", "pp")
    num_groups = sum(job.mesh.group(name).size > 1 for name in names)
    return float(num_groups * _CHANNELS * _PEERS * _CHANNEL_BYTES)
