"""Aligning recordings: steps, gaps, clocks of several nodes."""

from pathlib import Path

import numpy as np
import pytest

from tests.recordings import SampleRecorder
from triplepoint.errors import UserError
from triplepoint.manifest import Clock, Device, Manifest, Node, Telemetry, write_manifest
from triplepoint.recording import fast_path
from triplepoint.tables import STEPS, TELEMETRY
from triplepoint.telemetry.align import align_run, mark_gaps

SECOND = 1_000_000_000


def node(index: int, monotonic_ns: int, wall_ns: int) -> Node:
    devices = (Device(rank=index, device="cpu", product="test"),)
    return Node(
        node=index,
        host=f"host{index}",
        monotonic_ns=monotonic_ns,
        wall_ns=wall_ns,
        num_cores=1,
        memory_bytes=1,
        devices=devices,
        telemetry=None,
    )


def run_folder(raw: Path, nodes: tuple[Node, ...], samples: dict[int, list[int]], steps: list[dict]) -> Path:
    raw.mkdir(parents=True)
    manifest = Manifest(
        run="r",
        digest="d",
        status="ok",
        evidence=None,
        origin="measured",
        engine="native",
        versions={},
        git_commit=None,
        git_dirty=None,
        seed=1,
        started_at="",
        ended_at="",
        duration_s=0,
        nodes=nodes,
        facts={},
    )
    write_manifest(raw / "manifest.json", manifest)
    for index, times in samples.items():
        recorder = SampleRecorder(raw / "telemetry" / f"node{index}.arrow", 1.0, {})
        for t in times:
            recorder.add(t, 1, "host", {"cpu_utilisation": 0.25})
        recorder.close()
    STEPS.write(raw / "steps.parquet", STEPS.from_rows(steps))
    return raw


def step(rank: int, number: int, kind: str, start_s: float, end_s: float) -> dict:
    return {
        "rank": rank,
        "step": number,
        "kind": kind,
        "t_start_ns": int(start_s * SECOND),
        "t_end_ns": int(end_s * SECOND),
        "loss": None,
        "num_tokens": 8,
        "peak_memory_bytes": None,
    }


def test_align_run_marks_steps_and_time_between_them(tmp_path: Path) -> None:
    times = [t * SECOND for t in range(1, 7)]
    steps = [step(0, 0, "warmup", 2, 3), step(0, 1, "measured", 4.5, 5.5)]
    raw = run_folder(tmp_path / "raw", (node(0, 0, 0),), {0: times}, steps)
    align_run(raw, tmp_path / "telemetry.parquet")
    table = TELEMETRY.read(tmp_path / "telemetry.parquet").to_pydict()
    assert table["step"] == [None, 0, 0, None, 1, None]
    assert table["kind"] == [None, "warmup", "warmup", None, "measured", None]


def test_align_run_puts_second_node_on_the_first_clock(tmp_path: Path) -> None:
    # Node 1 booted 100 s after node 0: at the same wall time its monotonic clock reads 100 s less.
    nodes = (node(0, 500 * SECOND, 1_000 * SECOND), node(1, 400 * SECOND, 1_000 * SECOND))
    raw = run_folder(
        tmp_path / "raw", nodes, {0: [501 * SECOND], 1: [402 * SECOND]}, [step(1, 0, "measured", 401, 403)]
    )
    align_run(raw, tmp_path / "telemetry.parquet")
    table = TELEMETRY.read(tmp_path / "telemetry.parquet").to_pydict()
    assert table["t_ns"] == [501 * SECOND, 502 * SECOND]
    assert table["step"] == [None, 0]


def test_mark_gaps_only_where_two_periods_passed() -> None:
    t_ns = np.array([0, 10, 11, 15, 40, 41]) * SECOND
    device = np.array(["a", "b", "a", "b", "b", "a"])
    assert mark_gaps(t_ns, device, period_s=10).tolist() == [False, False, False, False, True, True]


def test_align_run_marks_gaps_of_each_lane_by_its_own_period(tmp_path: Path) -> None:
    raw = run_folder(tmp_path / "raw", (node(0, 0, 0),), {0: []}, [])
    path = raw / "telemetry" / "node0.arrow"
    for file, period_s, seconds in ((path, 1.0, [1, 2, 4.1]), (fast_path(path), 0.1, [1.05, 1.15, 1.36, 1.46])):
        recorder = SampleRecorder(file, period_s, {}, columns=("gpu_temp_c",))
        for t_s in seconds:
            recorder.add(round(t_s * SECOND), 1, "gpu0", {"gpu_temp_c": 40.0})
        recorder.close()
    align_run(raw, tmp_path / "telemetry.parquet")
    table = TELEMETRY.read(tmp_path / "telemetry.parquet").to_pydict()
    late = [t / SECOND for t, is_gap in zip(table["t_ns"], table["is_gap"], strict=True) if is_gap]
    assert late == [1.36, 4.1]


def test_align_run_takes_offset_and_drift_from_the_round_trips(tmp_path: Path) -> None:
    clock = Clock(
        reference_ns=100 * SECOND, offset_ns=5 * SECOND, drift_ppm=50.0, uncertainty_ns=1, least_delay_ns=1,
        num_bursts=2, num_round_trips=2, duration_s=1000.0,
    )  # fmt: skip
    # Its wall clock is an hour wrong, which nobody asks.
    other = node(1, 0, 3600 * SECOND).model_copy(update={"clock": clock})
    raw = run_folder(
        tmp_path / "raw", (node(0, 0, 0), other), {0: [105 * SECOND], 1: [100 * SECOND, 1100 * SECOND]}, []
    )
    align_run(raw, tmp_path / "telemetry.parquet")
    table = TELEMETRY.read(tmp_path / "telemetry.parquet").to_pydict()
    # 1000 s at 50 ppm are 50 ms.
    assert table["t_ns"] == [105 * SECOND, 105 * SECOND, 1105 * SECOND + SECOND // 20]


def test_align_run_says_what_a_cut_off_recording_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = Telemetry(period_s=1.0, num_samples=200, measured=("cpu_utilisation",), absent={})
    nodes = (node(0, 0, 0).model_copy(update={"telemetry": told}),)
    raw = run_folder(tmp_path / "raw", nodes, {}, [step(0, 0, "measured", 1, 2)])
    path, out = raw / "telemetry" / "node0.arrow", tmp_path / "telemetry.parquet"
    recorder = SampleRecorder(path, 1.0, {})
    for t in range(200):
        recorder.add(t * SECOND, 1, "host", {"cpu_utilisation": t / 200})
        recorder.flush()
    recorder.close()
    whole = path.read_bytes()
    align_run(raw, out)
    assert TELEMETRY.read(out).num_rows == 200 and not capsys.readouterr().err
    path.write_bytes(whole[: len(whole) * 9 // 10])
    align_run(raw, out)
    num, err = TELEMETRY.read(out).num_rows, capsys.readouterr().err
    assert 0 < num < 200 and f"node0.arrow: {num} of 200 samples can be read" in err and err.count("\n") == 1
    kept = out.read_bytes()
    recorder = SampleRecorder(path, 1.0, {})
    for t in range(200):
        recorder.add(t * SECOND, 1, "host", {"cpu_utilisation": t / 200})
    recorder.close()
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(UserError, match=r"node0\.arrow: 0 of 200 samples"):
        align_run(raw, out)
    assert out.read_bytes() == kept
