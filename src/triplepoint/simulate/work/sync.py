"""Data parallelism and the optimizer: reduction of gradients, gathering and update of parameters."""

from dataclasses import dataclass

from triplepoint.simulate.job import Job
from triplepoint.simulate.operations import Communication
from triplepoint.simulate.work.layer_parts import FP32_BYTES, Operations, Share, Weights, communication, streaming

BUCKET_PARAMETERS = 40_000_000
BUCKET_PARAMETERS_PER_RANK = 1_000_000
"""Parameters whose gradients are reduced together where this overlaps: the larger of the first and the second times the
data parallel degree. Source: NVIDIA/Megatron-LM DistributedDataParallelConfig.bucket_size."""

_ADAM_ARRAYS = 7
"""fp32 arrays a fused Adam touches: reads gradient, parameter and two moments, writes the last three. Source:
NVIDIA/apex csrc/multi_tensor_adam.cu."""

_PASSES_OF_MOMENTS = 4
"""Of these arrays, those of moments."""

_CLIP_PASSES = 3
"""Gradients are read for their norm, then read and written to scale them."""


@dataclass(frozen=True)
class Shards:
    """Parameters of a rank that one group reduces, and how many ranks it has.

    Attributes:
        group: Name of the group.
        size: Its ranks.
        count: Parameters on the rank.
        copies: Groups that hold the same, with hybrid sharding.
    """

    group: str
    size: int
    count: float
    copies: int = 1

    @property
    def across(self) -> "Shards":
        """The shard that a rank keeps, with the ranks that keep the same."""
        return Shards(self.group.replace("_shard", "_copy"), self.copies, self.count / self.size)


def shards_of(share: Share, weights: Weights) -> tuple[Shards, ...]:
    """Return what is reduced by whom: experts have data parallel groups of their own; empty ones are left out."""
    job = share.job
    if job.num_copies > 1:
        parts = [_hybrid(job, "dp", weights.dense), _hybrid(job, "edp", weights.experts)]
    else:
        name = "dp_cp" if job.layout.cp > 1 else "dp"
        dense = Shards(name, job.mesh.group("dp_cp").size, weights.dense)
        parts = [dense, Shards("edp", job.mesh.group("edp").size, weights.experts)]
    return tuple(part for part in parts if part.count)


def _hybrid(job: Job, whole: str, count: float) -> Shards:
    copies = job.mesh.group(f"{whole}_copy").size
    return Shards(f"{whole}_shard", job.mesh.group(f"{whole}_shard").size, count, copies)


def _trained(share: Share, weights: Weights, adapters: float) -> tuple[Shards, ...]:
    return shards_of(share, Weights(shared=adapters) if share.has_adapters else weights)


def gathers(share: Share, weights: Weights, overlapped: bool) -> Operations:
    """Return the gathering of sharded parameters of one unit before it is used."""
    shards = shards_of(share, weights)
    return tuple(
        communication("all_gather", part.group, part.count * share.element, overlapped)
        for part in shards
        if part.size > 1
    )


def reductions(share: Share, weights: Weights, adapters: float, overlapped: bool) -> Operations:
    """Return the reduction of one unit's gradients to the ranks that keep them."""
    shards = _trained(share, weights, adapters)
    scattered = tuple(
        communication("reduce_scatter", part.group, part.count * share.gradient_element, overlapped)
        for part in shards
        if part.size > 1
    )
    return scattered + tuple(
        communication("all_reduce", part.across.group, part.across.count * share.gradient_element, overlapped)
        for part in shards
        if part.copies > 1
    )


