"""Selective recomputation: operations that a layer repeats in its backward pass, and activations it need not keep."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from triplepoint.config.software import RecomputeModule
from triplepoint.simulate.operations import Communication, Kernel, Operation
from triplepoint.simulate.work.blocks import Layer, latent_up
from triplepoint.simulate.work.cores import core_of, positions
from triplepoint.simulate.work.experts import Experts, experts
from triplepoint.simulate.work.feed_forward import activation, feed_forward, num_up_projections
from triplepoint.simulate.work.layer_parts import Operations, Part, Share, ceil_div
from triplepoint.simulate.work.linear import norm


class Recomputed(NamedTuple):
    """Selective recomputation of one layer.

    Attributes:
        operations: Repeated operations of the forward pass.
        spared: Activations that need not be kept. Unit: byte.
        held: Repeated activations that exist while the layer is recomputed. Unit: byte.
    """

    operations: Operations = ()
    spared: float = 0.0
    held: float = 0.0


def selective_recomputation(share: Share, layer: Layer) -> Recomputed:
    """Return the selective recomputation of a layer, over all modules that the software recomputes."""
    modules = [_MODULES[name](share, layer) for name in share.software.recompute_modules]
    operations = tuple(operation for module in modules for operation in module.operations)
    return Recomputed(operations, sum(module.spared for module in modules), sum(module.held for module in modules))


def _core(share: Share, layer: Layer) -> Recomputed:
    """Return the core of attention; queries, keys and values are kept."""
    if not layer.kind.has_attention:
        return Recomputed()
    core = core_of(share, layer.kind.window)
    spared = layer.core.saved - core.query_bytes - core.pair_bytes
    return Recomputed(layer.core.forward, spared, layer.core.saved)


def _up_projections(share: Share, layer: Layer) -> Recomputed:
    """Return the up projections of latent attention with their rotation; their inputs are kept."""
    latent = share.job.model.latent
    if latent is None or not layer.kind.has_attention:
        return Recomputed()
    core = core_of(share, layer.kind.window)
    parts = (*latent_up(share, core, latent), positions(share, core))
    spared = core.query_bytes + core.pair_bytes
    return Recomputed(tuple(op for part in parts for op in part.forward), spared, spared)


def _norms(share: Share, layer: Layer) -> Recomputed:
    """Return the norms before attention and before the feed-forward block; their inputs are kept."""
    norm_part, moe = norm(share, is_quantized_output=True), share.job.model.moe
    # Bytes of the output of each norm, per number.
    outputs = [share.gemm_element] * bool(layer.kind.mixer)
    if layer.kind.has_experts and moe:
        # The router keeps a 16-bit copy of the norm's output, and quantized shared experts keep their own cast.
        outputs.append(
            share.element + share.gemm_element * (share.is_quantized and moe.shared_ffn_hidden_size is not None)
        )
    elif layer.kind.has_feed_forward:
        outputs.append(share.gemm_element)
    spared = float(sum(outputs)) * share.split_tokens * share.job.model.hidden_size
    return Recomputed(norm_part.forward * len(outputs), spared, spared)


def _expert_activation(share: Share, layer: Layer) -> Recomputed:
    """Return the activation inside experts; its input projections are kept."""
    if not layer.kind.has_experts:
        return Recomputed()
    spread = Experts(share)
    spared = float(spread.rows * spread.inner * share.gemm_element)
    return Recomputed(activation(share, spread.rows, spread.inner).forward, spared, spared)


def _dense(share: Share, layer: Layer) -> Recomputed:
    """Return the feed-forward block of a layer without experts."""
    is_dense = layer.kind.has_feed_forward and not layer.kind.has_experts
    return _whole_block(share, feed_forward(share)) if is_dense else Recomputed()


def _experts(share: Share, layer: Layer) -> Recomputed:
    """Return the feed-forward block of a layer with experts, including its token exchange."""
    return _whole_block(share, experts(share)) if layer.kind.has_experts else Recomputed()


def _whole_block(share: Share, block: Part) -> Recomputed:
    """Return the recomputation of a whole block, of which only the input is kept."""
    spared = block.saved - share.split_tokens * share.job.model.hidden_size * share.element
    return Recomputed(block.forward, spared, spared)


def _every_other(share: Share, layer: Layer) -> Recomputed:
    """Return all memory-bound kernels, every second GEMM of dense layers, and all-gathers.

    Queries, keys, values, gate and up projection count as a GEMM each. Kept are the layer's input and the results of
    the other GEMMs, of attention, of experts, and of reductions and exchanges.

    Source:
        pytorch/torchtitan @b5bcd76 torchtitan/distributed/activation_checkpoint.py, SelectiveAC.
    """
    operations: list[Operation] = []
    columns_of_gemms = iter(_recomputed_columns(share, layer))
    for operation in layer.whole.forward:
        if isinstance(operation, Communication):
            operations += [operation] * (operation.kind == "all_gather")
        elif not operation.shape:
            operations.append(operation)
        elif len(operation.shape) == 3:
            columns = next(columns_of_gemms, operation.shape[1])
            operations += [_with_columns(operation, columns, share.element)] if columns else []
    spared = max(0.0, layer.whole.saved - _kept_by_every_other(share, layer))
    return Recomputed(tuple(operations), spared, spared)


def _recomputed_columns(share: Share, layer: Layer) -> list[int]:
    """Return the recomputed output columns of each GEMM kernel of a layer; kernels beyond the list are whole.

    Every second GEMM is recomputed. A kernel computes several of them: queries, keys and values, or gate and up.
    """
    model, core = share.job.model, core_of(share, layer.kind.window)
    if model.latent or not layer.core.forward:
        return [0, 1 << 30] * 8
    # Output widths of the GEMMs in each kernel.
    kernels = [[core.heads * core.size, core.groups * core.size, core.groups * core.value_size], [model.hidden_size]]
    if not layer.kind.has_experts:
        inner = ceil_div(model.dense_ffn_hidden_size, share.tp)
        kernels += [[inner] * num_up_projections(share), [model.hidden_size]]
    num_gemms, columns = 0, []
    for widths in kernels:
        numbers = range(num_gemms + 1, num_gemms + len(widths) + 1)
        columns.append(sum(width for number, width in zip(numbers, widths, strict=True) if number % 2 == 0))
        num_gemms += len(widths)
    return columns


def _with_columns(kernel: Kernel, columns: int, element: int) -> Kernel:
    """Return a GEMM that computes at most `columns` columns of its result."""
    m, n, k = kernel.shape
    if columns >= n:
        return kernel
    saved_bytes = element * (n - columns) * (m + k)
    flops = kernel.flops * columns / n
    return replace(kernel, flops=flops, num_bytes=max(0.0, kernel.num_bytes - saved_bytes), shape=(m, columns, k))


def _kept_by_every_other(share: Share, layer: Layer) -> float:
    """Return the activations that a layer keeps with `every_other`. Unit: byte."""
    model, core = share.job.model, core_of(share, layer.kind.window)
    ends = 2.0 * share.split_tokens * model.hidden_size * share.element
    attention = core.query_bytes + core.pair_bytes / 2 + core.output_bytes
    if layer.kind.has_experts:
        spread = Experts(share)
        inside = spread.rows * (num_up_projections(share) * spread.inner + 3 * spread.width)
    else:
        inside = share.tokens * ceil_div(model.dense_ffn_hidden_size, share.tp)
    return ends + attention + inside * share.element


_MODULES: Mapping[RecomputeModule, Callable[[Share, Layer], Recomputed]] = MappingProxyType(
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
