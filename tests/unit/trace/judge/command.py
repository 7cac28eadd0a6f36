"""Runs `triplepoint trace` on traces as a user would, and reads what it wrote."""

import contextlib
import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tests.unit.trace.judge.reference import Breakdown, Row, kernel_durations, measure
from triplepoint.cli import main

COLUMNS = {
    "breakdown": "rank span_us compute_us comm_us comm_exposed_us comm_overlapped_us memory_us idle_us "
    "comm_overlap_fraction num_gpu_events num_damaged_events truncated",
    "kernels": "rank class kind name count sum_us mean_us min_us max_us",
}
_LENGTHS = ("span", "compute", "comm", "comm_exposed", "comm_overlapped", "memory", "idle")

Table = list[dict[str, str]]


class Outcome(NamedTuple):
    """What the command did: exit status, what it wrote to the terminal, its CSV tables, the names of its files."""

    status: int
    out: str
    err: str
    breakdown: Table
    kernels: Table
    files: list[str]


def run_trace(paths: Iterable[Path], out: Path, *options: str) -> Outcome:
    """Run `triplepoint trace PATHS --out OUT --csv OPTIONS` in this process.

    An exception it lets escape, a traceback for the user, escapes from here as well.
    """
    said, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(err):
        status = main(["trace", *map(str, paths), "--out", str(out), "--csv", *options])
    files = sorted(path.name for path in out.iterdir()) if out.is_dir() else []
    return Outcome(
        status, said.getvalue(), err.getvalue(), _read(out / "breakdown.csv"), _read(out / "kernels.csv"), files
    )


def _read(path: Path) -> Table:
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def assert_refused(outcome: Outcome, *said: str) -> None:
    """Check that the command gave up in one line that names what it must, and left nothing behind."""
    lines = [line for line in outcome.err.splitlines() if line.startswith("triplepoint: ")]
    assert outcome.status == 2, outcome.err
    assert len(lines) == 1 and outcome.err.rstrip().endswith(lines[0]), outcome.err
    assert all(word in lines[0] for word in said), lines[0]
    assert outcome.files == []


def assert_survived(
    outcome: Outcome, rows: list[Row], *, damaged: Iterable[int] = (0,), truncated: bool = False
) -> None:
    """Check the tables of one rank against its GPU rows, to the nanosecond.

    Args:
        outcome: What the command did.
        rows: The GPU rows it must have counted.
        damaged: Acceptable numbers of damaged events.
        truncated: Whether it must call the file truncated.
    """
    (row,) = outcome.breakdown
    assert outcome.status == status_of(row), outcome.err
    assert int(row["num_damaged_events"]) in damaged
    assert row["truncated"] == str(truncated).lower()
    assert_breakdown(row, measure(rows))
    assert_kernels(outcome.kernels, rows)


def status_of(row: dict[str, str]) -> int:
    """Return the exit status of the command on one file alone, by its row of `breakdown.csv`: 2 unless it is whole."""
    return 2 if row["truncated"] == "true" or int(row["num_damaged_events"]) else 0


def assert_breakdown(row: dict[str, str], expected: Breakdown) -> None:
    """Check one row of `breakdown.csv`."""
    found = {name: nanoseconds(row[f"{name}_us"]) for name in _LENGTHS}
    assert found == {name: getattr(expected, name) for name in _LENGTHS}
    assert int(row["num_gpu_events"]) == expected.num_gpu_events
    if expected.comm:
        assert abs(float(row["comm_overlap_fraction"]) - expected.comm_overlapped / expected.comm) < 1e-6
    else:
        assert row["comm_overlap_fraction"] == ""


def assert_kernels(table: Table, rows: list[Row]) -> None:
    """Check `kernels.csv` of one rank; a collective may stand in several kinds."""
    durations = kernel_durations(rows)
    found: dict[tuple[str, str], Table] = {}
    for row in table:
        found.setdefault((row["class"], row["name"]), []).append(row)
        count, total = int(row["count"]), nanoseconds(row["sum_us"])
        assert abs(float(row["mean_us"]) * 1000 - total / count) <= 0.5
    assert sorted(found) == sorted(durations)
    for key, expected in durations.items():
        assert sum(int(row["count"]) for row in found[key]) == len(expected), key
        assert sum(nanoseconds(row["sum_us"]) for row in found[key]) == sum(expected), key
        assert min(nanoseconds(row["min_us"]) for row in found[key]) == min(expected), key
        assert max(nanoseconds(row["max_us"]) for row in found[key]) == max(expected), key


def nanoseconds(text: str) -> int:
    """Return a time of a table, written with three decimals, in nanoseconds."""
    whole, _, fraction = text.partition(".")
    assert len(fraction) == 3, text
    return int(whole + fraction)
