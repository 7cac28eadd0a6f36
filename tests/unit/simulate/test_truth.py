"""The truth of a simulated run, against what its traces and recordings say when they are read like anybody's."""

import dataclasses
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.points import planned, simulated_plan, tiny_point
from tests.unit.simulate.stand_ins import CONFIG, simulated
from triplepoint.config.plan import PlannedRun
from triplepoint.config.point import Layout, PointCluster, Steps
from triplepoint.metrics import bus_factor
from triplepoint.recording import read_recording
from triplepoint.simulate.artefacts.simulate_run import simulate_run
from triplepoint.simulate.artefacts.simulated import Simulated, one_ns
from triplepoint.simulate.artefacts.write import write_run
from triplepoint.simulate.truth.energy import periods_of_step
from triplepoint.simulate.truth.path import critical_path, ranks_on
from triplepoint.simulate.truth.spans import LABELS, Label, spans_of
from triplepoint.tables.truth import TRUE_CRITICAL_PATH, TRUE_TIMES, TRUE_TRAFFIC
from triplepoint.trace.loose_traces import trace_files
from triplepoint.trace.taxonomy import load_scheme

OVERLAP = frozenset({"grad", "param"})
JOBS: dict[str, tuple[Layout, dict[str, Any]]] = {
    "one stage": (Layout(tp=2, dp=2), {}),
    "1f1b": (Layout(tp=2, pp=4, schedule="1f1b"), {}),
    "slow replica": (
        Layout(tp=2, pp=2, dp=2, data_parallel_sharding="optim", schedule="1f1b"),
        {"slow": (1.0, 1.07), "overlap": OVERLAP},
    ),
    "interleaved": (Layout(pp=4, vp=2, dp=2, schedule="interleaved_1f1b"), {"overlap": frozenset({"grad"})}),
    "zero bubble": (Layout(pp=4, schedule="zero_bubble"), {}),
    "sharded": (Layout(dp=4, data_parallel_sharding="optim_grads_params"), {"overlap": OVERLAP}),
}
PER_NODE = 4
LAST_NS = 3
"""Times are sums of some that were rounded. Unit: ns."""


def run_of(layout: Layout) -> PlannedRun:
    num_gpus = layout.tp * layout.pp * layout.dp
    cluster = PointCluster(name="h200x8", device="cuda", gpu="h200", gpus_per_node=PER_NODE)
    steps = Steps(warmup=1, measured=2, profiled=1)
    return planned(tiny_point(layout=layout, num_gpus=num_gpus, engine="simulated", cluster=cluster, steps=steps))


@pytest.fixture(scope="module", params=JOBS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Simulated, Path]:
    """Return a simulated job, and the folder of its raw files and of `tables` that its traces were parsed to."""
    layout, changes = JOBS[request.param]
    job = simulated(layout, model="llama3-30b", **changes)
    folder = tmp_path_factory.mktemp("run")
    write_run(folder, run_of(layout), job, datetime.now(UTC))
    trace_files([folder / "traces"], folder / "tables", load_scheme(), lambda line: None, num_jobs=1)
    return job, folder


def rows(path: Path) -> list[dict[str, Any]]:
    return pq.read_table(path).to_pylist()


def true_times(folder: Path) -> dict[int, Counter[tuple[str, str, str | None]]]:
    """Return true times of every rank by phase, category and kind. Unit: ns."""
    times: dict[int, Counter[tuple[str, str, str | None]]] = {}
    for row in TRUE_TIMES.read(folder / "truth/times.parquet").to_pylist():
        times.setdefault(row["rank"], Counter())[row["phase"], row["category"], row["kind"]] = row["time_ns"]
    return times


def test_times_add_up_to_the_step_and_are_the_accounts(run: tuple[Simulated, Path]) -> None:
    job, folder = run
    accounts, times = job.timeline.accounts, true_times(folder)
    assert sorted(times) == list(range(job.job.num_gpus))
    for rank, found in times.items():
        assert found.total() == one_ns(job.length_s)
        sums: Counter[str] = Counter()
        for (_, category, kind), time in found.items():
            sums["bubble" if kind in ("step_end", "pause") else kind if category == "idle" else category] += time
        place = job.place(rank)
        for name, of in zip(("compute", "comm", "bubble", "straggler"), accounts, strict=True):
            assert sums[name] == pytest.approx(of[place] * 1e9, abs=LAST_NS), (rank, name)


