"""Nodes with a GPU far slower than its peers: a file for each, until somebody removes it.

Written by launches, from telemetry, and by whoever joins the traces of a run; read by launches that have enough other
nodes.
"""

from pathlib import Path

from triplepoint.files import write_json
from triplepoint.manifest import read_manifest
from triplepoint.tables.traces import RANKS

LEAST_EXCESS = 0.25
"""Computation beyond its peers' median, as a share of it: 0.8 of their clock would do it. Our choice."""
_FOLDER = "slow_nodes"


def note_slow_gpus(run: Path) -> list[str]:
    """Write down the nodes of a run with a GPU that delayed the others, and return a line for each such GPU.

    Processors are left out: their ranks share caches and clocks.

    Args:
        run: `results/runs/<run>`, its traces joined.

    Raises:
        UserError: If the manifest or the table is missing or damaged.
    """
    manifest = read_manifest(run / "raw" / "manifest.json")
    devices = {device.rank: (node.host, device) for node in manifest.nodes for device in node.devices}
    told = []
    for row in RANKS.read(run / "ranks.parquet").to_pylist():
        host, device = devices.get(row["rank"], ("", None))
        is_slow = row["is_straggler"] and row["compute_excess"] >= LEAST_EXCESS
        if not is_slow or device is None or device.device == "cpu" or manifest.origin != "measured":
            continue
        line = f"{device.device} of {host} computes {row['compute_excess']:.0%} longer than its peers and holds them up"
        note_slow_node(run.parents[1], host, {"run": manifest.run, "seen_at": manifest.ended_at, "message": line})
        told.append(line)
    return told


def note_slow_node(results: Path, host: str, note: dict[str, str]) -> Path:
    """Write down a node and what is known of it, and return the file."""
    path = results / _FOLDER / f"{host}.json"
    write_json(path, note)
    return path


def slow_nodes(results: Path) -> frozenset[str]:
    """Return the nodes that were written down."""
    return frozenset(path.stem for path in (results / _FOLDER).glob("*.json"))
