"""What a site's file changes in a running Snakemake, and what an interrupt of it must reach."""

import gc
import re
import signal
import sys
from types import FrameType
from typing import Any

import psutil

from triplepoint.config.site import read_site
from triplepoint.errors import USER_ERROR, UserError

ROOM = "gang_nodes"
"""Resource of Snakemake that launches use up: nodes."""

_OF_A_JOB = re.compile(r"\b(wildcards|input|attempt|threads)\b")
"""What makes the expression of a default resource differ from job to job."""


def apply_site(workflow: Any) -> None:
    """Let the site's file go over the profile, or end the process with one line and status 2 if the file is wrong.

    Args:
        workflow: Snakemake's own object, before any rule is defined.
    """
    try:
        site = read_site()
    except UserError as error:
        print(f"triplepoint: {error}", file=sys.stderr)
        sys.exit(USER_ERROR)
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
