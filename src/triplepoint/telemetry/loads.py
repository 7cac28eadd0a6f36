"""Loads for a GPU whose sensors are being characterised, and a training loop whose steps are timed."""

import random
import time
from collections.abc import Callable, Iterator
from typing import Any

from triplepoint.errors import UserError
from triplepoint.units import NS_PER_S

_SHORTEST_S, _LONGEST_S = 0.02, 0.5
_LONG_S, _LONG_EVERY = 2.5, 12
"""Now and then an interval long enough for the power to become steady."""


def busy_intervals(seconds: float, seed: int = 6) -> Iterator[tuple[int, int]]:
    """Keep the GPU busy and idle in turn for random times and yield start and end of each busy time. Unit: ns.

    Args:
        seconds: How long in all. Unit: s.
        seed: Of the random lengths.
    """
    torch = _torch()
    matrix = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(matrix)
    call_s = _time_one(torch, lambda: torch.mm(matrix, matrix, out=out))
    chooser = random.Random(seed)
    stop, number = time.monotonic() + seconds, 0
    while time.monotonic() < stop:
        number += 1
        is_long = number % _LONG_EVERY == 0
        time.sleep(_LONG_S / 2 if is_long else chooser.uniform(_SHORTEST_S, _LONGEST_S))
        start = time.monotonic_ns()
        for _ in range(max(1, round((_LONG_S if is_long else chooser.uniform(_SHORTEST_S, _LONGEST_S)) / call_s))):
            torch.mm(matrix, matrix, out=out)
        torch.cuda.synchronize()
        yield start, time.monotonic_ns()


def _time_one(torch: Any, call: Callable[[], object]) -> float:
    for _ in range(20):
        call()
    torch.cuda.synchronize()
    before = time.monotonic_ns()
    for _ in range(50):
        call()
    torch.cuda.synchronize()
    return (time.monotonic_ns() - before) / 50 / NS_PER_S


def training_loop(device: str) -> Callable[[], None]:
    """Return a function that trains a small transformer for one step and waits until it is done.

    Args:
        device: `cuda` (NVIDIA and AMD) or `cpu`.
    """
    torch = _torch() if device == "cuda" else __import__("torch")
    width, tokens = (1024, (8, 1024)) if device == "cuda" else (64, (2, 64))
    layer = torch.nn.TransformerEncoderLayer(width, width // 64, 4 * width, 0.0, "gelu", batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).to(device)
    batch = torch.randn(*tokens, width, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        model(batch).square().mean().backward()
        optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()

    return step


def _torch() -> Any:
    import torch

    if not torch.cuda.is_available():
        raise UserError("torch finds no GPU here; characterise needs one, or --from a folder with what was recorded")
    return torch
