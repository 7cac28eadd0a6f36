"""Activations in the memory of the host: what a pass copies there, or back, beyond what its computation hides."""

from collections.abc import Iterable

from triplepoint.simulate.operations import Kernel, Operation
from triplepoint.simulate.work.blocks import Blocks, Chunk
from triplepoint.simulate.work.layer_parts import Operations, Share, streaming
from triplepoint.simulate.work.recompute import repeated

LAYERS_ON_GPU = 2
"""Layers whose activations are on the GPU at a time: one at work, one on its way. Source: NVIDIA/TransformerEngine
cpu_offload.py, double buffering."""


def copied(kind: str, pass_: Operations, blocks: Blocks, chunk: Chunk) -> Operations:
    """Return the copies of a pass that its own computation, taken at the peaks of the GPU, does not hide.

    Args:
        kind: to_host or from_host.
        pass_: What the layers run.
        blocks: Parts of the model on the rank.
        chunk: Whose layers it is.
    """
    share = blocks.share
    host = share.job.gpu.host_link
    if "activations" not in share.job.offload or host is None:
        return ()
    exposed = kept_bytes(blocks, chunk) - _least_s(share, pass_) * host.value
    return (streaming("elementwise", kind, exposed),) if exposed > 0 else ()


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


def _least_s(share: Share, operations: Iterable[Operation]) -> float:
    """Return the time of kernels at the peaks of the data sheet. Unit: s."""
    gpu = share.job.gpu
    wide, fp8, narrow = gpu.peak_bf16_flops, gpu.peak_fp8_flops, gpu.peak_nvfp4_flops
    peaks = {"fp8": fp8 or wide, "nvfp4": narrow or wide, "fp32": gpu.peak_fp32_flops}
    return sum(
        one.count * max(one.flops / peaks.get(one.precision, wide).value, one.num_bytes / gpu.memory_bandwidth.value)
        for one in operations
        if isinstance(one, Kernel)
    )
