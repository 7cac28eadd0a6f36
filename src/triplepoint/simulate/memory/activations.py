"""Activation memory of a pipeline stage: saved for the backward pass, and transient."""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from triplepoint.config.model import LayerKind
from triplepoint.simulate.job import Job
from triplepoint.simulate.timeline.schedule import BACKWARD, FORWARD, make_order
from triplepoint.simulate.work.blocks import Blocks, Chunk, Layer
from triplepoint.simulate.work.ends import vocabulary_rows
from triplepoint.simulate.work.experts import Experts
from triplepoint.simulate.work.feed_forward import num_up_projections
from triplepoint.simulate.work.layer_parts import FP32_BYTES, Share, ceil_div
from triplepoint.simulate.work.offload import LAYERS_ON_GPU
from triplepoint.simulate.work.recompute import selective_recomputation
from triplepoint.simulate.work.recurrent import gradient_bytes

_RECEIVES = 2
"""Pipeline receives posted at the same time, one from each neighbour."""


class Activations(NamedTuple):
    """Activation memory of one stage. Unit: byte.

    Attributes:
        saved: Most that is saved for the backward pass at one time.
        buffers: Transient memory at that time.
    """

    saved: float
    buffers: float


def activations(job: Job, blocks: Blocks, chunks: tuple[Chunk, ...], stage: int) -> Activations:
    """Return the activations of a stage at their peak.

    Args:
        job: The job.
        blocks: Layers and ends of its model.
        chunks: Model chunks of the stage.
        stage: Number of the stage.

    Source:
        Korthikanti et al. 2022, arXiv:2205.05198, section 4; bytes per layer come from `simulate.work`.
    """
    share = blocks.share
    received = _RECEIVES * share.split_tokens * job.model.hidden_size * share.element * (job.layout.pp > 1)
    buffers = _transient_bytes(blocks, chunks) + received
    if "activations" in job.offload:
        largest_layer = max(
            (blocks.layer(kind).whole.saved for chunk in chunks for kind, _ in chunk.layers), default=0.0
        )
        return Activations(LAYERS_ON_GPU * largest_layer, buffers)
    return Activations(_peak_saved_bytes(job, stage, [_chunk_bytes(blocks, chunk) for chunk in chunks]), buffers)


@lru_cache(maxsize=64)  # equal stages, in all splits of layers
def _transient_bytes(blocks: Blocks, chunks: tuple[Chunk, ...]) -> float:
    """Return the transient memory of the backward pass: of one layer or of the loss, whichever is larger."""
    layer_bytes = (
        _layer_transient_bytes(blocks.share, kind) + _recomputed_bytes(blocks, chunk, kind)
        for chunk in dict.fromkeys(chunks)
        for kind, _ in chunk.layers
    )
    return max(max(layer_bytes, default=0.0), _loss_bytes(blocks, chunks))


def _recomputed_bytes(blocks: Blocks, chunk: Chunk, kind: LayerKind) -> float:
    """Return the activations of one recomputed layer beyond those that are saved when the backward pass begins.

    The first layers of a chunk are recomputed. By then the backward pass has freed the layers that are not recomputed,
    so a layer adds to the peak only what it has more than they had. Its input counts once more, as it does where all
    layers are recomputed.
    """
    layer, recompute = blocks.layer(kind), blocks.share.job.recompute
    if recompute != "full":
        return selective_recomputation(blocks.share, layer).held if recompute == "selective" else 0.0
    if chunk.recomputed == chunk.layers:
        return layer.whole.saved
    num_recomputed = dict(chunk.recomputed)
    freed = sum(
        (count - num_recomputed.get(other.kind, 0)) * other.whole.saved for other, count in blocks.in_chunk(chunk)
    )
    return max(_input_bytes(blocks.share), layer.whole.saved - freed)


def _peak_saved_bytes(job: Job, stage: int, chunk_bytes: list[float]) -> float:
    """Return the most that a stage saves at one time, from the bytes that a pass of each chunk saves."""
    if not job.layout.pipeline_layers or job.layout.vp == 1:
        # The chunks of a stage are equal, or nearly so.
        return sum(chunk_bytes) * passes_in_flight(job, stage) / job.layout.vp
    order = make_order(job.layout.schedule, job.layout.pp, job.num_microbatches, job.layout.vp)
    kind = order.kind[stage]
    saved = np.array(chunk_bytes)[order.chunk[stage]] * ((kind == FORWARD).astype(int) - (kind == BACKWARD))
    return float(np.cumsum(saved).max())


