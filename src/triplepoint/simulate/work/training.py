"""The work of a training step: kernels and communication of one micro-batch on every pipeline stage, and of the update.

FLOPs are two per multiply-accumulate and those the hardware runs: attention skips the masked half and multiplies seven
times in place of six in flash attention, recomputation is counted.
"""

from functools import lru_cache

from triplepoint.simulate.job import Job
from triplepoint.simulate.operations import ChunkWork, StageWork
from triplepoint.simulate.work.blocks import Blocks, Chunk, LayerParts, Layers, blocks_of, split_layers
from triplepoint.simulate.work.layer_parts import Operations, Part, Share, Weights, communication, repeat
from triplepoint.simulate.work.offload import offload_copies
from triplepoint.simulate.work.recompute import selective_recomputation
from triplepoint.simulate.work.sync import gradient_reductions, gradient_sync, optimizer_work, parameter_gathers


def stage_work(job: Job) -> list[StageWork]:
    """Return the work of every pipeline stage; all ranks of a stage do the same.

    Layers of a chunk are alike: each operation of a layer stands once, with the number of layers as its `count`. Equal
    chunks and stages are the same object.

    Args:
        job: The job; its layout must be one that can run, see `triplepoint.config.rules`.
    """
    blocks, order = blocks_of(job), split_layers(job)
    stages = {stage: _stage_work(blocks, stage) for stage in dict.fromkeys(order)}
    return [stages[stage] for stage in order]


@lru_cache(maxsize=64)  # for all splits of layers
def _stage_work(blocks: Blocks, stage: tuple[Chunk, ...]) -> StageWork:
    weights, adapters = blocks.weights(stage), blocks.adapters(stage)
    is_end = blocks.is_tied_across and any(chunk.is_first or chunk.is_last for chunk in stage)
    return StageWork(
        tuple(_chunk_work(blocks, chunk) for chunk in stage),
        gradient_sync(blocks.share, weights, adapters, is_end),
        optimizer_work(blocks.share, weights, adapters),
    )


@lru_cache(maxsize=64)  # as above
def _chunk_work(blocks: Blocks, chunk: Chunk) -> ChunkWork:
    """Return the work of a chunk: recomputation stands first in its backward pass, what shards are gathered before."""
    share = blocks.share
    first = blocks.embedding if chunk.is_first else Part()
    last = blocks.head if chunk.is_last else Part()
    arrives = _gathered_arrival(share)
    sharded = _Sharded(blocks, chunk)
    return ChunkWork(
        forward=(
            *(() if chunk.is_first else arrives),
            *sharded.before_forward(),
            *first.forward,
            *layers_work(blocks, chunk.layers, "forward"),
            *offload_copies("to_host", blocks, chunk),
            *last.forward,
        ),
        backward_input=(
            *(() if chunk.is_last else arrives),
            *sharded.before_backward(),
            *last.backward_input,
            *_recomputed(blocks, chunk),
            *offload_copies("from_host", blocks, chunk),
            *layers_work(blocks, chunk.layers, "backward_input"),
            *first.backward_input,
        ),
        backward_weight=(
            *last.backward_weight,
            *layers_work(blocks, chunk.layers, "backward_weight"),
            *first.backward_weight,
            *sharded.after_backward(),
        ),
        send_bytes=0.0 if chunk.is_last else _send_bytes(share),
    )


def layers_work(blocks: Blocks, layers: Layers, name: str) -> Operations:
    """Return the operations of one pass of layers; what one kind does stands before what the next does."""
    return _layers_work(blocks.parts, layers, name)


@lru_cache(maxsize=512)  # for stages that are alike, layers that are recomputed, and the layouts of a search
def _layers_work(parts: LayerParts, layers: Layers, name: str) -> Operations:
    return tuple(op for kind, count in layers for op in _times(getattr(parts.layer(kind).whole, name), count))


def _times(operations: Operations, count: int) -> Operations:
    if count == 1:
        return operations
    return tuple(repeat(operation, count) for operation in operations) if count else ()


def _recomputed(blocks: Blocks, chunk: Chunk) -> Operations:
    """Return the forward pass once more, of what is recomputed: kernels and tensor parallel collectives."""
    if blocks.share.job.recompute == "selective":
        layers = blocks.in_chunk(chunk)
        return tuple(
            op
            for layer, count in layers
            for op in _times(selective_recomputation(blocks.share, layer).operations, count)
        )
    return layers_work(blocks, chunk.recomputed, "forward")


def _send_bytes(share: Share) -> float:
    """Return what goes to the next stage: a rank's part of the split sequence, or of a tensor cut up for the way."""
    whole = share.split_tokens * share.job.model.hidden_size * share.element
    if share.job.layout.pp == 1:
        return 0.0
    return float(whole / share.tp if _is_cut_up(share) else whole)


def _is_cut_up(share: Share) -> bool:
    """Whether tensor parallel ranks, which hold the same, send a part each and gather after.

    Source:
        Narayanan et al. 2021, arXiv:2104.04473, section 4.1, scatter/gather optimization.
    """
    return share.software.scatters_activations and share.tp > 1 and not share.is_sequence_parallel


def _gathered_arrival(share: Share) -> Operations:
    if not _is_cut_up(share) or share.job.layout.pp == 1:
        return ()
    return (communication("all_gather", "tp", share.tokens * share.job.model.hidden_size * share.element),)


class _Sharded:
    """Collectives of a chunk whose gradients, or parameters too, are sharded: once per micro-batch and layer.

    A layer is one unit, gathered ahead where parameter gathering overlaps; what is not in a layer is the root unit,
    gathered before all and kept until its gradient is reduced, after all.

    Source:
        PyTorch FullyShardedDataParallel; Rajbhandari et al. 2020 (ZeRO), arXiv:1910.02054.
    """

    def __init__(self, blocks: Blocks, chunk: Chunk) -> None:
        job = blocks.share.job
        self.blocks, self.chunk = blocks, chunk
        self.overlap = job.overlap
        sharding, is_once = job.layout.data_parallel_sharding, blocks.share.gathers_once
        self.has_parameters = sharding == "optim_grads_params" and not is_once
        self.has_gradients = sharding in ("optim_grads_params", "optim_grads") and not is_once

    def before_forward(self) -> Operations:
        if not self.has_parameters:
            return ()
        root = self.blocks.end_weights(self.chunk)
        return (*parameter_gathers(self.blocks.share, root, overlapped=False), *self._gathers())

    def before_backward(self) -> Operations:
        job = self.blocks.share.job
        if not self.has_parameters or job.keeps_gathered:
            return ()
        is_twice = job.recompute == "full" and job.software.gathers_to_recompute
        return self._gathers() + self._gathers() * is_twice

    def after_backward(self) -> Operations:
        if not self.has_gradients:
            return ()
        share, is_overlapped = self.blocks.share, "grad" in self.overlap
        root = Weights() if share.has_adapters else self.blocks.end_weights(self.chunk)
        of_layers: Operations = ()
        for layer, count in self.blocks.in_chunk(self.chunk):
            of_layers += _times(
                gradient_reductions(share, layer.whole.weights, layer.whole.adapters, is_overlapped), count
            )
        return (*of_layers, *gradient_reductions(share, root, 0.0, overlapped=False))

    def _gathers(self) -> Operations:
        share, is_overlapped = self.blocks.share, "param" in self.overlap
        operations: Operations = ()
        for layer, count in self.blocks.in_chunk(self.chunk):
            operations += _times(parameter_gathers(share, layer.whole.weights, is_overlapped), count)
        return operations
