"""What the project changes in a running Snakemake: a site's resources, interrupts, what runs again, idle work."""

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
import threading
from collections.abc import Collection, Iterable
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
import snakemake.cli  # noqa: F401 - it comes first: `snakemake.dag` imports what imports it
import snakemake.common
import snakemake.logging
import snakemake.rules
from snakemake.dag import DAG
from snakemake.executors import dryrun
from snakemake.scheduling.job_scheduler import JobScheduler
from snakemake.settings.types import Quietness

from triplepoint.config.site import read_site
from triplepoint.errors import UserError, refuse
from triplepoint.figures import spec_of
from triplepoint.forks import SERVED, SERVER

_FIGURE = re.compile(r"figs/((?:[^/]+/)?[^/]+)\.(?:pdf|svg|png|csv)")
_REPORT = re.compile(r"report(?:-[^/]+)?\.html")
ROOM = "gang_nodes"
"""Resource of Snakemake that launches use up: nodes."""

_LEAST_SERVED = 4
"""Jobs of a family from which a server of forks pays: alone, it costs one figure 2 s of CPU more."""
_KEEPS_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 31)}
"""Environment in which glibc keeps freed memory. By default it returns large arrays to the kernel at once, which takes
a tenth of the CPU time of a job. Jobs end after seconds. Source: mallopt(3)."""
_OF_A_JOB = re.compile(r"\b(wildcards|input|attempt|threads)\b")
"""What makes the expression of a default resource differ from job to job."""


def apply_site(workflow: Any) -> None:
    """Let the site's file go over the profile, or end the process with one line and status 2 if the file is wrong."""
    try:
        site = read_site()
    except UserError as error:
        refuse(error)
    defaults = workflow.resource_settings.default_resources
    if defaults is None:
        return  # not a profile of a cluster: those have resources of their own
    defaults.update(site.stages)
    _work_out_once(defaults)
    if site.room_nodes is not None:
        workflow.register_resource(ROOM, site.room_nodes)


def _work_out_once(defaults: Any) -> None:
    """Give values to the resources that are the same for all jobs; Snakemake evaluates each for each job.

    Jobs of the cluster still get the expression, since the folder for temporary files is another on another host.
    """
    for name, resource in list(defaults.items()):
        if resource.is_evaluable() and not _OF_A_JOB.search(str(resource.raw)):
            found = resource.evaluate(None, input=(), attempt=1, threads=1, rulename="", async_run=None)
            defaults[name] = type(resource)(name, found.value, raw=resource.raw)


def collect_rarely() -> None:
    """Let Python look for garbage less often: a plan of a thousand runs is a million objects, all of them in use."""
    gc.set_threshold(100_000, 50, 100)


def asked_figures(is_main_process: bool) -> list[str]:
    """Return the figures that the command line of Snakemake names, each once; a figure there is not is refused.

    Ends the process with one line and status 2: Snakemake would say that no rule makes such a file, in many lines.
    """
    words = (word for _, word in _words(is_main_process))
    found = dict.fromkeys(match[1] for word in words if (match := _FIGURE.fullmatch(word)))
    try:
        return [name for name in found if spec_of(name)]
    except UserError as error:
        refuse(error)


def asked_reports(is_main_process: bool) -> list[str]:
    """Return the front pages of reports that the command line of Snakemake names."""
    # Snakemake writes its own report to the file after --report.
    words = _words(is_main_process)
    return [word for before, word in words if _REPORT.fullmatch(word) and before != "--report"]


def _words(is_main_process: bool) -> Iterable[tuple[str, str]]:
    """Return the words of Snakemake's command line, each after the one before it; none in its jobs and elsewhere."""
    is_its = is_main_process and Path(sys.argv[0]).name in ("snakemake", "__main__.py")
    return itertools.pairwise(sys.argv) if is_its else ()


def runs_to_launch(workflow: Any) -> list[str]:
    """Return the runs that this Snakemake is about to launch."""
    return [str(job.wildcards.run) for job in workflow.dag.needrun_jobs() if job.rule.name == "launch"]