def passes_in_flight(job: Job, stage: int) -> int:
    """Return the most chunk passes whose activations a stage saves at one time: micro-batches times virtual stages.

    Args:
        job: The job.
        stage: Number of the stage.

    Source:
        1F1B: Narayanan et al. 2021, arXiv:2104.04473, sections 2.2.1 and 2.2.2, and NVIDIA/Megatron-LM schedules.py,
        warm-up passes and one more; both directions: DeepSeek-V3, arXiv:2412.19437, table 2; zero bubble (ZB-H1): Qi et
        al. 2023, arXiv:2401.10241, memory of 1F1B.
    """
    pp, vp, schedule = job.layout.pp, job.layout.vp, job.layout.schedule
    all_passes = job.num_microbatches * vp
    if pp == 1:
        return vp
    if job.software.has_two_directions:
        # For each of the two stages of a rank: both together save pp + 1 micro-batches.
        return min(all_passes, ceil_div(pp + 1, 2))
    if schedule == "gpipe":
        return all_passes
    if vp > 1:
        return min(all_passes, 2 * (pp - stage - 1) + (vp - 1) * pp + 1)
    return min(all_passes, pp - stage)


@lru_cache(maxsize=64)  # equal stages, in all splits of layers
def _chunk_bytes(blocks: Blocks, chunk: Chunk) -> float:
    """Return the bytes that one pass of a chunk saves, without logits; a recomputed layer saves only its input."""
    share = blocks.share
    layer_input = _input_bytes(share)
    recomputed = dict(chunk.recomputed)
    saved = 0.0
    for layer, count in blocks.in_chunk(chunk):
        num_recomputed = recomputed.get(layer.kind, 0)
        saved += num_recomputed * layer_input + (count - num_recomputed) * _layer_bytes(blocks, layer)
    if chunk.is_first:
        saved += blocks.embedding.saved
    if chunk.is_last:
        saved += 2 * layer_input
    return saved


def _input_bytes(share: Share) -> int:
    """Return the bytes of the input of a layer."""
    return share.split_tokens * share.job.model.hidden_size * share.element


def _layer_bytes(blocks: Blocks, layer: Layer) -> float:
    """Return the bytes that a layer saves unless it is recomputed as a whole."""
    is_selective = blocks.share.job.recompute == "selective"
    return layer.whole.saved - (selective_recomputation(blocks.share, layer).spared if is_selective else 0.0)


def _layer_transient_bytes(share: Share, kind: LayerKind) -> float:
    """Return the transient memory of the backward pass of a layer.

    A feed-forward block has the gradients of the input and output of its activation function, a recurrent mixer those
    of its projections and states. With sequence parallelism the gathered input and its gradient are added.
    """
    model = share.job.model
    gathered = 2 * share.tokens * model.hidden_size * share.element if share.is_sequence_parallel else 0
    mixer = model.recurrent(kind)
    mixer_bytes = gradient_bytes(share, mixer) if mixer else 0.0
    if not kind.has_feed_forward:
        return mixer_bytes + gathered
    if kind.has_experts:
        experts = Experts(share)
        rows, inner = experts.rows, experts.inner
    else:
        rows, inner = share.tokens, ceil_div(model.dense_ffn_hidden_size, share.tp)
    return max(mixer_bytes, float(share.element * rows * inner * (1 + num_up_projections(share)))) + gathered


def _loss_bytes(blocks: Blocks, chunks: tuple[Chunk, ...]) -> float:
    """Return the transient memory of the loss: fp32 probabilities, and the logits or their gradient.

    A fused loss kernel works in place.
    """
    if not chunks[-1].is_last:
        return 0.0
    share = blocks.share
    is_in_place = share.software.bytes_of_loss[0] < FP32_BYTES
    logits = share.tokens * vocabulary_rows(share)
    gathered = share.tokens * share.job.model.hidden_size * share.element if share.is_sequence_parallel else 0
    bytes_per_logit = share.software.logit_bytes or (share.element if is_in_place else FP32_BYTES + share.element)
    return float(logits * bytes_per_logit + gathered)
