"""Activation recomputation of a layer: none, all of it, or all but its matrix products."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from triplepoint.launch.engines.native.model import Run

_ATEN = torch.ops.aten

KEPT = {
    _ATEN.mm.default,
    _ATEN.addmm.default,
    _ATEN.bmm.default,
    _ATEN._scaled_dot_product_flash_attention.default,
    _ATEN._scaled_dot_product_efficient_attention.default,
    _ATEN._scaled_dot_product_cudnn_attention.default,
    _ATEN._scaled_dot_product_flash_attention_for_cpu.default,
}
"""Operations whose results are kept with selective recomputation: they cost most of the time of a layer."""


def runner(mode: str) -> Run:
    """Return what calls a layer's function.

    Args:
        mode: none, selective or full.
    """
    if mode == "none":
        return _plain
    if mode == "full":
        return partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
    contexts = partial(create_selective_checkpoint_contexts, _policy)
    return partial(checkpoint, use_reentrant=False, preserve_rng_state=False, context_fn=contexts)


def _plain(function: Callable[..., Tensor], x: Tensor, rotary: Tensor | None) -> Tensor:
    return function(x, rotary)


def _policy(context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operation in KEPT else CheckpointPolicy.PREFER_RECOMPUTE
