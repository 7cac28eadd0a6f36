"""One simulated training step: costs of operations, order of passes, gradient reduction and update."""

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
        prepared: Data that all steps of the job share.
        timeline: Start and end of passes, communication and update.
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
        """Function that returns the time of one run of an operation. Unit: s."""
        return self.prepared.costs.time_of

    @property
    def workload(self) -> Workload:
        """Work of the job's operations."""
        return self.prepared.workload

    @property
    def time_s(self) -> float:
        """Time from the start of the step to the end of its last rank. Unit: s."""
        return self.timeline.step_time_s

    @property
    def contention_s(self) -> float:
        """Time that computation loses to overlapped gradient reduction and parameter gathering. Unit: s."""
        return self.timeline.contention_s

    @property
    def slowest(self) -> Cost:
        """Cost of the critical stage, by class of kernel and group of collectives. Unit: s."""
        return self.prepared.of_stage(self.timeline.critical_stage)[0]

    @cached_property
    def uncertainty(self) -> Uncertainty:
        """Uncertainty of the step time."""
        return _uncertainty(self.timeline, self.prepared.of_stage(self.timeline.critical_stage)[1])

    def place(self, rank: int) -> tuple[int, int]:
        """Return the stage and class of replica of a rank."""
        place = self.job.mesh.place(rank)
        return place.pp, int(self.class_of_replica[place.dp])

    @property
    def exposed_comm_s(self) -> float:
        """Exposed communication, mean over stages. Unit: s."""
        return float(self.timeline.accounts.exposed_comm_s.mean())

    @property
    def gradient_share(self) -> float:
        """Share of the step for gradient reduction, 0 to 1: after the passes, and lost to its overlap with them.

        The stage with the longest reduction after the passes counts.
        """
        begin, end = self.timeline.final_sync.T
        return (float((end - begin).max(initial=0.0)) + self.contention_s) / self.time_s


_NO_SLOW_RANKS: Mapping[int, float] = MappingProxyType({})


def simulate_step(job: Job, constants: Constants, config: Path, slow: Mapping[int, float] = _NO_SLOW_RANKS) -> Step:
    """Simulate one step of a job.

    Args:
        job: The job.
        constants: Calibration constants of its software stack.
        config: Folder of the configuration.
        slow: Factor on the compute time of every rank that differs from the others.

    Raises:
        UserError: If the schedule cannot run, or the GPU has no kernel tables.
    """
    return prepare_step(job, constants, config).run(slow)


@dataclass(frozen=True, eq=False)
class Prepared:
    """Data that all steps of a job share, with any slow ranks.

    Attributes:
        job: The job.
        costs: Costs of its operations.
        stages: Work of every pipeline stage.
        order: Order of the passes.
        durations: Durations of a step without slow ranks.
    """

    job: Job
    costs: Costs
    stages: Sequence[StageWork]
    order: Order
    durations: Durations

    def run(self, slow: Mapping[int, float] = _NO_SLOW_RANKS) -> Step:
        """Simulate one step; `slow` has the factor on the compute time of every rank that differs from the others."""
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
    def _cache(self) -> dict[int, tuple[Cost, tuple[float, float, float]]]:
        return {}

    def of_stage(self, stage: int) -> tuple[Cost, tuple[float, float, float]]:
        """Return the cost of a stage, and the relative uncertainties of its kernels, collectives and host time."""
        if stage not in self._cache:
            work = self.stages[stage]
            self._cache[stage] = _stage_cost(work, self.costs, self.job.num_microbatches), _sigmas(self.costs, work)
        return self._cache[stage]


def run_all(steps: Sequence[Prepared]) -> list[Step]:
    """Simulate one step of each job, without slow ranks; jobs with the same order of passes are run together."""
    done: dict[int, Step] = {}
    by_order: dict[tuple[Order, bool], list[int]] = {}
    for index, prepared in enumerate(steps):
        by_order.setdefault((prepared.order, prepared.durations.is_send_blocking), []).append(index)
    for (order, _), indices in by_order.items():
        timelines = run_together([steps[index].durations for index in indices], order)
        for index, timeline in zip(indices, timelines, strict=True):
            done[index] = Step(steps[index], timeline, np.zeros(steps[index].job.layout.dp, dtype=np.int64))
    return [done[index] for index in range(len(steps))]