def families_to_serve(workflow: Any) -> list[str]:
    """Return the families of jobs of which there are enough that a server of forks pays: it costs as much as two."""
    jobs = [job.rule.name for job in workflow.dag.needrun_jobs()]
    return [family for family, rules in SERVED.items() if sum(name in rules for name in jobs) >= _LEAST_SERVED]


def serve_jobs(families: Collection[str]) -> None:
    """Start the servers that jobs of cheap stages are forked from, until this Snakemake ends, however it ends.

    Without room for a socket there are none, and every job is a process of its own.
    """
    if not families:
        return
    with contextlib.suppress(OSError):
        folder = Path(tempfile.mkdtemp(prefix="triplepoint-"))
        for family in families:
            command = ["triplepoint", "serve", str(folder / family)]
            server = subprocess.Popen(command, stdin=subprocess.PIPE, env=os.environ | _KEEPS_MEMORY)
            atexit.register(server.communicate)
        os.environ[SERVER] = f"{os.getpgrp()}:{folder}"


def make_again(files: Iterable[str], rules: Iterable[str]) -> None:
    """Let every job run that makes one of some files or is of one of some rules, where a target needs it.

    `--forcerun` would make them targets too.
    """
    init = DAG.init

    async def init_and_force(dag: DAG, *arguments: Any, **options: Any) -> None:
        dag.forcefiles.update(files)
        dag.forcerules.update(rule for rule in dag.rules if rule.name in rules)
        await init(dag, *arguments, **options)

    DAG.init = init_and_force


def prepare_only_what_is_said(workflow: Any) -> None:
    """In a dry run that is quiet about rules, prepare no lines on jobs: they take a quarter of its time."""
    if Quietness.RULES in (workflow.output_settings.quiet or ()):
        dryrun.Executor.printjob = lambda executor, job: None


def write_whole_lines() -> None:
    """Let Snakemake's logging thread write a line with its end at once, so that no other line comes between."""
    handler = snakemake.logging.ColorizingTextHandler
    decorate, end = handler.decorate, handler.terminator
    handler.decorate = lambda self, record, message: decorate(self, record, message) + end
    handler.terminator = ""


def look_at_functions_once() -> None:
    """Let Snakemake look once, not for each job, at which arguments a function of a rule takes."""
    looked_at_once = cache(snakemake.common.get_function_params)
    snakemake.common.get_function_params = snakemake.rules.get_function_params = looked_at_once


def check_groups_once() -> None:
    """Let Snakemake check once, not once for each of its jobs, that a group of jobs does not wait for itself."""
    check = DAG._check_groups

    def check_each_once(dag: DAG) -> None:
        groups = dag._group
        dag._group = {group: group for group in groups.values()}
        try:
            check(dag)
        finally:
            dag._group = groups

    DAG._check_groups = check_each_once


def wake_scheduler_rarely() -> None:
    """Let the scheduler wake up for its limit of jobs a second only where that holds a job back.

    Snakemake 9.27 starts a timer after each pass, and each timer starts a pass: one endless chain for every job that
    has finished, and a fifth of a core after 500 of them, while ranks are timed on the same machine.
    """
    pending = threading.Event()

    def wake_later(scheduler: JobScheduler, delay: float) -> None:
        if scheduler.job_rate_limiter.get_free_jobs() or pending.is_set():
            return
        pending.set()
        timer = threading.Timer(delay, wake, [scheduler])
        timer.daemon = True
        timer.start()

    def wake(scheduler: JobScheduler) -> None:
        pending.clear()
        scheduler._open_jobs.release()

    JobScheduler._schedule_reevalutation = wake_later


def pass_interrupts_on() -> None:
    """Let an interrupt of this Snakemake end the launches it started.

    Snakemake cancels the jobs of its Slurm executor, but waits for local ones; an interrupt from a terminal reaches
    these by itself, one from `kill` does not. SIGTERM is not passed on: Snakemake waits for what runs, and where the
    whole session ends, launchers leave their jobs of Slurm to those who come next.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    for process in psutil.Process().children(recursive=True):
        try:
            if {"launch", "triplepoint"} <= {word.rpartition("/")[2] for word in process.cmdline()}:
                process.send_signal(signal.SIGINT)
        except psutil.NoSuchProcess:
            continue
    signal.default_int_handler(number, frame)
