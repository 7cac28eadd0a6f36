"""The command against the slow recomputation, to the nanosecond, and against what HTA computed."""

import gzip
import tempfile
from decimal import Decimal
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given, settings

from tests.examples import examples
from tests.unit.trace.judge.command import assert_survived, nanoseconds, run_trace
from tests.unit.trace.judge.layouts import LAYOUTS, Event
from tests.unit.trace.judge.parity import hta_rows
from tests.unit.trace.judge.random_traces import texts, traces, write
from tests.unit.trace.judge.reference import gpu_rows, load, measure, to_ns
from tests.unit.trace.judge.small import EVENTS, TOP, rows_of

RECORDED = Path("tests/data/traces")
GPU_TRACES = ("dlrm_v100_rank0.json.gz", "mi250_toy_rank0.json.gz")

HTA = {
    "dlrm_v100_rank0.json.gz": ("6419.0", "1034.0", "5556.0", 261, "0.0450"),
    "mi250_toy_rank0.json.gz": ("8762.844761718748", "110.88099999999395", "38.161000000007334", 16, ""),
}
"""What HTA 0.6.1 says with HTA_DISABLE_NS_ROUNDING=1: idle, compute, non-compute (us), GPU rows, share of overlap."""


def test_measure_two_kernels_and_a_collective():
    rows = rows_of(EVENTS)
    found = measure(rows)
    # By hand, per step: copy 20125, fill 1504, gemms 200376 + 99624 back to back, all-reduce 350000-600007, two adds of
    # which the first (380000-420001) reaches 20001 past the gemms and the second (2176) lies in the all-reduce.
    assert found.compute == 2 * (300_000 + 20_001 + 2_176)
    assert found.comm_overlapped == 2 * (50_000 + 20_001 + 2_176)
    assert (found.comm, found.memory) == (2 * 250_007, 2 * 21_629)
    assert found.span == 1_100_000 + 600_007 - 50_000
    assert found.idle == found.span - found.compute - found.comm_exposed - found.memory


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_trace_of_known_content_in_every_layout(layout, tmp_path):
    path = write(tmp_path, LAYOUTS[layout].render(EVENTS, TOP).data)
    assert_survived(run_trace([path], tmp_path / "out"), rows_of(EVENTS))


@pytest.mark.parametrize("name", GPU_TRACES)
def test_recorded_trace_equals_recomputation(name, tmp_path):
    assert_survived(run_trace([RECORDED / name], tmp_path), gpu_rows(load(RECORDED / name)))


@pytest.mark.parametrize("name", GPU_TRACES)
def test_recorded_trace_equals_hta(name, tmp_path):
    (row,) = run_trace([RECORDED / name], tmp_path, "--parity", "hta").breakdown
    idle, compute, non_compute, num_rows, overlap = HTA[name]
    for column, expected in (("idle_us", idle), ("compute_us", compute), ("non_compute_us", non_compute)):
        assert abs(Decimal(row[column]) - Decimal(expected)) <= Decimal("0.05"), column
    assert int(row["num_gpu_events"]) == num_rows
    assert row["comm_overlap_fraction"] == overlap or abs(float(row["comm_overlap_fraction"]) - float(overlap)) < 5e-5


@settings(max_examples=examples(60), deadline=None)
@given(texts(traces()))
def test_any_trace_equals_recomputation(trace):
    data, events = trace
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        outcome = run_trace([write(Path(folder), data)], out)
        assert_survived(outcome, rows_of(events))
        lengths = _exposed_by_step(out)
    row = {name: nanoseconds(value) for name, value in outcome.breakdown[0].items() if name.endswith("_us")}
    assert row["comm_us"] == row["comm_exposed_us"] + row["comm_overlapped_us"]
    memory_exposed = measure(rows_of(events)).memory_exposed
    assert row["compute_us"] + row["comm_exposed_us"] + memory_exposed + row["idle_us"] == row["span_us"]
    assert lengths == _step_lengths(events)


@settings(max_examples=examples(40), deadline=None)
@given(texts(traces()))
def test_any_trace_in_parity_equals_hta_rules(trace):
    data, events = trace
    expected = measure(hta_rows({"traceEvents": events}))
    assume(expected.num_gpu_events)
    with tempfile.TemporaryDirectory() as folder:
        outcome = run_trace([write(Path(folder), data)], Path(folder) / "out", "--parity", "hta")
    assert outcome.status == 0, outcome.err
    (row,) = outcome.breakdown
    found = {name: nanoseconds(row[f"{name}_us"]) for name in ("span", "idle", "compute", "non_compute", "comm")}
    assert found == {name: getattr(expected, name) for name in found}
    assert nanoseconds(row["comm_overlapped_us"]) == expected.comm_overlapped
    assert int(row["num_gpu_events"]) == expected.num_gpu_events


def test_same_bytes_whether_plain_or_gzip(tmp_path):
    text = LAYOUTS["kineto_2024"].render(EVENTS, TOP).data
    plain = run_trace([write(tmp_path, text)], tmp_path / "plain")
    packed = run_trace([write(tmp_path, gzip.compress(text), "rank0.json.gz")], tmp_path / "packed")
    assert (plain.breakdown, plain.kernels) == (packed.breakdown, packed.kernels)


def test_two_ranks_stand_in_order_of_number(tmp_path):
    for rank in (10, 9):
        top = TOP | {"distributedInfo": {"rank": rank}}
        write(tmp_path, LAYOUTS["compact"].render(EVENTS, top).data, f"rank{rank}.json")
    outcome = run_trace([tmp_path], tmp_path / "out")
    assert [row["rank"] for row in outcome.breakdown] == ["9", "10"]


def _exposed_by_step(out: Path) -> dict[int, int]:
    """Return the sum of `exposed_ns` of every step of rank 0."""
    totals: dict[int, int] = {}
    for row in pq.read_table(out / "intervals.parquet", columns=["step", "exposed_ns"]).to_pylist():
        totals[row["step"]] = totals.get(row["step"], 0) + row["exposed_ns"]
    return totals


def _step_lengths(events: list[Event]) -> dict[int, int]:
    """Return how long every step lasted: as annotated, the last until the GPU is done; all is one step without any."""
    rows = rows_of(events)
    last = max(row.end for row in rows)
    steps = {
        int(event["name"].removeprefix("ProfilerStep#")): (to_ns(event["ts"]), to_ns(event["ts"]) + to_ns(event["dur"]))
        for event in events
        if event["cat"] == "user_annotation"
    }
    if not steps:
        return {0: measure(rows).span} if measure(rows).span else {}
    start, end = steps[max(steps)]
    steps[max(steps)] = (start, max(end, last))
    return {number: end - start for number, (start, end) in steps.items()}
