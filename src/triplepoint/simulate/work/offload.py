"""Activations in the memory of the host: what a pass copies there, or back, and what its computation hides of that."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeGuard

from triplepoint.simulate.operations import ChunkWork, Kernel, Operation, StageWork
from triplepoint.simulate.work.blocks import Blocks, Chunk
from triplepoint.simulate.work.layer_parts import Operations, streaming
from triplepoint.simulate.work.recompute import repeated

LAYERS_ON_GPU = 2
"""Layers whose activations are on the GPU at a time: one at work, one on its way. Source: NVIDIA/TransformerEngine
cpu_offload.py, double buffering."""


COPIES = ("to_host", "from_host")
"""Kinds of the copies."""


def copied(kind: str, blocks: Blocks, chunk: Chunk) -> Operations:
    """Return the copies of a pass, all of them: see `hide_copies`.

    Args:
        kind: One of `COPIES`.
        blocks: Parts of the model on the rank.
        chunk: Whose layers it is.
    """
    if "activations" not in blocks.share.job.offload:
        return ()
    kept = kept_bytes(blocks, chunk)
    return (streaming("elementwise", kind, kept),) if kept > 0 else ()


def hide_copies(stages: Iterable[StageWork], kernel_s: Callable[[Kernel], float]) -> list[StageWork]:
    """Return stages with the copies that the kernels of the same pass, forward or backward, do not hide.

    Args:
        stages: Work of pipeline stages.
        kernel_s: Time of all runs of a kernel. Unit: s.
    """
    return [replace(stage, chunks=tuple(_hidden(chunk, kernel_s) for chunk in stage.chunks)) for stage in stages]


def _hidden(chunk: ChunkWork, kernel_s: Callable[[Kernel], float]) -> ChunkWork:
    forward = _exposed(chunk.forward, chunk.forward, kernel_s)
    backward = _exposed(chunk.backward_input, chunk.backward_input + chunk.backward_weight, kernel_s)
    return replace(chunk, forward=forward, backward_input=backward)


def _exposed(pass_: Operations, beside: Operations, kernel_s: Callable[[Kernel], float]) -> Operations:
    """Return a pass with what is left of its copies beside the kernels of some operations."""
    copies = [one for one in pass_ if _is_copy(one)]
    if not copies:
        return pass_
    busy_s = sum(kernel_s(one) for one in beside if isinstance(one, Kernel) and not _is_copy(one))
    left = max(0.0, 1 - busy_s / sum(map(kernel_s, copies)))
    exposed = [replace(one, num_bytes=one.num_bytes * left) if _is_copy(one) else one for one in pass_]
    return tuple(one for one in exposed if one.num_bytes > 0 or not _is_copy(one))


def _is_copy(operation: Operation) -> TypeGuard[Kernel]:
    return isinstance(operation, Kernel) and operation.kind in COPIES


def kept_bytes(blocks: Blocks, chunk: Chunk) -> float:
    """Return what the layers of a chunk keep of a micro-batch: of one that is recomputed, its input."""
    share, again = blocks.share, dict(chunk.recomputed)
    one_input = share.split_tokens * share.job.model.hidden_size * share.element
    total = 0.0
    for layer, count in blocks.in_chunk(chunk):
        recomputed = again.get(layer.kind, 0)
        spared = repeated(share, layer).spared if share.job.recompute == "selective" else 0.0
        total += recomputed * one_input + (count - recomputed) * (layer.whole.saved - spared)
    return total
