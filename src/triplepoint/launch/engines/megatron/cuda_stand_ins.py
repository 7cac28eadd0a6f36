"""Replace the CUDA calls of Megatron-Core, so that it runs on a CPU over gloo.

Megatron-Core names the device in literals (`device="cuda"`), keeps random states of the GPU, checks types as text and
waits for streams. The computation stays its own.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

FACTORIES = ("tensor", "zeros", "ones", "empty", "full", "arange", "zeros_like", "ones_like", "empty_like")
"""Functions of torch that Megatron-Core calls with `device="cuda"`."""
_CUDA_TYPES = {
    torch.float32: "torch.cuda.FloatTensor",
    torch.bfloat16: "torch.cuda.BFloat16Tensor",
    torch.float16: "torch.cuda.HalfTensor",
}


class NoStream:
    """Stand-in for a CUDA stream or event: a CPU does everything in order."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Accept the arguments of a stream or an event."""

    def __getattr__(self, name: str) -> Callable[..., "NoStream"]:
        """Return a method that does nothing, for all of wait, synchronise, record and so on."""
        return lambda *args, **kwargs: self

    def __enter__(self) -> "NoStream":
        """Enter."""
        return self

    def __exit__(self, *args: object) -> None:
        """Leave."""


def stand_in_for_cuda() -> None:
    """Replace the CUDA calls of Megatron-Core in this process. May be called more than once."""
    if getattr(torch.cuda, "_triplepoint_stands_in", False):
        return
    torch.cuda._triplepoint_stands_in = True
    _replace_devices()
    _replace_random_states()
    _replace_streams()
    _replace_expert_functions()
    _replace_collectives()


def _replace_devices() -> None:
    torch.cuda.current_device = lambda: "cpu"
    for name in FACTORIES:
        setattr(torch, name, _on_cpu(getattr(torch, name)))
    Tensor.cuda = lambda self, *args, **kwargs: self
    original_type = Tensor.type

    def cuda_type(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        # Megatron-Core's optimizer tells precisions apart by this text.
        if args or kwargs:
            return original_type(self, *args, **kwargs)
        return _CUDA_TYPES.get(self.dtype, original_type(self))

    Tensor.type = cuda_type


def _on_cpu(factory: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return the factory, with `device="cuda"` taken as `device="cpu"`."""

    @functools.wraps(factory)
    def make(*args: Any, **kwargs: Any) -> Tensor:
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        return factory(*args, **kwargs)

    return make


def _replace_random_states() -> None:
    from megatron.core.tensor_parallel import random

    torch.cuda.get_rng_state = lambda *args, **kwargs: torch.get_rng_state()
    torch.cuda.set_rng_state = lambda state, *args, **kwargs: torch.set_rng_state(state)
    torch.cuda.manual_seed = torch.manual_seed
    random._get_cuda_rng_state = lambda *args, **kwargs: torch.get_rng_state()
    random._set_cuda_rng_state = lambda state, *args, **kwargs: torch.set_rng_state(state)


def _replace_streams() -> None:
    torch.cuda.synchronize = lambda *args, **kwargs: None
    for name in ("Stream", "Event"):
        setattr(torch.cuda, name, NoStream)
    torch.cuda.current_stream = lambda *args, **kwargs: NoStream()
    torch.cuda.stream = lambda *args, **kwargs: NoStream()


def _replace_expert_functions() -> None:
    from megatron.core.transformer.moe import moe_utils, token_dispatcher

    # Without Transformer Engine this name is compared with None but never bound. Source: megatron-core 0.16.1.
    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None
    original_move = moe_utils.maybe_move_tensor_to_cpu

    def move(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
        # The original converts only tensors of a GPU to numpy, but all_to_all needs split sizes as numbers.
        moved = original_move(tensor, as_numpy, False)
        return moved.numpy() if as_numpy and torch.is_tensor(moved) else moved

    token_dispatcher.maybe_move_tensor_to_cpu = move


def _replace_collectives() -> None:
    """Pad parts of unequal sizes, as of experts split over tensor parallel ranks: gloo takes equal sizes only."""
    original_gather, original_scatter = dist.all_gather, dist.reduce_scatter

    def all_gather(outputs: list[Tensor], part: Tensor, group: dist.ProcessGroup | None = None, **kwargs: Any) -> Any:
        if len({len(output) for output in outputs}) < 2:
            return original_gather(outputs, part, group=group, **kwargs)
        longest = max(map(len, outputs))
        padded_outputs = [part.new_empty(longest, *part.shape[1:]) for _ in outputs]
        original_gather(padded_outputs, _padded(part, longest), group=group)
        for output, padded in zip(outputs, padded_outputs, strict=True):
            output.copy_(padded[: len(output)])
        return None

    def reduce_scatter(output: Tensor, parts: list[Tensor], *args: Any, **kwargs: Any) -> Any:
        if len({len(part) for part in parts}) < 2:
            return original_scatter(output, parts, *args, **kwargs)
        longest = max(map(len, parts))
        padded = output.new_empty(longest, *output.shape[1:])
        original_scatter(padded, [_padded(part, longest) for part in parts], *args, **kwargs)
        output.copy_(padded[: len(output)])
        return None

    dist.all_gather, dist.reduce_scatter = all_gather, reduce_scatter


def _padded(part: Tensor, length: int) -> Tensor:
    return torch.cat([part, part.new_zeros(length - len(part), *part.shape[1:])])
