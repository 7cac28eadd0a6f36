"""Stand-ins for the CUDA calls of Megatron-Core, put in place where a rank has no GPU and nowhere else.

Megatron names the device in literals (`device="cuda"`), keeps random states of the GPU, checks types as text, and waits
for streams. Each stand-in says what it replaces; what is computed stays Megatron's.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

FACTORIES = ("tensor", "zeros", "ones", "empty", "full", "arange", "zeros_like", "ones_like", "empty_like")
_TYPES = {
    torch.float32: "torch.cuda.FloatTensor",
    torch.bfloat16: "torch.cuda.BFloat16Tensor",
    torch.float16: "torch.cuda.HalfTensor",
}


class NoStream:
    """A stream or an event of a device that does everything in order."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take whatever a stream takes."""

    def __getattr__(self, name: str) -> Callable[..., "NoStream"]:
        """Return a call that does nothing: wait, synchronise, or record and return an event."""
        return lambda *args, **kwargs: self

    def __enter__(self) -> "NoStream":
        """Enter."""
        return self

    def __exit__(self, *args: object) -> None:
        """Leave."""


def stand_in_for_cuda() -> None:
    """Replace what Megatron-Core asks of CUDA; harmless if called again."""
    if getattr(torch.cuda, "_triplepoint_stands_in", False):
        return
    torch.cuda._triplepoint_stands_in = True
    _devices()
    _random_states()
    _streams()
    _experts()
    _collectives()


def _devices() -> None:
    torch.cuda.current_device = lambda: "cpu"
    for name in FACTORIES:
        setattr(torch, name, _on_cpu(getattr(torch, name)))
    Tensor.cuda = lambda self, *args, **kwargs: self
    plain_type = Tensor.type

    def type_of(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        # The optimizer tells precisions apart by this text.
        return (
            _TYPES.get(self.dtype, plain_type(self)) if not args and not kwargs else plain_type(self, *args, **kwargs)
        )

    Tensor.type = type_of


def _on_cpu(factory: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(factory)
    def make(*args: Any, **kwargs: Any) -> Tensor:
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        return factory(*args, **kwargs)

    return make


def _random_states() -> None:
    from megatron.core.tensor_parallel import random

    torch.cuda.get_rng_state = lambda *args, **kwargs: torch.get_rng_state()
    torch.cuda.set_rng_state = lambda state, *args, **kwargs: torch.set_rng_state(state)
    torch.cuda.manual_seed = torch.manual_seed
    random._get_cuda_rng_state = lambda *args, **kwargs: torch.get_rng_state()
    random._set_cuda_rng_state = lambda state, *args, **kwargs: torch.set_rng_state(state)


def _streams() -> None:
    torch.cuda.synchronize = lambda *args, **kwargs: None
    for name in ("Stream", "Event"):
        setattr(torch.cuda, name, NoStream)
    torch.cuda.current_stream = lambda *args, **kwargs: NoStream()
    torch.cuda.stream = lambda *args, **kwargs: NoStream()


def _experts() -> None:
    from megatron.core.transformer.moe import moe_utils, token_dispatcher

    # Without Transformer Engine the name is never bound, and yet compared with None. Source: megatron-core 0.16.1.
    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None
    plain = moe_utils.maybe_move_tensor_to_cpu

    def move(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
        # Only what comes from a GPU is made numpy, and all_to_all takes split sizes as numbers only.
        moved = plain(tensor, as_numpy, False)
        return moved.numpy() if as_numpy and torch.is_tensor(moved) else moved

    token_dispatcher.maybe_move_tensor_to_cpu = move


def _collectives() -> None:
    """Pad parts of different sizes, which experts split over tensor parallel ranks have: gloo takes equal ones only."""
    plain_gather, plain_scatter = dist.all_gather, dist.reduce_scatter

    def all_gather(outputs: list[Tensor], part: Tensor, group: dist.ProcessGroup | None = None, **kwargs: Any) -> Any:
        if len({len(output) for output in outputs}) < 2:
            return plain_gather(outputs, part, group=group, **kwargs)
        most = max(map(len, outputs))
        padded = [part.new_empty(most, *part.shape[1:]) for _ in outputs]
        plain_gather(padded, _padded(part, most), group=group)
        for output, whole in zip(outputs, padded, strict=True):
            output.copy_(whole[: len(output)])
        return None

    def reduce_scatter(output: Tensor, parts: list[Tensor], *args: Any, **kwargs: Any) -> Any:
        if len({len(part) for part in parts}) < 2:
            return plain_scatter(output, parts, *args, **kwargs)
        most = max(map(len, parts))
        padded = output.new_empty(most, *output.shape[1:])
        plain_scatter(padded, [_padded(part, most) for part in parts], *args, **kwargs)
        output.copy_(padded[: len(output)])
        return None

    dist.all_gather, dist.reduce_scatter = all_gather, reduce_scatter


def _padded(part: Tensor, length: int) -> Tensor:
    return torch.cat([part, part.new_zeros(length - len(part), *part.shape[1:])])
