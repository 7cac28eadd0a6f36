"""The CSV files of loose traces: exact decimals, and names that CSV has to quote."""

import csv
from pathlib import Path

import pyarrow as pa
import pytest

from tests.unit.trace.rank.parsed import parse
from tests.unit.trace.traces import ALL_REDUCE, COPY, GEMM, event, kernel
from triplepoint.trace.breakdown import as_us, breakdown_row, write_breakdown, write_kernels

COLUMNS = ("rank", "class", "kind", "name", "count", "sum_ns", "min_ns", "max_ns")


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def kernels(*rows: tuple) -> pa.Table:
    return pa.table({name: [row[index] for row in rows] for index, name in enumerate(COLUMNS)})


@pytest.mark.parametrize(
    ("time_ns", "text"),
    [
        (0, "0.000"),
        (1, "0.001"),
        (1_000, "1.000"),
        (-1, "-0.001"),
        (-1_500, "-1.500"),
        (10**17 + 7, "100000000000000.007"),
    ],
)
def test_as_us_is_exact(time_ns: int, text: str) -> None:
    assert as_us(time_ns) == text


def test_breakdown_row_by_hand() -> None:
    parsed = parse(
        [
            kernel(GEMM, 0, 10),
            kernel(ALL_REDUCE, 5.5, 14.5, stream=9),
            event(COPY, 18, 10, "gpu_memcpy", 8, stream=8),
            kernel(GEMM, 30, 0.001),
        ]
    )
    assert breakdown_row(parsed.summary) == {
        "rank": "5",
        "span_us": "30.001",
        "compute_us": "10.001",
        "comm_us": "14.500",
        "comm_exposed_us": "10.000",
        "comm_overlapped_us": "4.500",
        "memory_us": "10.000",
        "idle_us": "2.000",
        "comm_overlap_fraction": f"{4.5 / 14.5:.9f}",
        "num_gpu_events": "4",
        "num_damaged_events": "0",
        "truncated": "false",
    }


def test_breakdown_row_without_communication_has_no_overlap() -> None:
    row = breakdown_row(parse([kernel(GEMM, 0, 10)]).summary)
    assert (row["comm_us"], row["comm_overlap_fraction"]) == ("0.000", "")


def test_write_breakdown_reads_back(tmp_path: Path) -> None:
    rows = [{"rank": str(rank), "span_us": "1.000"} for rank in range(3)]
    write_breakdown(tmp_path / "breakdown.csv", rows)
    assert read(tmp_path / "breakdown.csv") == rows
    assert (tmp_path / "breakdown.csv").read_bytes().count(b"\n") == 4


def test_write_kernels_sums_over_steps_and_groups_the_longest_first(tmp_path: Path) -> None:
    table = kernels(
        (1, "gemm", "dense", "b", 1, 5, 5, 5),
        (0, "gemm", "dense", "b", 2, 3_000, 1_000, 2_000),
        (0, "gemm", "dense", "b", 1, 10_001, 10_001, 10_001),
        (0, "norm", "x", "c", 3, 20_000, 1, 19_000),
        (0, "norm", "x", "a", 1, 20_000, 20_000, 20_000),
    )
    write_kernels(tmp_path / "kernels.csv", table)
    found = [tuple(row.values()) for row in read(tmp_path / "kernels.csv")]
    assert found == [
        ("0", "norm", "x", "a", "1", "20.000", "20.000", "20.000", "20.000"),
        ("0", "norm", "x", "c", "3", "20.000", "6.667", "0.001", "19.000"),
        ("0", "gemm", "dense", "b", "3", "13.001", "4.334", "1.000", "10.001"),
        ("1", "gemm", "dense", "b", "1", "0.005", "0.005", "0.005", "0.005"),
    ]
    header = "rank,class,kind,name,count,sum_us,mean_us,min_us,max_us"
    assert (tmp_path / "kernels.csv").read_text().splitlines()[0].replace('"', "") == header


@pytest.mark.parametrize(
    "name",
    ["f<a, b>(int)", 'say "x", y', '"', "a\nb", "a\r\nb", "\u00e9\U0001f600", " lead", "", "'", "=1+1", "a;b\tc"],
)
def test_write_kernels_any_name_reads_back(tmp_path: Path, name: str) -> None:
    write_kernels(
        tmp_path / "kernels.csv", kernels((0, "gemm", "dense", name, 1, 5, 5, 5), (0, "x", "y", "z", 1, 1, 1, 1))
    )
    # Text that a spreadsheet would compute has an apostrophe in front.
    written = f"'{name}" if name.startswith("=") else name
    assert [row["name"] for row in read(tmp_path / "kernels.csv")] == [written, "z"]
    assert [row["sum_us"] for row in read(tmp_path / "kernels.csv")] == ["0.005", "0.001"]
