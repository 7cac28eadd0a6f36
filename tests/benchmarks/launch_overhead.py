"""Overhead of a launch through Slurm on the test cluster: `python -m tests.benchmarks.launch_overhead`.

Prints, for gangs of 4 nodes of 1 rank on an idle cluster: time from the start of the submission to the start of the
first rank's process and to that of the last, and from the last rank's end to the result in place. All processes share
the processors of this machine, where on a cluster every node has its own.
"""

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path

from tests.launchers import finish
from tests.slurm.conftest import SITE
from tests.slurm.launches import SHORT, Workspace, result_of


def measure(workspace: Workspace, name: str) -> tuple[float, float, float]:
    """Launch once; return submission to first rank, to last rank, and last step to result. Unit: s."""
    folder = workspace.run(SHORT, num_nodes=4, name=name)
    status, output = finish(workspace.launch(folder, trains=True), 600)
    assert status == 0, output
    raw = folder / "raw"
    submitted = (raw / "point.json").stat().st_mtime
    # A rank's log is opened just before its process; its status is the last thing it writes.
    started = sorted(_birth(path) for path in (raw / "logs").glob("rank*.log"))
    ended = max(path.stat().st_mtime for path in (raw / "status").glob("rank*.json"))
    in_place = (folder / "raw" / "manifest.json").stat().st_mtime
    assert result_of(folder).status == "ok"
    return started[0] - submitted, started[-1] - submitted, in_place - ended


def _birth(path: Path) -> float:
    """Return the creation time of a log, from its stack file, which is opened first and never written."""
    return path.with_suffix(".stack").stat().st_mtime


def main() -> int:
    """Measure some launches and print them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--launches", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        site = Path(folder) / "site.yaml"
        site.write_text(SITE)
        os.environ["TRIPLEPOINT_SITE"] = str(site)
        workspace = Workspace(Path(folder) / "results", site)
        rows = [measure(workspace, f"run{i}") for i in range(arguments.launches)]
    print("load of the machine: {:.1f}, {:.1f}, {:.1f}".format(*os.getloadavg()))
    for what, column in zip(("first rank", "last rank", "collected"), zip(*rows, strict=True), strict=True):
        print(f"{what:12s} median {statistics.median(column):5.2f} s, from {min(column):.2f} to {max(column):.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
