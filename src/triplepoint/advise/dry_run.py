"""Cost of the planned runs, printed with Snakemake's list of jobs in a dry run."""

import atexit
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_DRY_RUN = re.compile(r"--dry-?run|-[a-zA-Z]*n[a-zA-Z]*")
_SNAKEMAKE = ("snakemake", "__main__.py")


def is_dry_run(words: Sequence[str]) -> bool:
    """Return whether a command line is that of a dry run of Snakemake.

    Snakemake itself knows only when it has read the Snakefile, and there is no hook for the end of a dry run.
    """
    return Path(words[0]).name in _SNAKEMAKE and any(_DRY_RUN.fullmatch(word) for word in words[1:])


def tell_cost(selection: str) -> None:
    """In a dry run, work out what the selection costs beside Snakemake, in another process, and tell at its end.

    Args:
        selection: Arguments of `triplepoint plan`.
    """
    if is_dry_run(sys.argv):
        command = [sys.executable, "-m", "triplepoint", "plan", *shlex.split(selection), "--summary"]
        atexit.register(_tell, subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True))


def _tell(process: "subprocess.Popen[str]") -> None:
    told, _ = process.communicate()
    print(told, end="", file=sys.stderr)
