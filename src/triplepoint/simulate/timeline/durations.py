"""How long the tasks of a step take: what the timeline is made of."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from triplepoint.simulate.timeline.schedule import Int64

Float = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Pass:
    """Time of one pass, split in what it computes and what it waits for. Unit: s.

    Attributes:
        compute: Computation.
        comm: Messages with no computation beside them.
    """

    compute: Float
    comm: Float

    @property
    def total(self) -> Float:
        """Time of the whole pass."""
        return np.asarray(self.compute + self.comm)


@dataclass(frozen=True, eq=False)
class Durations:
    """How long everything takes. Unit: s.

    Attributes:
        forward: Forward pass of a chunk; shape (num_stages, num_chunks, num_classes).
        backward_input: Backward pass up to the gradient of the input; same shape.
        backward_weight: The rest of it; same shape.
        optimizer: Shape (num_stages, num_classes).
        send: A message over the boundary after each stage, either way; shape (num_stages,).
        sync_overlapped: Reduction of a chunk's gradients that may run beside its last backward pass; shape (num_stages,
            num_chunks).
        sync_exposed: The rest, after the last backward pass; shape (num_stages,).
        gather_overlapped: Gathering of a chunk's parameters that may run beside the step's first passes, but has to be
            done when the chunk's first forward pass is; shape (num_stages, num_chunks).
        replicas: Replicas of every class; shape (num_classes,).
        is_send_blocking: Whether a stage waits until its message has gone, as Megatron-LM does without interleaving.
        slowdown: Share by which computation takes longer while messages of the step run beside it. Unit: 1.
    """

    forward: Pass
    backward_input: Pass
    backward_weight: Pass
    optimizer: Pass
    send: Float
    sync_overlapped: Float
    sync_exposed: Float
    gather_overlapped: Float
    replicas: Int64
    is_send_blocking: bool = False
    slowdown: float = 0.0
