"""Communication of data parallelism, and the optimizer: gradient reduction, parameter gathers, update."""

from dataclasses import dataclass
from typing import Literal

from triplepoint.simulate.job import Job
from triplepoint.simulate.operations import CommKind, Communication
from triplepoint.simulate.work.layer_parts import FP32_BYTES, Operations, Share, Weights, communication, streaming

BUCKET_PARAMETERS = 40_000_000
BUCKET_PARAMETERS_PER_RANK = 1_000_000
"""Parameters of one bucket of overlapped gradient reduction: the larger of the first, and the second times the data
parallel degree. Source: NVIDIA/Megatron-LM DistributedDataParallelConfig.bucket_size."""

_ADAM_ARRAYS = 7
"""fp32 arrays that a fused Adam touches: it reads gradient, parameter and two moments and writes the last three.
Source: NVIDIA/apex csrc/multi_tensor_adam.cu."""

_MOMENT_ARRAYS = 4
"""Number of these arrays that are moments."""

_CLIP_PASSES = 3
"""Gradients are read for their norm, then read and written to scale them."""


@dataclass(frozen=True)
class Shards:
    """Parameters of a rank that one process group shards or reduces.

    Attributes:
        group: Name of the group.
        size: Ranks of the group.
        count: Parameters on the rank.
        copies: Groups that hold the same parameters, with hybrid sharding.
    """

    group: str
    size: int
    count: float
    copies: int = 1

    @property
    def across(self) -> "Shards":
        """The shard that the rank keeps, reduced over the ranks that keep the same one."""
        return Shards(self.group.replace("_shard", "_copy"), self.copies, self.count / self.size)


def shards_of(share: Share, weights: Weights) -> tuple[Shards, ...]:
    """Return the non-empty sets of parameters that a group reduces; experts have data parallel groups of their own."""
    job = share.job
    if job.num_copies > 1:
        parts = [_hybrid(job, "dp", weights.dense), _hybrid(job, "edp", weights.experts)]
    else:
        name = "dp_cp" if job.layout.cp > 1 else "dp"
        dense = Shards(name, job.mesh.group("dp_cp").size, weights.dense)
        parts = [dense, Shards("edp", job.mesh.group("edp").size, weights.experts)]
    return tuple(part for part in parts if part.count)


def _hybrid(job: Job, group: str, count: float) -> Shards:
    copies = job.mesh.group(f"{group}_copy").size
    return Shards(f"{group}_shard", job.mesh.group(f"{group}_shard").size, count, copies)


def _trained_shards(share: Share, weights: Weights, adapters: float) -> tuple[Shards, ...]:
    """Return the trained parameters that each group reduces: all of them, or the adapters of LoRA."""
    return shards_of(share, Weights(shared=adapters) if share.has_adapters else weights)


def parameter_gathers(share: Share, weights: Weights, overlapped: bool) -> Operations:
    """Return the all-gathers of one unit's sharded parameters before the unit is used."""
    return tuple(
        communication("all_gather", shards.group, shards.count * share.element, overlapped)
        for shards in shards_of(share, weights)
        if shards.size > 1
    )


def gradient_reductions(share: Share, weights: Weights, adapters: float, overlapped: bool) -> Operations:
    """Return the reductions of one unit's gradients to the ranks that keep them."""
    trained = _trained_shards(share, weights, adapters)
    scatters = tuple(
        communication("reduce_scatter", shards.group, shards.count * share.gradient_element, overlapped)
        for shards in trained
        if shards.size > 1
    )
    return scatters + tuple(
        communication("all_reduce", shards.across.group, shards.across.count * share.gradient_element, overlapped)
        for shards in trained
        if shards.copies > 1
    )


