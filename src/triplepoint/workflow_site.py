"""What a site's file changes in a running Snakemake, and what an interrupt of it must reach."""

import signal
import sys
from types import FrameType
from typing import Any

import psutil

from triplepoint.config.site import read_site
from triplepoint.errors import USER_ERROR, UserError

ROOM = "gang_nodes"
"""Resource of Snakemake that launches use up: nodes."""


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
    if site.room_nodes is not None:
        workflow.register_resource(ROOM, site.room_nodes)


def pass_interrupts_on() -> None:
    """Let an interrupt of this Snakemake end the launches it started.

    Snakemake cancels the jobs of its Slurm executor, but waits for local ones; an interrupt from a terminal reaches
    these by itself, one from `kill` does not.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    for process in psutil.Process().children(recursive=True):
        try:
            if {"launch", "triplepoint"} <= {word.rpartition("/")[2] for word in process.cmdline()}:
                process.send_signal(signal.SIGTERM)
        except psutil.NoSuchProcess:
            continue
    signal.default_int_handler(number, frame)
