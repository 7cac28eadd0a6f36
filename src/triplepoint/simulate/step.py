"""One simulated training step: work priced on the machines, in the order of the schedule; gradients and update last."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from types import MappingProxyType

import numpy as np

from triplepoint.config.gpu import GpuConfig
from triplepoint.simulate.artefacts.groups import lockstep
from triplepoint.simulate.collectives.links import load_overlap
from triplepoint.simulate.collectives.times import CollectiveModel
from triplepoint.simulate.costs import HOST_OPERATIONS_OUTSIDE, Constants, Cost, Costs
from triplepoint.simulate.fabric import Fabric
from triplepoint.simulate.intervals import Uncertainty
from triplepoint.simulate.job import Job
from triplepoint.simulate.kernels.parameters import read_kernels
from triplepoint.simulate.kernels.times import KernelModel
from triplepoint.simulate.operations import ChunkWork, Communication, Operation, StageWork, distinct
from triplepoint.simulate.power.work import Workload
from triplepoint.simulate.stacks import attention_kernel
from triplepoint.simulate.timeline.durations import Durations, Pass, sort_replicas, with_replicas
from triplepoint.simulate.timeline.expand import TimeOf
from triplepoint.simulate.timeline.schedule import Int64, Order, make_order
from triplepoint.simulate.timeline.tasks import Timeline, run, run_together
from triplepoint.simulate.work.layer_parts import Operations
from triplepoint.simulate.work.offload import hide_copies
from triplepoint.simulate.work.training import stage_work


@dataclass(frozen=True, eq=False)
class Step:
    """A simulated step.

    Attributes:
        prepared: What it has in common with other steps of its job.
        timeline: When everything runs.
        class_of_replica: Class of every data parallel replica; shape (dp,).
    """

    prepared: "Prepared"
    timeline: Timeline
    class_of_replica: Int64

    @property
    def job(self) -> Job:
        """The job."""
        return self.prepared.job

    @property
    def stages(self) -> Sequence[StageWork]:
        """Work of every pipeline stage."""
        return self.prepared.stages

    @property
    def time_of(self) -> TimeOf:
        """Time of one run of an operation. Unit: s."""
        return self.prepared.costs.time_of

    @property
    def workload(self) -> Workload:
        """Work of its operations, which other steps of its job share."""
        return self.prepared.workload

    @property
    def time_s(self) -> float:
        """From its start to the end of the last rank. Unit: s."""
        return self.timeline.step_time_s

    @property
    def contention_s(self) -> float:
        """What overlapped reduction of gradients and gathering of parameters cost the computation. Unit: s."""
        return self.timeline.contention_s

    @property
    def slowest(self) -> Cost:
        """Costs of the stage that the step depends on, by class of kernel and group of collectives. Unit: s."""
        return self.prepared.of_stage(self.timeline.critical_stage)[0]

    @cached_property
    def uncertainty(self) -> Uncertainty:
        """Of the time."""
        return _uncertainty(self.timeline, self.prepared.of_stage(self.timeline.critical_stage)[1])

    def place(self, rank: int) -> tuple[int, int]:
        """Return stage and class of a rank."""
        place = self.job.mesh.place(rank)
        return place.pp, int(self.class_of_replica[place.dp])

    @property
    def exposed_comm_s(self) -> float:
        """Communication that no computation overlaps, mean over stages. Unit: s."""
        return float(self.timeline.accounts.exposed_comm_s.mean())

    @property
    def gradient_share(self) -> float:
        """Part of the step that reduces gradients after the passes, or is lost to reducing them during these, 0 to 1.

        Of the stage where it is longest.
        """
        begin, end = self.timeline.final_sync.T
        return (float((end - begin).max(initial=0.0)) + self.contention_s) / self.time_s


NOBODY: Mapping[int, float] = MappingProxyType({})
"""No rank is slower than the others."""


def simulate_step(job: Job, constants: Constants, config: Path, slow: Mapping[int, float] = NOBODY) -> Step:
    """Return one step of a job.

    Args:
        job: The job.
        constants: What its software stack adds to kernel tables.
        config: Folder of the configuration.
        slow: Factor on the time of computation, of every rank that is not as the others.

    Raises:
        UserError: If the schedule cannot be run, or nothing is known of the GPU.
    """
    return prepare_step(job, constants, config).run(slow)


@dataclass(frozen=True, eq=False)
class Prepared:
    """What steps of a job have in common, whatever ranks are slow.

    Attributes:
        job: The job.
        costs: What its operations cost.
        stages: Work of every pipeline stage.
        order: Of the passes.
        durations: Of a step without slow ranks.
    """

    job: Job
    costs: Costs
    stages: Sequence[StageWork]
    order: Order
    durations: Durations

    def run(self, slow: Mapping[int, float] = NOBODY) -> Step:
        """Return one step, with these factors on the computation of ranks."""
        job, durations, class_of_replica = self.job, self.durations, np.zeros(self.job.layout.dp, dtype=np.int64)
        if slow:
            replicas = sort_replicas(job.layout, slow, self._lockstep)
            durations, class_of_replica = with_replicas(durations, replicas), replicas.class_of_replica
        return Step(self, run(durations, self.order), class_of_replica)

    @cached_property
    def workload(self) -> Workload:
        """Work of the job's operations."""
        return Workload(self.job, self.costs.time_of)

    @cached_property
    def _lockstep(self) -> int:
        return lockstep(self.stages, self.job)

    @cached_property
    def _known(self) -> dict[int, tuple[Cost, tuple[float, float, float]]]:
        return {}

    def of_stage(self, stage: int) -> tuple[Cost, tuple[float, float, float]]:
        """Return the cost of a stage and what kernels, collectives and host are known to in it."""
        if stage not in self._known:
            work = self.stages[stage]
            self._known[stage] = stage_cost(work, self.costs, self.job.num_microbatches), _sigmas(self.costs, work)
        return self._known[stage]


