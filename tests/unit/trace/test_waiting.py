"""Waiting inside communication is one thing, in recorded and in simulated traces: own start to the last rank's."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.unit.simulate.stand_ins import simulated
from triplepoint.config.point import Layout
from triplepoint.simulate.artefacts.write import write_traces
from triplepoint.trace.loose_traces import trace_files
from triplepoint.trace.taxonomy import load_scheme

RECORDED = Path(__file__).parents[2] / "data" / "traces"

Tables = dict[str, list[dict[str, Any]]]


def record(folder: Path) -> None:
    """Two processes of gloo that train in a pipeline: recorded."""
    for path in RECORDED.glob("gloo_rank*"):
        shutil.copy(path, folder / path.name.removeprefix("gloo_"))


def simulate(folder: Path) -> None:
    """A pipeline of four stages with two replicas each, one of them slower, on kernels of NCCL."""
    job = simulated(Layout(pp=4, dp=2, schedule="1f1b"), model="llama3-30b", slow=(1.0, 1.05))
    write_traces(folder, job, range(8), [3])


@pytest.fixture(scope="module", params=[record, simulate])
def tables(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tables:
    """Return the tables of all ranks' traces."""
    folder = tmp_path_factory.mktemp("traces")
    request.param(folder)
    trace_files([folder], folder / "out", load_scheme(), lambda line: None, num_jobs=1)
    names = ("collectives", "ranks", "intervals")
    return {name: pq.read_table(folder / "out" / f"{name}.parquet").to_pylist() for name in names}


def together(rows: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Yield the parts of all ranks in each collective, and of the two in each message with a known peer."""
    parts: dict[object, list[dict[str, Any]]] = {}
    for row in rows:
        of: object = row["kind"]
        if row["kind"] in ("send", "recv"):
            there = row["peer"] if row["peer"] is not None else 1 - row["rank"]
            of = (row["rank"], there) if row["kind"] == "send" else (there, row["rank"])
        parts.setdefault((row["group_name"], of, row["sequence"]), []).append(row)
    yield from (found for found in parts.values() if len(found) > 1)


def test_waited_is_from_the_own_start_to_the_last_rank_s(tables: Tables) -> None:
    waits = 0
    for parts in together(tables["collectives"]):
        last = max(part["t_start_ns"] for part in parts)
        for part in parts:
            if part["waited_ns"] is None:  # the clocks do not tell
                continue
            until = part["t_start_ns"] + part["duration_ns"]
            left_early = part["kind"] == "send" and until < last
            assert part["waited_ns"] == (0 if left_early else min(last, until) - part["t_start_ns"])
            waits += part["waited_ns"] > 0
    assert waits > 10


def test_waiting_is_inside_communication_that_counts(tables: Tables) -> None:
    """Bubble and straggler are parts of exposed communication, never more than it.

    The messages of the recording name neither group nor peer: nothing of its bubble is known.
    """
    exposed: dict[int, int] = {}
    for row in tables["intervals"]:
        if row["category"] in ("comm", "idle"):
            exposed[row["rank"]] = exposed.get(row["rank"], 0) + row["exposed_ns"]
    for rank in tables["ranks"]:
        assert rank["bubble_ns"] + rank["straggler_ns"] <= min(exposed[rank["rank"]], rank["waited_ns"])
    is_known = any(row["kind"] == "recv" and row["waited_ns"] for row in tables["collectives"])
    assert (sum(rank["bubble_ns"] for rank in tables["ranks"]) > 0) is is_known
    assert sum(rank["straggler_ns"] for rank in tables["ranks"]) > 0
