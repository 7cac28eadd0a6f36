"""Runs whose telemetry is missing or ends early: their rows stay, columns empty, with the reason."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.synthetic import CONFIG, H200, MS, Spec, build
from triplepoint.aggregate import aggregate
from triplepoint.manifest import Node, SamplerEnd, read_manifest, write_manifest
from triplepoint.report.machines import describe_node
from triplepoint.tables import TELEMETRY
from triplepoint.tables.results import POINTS

TWO_NODES = Spec("llama3-70b", {"tp": 8, "dp": 2}, cluster=H200, step_ms=100_000)
ABSENT = {"telemetry": None, "telemetry_absent": "node1.arrow: not an Arrow stream"}
ENDS = {"sampler_ends": (SamplerEnd(t_ns=5 * 10**9, message="exited with status 2", was_restarted=False),)}


def without(folder: Path, spec: Spec, node: int, keep: Callable[[dict], bool], **update: Any) -> Node:
    """Make a run whose node has no samples but those to keep, as its manifest says; aggregate it."""
    plan = build(folder, [spec])
    run = folder / "runs" / plan.entries[0].run
    rows = [row for row in TELEMETRY.read(run / "telemetry.parquet").to_pylist() if row["node"] != node or keep(row)]
    TELEMETRY.write(run / "telemetry.parquet", TELEMETRY.from_rows(rows))
    manifest = read_manifest(run / "raw/manifest.json")
    nodes = list(manifest.nodes)
    nodes[node] = nodes[node].model_copy(update=update)
    write_manifest(run / "raw/manifest.json", manifest.model_copy(update={"nodes": tuple(nodes)}))
    aggregate(plan, folder, CONFIG)
    return nodes[node]


@pytest.mark.parametrize(
    ("update", "reason"),
    [
        (ABSENT, "node1 has no telemetry: node1.arrow: not an Arrow stream"),
        (ENDS, "the sampler of node1 ended after"),
    ],
)
def test_aggregate_node_without_samples_leaves_power_empty_and_says_why(
    tmp_path: Path, update: dict[str, Any], reason: str
) -> None:
    node = without(tmp_path, TWO_NODES, 1, lambda row: row["t_ns"] < 10 * MS, **update)
    (row,) = POINTS.read(tmp_path / "tables/synthetic/points.parquet").to_pylist()
    assert row["job_gpu_power_w"] is None and row["gpu_power_w"] is None
    assert row["power_absent"].startswith(reason)
    assert row["step_time_s"] > 0
    assert any(reason in text for _, text in describe_node(node, "measured")[1])


def test_aggregate_host_without_samples_says_why(tmp_path: Path) -> None:
    without(tmp_path, Spec("tiny-llama", {"dp": 2}), 0, lambda row: False, telemetry=None, telemetry_absent="nothing")
    (row,) = POINTS.read(tmp_path / "tables/synthetic/points.parquet").to_pylist()
    assert (row["job_host_power_w"], row["power_absent"]) == (None, "node0 has no telemetry: nothing")
