"""The short check of the node this runs on, before each launch: `python -m triplepoint.doctor.brief OUT DEVICE`.

It reads and measures nothing: no torch, no other nodes, no collectives. What it finds is recorded with the run.
"""

import sys
from dataclasses import asdict
from pathlib import Path

from triplepoint.doctor.check import Check, Expected
from triplepoint.doctor.check_node import check_node
from triplepoint.doctor.node import Sources, read_node
from triplepoint.doctor.probe import VENDORS
from triplepoint.files import write_json

_NEED_TORCH = ("gpu count", "driver", "collective library")


def check_briefly(device: str, sources: Sources | None = None) -> list[Check]:
    """Return the checks of this node that reading alone can answer.

    Args:
        device: cpu, cuda or rocm: whose GPUs to look for.
        sources: Where to read.
    """
    facts = read_node(0, VENDORS[device], sources, with_torch=False)
    return [
        check for check in check_node(facts, Expected()) if check.status != "skipped" and check.name not in _NEED_TORCH
    ]


def main(out: Path, device: str) -> None:
    """Write name, status and finding of each check to `out`."""
    kept = ("name", "status", "found")
    write_json(out, [{key: asdict(check)[key] for key in kept} for check in check_briefly(device)])


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
