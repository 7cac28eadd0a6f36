"""Durations of the tasks of a step, from which the timeline is made."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from triplepoint.config.mesh import RankMesh
from triplepoint.config.point import Layout
from triplepoint.simulate.costs import LAUNCH_BEND
from triplepoint.simulate.timeline.schedule import Int64

Float = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Pass:
    """Time of one pass, split in what it computes and what it waits for. Unit: s.

    Attributes:
        compute: Computation.
        comm: Communication that no computation overlaps.
        host_share: Of computation, in which the GPU waits for the host to launch. Unit: 1.
    """

    compute: Float
    comm: Float
    host_share: Float | float = 0.0

    def host_at(self, place: tuple[int, ...]) -> float:
        """Return how long the GPU waits for the host, in the pass at one place of the arrays. Unit: s."""
        share = np.broadcast_to(self.host_share, self.compute.shape)
        return float(self.compute[place] * share[place])

    def slowed(self, factor: Float) -> "Pass":
        """Return the pass where kernels take `factor` times as long; the host launches as fast as it did."""
        kernels = self.compute * (1.0 - self.host_share)
        host = self.total**LAUNCH_BEND - (kernels + self.comm) ** LAUNCH_BEND
        slower = kernels * factor
        total = ((slower + self.comm) ** LAUNCH_BEND + np.maximum(host, 0.0)) ** (1 / LAUNCH_BEND)
        is_behind = np.broadcast_to(np.asarray(self.host_share) > 0.0, slower.shape)
        compute = np.where(is_behind, total - self.comm, slower)
        share = np.divide(compute - slower, compute, out=np.zeros_like(compute), where=is_behind & (compute > 0.0))
        return Pass(compute, np.broadcast_to(self.comm, compute.shape), share)

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
        send: A send over the boundary after each stage, either way; shape (num_stages,).
        sync_overlapped: Reduction of a chunk's gradients that may overlap its last backward pass; shape (num_stages,
            num_chunks).
        sync_exposed: The rest, after the last backward pass; shape (num_stages,).
        gather_overlapped: Gathering of a chunk's parameters that may overlap the step's first passes, but has to be
            done when the chunk's first forward pass is; shape (num_stages, num_chunks).
        replicas: Replicas of every class; shape (num_classes,).
        is_send_blocking: Whether a stage waits until its send is done, as Megatron-LM does without interleaving.
        slowdown: Share by which computation takes longer while collectives of the step overlap it. Unit: 1.
        pause_s: After the update all wait for the host. Unit: s.
        of_task: Of every task, in place of those of passes where tasks of a kind differ; shape (num_stages, num_tasks,
            num_classes).
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
    pause_s: float = 0.0
    of_task: Float | None = None


@dataclass(frozen=True, eq=False)
class Replicas:
    """Data parallel replicas, those that behave alike in one class.

    Attributes:
        class_of_replica: Class of each; shape (dp,).
        factor: On the time of computation; shape (num_stages, num_classes).
    """

    class_of_replica: Int64
    factor: Float

    @property
    def num_alike(self) -> Int64:
        """Replicas of every class; shape (num_classes,)."""
        return np.bincount(self.class_of_replica, minlength=self.factor.shape[1])


def sort_replicas(layout: Layout, slow: Mapping[int, float], lockstep: int) -> Replicas:
    """Return the classes of replicas, by their factors. A stage of a replica computes as long as its slowest rank.

    Args:
        layout: Of the job.
        slow: Factor on the time of computation of every rank that does not take it as it is. Unit: 1.
        lockstep: Neighbouring ranks that wait for one another within passes; they may be of several replicas.
    """
    mesh = RankMesh(layout)
    together = max(lockstep // mesh.ranks_per_replica, 1)
    usual = 1.0 if len(slow) < mesh.num_ranks else min(slow.values())
    factor = np.full((layout.pp, layout.dp), usual)
    for rank, one in slow.items():
        if one == usual:
            continue
        place = mesh.place(rank)
        first = place.dp // together * together
        own = factor[place.pp, first : first + together]
        np.maximum(own, one, out=own)
    kinds, which = np.unique(factor, axis=1, return_inverse=True)
    return Replicas(which.reshape(-1).astype(np.int64), kinds)


def with_replicas(durations: Durations, replicas: Replicas) -> Durations:
    """Return durations of one class as those of all classes."""
    factor = replicas.factor

    def slowed(time: Pass) -> Pass:
        return time.slowed(factor if time.compute.ndim == 2 else factor[:, None, :])

    return replace(
        durations,
        forward=slowed(durations.forward),
        backward_input=slowed(durations.backward_input),
        backward_weight=slowed(durations.backward_weight),
        optimizer=slowed(durations.optimizer),
        replicas=replicas.num_alike,
    )