def prepare_step(job: Job, constants: Constants, config: Path) -> Prepared:
    """Return the data that all steps of a job share; arguments and errors are those of `simulate_step`."""
    costs = costs_of(job.in_any_split, constants, config)
    stages = stages_of(job, costs)
    order = make_order(job.layout.schedule, job.layout.pp, job.num_microbatches, job.layout.vp)
    order = order if job.waits_for_stages else order.without_waits()
    return Prepared(job, costs, stages, order, durations_of(job, stages, costs))


def stages_of(job: Job, costs: Costs) -> list[StageWork]:
    """Return the work of every pipeline stage; of copies to host memory only the exposed part counts."""
    stages = stage_work(job)
    return hide_copies(stages, costs.kernel_s) if "activations" in job.offload else stages


def uncertainty_of(timeline: Timeline, costs: Costs, stage: StageWork) -> Uncertainty:
    """Return the uncertainty of a step time from kernels, collectives and host time of its critical stage."""
    return _uncertainty(timeline, _sigmas(costs, stage))


def _uncertainty(timeline: Timeline, sigmas: tuple[float, float, float]) -> Uncertainty:
    kernels, collectives, host = sigmas
    share = float(timeline.accounts.compute_s.mean()) / timeline.step_time_s
    return Uncertainty(kernels, collectives, min(1.0, share), host)


def _sigmas(costs: Costs, stage: StageWork) -> tuple[float, float, float]:
    """Return the relative standard deviations of kernel times, collective times and host time in a stage."""
    operations = _operations(stage)
    return *costs.sigmas(operations), costs.host_sigma(operations)


@lru_cache(maxsize=2)  # all splits of layers share it
def costs_of(job: Job, constants: Constants, config: Path) -> Costs:
    """Return the costs of a job's operations; arguments and errors are those of `simulate_step`."""
    measured = read_kernels(job.gpu, config).attention
    attention, slowdown = attention_kernel(job.software.attention, measured, config)
    models = _load_models(job.gpu, job.fabric, attention, config)
    return Costs(job, models, load_overlap(config), constants, slowdown)


@lru_cache(maxsize=128)
def _load_models(
    gpu: GpuConfig, fabric: Fabric, attention: str | None, config: Path
) -> tuple[KernelModel, CollectiveModel]:
    """Return the kernel and collective models of a GPU type on a fabric.

    Args:
        gpu: The GPU type.
        fabric: Network of the GPUs.
        attention: Implementation of fused attention; None for the default of the GPU type.
        config: Folder of the configuration.
    """
    return _load_kernels(gpu, attention, config), CollectiveModel.load(fabric, config)


@lru_cache(maxsize=32)
def _load_kernels(gpu: GpuConfig, attention: str | None, config: Path) -> KernelModel:
    return KernelModel.load(gpu, config, attention)


