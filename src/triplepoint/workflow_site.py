"""Changes to a running Snakemake: resources of the site, forced jobs, interrupts, fork servers, and less overhead.

The rules call these functions while Snakemake reads them (`rules/common.smk`) and before it starts jobs
(`rules/plan.smk`). Two of them replace a function of Snakemake, which has no option for the purpose:

- `force_outdated` extends `DAG.init`, to run the jobs of outdated files without making these files targets.
- `skip_hidden_job_lines` replaces `printjob` of the dry run's executor, to save a fifth of a quiet dry run.
"""

import atexit
import contextlib
import gc
import itertools
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
import snakemake.cli  # noqa: F401 - comes first, because `snakemake.dag` imports modules that import it
from snakemake.dag import DAG
from snakemake.executors import dryrun
from snakemake.settings.types import Quietness

from triplepoint.ask_forks import SERVED, SERVER
from triplepoint.config.site import read_site
from triplepoint.errors import UserError, refuse
from triplepoint.figures import spec_of

_FIGURE = re.compile(r"figs/((?:[^/]+/)?[^/]+)\.(?:pdf|svg|png|csv)")
_REPORT = re.compile(r"report(?:-[^/]+)?\.html")
_GANG_NODES = "gang_nodes"
"""Resource of Snakemake that launches use: nodes."""
_DEFAULT_JOB_RATE = (100, 1)
"""Snakemake's default limit on job starts: number, and time in s."""
_MIN_SERVED = 4
"""Number of jobs of a family from which a fork server pays: for a single figure it costs 2 s of CPU more."""

_KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 31)}
"""Environment in which glibc keeps freed memory. By default it returns large arrays to the kernel at once, which takes
a tenth of the CPU time of a job. Jobs end after seconds. Source: mallopt(3)."""


def apply_site(workflow: Any) -> None:
    """Override the resources of the profile by the site file, or end with one line and status 2 if it is invalid."""
    try:
        site = read_site()
    except UserError as error:
        refuse(error)
    defaults = workflow.resource_settings.default_resources
    if defaults is None:
        return  # no profile of a cluster
    defaults.update(site.stages)
    if site.room_nodes is not None:
        workflow.register_resource(_GANG_NODES, site.room_nodes)


def collect_garbage_rarely() -> None:
    """Run Python's garbage collector less often: a plan of 1,000 runs has a million objects, all of them in use.

    This saves 15 % of the CPU time of a dry run of 1,000 runs.
    """
    gc.set_threshold(100_000, 50, 100)


def skip_hidden_job_lines(workflow: Any) -> None:
    """Make a dry run with `--quiet rules` skip the lines on jobs, which Snakemake otherwise prepares and then hides.

    This saves 20 to 25 % of the CPU time of a dry run of 1,000 runs.
    """
    if Quietness.RULES in (workflow.output_settings.quiet or ()):
        dryrun.Executor.printjob = lambda executor, job: None


def figures_on_command_line(is_main_process: bool) -> list[str]:
    """Return the figures that Snakemake's command line names, each once.

    An unknown figure ends the process with one line and status 2; Snakemake would report a missing rule in many lines.
    """
    words = (word for _, word in _command_line(is_main_process))
    names = dict.fromkeys(match[1] for word in words if (match := _FIGURE.fullmatch(word)))
    try:
        return [name for name in names if spec_of(name)]
    except UserError as error:
        refuse(error)


def reports_on_command_line(is_main_process: bool) -> list[str]:
    """Return the front pages of reports that Snakemake's command line names."""
    # After --report comes the file for Snakemake's own report.
    words = _command_line(is_main_process)
    return [word for previous, word in words if _REPORT.fullmatch(word) and previous != "--report"]


def _command_line(is_main_process: bool) -> Iterable[tuple[str, str]]:
    """Return pairs of consecutive words of Snakemake's command line; none in a job or another program."""
    is_snakemake = is_main_process and Path(sys.argv[0]).name in ("snakemake", "__main__.py")
    return itertools.pairwise(sys.argv) if is_snakemake else ()


def runs_to_launch(workflow: Any) -> list[str]:
    """Return the runs that this Snakemake is about to launch."""
    return [str(job.wildcards.run) for job in workflow.dag.needrun_jobs() if job.rule.name == "launch"]


def families_to_serve(workflow: Any) -> list[str]:
    """Return the families of subcommands with enough jobs ahead for a fork server to pay."""
    jobs = [job.rule.name for job in workflow.dag.needrun_jobs()]
    return [family for family, commands in SERVED.items() if sum(name in commands for name in jobs) >= _MIN_SERVED]


def start_fork_servers(families: Collection[str]) -> None:
    """Start a fork server for each family; it ends with this Snakemake, however that ends.

    Without space for a socket there is no server, and every job starts a process of its own.
    """
    if not families:
        return
    with contextlib.suppress(OSError):
        folder = Path(tempfile.mkdtemp(prefix="triplepoint-"))
        for family in families:
            command = ["triplepoint", "serve", str(folder / family)]
            server = subprocess.Popen(command, stdin=subprocess.PIPE, env=os.environ | _KEEP_MEMORY)
            atexit.register(server.communicate)
        os.environ[SERVER] = f"{os.getpgrp()}:{folder}"


def force_outdated(files: Iterable[str], rules: Iterable[str]) -> None:
    """Run every job that makes one of the files or belongs to one of the rules, if a target needs it.

    Snakemake's option --forcerun would make the files targets.
    """
    init = DAG.init

    async def init_forced(dag: DAG, *arguments: Any, **options: Any) -> None:
        dag.forcefiles.update(files)
        dag.forcerules.update(rule for rule in dag.rules if rule.name in rules)
        await init(dag, *arguments, **options)

    DAG.init = init_forced


def lift_job_rate_limit(workflow: Any) -> None:
    """Remove Snakemake's default limit of 100 job starts per second; a limit that the user chose stays.

    With a limit, Snakemake 9.27 starts a timer after each pass of the scheduler, and each timer causes another pass: an
    endless chain for every finished job. After 500 jobs it takes a fifth of a core, while ranks are timed on the same
    machine. The numbers of cores and of `jobs` bound the starts without it.
    """
    limiter = workflow.scheduler.job_rate_limiter
    if limiter is not None and (limiter.max_jobs, limiter.timespan) == _DEFAULT_JOB_RATE:
        workflow.scheduler.job_rate_limiter = None


def pass_interrupts_on() -> None:
    """Make an interrupt of this Snakemake end the launches that it started.

    Snakemake cancels jobs of its Slurm executor, but waits for local ones. An interrupt from a terminal reaches those
    anyway; one from `kill` does not. SIGTERM is not passed on: Snakemake then waits for running jobs, and if the whole
    session ends, launchers leave their Slurm jobs to a later launch.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt_launches)


def _interrupt_launches(number: int, frame: FrameType | None) -> None:
    for process in psutil.Process().children(recursive=True):
        try:
            if {"launch", "triplepoint"} <= {word.rpartition("/")[2] for word in process.cmdline()}:
                process.send_signal(signal.SIGINT)
        except psutil.NoSuchProcess:
            continue
    signal.default_int_handler(number, frame)