def gradient_sync(share: Share, weights: Weights, adapters: float, is_end: bool) -> Operations:
    """Return the communication of one rank between the last backward pass and the next step.

    Gradients of parameters that tensor parallel ranks share are added up where each sees a part of the sequence; those
    of a table that both ends of the pipeline hold are added up between the ends.

    Args:
        share: The share of the rank.
        weights: Its parameters.
        adapters: Its trainable parameters with LoRA.
        is_end: Whether its stage has one of two copies of a tied embedding.
    """
    sharding = share.job.layout.data_parallel_sharding
    collectives: list[Communication] = []
    if share.is_sequence_parallel and not share.has_adapters:
        collectives.append(communication("all_reduce", "tp", weights.shared * share.gradient_element))
    if is_end and not share.has_adapters:
        table = share.job.model.hidden_size * share.job.model.vocab_size / share.tp
        # An all-reduce of two ranks: each sends all of its own.
        collectives.append(communication("send_recv", "pp", table * share.gradient_element))
    for part in _trained(share, weights, adapters):
        if part.size * part.copies == 1 or (sharding == "optim_grads_params" and not share.gathers_once):
            continue
        if sharding == "no_shard":
            collectives.append(_bucketed(share, "all_reduce", part, share.gradient_element, "grad"))
            continue
        if sharding == "optim" or share.gathers_once:
            collectives.append(_bucketed(share, "reduce_scatter", part, share.gradient_element, "grad"))
            if part.copies > 1:
                collectives.append(_bucketed(share, "all_reduce", part.across, share.gradient_element, "grad"))
        collectives.append(_bucketed(share, "all_gather", part, _gathered_element(share), "param"))
    return tuple(collectives)


def _gathered_element(share: Share) -> int:
    """Return bytes of a parameter on its way to the ranks; the few that stay in 16 bits in fp8 are not told apart."""
    return 1 if share.job.precision == "fp8" and share.software.has_fp8_parameters else share.element


def _bucketed(share: Share, kind: str, part: Shards, element: int, flag: str) -> Communication:
    is_overlapped = flag in share.job.overlap
    bucket = max(BUCKET_PARAMETERS, BUCKET_PARAMETERS_PER_RANK * part.size)
    count = max(1, round(part.count / bucket)) if is_overlapped else 1
    return Communication(kind, part.group, part.count * element / count, is_overlapped, count)  # type: ignore[arg-type]


def optimizer_work(share: Share, weights: Weights, adapters: float) -> Operations:
    """Return clearing, clipping and Adam; of a sharded state each rank updates its part.

    With 16-bit parameters an fp32 copy is updated and written back; fp8 training casts the weights of GEMMs once. An
    optimizer in the host's memory is updated there, one after the other: gradients go there, parameters come back.

    Source:
        Of offload: Ren et al. 2021 (ZeRO-Offload), arXiv:2101.06840, section 4.
    """
    sharding = share.job.layout.data_parallel_sharding
    trained = _trained(share, weights, adapters)
    whole = sum(part.count for part in trained)
    updated = sum(part.count / (part.size if sharding != "no_shard" else 1) for part in trained)
    held = updated if sharding in ("optim_grads", "optim_grads_params") else whole
    gradient = share.gradient_element
    narrower = _PASSES_OF_MOMENTS * (FP32_BYTES - share.software.moment_bytes)
    update = _ADAM_ARRAYS * FP32_BYTES - narrower + share.element * (share.element != FP32_BYTES)
    to_fp32 = (FP32_BYTES + gradient) if gradient != FP32_BYTES else 0
    operations = [
        streaming("optimizer", "zero", held * gradient),
        streaming("optimizer", "clip", updated * (_CLIP_PASSES * FP32_BYTES + to_fp32)),
    ]
    if "optim" in share.job.offload:
        operations += [
            streaming("optimizer", "to_host", updated * gradient),
            streaming("optimizer", "host_adam", updated * update),
            streaming("optimizer", "from_host", updated * share.element),
        ]
    else:
        operations.append(streaming("optimizer", "adam", updated * update))
    if share.is_quantized and not share.has_adapters:
        operations.append(
            streaming("optimizer", "cast", (weights.split + weights.experts) * (share.element + 2 * share.gemm_element))
        )
    return tuple(operations)