def durations_of(job: Job, stages: Sequence[StageWork], costs: Costs) -> Durations:
    """Return the durations of a step whose replicas are all of one class."""
    forward = _passes(stages, ("forward",), costs)
    if job.layout.schedule == "zero_bubble":
        backward = _passes(stages, ("backward_input",), costs)
        weight = _passes(stages, ("backward_weight",), costs)
    else:
        # Overlapped reductions hide behind the whole backward pass, unless the schedule splits it in two.
        backward, weight = _passes(stages, ("backward_input", "backward_weight"), costs), _passes(stages, (), costs)
    sync = [_split_sync(stage.gradient_sync) for stage in stages]
    update_costs = {id(stage): costs.price(stage.optimizer) for stage in distinct(stages)}
    optimizer = [update_costs[id(stage)] for stage in stages]
    return Durations(
        forward=forward,
        backward_input=backward,
        backward_weight=weight,
        optimizer=Pass(
            *(np.array([[getattr(cost, part)] for cost in optimizer]) for part in ("compute_s", "exposed_s"))
        ),
        send=np.array([costs.send_s(stage.chunks[0].send_bytes, index) for index, stage in enumerate(stages)]),
        sync_overlapped=np.array([_times_by_chunk(reductions, job.layout.vp, costs) for _, reductions, _ in sync]),
        sync_exposed=np.array([costs.price(after).total_s for _, _, after in sync]),
        gather_overlapped=np.array([_times_by_chunk(before, job.layout.vp, costs) for before, _, _ in sync]),
        replicas=np.array([job.layout.dp]),
        # Megatron-LM waits for its sends without interleaving; with interleaving they overlap computation.
        is_send_blocking=job.layout.pp > 1 and job.layout.vp == 1,
        slowdown=costs.slowdown,
        pause_s=job.software.step_pause.value if job.software.step_pause else 0.0,
    )


def _stage_cost(stage: StageWork, costs: Costs, num_microbatches: int) -> Cost:
    """Return the cost of a stage in a step, with the update, by class of kernel and group of collectives."""
    cost = Cost()
    num_equal = Counter(map(id, stage.chunks))
    for chunk in distinct(stage.chunks):
        for operations in (chunk.forward, chunk.backward_input + chunk.backward_weight):
            cost.include(costs.price(operations), num_microbatches * num_equal[id(chunk)])
    cost.include(costs.price(stage.optimizer))
    return cost


def _operations(stage: StageWork) -> list[Operation]:
    """Return the operations of a stage: one micro-batch of each distinct chunk, gradient reduction and update."""
    passes = [operations for chunk in distinct(stage.chunks) for operations in chunk.passes]
    return [operation for operations in (*passes, stage.gradient_sync, stage.optimizer) for operation in operations]


def _passes(stages: Sequence[StageWork], parts: Sequence[str], costs: Costs) -> Pass:
    """Return the times of one kind of pass; shape (num_stages, num_chunks, 1).

    Args:
        stages: Work of the pipeline stages.
        parts: Fields of `ChunkWork` that make up the pass.
        costs: Costs of operations.
    """
    num_outside = HOST_OPERATIONS_OUTSIDE if "forward" in parts else 0
    chunks = distinct([chunk for stage in stages for chunk in stage.chunks])
    by_chunk = {id(chunk): costs.price(_joined(chunk, parts), num_outside) for chunk in chunks}
    pass_costs = [[by_chunk[id(chunk)] for chunk in stage.chunks] for stage in stages]
    return Pass(
        np.array([[[cost.compute_s] for cost in row] for row in pass_costs]),
        np.array([[[cost.exposed_s] for cost in row] for row in pass_costs]),
        np.array([[[cost.host_share] for cost in row] for row in pass_costs]),
    )


def _joined(chunk: ChunkWork, parts: Sequence[str]) -> Operations:
    return tuple(operation for part in parts for operation in getattr(chunk, part))


def _split_sync(operations: Operations) -> tuple[Operations, Operations, Operations]:
    """Split the communication of a step: overlapped gathers, overlapped reductions, and the exposed rest."""
    gathers = tuple(op for op in operations if _is_overlapped(op) and op.kind == "all_gather")
    reductions = tuple(op for op in operations if _is_overlapped(op) and op.kind != "all_gather")
    return gathers, reductions, tuple(op for op in operations if not _is_overlapped(op))


def _is_overlapped(operation: Operation) -> bool:
    return isinstance(operation, Communication) and operation.is_overlapped


def _times_by_chunk(operations: Operations, num_chunks: int, costs: Costs) -> list[float]:
    """Return the time of collectives, in equal parts for all chunks. Unit: s."""
    time_s = sum(costs.communication_s(op) for op in operations if isinstance(op, Communication))
    return [time_s / num_chunks] * num_chunks
