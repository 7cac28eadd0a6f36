"""Attempts with the files that agents write, made without a launch."""

import gzip
import json
from pathlib import Path
from typing import Any

from tests.points import planned, tiny_point
from tests.recordings import SampleRecorder
from triplepoint.config.plan import PlannedRun
from triplepoint.launch.attempt import new_attempt

START_NS = 1_000_000_000_000
WALL_NS = 1_700_000_000_000_000_000
DURATION_S = 9.0


def tiny_run(**changes: Any) -> PlannedRun:
    return planned(tiny_point(**changes))


def leave(folder: Path, run: PlannedRun, **report: Any) -> Path:
    """Make the attempt of a launch whose ranks have all finished and whose launcher has ended; return its folder.

    Args:
        folder: Folder of the run.
        run: The run.
        report: Fields of the node's report to change.
    """
    raw = new_attempt(folder, run, 1)
    fill(raw, run, **report)
    return raw


def fill(raw: Path, run: PlannedRun, **report: Any) -> None:
    """Write the files of an agent and its ranks into an attempt. Arguments as for `leave`."""
    for name in ("nodes", "steps", "status", "telemetry", "traces", "logs"):
        (raw / name).mkdir()
    for rank in range(run.point.num_gpus):
        rows = [_step(rank, step, kind) for step, kind in enumerate(run.point.steps.kinds)]
        (raw / "steps" / f"rank{rank}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        with gzip.open(raw / "traces" / f"rank{rank}.json.gz", "wt") as trace:
            trace.write('{"traceEvents": []}')
    recorder = SampleRecorder(raw / "telemetry" / "node0.arrow", 1.0, {})
    for second in range(6):
        recorder.add(START_NS + second * 10**9, 1, "host", {"cpu_utilisation": 0.5, "cpu_energy_j": 40.0 * second})
    recorder.close()
    (raw / "nodes" / "begun0.json").write_text('{"node": 0, "host": "here"}')
    (raw / "nodes" / "node0.json").write_text(json.dumps(_report(run) | report))


def _report(run: PlannedRun) -> dict[str, Any]:
    placement = {"switches": None, "devices": None, "cpus": "0-1", "adapters": {}}
    return {
        "node": 0, "host": "here", "monotonic_ns": START_NS, "wall_ns": WALL_NS, "duration_s": DURATION_S,
        "num_cores": 2, "memory_bytes": 1 << 33, "placement": placement, "checks": None, "clock": [],
        "clock_absent": None, "sampler_ends": [], "failure": None, "ranks": list(range(run.point.num_gpus)),
        "facts": {"num_parameters": 7},
    }  # fmt: skip


def _step(rank: int, step: int, kind: str) -> dict[str, Any]:
    start_ns = START_NS + (1 + step) * 10**9
    return {
        "rank": rank, "step": step, "kind": kind, "t_start_ns": start_ns, "t_end_ns": start_ns + 5 * 10**8,
        "loss": 5.5, "num_tokens": 128, "peak_memory_bytes": None, "reserved_memory_bytes": None,
    }  # fmt: skip
