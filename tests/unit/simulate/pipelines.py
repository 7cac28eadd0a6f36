"""Durations of even and uneven pipelines, for tests."""

from typing import Any

import numpy as np

from triplepoint.simulate.timeline.durations import Durations, Pass


def durations(
    forward: Any,
    backward_input: Any,
    backward_weight: Any,
    *,
    comm_share: float = 0.0,
    optimizer: Any = 0.0,
    send: Any = 0.0,
    sync_overlapped: Any = 0.0,
    sync_exposed: Any = 0.0,
    gather_overlapped: Any = 0.0,
    is_send_blocking: bool = False,
) -> Durations:
    """Return durations; `forward` has the shape of all, (num_stages, num_chunks, num_classes), the rest is spread."""
    forward = np.asarray(forward, dtype=float)
    num_stages, num_chunks, num_classes = forward.shape

    def split(total: Any, shape: tuple[int, ...]) -> Pass:
        total = np.broadcast_to(np.asarray(total, dtype=float), shape)
        return Pass(total * (1 - comm_share), total * comm_share)

    def spread(value: Any, *shape: int) -> np.ndarray:
        return np.broadcast_to(np.asarray(value, dtype=float), shape).copy()

    return Durations(
        forward=split(forward, forward.shape),
        backward_input=split(backward_input, forward.shape),
        backward_weight=split(backward_weight, forward.shape),
        optimizer=split(optimizer, (num_stages, num_classes)),
        send=spread(send, num_stages),
        sync_overlapped=spread(sync_overlapped, num_stages, num_chunks),
        sync_exposed=spread(sync_exposed, num_stages),
        gather_overlapped=spread(gather_overlapped, num_stages, num_chunks),
        replicas=np.ones(num_classes, dtype=np.int64),
        is_send_blocking=is_send_blocking,
    )
