"""Activation offload: copies to and from host memory, and the part of them that computation does not hide."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeGuard

from triplepoint.simulate.operations import ChunkWork, Kernel, Operation, StageWork
from triplepoint.simulate.work.blocks import Blocks, Chunk
from triplepoint.simulate.work.layer_parts import Operations, streaming
from triplepoint.simulate.work.recompute import selective_recomputation

LAYERS_ON_GPU = 2
"""Layers whose activations are on the GPU at a time: one in use, one being copied. Source: NVIDIA/TransformerEngine
cpu_offload.py, double buffering."""


COPIES = ("to_host", "from_host")
"""Kinds of copy kernels."""


def offload_copies(kind: str, blocks: Blocks, chunk: Chunk) -> Operations:
    """Return the copies of one pass of a chunk, including those that computation hides (`hide_copies`).

    Args:
        kind: One of `COPIES`.
        blocks: Parts of the model on the rank.
        chunk: The model chunk.
    """
    if "activations" not in blocks.share.job.offload:
        return ()
    kept = kept_bytes(blocks, chunk)
    return (streaming("elementwise", kind, kept),) if kept > 0 else ()


def hide_copies(stages: Iterable[StageWork], kernel_s: Callable[[Kernel], float]) -> list[StageWork]:
    """Return stages with only the copies that the kernels of the same forward or backward pass do not hide.

    Args:
        stages: Work of pipeline stages.
        kernel_s: Function that returns the time of all runs of a kernel. Unit: s.
    """
    return [replace(stage, chunks=tuple(_hide_in_chunk(chunk, kernel_s) for chunk in stage.chunks)) for stage in stages]


def _hide_in_chunk(chunk: ChunkWork, kernel_s: Callable[[Kernel], float]) -> ChunkWork:
    forward = _with_exposed_copies(chunk.forward, chunk.forward, kernel_s)
    backward = _with_exposed_copies(chunk.backward_input, chunk.backward_input + chunk.backward_weight, kernel_s)
    return replace(chunk, forward=forward, backward_input=backward)


def _with_exposed_copies(
    operations: Operations, overlapping: Operations, kernel_s: Callable[[Kernel], float]
) -> Operations:
    """Return the operations of a pass, with its copies reduced to the part that is exposed.

    Args:
        operations: The pass.
        overlapping: Operations whose kernels run while the copies do.
        kernel_s: Function that returns the time of all runs of a kernel. Unit: s.
    """
    copies = [op for op in operations if _is_copy(op)]
    if not copies:
        return operations
    busy_s = sum(kernel_s(op) for op in overlapping if isinstance(op, Kernel) and not _is_copy(op))
    exposed_share = max(0.0, 1 - busy_s / sum(map(kernel_s, copies)))
    exposed = [replace(op, num_bytes=op.num_bytes * exposed_share) if _is_copy(op) else op for op in operations]
    return tuple(op for op in exposed if op.num_bytes > 0 or not _is_copy(op))


def _is_copy(operation: Operation) -> TypeGuard[Kernel]:
    return isinstance(operation, Kernel) and operation.kind in COPIES


def kept_bytes(blocks: Blocks, chunk: Chunk) -> float:
    """Return the activations that the layers of a chunk keep of a micro-batch: a recomputed layer keeps only its input.

    Unit: byte.
    """
    share, num_recomputed = blocks.share, dict(chunk.recomputed)
    input_bytes = share.split_tokens * share.job.model.hidden_size * share.element
    total = 0.0
    for layer, count in blocks.in_chunk(chunk):
        recomputed = num_recomputed.get(layer.kind, 0)
        spared = selective_recomputation(share, layer).spared if share.job.recompute == "selective" else 0.0
        total += recomputed * input_bytes + (count - recomputed) * (layer.whole.saved - spared)
    return total
