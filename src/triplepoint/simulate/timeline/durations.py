"""Durations of the tasks of a step, from which its timeline is computed."""

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
    """Time of passes, split into computation and exposed communication. Unit: s.

    Attributes:
        compute: Computation, including waits for the host.
        comm: Exposed communication; broadcastable to the shape of `compute`.
        host_share: Share of computation in which the GPU waits for the host to launch kernels. Unit: 1.
    """

    compute: Float
    comm: Float
    host_share: Float | float = 0.0

    def host_at(self, place: tuple[int, ...], pace: float = 1.0) -> float:
        """Return how long a GPU waits for the host in the pass at one index of the arrays. Unit: s.

        Args:
            place: The index.
            pace: Time of the GPU's kernels over those of the pass: faster kernels wait more.
        """
        own = self if pace == 1.0 else self.slowed(np.array(pace))
        return float(own.compute[place] * np.broadcast_to(own.host_share, own.compute.shape)[place])

    def slowed(self, factor: Float) -> "Pass":
        """Return the passes with kernels that take `factor` times as long; the launch time of the host stays."""
        kernels = self.compute * (1.0 - self.host_share)
        # The total is the p-norm of the times of GPU and host, see LAUNCH_BEND. This is the power of the host time.
        launch = self.total**LAUNCH_BEND - (kernels + self.comm) ** LAUNCH_BEND
        slower = kernels * factor
        total = ((slower + self.comm) ** LAUNCH_BEND + np.maximum(launch, 0.0)) ** (1 / LAUNCH_BEND)
        is_waiting = np.broadcast_to(np.asarray(self.host_share) > 0.0, slower.shape)
        compute = np.where(is_waiting, total - self.comm, slower)
        share = np.divide(compute - slower, compute, out=np.zeros_like(compute), where=is_waiting & (compute > 0.0))
        return Pass(compute, np.broadcast_to(self.comm, compute.shape), share)

    @property
    def total(self) -> Float:
        """Time of the whole pass."""
        return np.asarray(self.compute + self.comm)


@dataclass(frozen=True, eq=False)
class Durations:
    """Durations of passes, sends, collectives and update. Unit: s.

    Attributes:
        forward: Forward pass of a chunk; shape (num_stages, num_chunks, num_classes).
        backward_input: Backward pass of a chunk up to the gradient of its input; same shape.
        backward_weight: Rest of the backward pass; same shape.
        optimizer: Update; shape (num_stages, num_classes).
        send: Send over the boundary after each stage, in either direction; shape (num_stages,).
        sync_overlapped: Gradient reduction of a chunk that may overlap its last backward pass; shape (num_stages,
            num_chunks).
        sync_exposed: Gradient reduction after the last backward pass; shape (num_stages,).
        gather_overlapped: Parameter gathering of a chunk that may overlap the first passes of the step. It must end
            before the first forward pass of the chunk ends. Shape (num_stages, num_chunks).
        replicas: Number of replicas in every class; shape (num_classes,).
        is_send_blocking: Whether a stage waits for the end of its send, as Megatron-LM does without interleaving.
        slowdown: Additional time of computation while collectives of the step overlap it, relative. Unit: 1.
        pause_s: Time after the update in which all ranks wait for the host. Unit: s.
        of_task: Time of every task, instead of the times of passes, if tasks of a kind differ; shape (num_stages,
            num_tasks, num_classes).
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
    """Classes of data parallel replicas; replicas of a class have equal times.

    Attributes:
        class_of_replica: Class of every replica; shape (dp,).
        factor: Factor on compute time; shape (num_stages, num_classes).
    """

    class_of_replica: Int64
    factor: Float

    @property
    def num_alike(self) -> Int64:
        """Number of replicas in every class; shape (num_classes,)."""
        return np.bincount(self.class_of_replica, minlength=self.factor.shape[1])


def sort_replicas(layout: Layout, slow: Mapping[int, float], lockstep: int) -> Replicas:
    """Sort replicas into classes by their compute times; in each stage the slowest rank of a replica counts.

    Args:
        layout: Layout of the job.
        slow: Factor on the compute time of every rank whose factor is not 1. Unit: 1.
        lockstep: Neighbouring ranks that wait for one another within passes; they may span several replicas.
    """
    mesh = RankMesh(layout)
    num_coupled = max(lockstep // mesh.ranks_per_replica, 1)
    usual = 1.0 if len(slow) < mesh.num_ranks else min(slow.values())
    factor = np.full((layout.pp, layout.dp), usual)
    for rank, rank_factor in slow.items():
        if rank_factor == usual:
            continue
        place = mesh.place(rank)
        first = place.dp // num_coupled * num_coupled
        coupled = factor[place.pp, first : first + num_coupled]
        np.maximum(coupled, rank_factor, out=coupled)
    class_factors, class_of_replica = np.unique(factor, axis=1, return_inverse=True)
    return Replicas(class_of_replica.reshape(-1).astype(np.int64), class_factors)


def with_replicas(durations: Durations, replicas: Replicas) -> Durations:
    """Return the durations of all classes of replicas, from those of a single class."""
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