def test_times_are_what_the_traces_say(run: tuple[Simulated, Path]) -> None:
    """Computation by phase, waiting by cause; communication without waiting is what is left of exposed."""
    _, folder = run
    parsed: dict[int, Counter[str]] = {}
    for row in rows(folder / "tables/categories.parquet"):
        name = f"compute {row['phase']}" if row["category"] == "compute" else row["category"]
        parsed.setdefault(row["rank"], Counter())[name] += row["exposed_ns"]
    for row in rows(folder / "tables/ranks.parquet"):
        parsed[row["rank"]] += Counter(bubble=row["bubble_ns"], straggler=row["straggler_ns"])
        parsed[row["rank"]]["comm"] -= row["bubble_ns"] + row["straggler_ns"]
    for rank, found in true_times(folder).items():
        told: Counter[str] = Counter()
        for (phase, category, kind), time in found.items():
            idle = "idle" if kind in ("step_end", "pause") else str(kind)
            told[{"compute": f"compute {phase}", "comm": "comm", "idle": idle}[category]] += time
        assert dict(+parsed[rank]) == pytest.approx(dict(+told), abs=LAST_NS), rank


def test_traffic_is_that_of_the_collectives(run: tuple[Simulated, Path]) -> None:
    job, folder = run
    sent = Counter[int]()
    for row in rows(folder / "tables/collectives.parquet"):
        if row["kind"] == "send":
            sent[row["rank"]] += row["size_bytes"]
        elif row["kind"] not in ("recv", "send_recv"):
            # All links together carry the bus factor's share of the size.
            sent[row["rank"]] += row["size_bytes"] * bus_factor(row["kind"], row["num_ranks"])
    traffic = TRUE_TRAFFIC.read(folder / "truth/traffic.parquet").to_pylist()
    told, received = Counter[int](), Counter[int]()
    for row in traffic:
        if row["rank"] is not None:
            told[row["rank"]] += row["tx_bytes"]
            received[row["rank"]] += row["rx_bytes"]
    # The all-reduce of the norm, and parts of a byte.
    assert dict(told) == pytest.approx(dict(sent), rel=1e-6, abs=16)
    assert told.total() == pytest.approx(received.total())
    assert {row["node"] for row in traffic if row["rank"] is None} == {
        rank // PER_NODE for rank in range(job.job.num_gpus)
    }


def test_critical_path_is_the_step_and_that_of_the_traces(run: tuple[Simulated, Path]) -> None:
    job, folder = run
    path = TRUE_CRITICAL_PATH.read(folder / "truth/critical_path.parquet").to_pylist()
    ends = [row["t_start_ns"] + row["duration_ns"] for row in path]
    assert [row["t_start_ns"] for row in path] == [0, *ends[:-1]] and ends[-1] == one_ns(job.length_s)
    true, parsed = Counter[int](), Counter[int]()
    for row in path:
        true[row["stage"]] += row["duration_ns"]
        assert {job.place(int(rank))[0] for rank in row["ranks"].split(",")} == {row["stage"]}
    for row in rows(folder / "tables/critical_path.parquet"):
        parsed[job.place(row["rank"])[0]] += row["duration_ns"]
    # A send on the path is the sender's here; a trace may have it on the receiver, 20 us each.
    assert dict(parsed) == pytest.approx(dict(true), abs=40_000)


def test_critical_path_leaves_out_ranks_that_wait_for_their_group() -> None:
    job = simulated(Layout(tp=2, dp=2), model="llama3-30b", slow=(1.0, 1.1))
    assert {one.which for one in critical_path(job.timeline)} == {None, 1}
    assert ranks_on(job, 0, 1) == [2, 3]
    slow = simulated(Layout(tp=2, dp=2), model="llama3-30b")
    object.__setattr__(slow, "slow", {0: 1.0, 1: 1.2, 2: 1.0, 3: 1.0})
    assert ranks_on(slow, 0, 0) == [1, 2, 3]


