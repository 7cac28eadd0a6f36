"""List of nodes with a GPU far slower than its peers: `results/slow_nodes/`, a file for each node.

Launches (from telemetry) and the trace analysis add nodes; users remove the files. Launches avoid these nodes if there
are enough others.
"""

from pathlib import Path

from triplepoint.files import write_json
from triplepoint.manifest import read_manifest
from triplepoint.tables.traces import RANKS
from triplepoint.text import percent

LEAST_EXCESS = 0.25
"""Least excess of the compute time over its peers' median, as a ratio: 0.8 of their clock has it. Own choice."""
_FOLDER = "slow_nodes"


def note_slow_gpus(run: Path) -> list[str]:
    """Add the nodes of a run with a GPU that delayed the others to the list; return a line for each such GPU.

    Ranks on cpu are ignored, because they share caches and clocks.

    Args:
        run: `results/runs/<run>`, whose traces have been analysed.

    Raises:
        UserError: If the manifest or the table is missing or damaged.
    """
    manifest = read_manifest(run / "raw" / "manifest.json")
    devices = {device.rank: (node.host, device) for node in manifest.nodes for device in node.devices}
    lines = []
    for row in RANKS.read(run / "ranks.parquet").to_pylist():
        host, device = devices.get(row["rank"], ("", None))
        is_slow = row["is_straggler"] and row["compute_excess"] >= LEAST_EXCESS
        if not is_slow or device is None or device.device == "cpu" or manifest.origin != "measured":
            continue
        longer = percent(row["compute_excess"], 0)
        line = f"{device.device} of {host} computes {longer} longer than its peers and holds them up"
        note_slow_node(run.parents[1], host, {"run": manifest.run, "seen_at": manifest.ended_at, "message": line})
        lines.append(line)
    return lines


def note_slow_node(results: Path, host: str, note: dict[str, str]) -> Path:
    """Add a node to the list, with the reason, and return its file."""
    path = results / _FOLDER / f"{host}.json"
    write_json(path, note)
    return path


def slow_nodes(results: Path) -> frozenset[str]:
    """Return the hosts in the list."""
    return frozenset(path.stem for path in (results / _FOLDER).glob("*.json"))
