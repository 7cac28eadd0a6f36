"""Random faults on the test cluster, one run each: `python -m tests.benchmarks.slurm_soak --number 50 --first 1`.

Prints a line for each seed and how many runs were lost or launched twice; the exit status is 1 if any was.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from tests.slurm.cluster import Cluster
from tests.slurm.conftest import SITE
from tests.slurm.launches import Workspace
from tests.slurm.soak import inject


def main() -> int:
    """Inject the faults of consecutive seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, default=50)
    parser.add_argument("--first", type=int, default=1, help="first seed")
    arguments = parser.parse_args()
    cluster = Cluster()
    cluster.mend()
    begun = time.monotonic()
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        site = Path(folder) / "site.yaml"
        site.write_text(SITE)
        os.environ["TRIPLEPOINT_SITE"] = str(site)
        workspace = Workspace(Path(folder) / "results", site)
        for seed in range(arguments.first, arguments.first + arguments.number):
            found = inject(cluster, workspace, seed)
            bad += bool(found.problems)
            print(found, flush=True)
        workspace.end()
    print(f"{arguments.number} faults in {time.monotonic() - begun:.0f} s: {bad} runs lost or doubled")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
