"""One simulated run: from a planned point to the raw artefacts a launch would have left."""

from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from triplepoint.config.catalogue import Catalogue
from triplepoint.config.plan import PlannedRun
from triplepoint.config.point import Point
from triplepoint.errors import UserError
from triplepoint.manifest import Manifest
from triplepoint.simulate.artefacts.simulated import Simulated
from triplepoint.simulate.artefacts.write import write_failure, write_run
from triplepoint.simulate.calibration.fitted import Calibration
from triplepoint.simulate.costs import Costs
from triplepoint.simulate.fabric import fabric_of
from triplepoint.simulate.job import Job
from triplepoint.simulate.memory.model import peak_memory
from triplepoint.simulate.operations import Kernel, Operation
from triplepoint.simulate.step import costs_of, durations_of
from triplepoint.simulate.timeline.schedule import make_order
from triplepoint.simulate.work.model import stage_work

STACK = "Megatron-Core r0.8"
"""Software that runs are simulated on: that of the published study, in the version step times were calibrated with."""


def simulate_run(planned: PlannedRun, out: Path, config: Path = Path("config")) -> Manifest:
    """Simulate a run and write its raw artefacts; a job that cannot run leaves a manifest that says why.

    Args:
        planned: What to simulate.
        out: Folder to write into: `results/runs/<run>/raw`, or what becomes it.
        config: Folder of the configuration.

    Raises:
        UserError: If the cluster has no GPU, or its network is not given.
    """
    started = datetime.now(UTC)
    job = job_of(planned.point, Catalogue(config))
    try:
        make_order(job.layout.schedule, job.layout.pp, job.num_microbatches, job.layout.vp)
    except UserError as error:
        return write_failure(out, planned, "invalid", str(error), started)
    memory = peak_memory(job)
    if not memory.fits:
        return write_failure(out, planned, "oom", memory.explain(), started)
    costs = costs_of(job, Calibration.load(config).constants(job), config)
    return write_run(out, planned, simulate(job, costs, memory.total), started)


def simulate(job: Job, costs: Costs, memory_bytes: float) -> Simulated:
    """Return what is simulated of a job that fits.

    Args:
        job: The job.
        costs: What its operations cost.
        memory_bytes: Peak memory, of the rank that needs most. Unit: byte.
    """
    stages = stage_work(job)

    def time_of(operation: Operation) -> float:
        time = costs.kernel_s(operation) if isinstance(operation, Kernel) else costs.message_s(operation)
        return float(time / operation.count)

    durations = durations_of(job, stages, costs)
    alike = np.zeros(job.layout.dp, dtype=np.int64)
    return Simulated(job, stages, time_of, durations, alike, (round(memory_bytes),) * job.layout.pp)


def job_of(point: Point, catalogue: Catalogue) -> Job:
    """Return the job a point is.

    Args:
        point: The point.
        catalogue: Where its cluster and GPU are described.

    Raises:
        UserError: If the cluster has no GPU, or its network is not given.
    """
    cluster = catalogue.cluster(point.cluster.name)
    gpu = catalogue.gpu_of(cluster)
    if gpu is None:
        raise UserError(f"cluster {cluster.name} has no GPU to simulate; choose a cluster with one, or engine: native")
    return Job(
        model=point.model,
        layout=point.layout,
        micro_batch_size=point.micro_batch_size,
        global_batch_size=point.global_batch_size,
        sequence_length=point.sequence_length,
        gpu=gpu,
        fabric=fabric_of(cluster, gpu),
        precision=point.precision,
        recompute=point.recompute,
        overlap=frozenset(point.overlap),
        stack=STACK,
    )
