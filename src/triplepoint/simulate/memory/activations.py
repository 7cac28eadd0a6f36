"""Activations of a stage: kept ones, of how many micro-batches at a time, and transient ones."""

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
"""Pipeline receives that are posted at a time, one from either side."""


class Activations(NamedTuple):
    """Memory of activations of one stage. Unit: byte.

    Attributes:
        saved: Kept for the backward pass when most is.
        buffers: There for a moment at that time.
    """

    saved: float
    buffers: float


def activations(job: Job, blocks: Blocks, chunks: tuple[Chunk, ...], stage: int) -> Activations:
    """Return the activations of a stage at their peak.

    Source:
        Korthikanti et al. 2022, arXiv:2205.05198, section 4; the bytes are those our own parts keep.
    """
    share = blocks.share
    received = _RECEIVES * share.split_tokens * job.model.hidden_size * share.element * (job.layout.pp > 1)
    moment = _moment(blocks, chunks)
    if "activations" in job.offload:
        most = max((blocks.layer(kind).whole.saved for chunk in chunks for kind, _ in chunk.layers), default=0.0)
        return Activations(LAYERS_ON_GPU * most, moment + received)
    return Activations(_saved(job, stage, [_chunk_saved(blocks, chunk) for chunk in chunks]), moment + received)


@lru_cache(maxsize=64)  # for stages that are alike, of all splits of layers
def _moment(blocks: Blocks, chunks: tuple[Chunk, ...]) -> float:
    """Return what the backward pass holds for a moment, of a layer or of the loss."""
    of_layers = (
        _layer_moment(blocks.share, kind) + _recomputed(blocks, chunk, kind)
        for chunk in dict.fromkeys(chunks)
        for kind, _ in chunk.layers
    )
    return max(max(of_layers, default=0.0), _head_moment(blocks, chunks))


def _recomputed(blocks: Blocks, chunk: Chunk, kind: LayerKind) -> float:
    """Return what one layer keeps while it is recomputed, beyond what is kept when the backward pass begins.

    The first layers are recomputed, when those that are not are done with: only a layer that keeps more than they did
    adds to the peak. Its input counts once more, as it does where all layers are recomputed.
    """
    layer, recompute = blocks.layer(kind), blocks.share.job.recompute
    if recompute != "full":
        return selective_recomputation(blocks.share, layer).held if recompute == "selective" else 0.0
    if chunk.recomputed == chunk.layers:
        return layer.whole.saved
    again = dict(chunk.recomputed)
    done = sum((count - again.get(found.kind, 0)) * found.whole.saved for found, count in blocks.in_chunk(chunk))
    return max(_layer_input(blocks.share), layer.whole.saved - done)


def _saved(job: Job, stage: int, by_chunk: list[float]) -> float:
    """Return what a stage keeps at most, of what a pass of each of its chunks does."""
    if not job.layout.pipeline_layers or job.layout.vp == 1:
        # Chunks are alike, or nearly.
        return sum(by_chunk) * passes_in_flight(job, stage) / job.layout.vp
    order = make_order(job.layout.schedule, job.layout.pp, job.num_microbatches, job.layout.vp)
    kind = order.kind[stage]
    kept = np.array(by_chunk)[order.chunk[stage]] * ((kind == FORWARD).astype(int) - (kind == BACKWARD))
    return float(np.cumsum(kept).max())


def passes_in_flight(job: Job, stage: int) -> int:
    """Return of how many chunk passes a stage keeps activations at most: micro-batches times virtual stages.

    Args:
        job: The job.
        stage: Number of the stage.

    Source:
        1F1B: Narayanan et al. 2021, arXiv:2104.04473, sections 2.2.1 and 2.2.2, and NVIDIA/Megatron-LM schedules.py,
        warm-up passes and one more; both directions: DeepSeek-V3, arXiv:2412.19437, table 2; zero bubble (ZB-H1): Qi et
        al. 2023, arXiv:2401.10241, memory of 1F1B.
    """
    pp, vp, schedule = job.layout.pp, job.layout.vp, job.layout.schedule
    everything = job.num_microbatches * vp
    if pp == 1:
        return vp
    if job.software.has_two_directions:
        # Of each of the two stages on a rank: both together have one more than the pipeline is long.
        return min(everything, ceil_div(pp + 1, 2))
    if schedule == "gpipe":
        return everything
    if vp > 1:
        return min(everything, 2 * (pp - stage - 1) + (vp - 1) * pp + 1)
    return min(everything, pp - stage)


@lru_cache(maxsize=64)  # as above
def _chunk_saved(blocks: Blocks, chunk: Chunk) -> float:
    """Return what one pass of a chunk keeps: of a recomputed layer its input only; logits are counted apart."""
    share = blocks.share
    layer_input = _layer_input(share)
    recomputed = dict(chunk.recomputed)
    saved = 0.0
    for layer, count in blocks.in_chunk(chunk):
        again = recomputed.get(layer.kind, 0)
        saved += again * layer_input + (count - again) * _layer_saved(blocks, layer)
    if chunk.is_first:
        saved += blocks.embedding.saved
    if chunk.is_last:
        saved += 2 * layer_input
    return saved


def _layer_input(share: Share) -> int:
    return share.split_tokens * share.job.model.hidden_size * share.element


def _layer_saved(blocks: Blocks, layer: Layer) -> float:
    """Return what a layer keeps that is not recomputed whole."""
    is_selective = blocks.share.job.recompute == "selective"
    return layer.whole.saved - (selective_recomputation(blocks.share, layer).spared if is_selective else 0.0)


def _layer_moment(share: Share, kind: LayerKind) -> float:
    """Return what the backward pass of a feed-forward block holds: gradients of its activation's input and output.

    With sequence parallelism the gathered input and gradient too. A mixer with a state holds its own gradients.
    """
    model = share.job.model
    gathered = 2 * share.tokens * model.hidden_size * share.element if share.is_sequence_parallel else 0
    mixer = model.recurrent(kind)
    mixed = gradient_bytes(share, mixer) if mixer else 0.0
    if not kind.has_feed_forward:
        return mixed + gathered
    if kind.has_experts:
        spread = Experts(share)
        rows, inner = spread.rows, spread.inner
    else:
        rows, inner = share.tokens, ceil_div(model.dense_ffn_hidden_size, share.tp)
    return max(mixed, float(share.element * rows * inner * (1 + num_up_projections(share)))) + gathered


def _head_moment(blocks: Blocks, chunks: tuple[Chunk, ...]) -> float:
    """Return what the loss holds: fp32 probabilities and the logits or their gradient; one kernel works in place."""
    if not chunks[-1].is_last:
        return 0.0
    share = blocks.share
    is_in_place = share.software.bytes_of_loss[0] < FP32_BYTES
    logits = share.tokens * vocabulary_rows(share)
    gathered = share.tokens * share.job.model.hidden_size * share.element if share.is_sequence_parallel else 0
    each = share.software.logit_bytes or (share.element if is_in_place else FP32_BYTES + share.element)
    return float(logits * each + gathered)
