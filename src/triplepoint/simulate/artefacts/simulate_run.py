"""One simulated run: from a planned point to the raw artefacts that a launch would leave."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType

from triplepoint.config.catalogue import Catalogue
from triplepoint.config.plan import PlannedRun
from triplepoint.config.point import Point
from triplepoint.config.rules import refusal
from triplepoint.config.yaml_file import read_any
from triplepoint.errors import PointError
from triplepoint.manifest import Manifest
from triplepoint.simulate.artefacts.groups import lockstep
from triplepoint.simulate.artefacts.serving import simulate_serving
from triplepoint.simulate.artefacts.simulated import Simulated, heated_of
from triplepoint.simulate.artefacts.write import write_failure, write_run
from triplepoint.simulate.costs import Costs
from triplepoint.simulate.fabric import fabric_of
from triplepoint.simulate.heat.nodes import is_known
from triplepoint.simulate.heat.warm import slow_ranks, warm_up, with_factors
from triplepoint.simulate.intervals import interval
from triplepoint.simulate.job import Job
from triplepoint.simulate.limits import LIMITS, check_offload
from triplepoint.simulate.memory.training import memory_by_stage
from triplepoint.simulate.power.load import Training
from triplepoint.simulate.predict.prediction import read_calibrations
from triplepoint.simulate.stacks import SIMULATED, check_stack, find_stack
from triplepoint.simulate.step import costs_of, durations_of, stages_of, uncertainty_of
from triplepoint.simulate.timeline.durations import sort_replicas, with_replicas
from triplepoint.status import Status


def read_ahead(config: Path) -> None:
    """Read the configuration of simulations into caches, so that processes forked from this one need not read it.

    Raises:
        UserError: If the configuration is wrong.
    """
    for path in config.rglob("*.yaml"):
        read_any(path)
    calibration, _ = read_calibrations(config)
    for fitted in calibration.fitted.stacks:
        find_stack(fitted.stack, config)
    check_stack(SIMULATED, config, config)


def simulate_run(planned: PlannedRun, out: Path, config: Path) -> Manifest:
    """Simulate a run and write its raw artefacts; a job that cannot run leaves a manifest with the reason.

    Args:
        planned: The planned run.
        out: Folder to write into: `results/runs/<run>/raw`, or a temporary one that becomes it.
        config: Folder of the configuration.

    Raises:
        UserError: If the cluster has no GPU, or its network is not given.
    """
    started = datetime.now(UTC)
    catalogue = Catalogue(config)
    cluster = catalogue.cluster(planned.point.cluster.name)
    job = job_of(planned.point, catalogue)
    if reason := refusal(planned.point, cluster, job.gpu, LIMITS):
        return write_failure(out, planned, job.stack, Status.INVALID, reason, started)
    if planned.point.task == "inference":
        return simulate_serving(planned, job, cluster, out, config, started)
    memory = memory_by_stage(job)
    fullest = max(memory, key=lambda use: use.total)
    if fullest.is_out_of_memory:
        return write_failure(out, planned, job.stack, Status.OOM, fullest.explain(), started)
    calibration, _ = read_calibrations(config)
    costs = costs_of(job, calibration.constants(job), config)
    slow = slow_ranks(cluster, job)

    def reload(factor: Mapping[int, float]) -> Training[Simulated]:
        return Training(simulate(job, costs, [use.total for use in memory], with_factors(slow, factor)))

    load = reload({})
    warm = warm_up(load, reload, cluster, config) if is_known(job.gpu, config) else None
    simulated = (warm.load if warm else load).ran
    scale = calibration.scale(
        job, uncertainty_of(simulated.timeline, costs, simulated.stages[simulated.timeline.critical_stage])
    )
    interval_s = interval(simulated.timeline.step_time_s, calibration.quantile, scale)
    heated = heated_of(warm, interval_s, cluster, config) if warm else None
    simulated = replace(simulated, interval_s=interval_s, heated=heated, memory_undecided=fullest.undecided)
    return write_run(out, planned, simulated, started)


def simulate(
    job: Job, costs: Costs, memory_bytes: Sequence[float], slow: Mapping[int, float] = MappingProxyType({})
) -> Simulated:
    """Return the simulated step of a job that fits into memory.

    Args:
        job: The job.
        costs: Costs of its operations.
        memory_bytes: Peak memory of a rank, by pipeline stage. Unit: byte.
        slow: Factor on the compute time of every rank that differs from the others.
    """
    stages = stages_of(job, costs)
    replicas = sort_replicas(job.layout, slow, lockstep(stages, job))
    durations = with_replicas(durations_of(job, stages, costs), replicas)
    return Simulated(
        job, stages, costs.time_of, durations, replicas.class_of_replica, tuple(map(round, memory_bytes)), dict(slow)
    )


def job_of(point: Point, catalogue: Catalogue, stack: str | None = None) -> Job:
    """Return the job of a point.

    Args:
        point: The point.
        catalogue: Descriptions of its cluster and GPU.
        stack: Software it runs on. None: that of the cluster.

    Raises:
        PointError: If the cluster has no GPU, its network is not given, or the point offloads parameters.
        UserError: If the cluster names unknown software.
    """
    cluster = catalogue.cluster(point.cluster.name)
    gpu = catalogue.gpu_of(cluster)
    if gpu is None:
        raise PointError(f"cluster {cluster.name} has no GPU to simulate; choose a cluster with one, or engine: native")
    if reason := check_offload(point, gpu):
        raise PointError(reason)
    if stack is None:
        stack = cluster.stack or SIMULATED
        check_stack(stack, f"clusters/{cluster.name}.yaml", catalogue.folder)
    job = Job.of(point, gpu, fabric_of(cluster, gpu, catalogue.folder), stack, catalogue.folder)
    if point.layout.data_parallel_sharding == "optim_grads_params" and point.engine != "deepspeed":
        # FSDP always overlaps gathers and reductions; folding the point left these flags out as without effect.
        return replace(job, overlap=job.overlap | {"grad", "param"})
    return job
