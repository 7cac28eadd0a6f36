"""A recorded job in the formats of other profilers gives the tables that its Kineto trace gives."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.trace.profilers.recordings import (
    Recording,
    read_recording,
    write_nsight,
    write_rocpd,
    write_rocprofv3,
)
from triplepoint.tables import CATEGORIES, COLLECTIVES, INTERVALS, KERNELS, TIMELINE
from triplepoint.tables.schema import Table
from triplepoint.trace.loose_traces import trace_files
from triplepoint.trace.taxonomy import load_scheme

KINETO = Path(__file__).parents[3] / "data" / "traces" / "dlrm_v100_rank0.json.gz"

Write = Callable[[Path, Recording], Path]
WRITERS: dict[str, Write] = {
    "nsight": lambda folder, recording: write_nsight(folder / "report.sqlite", recording),
    "rocpd": lambda folder, recording: write_rocpd(folder / "4711_results.db", recording),
    "rocprofv3": lambda folder, recording: write_rocprofv3(folder, recording),
}
LEFT_OUT = {
    "nsight": {"blocks_per_sm", "warps_per_sm", "occupancy"},
    "rocpd": {"blocks_per_sm", "warps_per_sm", "occupancy", "registers_per_thread", "shared_memory_bytes"},
    "rocprofv3": {"blocks_per_sm", "warps_per_sm", "occupancy"},
}
"""Columns that these profilers do not fill."""


@pytest.fixture(scope="module")
def recording() -> Recording:
    return read_recording(KINETO)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return traced(KINETO, tmp_path_factory.mktemp("kineto"))


def traced(path: Path, out: Path) -> Path:
    trace_files([path], out, load_scheme(), lambda line: None, num_jobs=1)
    return out


def rows(out: Path, table: Table, left_out: set[str]) -> list[tuple[object, ...]]:
    found = table.read(out / f"{table.name}.parquet").to_pylist()
    named = [{name: value for name, value in row.items() if name not in left_out} for row in found]
    return sorted((tuple(row.values()) for row in named), key=repr)


@pytest.mark.parametrize("profiler", WRITERS)
def test_tables_are_those_of_kineto(tmp_path: Path, recording: Recording, expected: Path, profiler: str) -> None:
    out = traced(WRITERS[profiler](tmp_path, recording), tmp_path / "out")
    for table in (INTERVALS, CATEGORIES, COLLECTIVES, TIMELINE):
        assert rows(out, table, set()) == rows(expected, table, set()), table.name
    kernels, wanted = (rows(one, KERNELS, LEFT_OUT[profiler]) for one in (out, expected))
    # AMD's copies do not tell whether the host's memory is pinned, so that one row there is two of Kineto.
    classes = {"memory"} if profiler != "nsight" else set()
    assert [row for row in kernels if row[2] not in classes] == [row for row in wanted if row[2] not in classes]


def test_expected_tables_are_not_empty(expected: Path) -> None:
    assert {row["step"] for row in INTERVALS.read(expected / "intervals.parquet").to_pylist()} == {10}
    kinds = {row["kind"] for row in COLLECTIVES.read(expected / "collectives.parquet").to_pylist()}
    assert kinds == {"all_reduce", "all_to_all"}
    assert len(rows(expected, KERNELS, set())) > 50
