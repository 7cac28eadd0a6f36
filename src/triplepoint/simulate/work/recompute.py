"""What selective recomputation repeats of a layer in its backward pass, and what need not be kept for that."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from triplepoint.config.software import RecomputeModule
from triplepoint.simulate.operations import Communication, Kernel, Operation
from triplepoint.simulate.work.blocks import Layer, latent_up
from triplepoint.simulate.work.cores import core_of, positions
from triplepoint.simulate.work.experts import Experts, experts
from triplepoint.simulate.work.feed_forward import activation, feed_forward, gates
from triplepoint.simulate.work.layer_parts import Operations, Part, Share, ceil_div
from triplepoint.simulate.work.linear import norm


class Repeated(NamedTuple):
    """What is repeated of one layer.

    Attributes:
        operations: Of its forward pass.
        spared: What need not be kept. Unit: byte.
        held: What there is of it while the layer is recomputed. Unit: byte.
    """

    operations: Operations = ()
    spared: float = 0.0
    held: float = 0.0


def repeated(share: Share, layer: Layer) -> Repeated:
    """Return what the modules of a job's selective recomputation come to in a layer."""
    found = [_MODULES[name](share, layer) for name in share.software.recompute_modules]
    operations = tuple(operation for one in found for operation in one.operations)
    return Repeated(operations, sum(one.spared for one in found), sum(one.held for one in found))


def _core(share: Share, layer: Layer) -> Repeated:
    """Return the core of attention; queries, keys and values are kept."""
    if not layer.kind.has_attention:
        return Repeated()
    core = core_of(share, layer.kind.window)
    spared = layer.core.saved - core.query_bytes - core.pair_bytes
    return Repeated(layer.core.forward, spared, layer.core.saved)


def _up_projections(share: Share, layer: Layer) -> Repeated:
    """Return the projections of latent attention up to heads, with their rotation; their inputs are kept."""
    latent = share.job.model.latent
    if latent is None or not layer.kind.has_attention:
        return Repeated()
    core = core_of(share, layer.kind.window)
    parts = (*latent_up(share, core, latent), positions(share, core))
    spared = core.query_bytes + core.pair_bytes
    return Repeated(tuple(op for part in parts for op in part.forward), spared, spared)


def _norms(share: Share, layer: Layer) -> Repeated:
    """Return the norms before attention and before the feed-forward block, whose inputs are kept."""
    one, moe = norm(share, is_quantized_output=True), share.job.model.moe
    kept = [share.gemm_element] * bool(layer.kind.mixer)
    if layer.kind.has_experts and moe:
        # The router keeps its own of the norm's output, and so do experts that every token passes.
        kept.append(
            share.element + share.gemm_element * (share.is_quantized and moe.shared_ffn_hidden_size is not None)
        )
    elif layer.kind.has_feed_forward:
        kept.append(share.gemm_element)
    spared = float(sum(kept)) * share.split_tokens * share.job.model.hidden_size
    return Repeated(one.forward * len(kept), spared, spared)


def _expert_activation(share: Share, layer: Layer) -> Repeated:
    """Return the activation inside experts; the projections it reads are kept."""
    if not layer.kind.has_experts:
        return Repeated()
    spread = Experts(share)
    spared = float(spread.rows * spread.inner * share.gemm_element)
    return Repeated(activation(share, spread.rows, spread.inner).forward, spared, spared)


def _dense(share: Share, layer: Layer) -> Repeated:
    """Return the feed-forward block of a layer without experts."""
    is_dense = layer.kind.has_feed_forward and not layer.kind.has_experts
    return _block(share, feed_forward(share)) if is_dense else Repeated()


def _experts(share: Share, layer: Layer) -> Repeated:
    """Return the feed-forward block of a layer with experts, its exchange of tokens included."""
    return _block(share, experts(share)) if layer.kind.has_experts else Repeated()


def _block(share: Share, block: Part) -> Repeated:
    spared = block.saved - share.split_tokens * share.job.model.hidden_size * share.element
    return Repeated(block.forward, spared, spared)


def _every_other(share: Share, layer: Layer) -> Repeated:
    """Return all kernels bound by memory, every second matrix product of dense layers, and what is gathered.

    Queries, keys, values, gate and up count as a product each. Kept are the layer's input and the results of the other
    products, of attention, of experts, and of reductions and exchanges.

    Source:
        pytorch/torchtitan @b5bcd76 torchtitan/distributed/activation_checkpoint.py, SelectiveAC.
    """
    operations: list[Operation] = []
    products = iter(_products(share, layer))
    for operation in layer.whole.forward:
        if isinstance(operation, Communication):
            operations += [operation] * (operation.kind == "all_gather")
        elif not operation.shape:
            operations.append(operation)
        elif len(operation.shape) == 3:
            width = next(products, operation.shape[1])
            operations += [_narrowed(operation, width, share.element)] if width else []
    spared = max(0.0, layer.whole.saved - _kept(share, layer))
    return Repeated(tuple(operations), spared, spared)


def _products(share: Share, layer: Layer) -> list[int]:
    """Return of each GEMM of a layer, in order, the columns that are worked out again; those after are so whole."""
    model, core = share.job.model, core_of(share, layer.kind.window)
    if model.latent or not layer.core.forward:
        return [0, 1 << 30] * 8
    widths = [[core.heads * core.size, core.groups * core.size, core.groups * core.value_size], [model.hidden_size]]
    if not layer.kind.has_experts:
        inner = ceil_div(model.dense_ffn_hidden_size, share.tp)
        widths += [[inner] * gates(share), [model.hidden_size]]
    number, again = 0, []
    for parts in widths:
        places = range(number + 1, number + len(parts) + 1)
        again.append(sum(width for place, width in zip(places, parts, strict=True) if place % 2 == 0))
        number += len(parts)
    return again


def _narrowed(kernel: Kernel, columns: int, element: int) -> Kernel:
    """Return a GEMM with so many columns of its result, or all where it has fewer."""
    m, n, k = kernel.shape
    if columns >= n:
        return kernel
    less = element * (n - columns) * (m + k)
    flops = kernel.flops * columns / n
    return replace(kernel, flops=flops, num_bytes=max(0.0, kernel.num_bytes - less), shape=(m, columns, k))


def _kept(share: Share, layer: Layer) -> float:
    model, core = share.job.model, core_of(share, layer.kind.window)
    ends = 2.0 * share.split_tokens * model.hidden_size * share.element
    attention = core.query_bytes + core.pair_bytes / 2 + core.output_bytes
    if layer.kind.has_experts:
        spread = Experts(share)
        inside = spread.rows * (gates(share) * spread.inner + 3 * spread.width)
    else:
        inside = share.tokens * ceil_div(model.dense_ffn_hidden_size, share.tp)
    return ends + attention + inside * share.element


_MODULES: Mapping[RecomputeModule, Callable[[Share, Layer], Repeated]] = MappingProxyType(
    {
        "core_attn": _core,
        "mla_up_proj": _up_projections,
        "layernorm": _norms,
        "moe_act": _expert_activation,
        "mlp": _dense,
        "moe": _experts,
        "every_other": _every_other,
    }
)
