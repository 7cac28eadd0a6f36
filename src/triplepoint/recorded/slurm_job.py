"""Follow a job of Slurm that runs already: a watcher on each of its nodes, started inside the job."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from triplepoint.errors import UserError
from triplepoint.recorded.record import Watching
from triplepoint.recorded.session import Session

_MOST_SAID = 300
"""Letters of srun's last words that an error quotes."""


def record_job(
    job_id: str,
    results: Path,
    setup: Mapping[str, Any],
    how: Watching,
    log: Path | None,
    finish: Callable[[Session], None],
) -> int:
    """Watch every node of a job until the job ends, then make a run of it.

    The watchers are a step of the job that overlaps with its others (srun --overlap), so Slurm ends them with the job.
    Source: srun(1) of Slurm 22.05, --jobid, --overlap.

    Args:
        job_id: Its number.
        results: Folder of results, on a file system that all nodes share.
        setup: What the command line says.
        how: How it is watched.
        log: File with the job's output, for steps by a pattern; None for none.
        finish: Makes a run of a recording.

    Raises:
        UserError: If there is no srun, or no such job runs.
    """
    if not re.fullmatch(r"\d+(_\d+)?", job_id):
        raise UserError(f"record: --job {job_id!r}: expected the number of a job of Slurm, such as 4711")
    if shutil.which("srun") is None:
        raise UserError("record: --job: no srun on this machine; run it where jobs are submitted from")
    num_nodes = _num_nodes(job_id)
    session = Session.join(results, {**setup, "command": [f"Slurm job {job_id}"]}, None)
    watcher = [sys.executable, "-m", "triplepoint.recorded.slurm_job", str(session.folder), json.dumps(vars(how))]
    watcher += [str(log.resolve())] if log is not None else []
    command = [
        "srun",
        f"--jobid={job_id}",
        "--overlap",
        f"--nodes={num_nodes}",
        "--ntasks-per-node=1",
        "--cpus-per-task=1",
        *watcher,
    ]
    # srun tells of the watchers, which end with the job, as of a failure.
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if not session.nodes():
        shutil.rmtree(session.folder, ignore_errors=True)
        said = " ".join(ended.stderr.split())[-_MOST_SAID:] or f"exit status {ended.returncode}"
        raise UserError(f"record: --job {job_id}: srun started no watcher in the job: {said}")
    session.leave_end(None, [f"Slurm job {job_id}"], ())
    if session.claim_finish():
        finish(session)
    return 0


def _num_nodes(job_id: str) -> int:
    """Return how many nodes a running job has. Raises `UserError` if there is no such job, or it does not run."""
    command = ["squeue", "--noheader", f"--jobs={job_id}", "--states=all", "--format=%T %D"]
    state, _, number = (
        subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip().partition(" ")
    )
    if not number.isdigit():
        raise UserError(f"record: --job {job_id}: squeue knows no such job; give the number of a job that runs")
    if state != "RUNNING":
        raise UserError(f"record: --job {job_id}: the job is {state}; a job can be recorded while it is RUNNING")
    return int(number)


if __name__ == "__main__":
    from triplepoint.recorded.record import watch_node

    watch_node(Session(Path(sys.argv[1])), Watching(**json.loads(sys.argv[2])), *map(Path, sys.argv[3:]))
