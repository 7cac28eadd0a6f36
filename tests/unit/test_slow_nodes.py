"""From the traces' word on a slow GPU to the nodes that launches do without."""

import json
from pathlib import Path
from typing import Any

import pytest

from triplepoint.manifest import Device, Manifest, Node, write_manifest
from triplepoint.slow_nodes import note_slow_gpus, slow_nodes
from triplepoint.tables.traces import RANKS


def device(rank: int, name: str) -> Device:
    return Device(rank=rank, device=name, product="NVIDIA H200", uuid=f"GPU-{rank}")


def node(number: int, host: str, devices: tuple[Device, ...]) -> Node:
    clocks: dict[str, Any] = {"monotonic_ns": 0, "wall_ns": 0, "num_cores": 1, "memory_bytes": 1}
    return Node(node=number, host=host, devices=devices, telemetry=None, **clocks)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "results/runs/tiny"


def write(run: Path, rows: dict[int, dict[str, Any]], name: str = "gpu{}", origin: Any = "measured") -> None:
    """Write a run of two nodes of two ranks, whose ranks all compute alike but for what is said of some."""
    (run / "raw").mkdir(parents=True)
    nodes = [node(n, f"n{n}", tuple(device(2 * n + i, name.format(i)) for i in range(2))) for n in range(2)]
    fields: dict[str, Any] = {"run": "tiny", "digest": "0", "status": "ok", "evidence": None, "origin": origin}
    fields |= {"engine": "native", "versions": {}, "git_commit": None, "git_dirty": None, "seed": 1, "facts": {}}
    fields |= {"started_at": "2026-01-01T00:00:00+00:00", "ended_at": "2026-01-01T00:01:00+00:00", "duration_s": 60.0}
    write_manifest(run / "raw/manifest.json", Manifest(nodes=tuple(nodes), **fields))
    empty = {column.name: None if column.nullable else 0 for column in RANKS.columns}
    alike = {"compute_excess": 0.0, "z_score": 0.0, "is_straggler": False, "share_last": None}
    table = [{**empty, **alike, "rank": rank, **rows.get(rank, {})} for rank in range(4)]
    RANKS.write(run / "ranks.parquet", RANKS.from_rows(table))


SLOW = {"compute_excess": 0.4, "z_score": 9.0, "is_straggler": True}


def test_note_slow_gpus_names_gpu_and_node(run: Path) -> None:
    write(run, {3: SLOW})
    assert note_slow_gpus(run) == ["gpu1 of n1 computes 40 % longer than its peers and holds them up"]
    results = run.parents[1]
    assert slow_nodes(results) == {"n1"}
    note = json.loads((results / "slow_nodes/n1.json").read_text())
    assert (note["run"], note["message"]) == (
        "tiny",
        "gpu1 of n1 computes 40 % longer than its peers and holds them up",
    )


@pytest.mark.parametrize(
    "row",
    [
        {},
        SLOW | {"compute_excess": 0.2},
        SLOW | {"is_straggler": False},
        {"compute_excess": None, "z_score": None},
    ],
)
def test_note_slow_gpus_leaves_small_differences(run: Path, row: dict[str, Any]) -> None:
    write(run, {3: row})
    assert note_slow_gpus(run) == []
    assert slow_nodes(run.parents[1]) == frozenset()


def test_note_slow_gpus_leaves_processors(run: Path) -> None:
    write(run, {3: SLOW}, name="cpu")
    assert note_slow_gpus(run) == []


def test_note_slow_gpus_leaves_simulations(run: Path) -> None:
    write(run, {3: SLOW}, origin="simulated")
    assert note_slow_gpus(run) == []
