"""Device work tied to the calls that launched it."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.unit.trace.rank.parsed import parse, work_of
from tests.unit.trace.traces import GEMM, kernel, launch
from triplepoint.trace.kineto import LAUNCH, ROW
from triplepoint.trace.kineto.external_sort import Sorter
from triplepoint.trace.rank.events import NEVER, join_launches


def joined(folder: Path, device: list[int], calls: list[int], capacity: int) -> list[tuple[int, int]]:
    """Return (number of the row, start of its launch) of rows with some correlations; launch i starts at i."""
    rows, launches = np.zeros(len(device), dtype=ROW), np.zeros(len(calls), dtype=LAUNCH)
    rows["correlation"], rows["start"] = device, range(len(device))
    launches["correlation"], launches["start"] = calls, range(len(calls))
    sorters = Sorter("correlation", folder, capacity), Sorter("correlation", folder, capacity)
    for sorter, every in zip(sorters, (rows, launches), strict=True):
        for at in range(0, len(every), 3):
            sorter.add(every[at : at + 3])
    return [(int(row["start"]), int(row["launch"])) for block in join_launches(*sorters) for row in block]


correlations = st.lists(st.integers(-1, 12), max_size=20)


@settings(max_examples=examples(100), deadline=None)
@given(correlations, st.lists(st.integers(1, 12), max_size=20), st.integers(1, 8))
def test_join_launches_any_rows_find_the_first_call_of_their_number(
    tmp_path_factory: pytest.TempPathFactory, device: list[int], calls: list[int], capacity: int
) -> None:
    found = joined(tmp_path_factory.getbasetemp(), device, calls, capacity)
    expected = [(row, calls.index(number) if number in calls else NEVER) for row, number in enumerate(device)]
    assert sorted(found) == expected


def test_read_work_many_kernels_of_one_launch(tmp_path: Path) -> None:
    # A CUDA graph launches many kernels at once.
    events = [launch(5, 3, tid=2), *(kernel(GEMM, 10 + i, 1, correlation=3) for i in range(3)), kernel(GEMM, 20, 1)]
    (block,) = work_of(tmp_path, events).rows.blocks()
    assert block["launch"].tolist() == [5_000, 5_000, 5_000, NEVER]
    assert (block["launch_thread"] >= 0).tolist() == [True, True, True, False]


def test_read_work_correlation_zero_refers_to_nothing(tmp_path: Path) -> None:
    (block,) = work_of(tmp_path, [launch(5, 0), kernel(GEMM, 10, 1, correlation=0)]).rows.blocks()
    assert block["launch"].tolist() == [NEVER]


def test_read_work_launches_written_as_begin_and_end_count(tmp_path: Path) -> None:
    begin = launch(5, 3)
    del begin["dur"]
    halves = [begin | {"ph": "B"}, {"ph": "E", "pid": 9, "tid": 1, "ts": 6}]
    (block,) = work_of(tmp_path, [*halves, kernel(GEMM, 10, 1, correlation=3)]).rows.blocks()
    assert block["launch"].tolist() == [5_000]


def test_parse_geometry_is_the_kernels_own_else_its_launchs() -> None:
    on_launch = {"grid": [4, 2, 1], "block": [64, 1, 1], "shared memory": 1024}
    on_kernel = {"grid": [3, 1, 1], "block": [32, 1, 1], "registers per thread": 40}
    events = [
        launch(1, 1, **on_launch),
        launch(2, 2, **on_launch),
        kernel("rocm_gemm", 10, 1, correlation=1),
        kernel("cuda_gemm", 20, 1, correlation=2, **on_kernel),
        kernel("lost_gemm", 30, 1, correlation=9),
    ]
    columns = ("num_blocks", "threads_per_block", "registers_per_thread", "shared_memory_bytes")
    found = {row["name"]: tuple(row[column] for column in columns) for row in parse(events).kernels}
    assert found == {
        "rocm_gemm": (8, 64, None, 1024),
        "cuda_gemm": (3, 32, 40, None),
        "lost_gemm": (None, None, None, None),
    }