def run_all(steps: Sequence[Prepared]) -> list[Step]:
    """Return one step of each job, without slow ranks; jobs with the same order of passes are run together."""
    found: dict[int, Step] = {}
    by_order: dict[tuple[Order, bool], list[int]] = {}
    for place, one in enumerate(steps):
        by_order.setdefault((one.order, one.durations.is_send_blocking), []).append(place)
    for (order, _), places in by_order.items():
        timelines = run_together([steps[place].durations for place in places], order)
        for place, timeline in zip(places, timelines, strict=True):
            found[place] = Step(steps[place], timeline, np.zeros(steps[place].job.layout.dp, dtype=np.int64))
    return [found[place] for place in range(len(steps))]


def prepare_step(job: Job, constants: Constants, config: Path) -> Prepared:
    """Return what steps of a job have in common; arguments and errors are those of `simulate_step`."""
    costs = costs_of(job.in_any_split, constants, config)
    stages = stages_of(job, costs)
    order = make_order(job.layout.schedule, job.layout.pp, job.num_microbatches, job.layout.vp)
    order = order if job.waits_for_stages else order.without_waits()
    return Prepared(job, costs, stages, order, durations_of(job, stages, costs))


def stages_of(job: Job, costs: Costs) -> list[StageWork]:
    """Return the work of every pipeline stage, of copies to the host what computation does not hide."""
    stages = stage_work(job)
    return hide_copies(stages, costs.kernel_s) if "activations" in job.offload else stages


def uncertainty_of(timeline: Timeline, costs: Costs, stage: StageWork) -> Uncertainty:
    """Return the uncertainty of a step's time, from the kernels, collectives and host of the stage it depends on."""
    return _uncertainty(timeline, _sigmas(costs, stage))


def _uncertainty(timeline: Timeline, sigmas: tuple[float, float, float]) -> Uncertainty:
    kernels, collectives, host = sigmas
    share = float(timeline.accounts.compute_s.mean()) / timeline.step_time_s
    return Uncertainty(kernels, collectives, min(1.0, share), host)


def _sigmas(costs: Costs, stage: StageWork) -> tuple[float, float, float]:
    """Return what kernels, collectives and the host's time are known to in a stage, relative."""
    operations = _operations(stage)
    return *costs.sigmas(operations), costs.host_sigma(operations)


@lru_cache(maxsize=2)  # for all splits of layers
def costs_of(job: Job, constants: Constants, config: Path) -> Costs:
    """Return what prices the operations of a job; arguments and errors are those of `simulate_step`."""
    known = read_kernels(job.gpu, config).attention
    attention, slowdown = attention_kernel(job.software.attention, known, config)
    models = load_models(job.gpu, job.fabric, attention, config)
    return Costs(job, models, load_overlap(config), constants, slowdown)


@lru_cache(maxsize=128)
def load_models(
    gpu: GpuConfig, fabric: Fabric, attention: str | None, config: Path
) -> tuple[KernelModel, CollectiveModel]:
    """Return the models of a GPU type on a fabric, the same objects when asked again.

    Args:
        gpu: The GPU type.
        fabric: How the GPUs are joined.
        attention: Implementation of fused attention; None for the usual one of the GPU type.
        config: Folder of the configuration.
    """
    return _kernels_of(gpu, attention, config), CollectiveModel.load(fabric, config)


@lru_cache(maxsize=32)
def _kernels_of(gpu: GpuConfig, attention: str | None, config: Path) -> KernelModel:
    return KernelModel.load(gpu, config, attention)