def test_spans_of_a_faster_rank_wait_in_collectives() -> None:
    job = simulated(Layout(tp=2), model="llama3-30b")
    slowest, faster = (spans_of(job, 0, 0, pace).part.sum(axis=0) for pace in (1.0, 0.9))
    by_label = dict(zip(LABELS, zip(slowest.tolist(), faster.tolist(), strict=True), strict=True))
    for label, (whole, own) in by_label.items():
        if label.category == "compute":
            assert own == pytest.approx(0.9 * whole, abs=10)
        if label.kind == "straggler" and label.phase != "other":
            assert own == pytest.approx(0.1 * by_label[label._replace(category="compute", kind=None)][0], abs=10)
    assert slowest.sum() == faster.sum() == one_ns(job.length_s)


@pytest.fixture(scope="module")
def heated_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """Return the raw folder of a point on the simulated H200 cluster, under its power limit, and its steps."""
    folder = tmp_path_factory.mktemp("heated")
    entries = simulated_plan("h200x32").valid
    entry = next(one for one in entries if "llama3-70b_h200x32_tp4-pp4-dp2-sp-zero1_mbs1_act_sim" in one.run)
    simulate_run(entry.planned, folder, CONFIG)
    return folder, len(entry.planned.point.steps.kinds)


def test_energies_add_up_to_the_counter(heated_run: tuple[Path, int]) -> None:
    """Steps differ in length where the jitter of the software is known, not in energy."""
    folder, num_steps = heated_run
    sums = Counter[int]()
    for row in TRUE_TIMES.read(folder / "truth/times.parquet").to_pylist():
        sums[row["rank"]] += row["gpu_energy_j"]
    for node in range(4):
        table = read_recording(folder / "telemetry" / f"node{node}.arrow").samples
        device = np.array(table["device"].to_pylist())
        energy_j = table["gpu_energy_j"].to_numpy(zero_copy_only=False)
        for number in range(8):
            own, rank = device == f"gpu{number}", 8 * node + number
            # A counter publishes ten times a second.
            assert energy_j[own][-1] / num_steps == pytest.approx(sums[rank], rel=0.002)


def test_energies_are_higher_where_more_is_done(heated_run: tuple[Path, int]) -> None:
    """Waiting draws what a GPU draws that polls, 146 W when cool; computation more than the limit's 700 W at times."""
    energy_j, time_ns = Counter[str](), Counter[str]()
    for row in TRUE_TIMES.read(heated_run[0] / "truth/times.parquet").to_pylist():
        name = row["kind"] if row["category"] != "compute" else f"compute {row['phase']}"
        energy_j[name] += row["gpu_energy_j"]
        time_ns[name] += row["time_ns"]
    power_w = {name: energy_j[name] / time_ns[name] * 1e9 for name in energy_j}
    assert 140 < power_w["bubble"] < power_w["collective"] < 250 < power_w["compute backward"] < 985
    assert power_w["bubble"] == pytest.approx(power_w["host"], rel=0.15)


@pytest.mark.parametrize(("num_periods", "num_steps", "per_step"), [(6, 2, 3), (286, 4, 71), (7, 2, 3), (3, 1, 3)])
def test_periods_of_steps_go_through_each_step_once(num_periods: int, num_steps: int, per_step: int) -> None:
    periods = periods_of_step(num_periods, num_steps, per_step)
    assert len(periods) == num_periods and (np.bincount(periods) >= num_steps).all()
    assert (np.diff(periods) < 0).sum() == num_steps - 1 and periods[0] == 0 and periods[-1] == per_step - 1
    if num_periods == num_steps * per_step:
        assert periods.tolist() == [*range(per_step)] * num_steps


def test_pause_of_the_host_is_last_and_on_the_path() -> None:
    job = simulated(Layout(tp=2, pp=2, schedule="1f1b"), model="llama3-30b")
    job = dataclasses.replace(job, durations=dataclasses.replace(job.durations, pause_s=0.25))
    spans = spans_of(job, 0, 0, 1.0)
    pause = LABELS.index(Label("other", "idle", "pause"))
    assert spans.part[:, pause].tolist() == [*[0] * (len(spans.part) - 1), 250_000_000]
    assert critical_path(job.timeline)[-1].label.kind == "pause"
    assert critical_path(job.timeline)[-2].label.phase == "optimizer"