def gradient_sync(share: Share, weights: Weights, adapters: float, is_end: bool) -> Operations:
    """Return the communication of one rank between the last backward pass and the next step.

    Gradients of parameters that tensor parallel ranks share are reduced over them if each sees a part of the sequence.
    Gradients of a table that both ends of the pipeline hold are reduced between the ends.

    Args:
        share: Share of the rank.
        weights: Parameters of the rank.
        adapters: Trainable LoRA parameters of the rank.
        is_end: Whether the rank's stage holds one of two copies of a tied embedding.
    """
    sharding = share.job.layout.data_parallel_sharding
    collectives: list[Communication] = []
    if share.is_sequence_parallel and not share.has_adapters:
        collectives.append(communication("all_reduce", "tp", weights.shared * share.gradient_element))
    if is_end and not share.has_adapters:
        table = share.job.model.hidden_size * share.job.model.vocab_size / share.tp
        # An all-reduce of two ranks: each sends its whole gradient.
        collectives.append(communication("send_recv", "pp", table * share.gradient_element))
    for shards in _trained_shards(share, weights, adapters):
        if shards.size * shards.copies == 1 or (sharding == "optim_grads_params" and not share.gathers_once):
            continue
        if sharding == "no_shard":
            collectives.append(_bucketed(share, "all_reduce", shards, share.gradient_element, "grad"))
            continue
        if sharding == "optim" or share.gathers_once:
            collectives.append(_bucketed(share, "reduce_scatter", shards, share.gradient_element, "grad"))
            if shards.copies > 1:
                collectives.append(_bucketed(share, "all_reduce", shards.across, share.gradient_element, "grad"))
        collectives.append(_bucketed(share, "all_gather", shards, _gathered_element(share), "param"))
    return tuple(collectives)


def _gathered_element(share: Share) -> int:
    """Return the bytes of a gathered parameter. The few that stay in 16 bits in fp8 training count as fp8."""
    return 1 if share.job.precision == "fp8" and share.software.has_fp8_parameters else share.element


def _bucketed(
    share: Share, kind: CommKind, shards: Shards, element: int, flag: Literal["grad", "param"]
) -> Communication:
    """Return one collective of a step, split into buckets if it is overlapped.

    Args:
        share: Share of the rank.
        kind: Kind of the collective.
        shards: Parameters that it communicates.
        element: Bytes sent per parameter.
        flag: Overlap setting of the job that applies.
    """
    is_overlapped = flag in share.job.overlap
    bucket = max(BUCKET_PARAMETERS, BUCKET_PARAMETERS_PER_RANK * shards.size)
    count = max(1, round(shards.count / bucket)) if is_overlapped else 1
    return Communication(kind, shards.group, shards.count * element / count, is_overlapped, count)


def optimizer_work(share: Share, weights: Weights, adapters: float) -> Operations:
    """Return the work of the optimizer: clearing and clipping gradients, and Adam.

    Each rank updates its shard of a sharded state. With 16-bit parameters the optimizer updates an fp32 copy and writes
    back the parameters. fp8 training casts the weights of GEMMs once a step. An optimizer in host memory runs there:
    gradients are copied to it, and parameters back.

    Source:
        Offload: Ren et al. 2021 (ZeRO-Offload), arXiv:2101.06840, section 4.
    """
    sharding = share.job.layout.data_parallel_sharding
    trained = _trained_shards(share, weights, adapters)
    num_trained = sum(shards.count for shards in trained)
    updated = sum(shards.count / (shards.size if sharding != "no_shard" else 1) for shards in trained)
    with_gradient = updated if sharding in ("optim_grads", "optim_grads_params") else num_trained
    gradient = share.gradient_element
    saved_by_moments = _MOMENT_ARRAYS * (FP32_BYTES - share.software.moment_bytes)
    update = _ADAM_ARRAYS * FP32_BYTES - saved_by_moments + share.element * (share.element != FP32_BYTES)
    to_fp32 = (FP32_BYTES + gradient) if gradient != FP32_BYTES else 0
    operations = [
        streaming("optimizer", "zero", with_gradient * gradient),
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
