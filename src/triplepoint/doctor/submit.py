"""Runs the probes: in this process on one machine, through submitit on a cluster."""

import contextlib
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from triplepoint.config.cluster import ClusterConfig
from triplepoint.config.site import Gang, gang_of, read_site
from triplepoint.doctor.probe import MARGIN_S, ProbePlan, run_probe
from triplepoint.errors import UserError
from triplepoint.files import write_text

POLL_S = 0.2
REPORT_S = 60.0
"""How long reports may take to be seen here once the job has ended, see `file_lag_s` of a site. Unit: s."""
SECONDS_PER_MINUTE = 60

Say = Callable[[str], None]


def probe(folder: Path, plan: ProbePlan, cluster: ClusterConfig | None, say: Say) -> None:
    """Have every node leave its report in `folder`.

    Args:
        folder: A folder of its own, shared by all nodes.
        plan: What the probes do.
        cluster: Where; None for this machine.
        say: Told of progress.

    Raises:
        UserError: If Slurm refuses the job.
    """
    write_text(folder / "probe.json", plan.model_dump_json(indent=2))
    if cluster is None:
        run_probe(folder, dies_with_parent=False)
        return
    job = _submit(folder, plan, cluster)
    say(f"doctor: job {job.job_id} on {plan.num_nodes} {'node' if plan.num_nodes == 1 else 'nodes'}")
    with _ending(job):
        while not job.done():
            time.sleep(POLL_S)
    _await_reports(folder, plan.num_nodes)


def _submit(folder: Path, plan: ProbePlan, cluster: ClusterConfig) -> Any:
    import submitit

    options = gang_of(cluster.name, read_site())
    try:
        # Named, not "auto": with srun on the PATH submitit would take Slurm for a run on this machine.
        executor = submitit.AutoExecutor(folder / "submitit", cluster=cluster.executor, slurm_python=options.python)
    except RuntimeError as error:
        raise UserError(f"cluster {cluster.name} is reached through Slurm: {error}; go to its login node") from None
    executor.update_parameters(**job_parameters(plan, cluster, options))
    try:
        return executor.submit(run_probe, folder)
    except submitit.core.utils.FailedJobError as error:
        line = (str(error).strip().splitlines() or ["failed"])[-1]
        raise UserError(f"cluster {cluster.name}: {line}; partition and account are in the site's file") from None


def job_parameters(plan: ProbePlan, cluster: ClusterConfig, options: Gang) -> dict[str, Any]:
    """Return what submitit is asked for.

    Args:
        plan: What the probes do.
        cluster: Where.
        options: What the site's Slurm wants to be told.
    """
    limit_s = 2 * MARGIN_S + (plan.measure_s or 0.0)
    common = {
        "name": f"doctor-{cluster.name}",
        "nodes": plan.num_nodes,
        "tasks_per_node": 1,
        "timeout_min": math.ceil(limit_s / SECONDS_PER_MINUTE),
    }
    if cluster.executor == "local":
        return common
    gpus = cluster.gpus_per_node if cluster.device != "cpu" else None
    further = {"switches": options.switches, **options.sbatch}
    slurm = {
        "partition": options.partition,
        "account": options.account,
        "qos": options.qos,
        "constraint": options.constraint,
        "exclude": ",".join(options.exclude) or None,
        "exclusive": options.exclusive or None,
        "gres": options.gres or (f"gpu:{gpus}" if gpus else None),
        "cpus_per_task": options.cpus,
        "mem": options.mem,
        "setup": list(options.setup) or None,
        "srun_args": [f"--cpus-per-task={options.cpus}"] if options.cpus else None,
        "additional_parameters": {key: value for key, value in further.items() if value is not None},
    }
    return common | {f"slurm_{key}": value for key, value in slurm.items() if value is not None}


def _await_reports(folder: Path, num_nodes: int) -> None:
    """Wait for the reports of all nodes, as long as a network file system may hide them."""
    deadline = time.monotonic() + REPORT_S
    while len(list(folder.glob("node*.json"))) < num_nodes and time.monotonic() < deadline:
        if not any((folder / "submitit").glob("*_result.pkl")):
            return  # no task ended well: nothing is on its way
        time.sleep(POLL_S)


@contextlib.contextmanager
def _ending(job: Any) -> Any:
    """Cancel the job when the block is left early."""
    try:
        yield
    except BaseException:
        job.cancel()
        raise