def durations_of(job: Job, stages: Sequence[StageWork], costs: Costs) -> Durations:
    """Return how long every pass of every stage takes; all replicas are of one class."""
    forward = _passes(stages, ("forward",), costs)
    if job.layout.schedule == "zero_bubble":
        backward = _passes(stages, ("backward_input",), costs)
        weight = _passes(stages, ("backward_weight",), costs)
    else:
        # What is reduced during the backward pass has all of it to hide behind, unless it is cut in two.
        backward, weight = _passes(stages, ("backward_input", "backward_weight"), costs), _passes(stages, (), costs)
    sync = [_split(stage.gradient_sync) for stage in stages]
    by_stage = {id(stage): costs.price(stage.optimizer) for stage in distinct(stages)}
    optimizer = [by_stage[id(stage)] for stage in stages]
    return Durations(
        forward=forward,
        backward_input=backward,
        backward_weight=weight,
        optimizer=Pass(
            *(np.array([[getattr(cost, part)] for cost in optimizer]) for part in ("compute_s", "exposed_s"))
        ),
        send=np.array([costs.send_s(stage.chunks[0].send_bytes, place) for place, stage in enumerate(stages)]),
        sync_overlapped=np.array([_by_chunk(reductions, job.layout.vp, costs) for _, reductions, _ in sync]),
        sync_exposed=np.array([_total_s(after, costs) for _, _, after in sync]),
        gather_overlapped=np.array([_by_chunk(before, job.layout.vp, costs) for before, _, _ in sync]),
        replicas=np.array([job.layout.dp]),
        # Megatron-LM without interleaving waits for its sends; with it they overlap computation.
        is_send_blocking=job.layout.pp > 1 and job.layout.vp == 1,
        slowdown=costs.slowdown,
        pause_s=job.software.step_pause.value if job.software.step_pause else 0.0,
    )


def stage_cost(stage: StageWork, costs: Costs, num_microbatches: int) -> Cost:
    """Return what a stage does in a step, the update included, by class of kernel and group of collectives."""
    cost = Cost()
    number = Counter(map(id, stage.chunks))
    for chunk in distinct(stage.chunks):
        for operations in (chunk.forward, chunk.backward_input + chunk.backward_weight):
            cost.include(costs.price(operations), num_microbatches * number[id(chunk)])
    cost.include(costs.price(stage.optimizer))
    return cost


def _operations(stage: StageWork) -> list[Operation]:
    """Return what a stage runs: of each kind of chunk one micro-batch, and what follows."""
    parts = [part for chunk in distinct(stage.chunks) for part in chunk.passes]
    return [operation for part in (*parts, stage.gradient_sync, stage.optimizer) for operation in part]


def _passes(stages: Sequence[StageWork], parts: Sequence[str], costs: Costs) -> Pass:
    """Return computation and exposed communication of one kind of pass; shape (num_stages, num_chunks, 1)."""
    outside = HOST_OPERATIONS_OUTSIDE if "forward" in parts else 0
    differ = distinct([chunk for stage in stages for chunk in stage.chunks])
    by_chunk = {id(chunk): costs.price(_joined(chunk, parts), outside) for chunk in differ}
    costs_of_chunks = [[by_chunk[id(chunk)] for chunk in stage.chunks] for stage in stages]
    return Pass(
        np.array([[[cost.compute_s] for cost in row] for row in costs_of_chunks]),
        np.array([[[cost.exposed_s] for cost in row] for row in costs_of_chunks]),
        np.array([[[cost.host_share] for cost in row] for row in costs_of_chunks]),
    )


def _joined(chunk: ChunkWork, parts: Sequence[str]) -> Operations:
    return tuple(operation for part in parts for operation in getattr(chunk, part))


def _split(operations: Operations) -> tuple[Operations, Operations, Operations]:
    """Split the communication of a step: overlapped gathers, overlapped reductions, the rest after it."""
    gathers = tuple(op for op in operations if _is_overlapped(op) and op.kind == "all_gather")
    reductions = tuple(op for op in operations if _is_overlapped(op) and op.kind != "all_gather")
    return gathers, reductions, tuple(op for op in operations if not _is_overlapped(op))


def _is_overlapped(operation: Operation) -> bool:
    return isinstance(operation, Communication) and operation.is_overlapped


def _total_s(operations: Operations, costs: Costs) -> float:
    return costs.price(operations).total_s


def _by_chunk(operations: Operations, num_chunks: int, costs: Costs) -> list[float]:
    """Return the time of collectives, the same share for every chunk. Unit: s."""
    time = sum(costs.communication_s(op) for op in operations if isinstance(op, Communication))
    return [time / num_chunks] * num_chunks
