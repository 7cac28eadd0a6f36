"""Raw artefacts of simulated runs, read back by the stages that read those of real ones."""

import gzip
import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.points import planned, tiny_point
from tests.unit.simulate.stand_ins import CONFIG, representatives, simulated, time_of
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.point import Layout, PointCluster
from triplepoint.manifest import read_manifest
from triplepoint.simulate.artefacts.groups import groups_of
from triplepoint.simulate.artefacts.rank_trace import communication_names, kernel_name
from triplepoint.simulate.artefacts.simulated import Simulated
from triplepoint.simulate.artefacts.write import write_failure, write_run, write_traces
from triplepoint.simulate.operations import Communication, Kernel, Operation
from triplepoint.simulate.timeline.expand import lay_out, wait_for_slowest
from triplepoint.tables import STEPS, TELEMETRY
from triplepoint.telemetry.align import align_run
from triplepoint.trace.loose_traces import trace_files
from triplepoint.trace.taxonomy import load_scheme

GRAD, BOTH = frozenset({"grad"}), frozenset({"grad", "param"})

JOBS: dict[str, tuple[Layout, dict[str, Any]]] = {
    "one stage": (Layout(tp=2, dp=2), {"model": "llama3-30b"}),
    "1f1b": (Layout(tp=8, pp=4, dp=2, sequence_parallel=True, schedule="1f1b"), {}),
    "slow replica": (
        Layout(tp=8, pp=2, dp=4, data_parallel_sharding="optim", schedule="1f1b"),
        {"slow": (1.0, 1.07), "overlap": BOTH},
    ),
    "interleaved": (Layout(tp=4, pp=4, vp=2, dp=2, schedule="interleaved_1f1b"), {"overlap": GRAD}),
    "zero bubble": (Layout(tp=4, pp=4, dp=2, schedule="zero_bubble"), {"overlap": GRAD}),
    "sharded": (Layout(dp=4, data_parallel_sharding="optim_grads_params"), {"model": "gpt3-30b", "overlap": BOTH}),
    "experts": (Layout(tp=2, pp=2, dp=4, ep=4, sequence_parallel=True, schedule="1f1b"), {"model": "mixtral-8x7b"}),
    "mi250": (Layout(tp=8, pp=2, dp=2, schedule="gpipe"), {"gpu": "mi250", "recompute": "full"}),
}


def accounted(folder: Path, rank: int) -> dict[str, int]:
    """Return what `triplepoint trace` says of a rank: computation, exposed communication, idle time. Unit: ns."""
    table = pq.read_table(folder / "categories.parquet").filter(pc.field("rank") == rank)
    found = {"compute": 0, "comm": 0, "idle": 0}
    for row in table.to_pylist():
        if row["category"] in found:
            found[row["category"]] += row["exposed_ns" if row["category"] == "comm" else "busy_ns"]
    return found


@pytest.mark.parametrize("name", JOBS)
def test_write_traces_parsed_are_the_timeline(name: str, tmp_path: Path) -> None:
    """A rank that waits for others sits in a kernel; only after its update it does nothing until the step ends."""
    layout, changes = JOBS[name]
    job = simulated(layout, **changes)
    write_traces(tmp_path / "traces", job, representatives(job), [12])
    trace_files([tmp_path / "traces"], tmp_path / "out", load_scheme(), lambda line: None, num_jobs=1)
    accounts, updates_s = job.timeline.accounts, job.timeline.durations.optimizer.total
    for rank in representatives(job):
        place = job.place(rank)
        idle = round((updates_s.max() - updates_s[place]) * 1e9)
        waits = round((accounts.bubble_s[place] + accounts.straggler_s[place]) * 1e9) - idle
        comm = round(accounts.exposed_comm_s[place] * 1e9) + waits
        expected = {"compute": round(accounts.compute_s[place] * 1e9), "comm": comm, "idle": idle}
        assert accounted(tmp_path / "out", rank) == pytest.approx(expected, abs=3), "rounding of three times"


def test_a_pause_after_the_update_is_idle_in_traces_and_part_of_the_step(tmp_path: Path) -> None:
    usual = simulated(*JOBS["1f1b"][:1])
    paused = replace(usual, durations=replace(usual.durations, pause_s=0.25))
    assert paused.timeline.step_time_s == pytest.approx(usual.timeline.step_time_s + 0.25)
    assert sum(part.mean() for part in paused.timeline.accounts) == pytest.approx(paused.timeline.step_time_s)
    bubbles_s = [job.timeline.bubble_fraction * job.timeline.step_time_s for job in (usual, paused)]
    assert bubbles_s[0] == pytest.approx(bubbles_s[1]), "no wait for the pipeline"
    idle = []
    for name, job in (("usual", usual), ("paused", paused)):
        write_traces(tmp_path / name / "traces", job, [0], [3])
        trace_files([tmp_path / name / "traces"], tmp_path / name, load_scheme(), lambda line: None, num_jobs=1)
        idle.append(accounted(tmp_path / name, 0)["idle"])
    assert idle[1] - idle[0] == pytest.approx(0.25e9, abs=2)


def test_write_traces_waiting_for_a_slow_replica_shows(tmp_path: Path) -> None:
    job = simulated(Layout(tp=4, dp=2), slow=(1.0, 1.1))
    write_traces(tmp_path / "traces", job, [0, 4], [0])
    trace_files([tmp_path / "traces"], tmp_path / "out", load_scheme(), lambda line: None, num_jobs=1)
    waited = {0: 0, 4: 0}
    for row in pq.read_table(tmp_path / "out" / "collectives.parquet").to_pylist():
        waited[row["rank"]] += row["waited_ns"] or 0
    assert waited == {0: round(job.timeline.accounts.straggler_s[0, 0] * 1e9), 4: 0}
    assert waited[0] > 0


def test_write_traces_phases_are_the_tasks(tmp_path: Path) -> None:
    job = simulated(Layout(tp=8, pp=2, schedule="1f1b"))
    write_traces(tmp_path / "traces", job, [8], [5])
    trace_files([tmp_path / "traces"], tmp_path / "out", load_scheme(), lambda line: None, num_jobs=1)
    rows = pq.read_table(tmp_path / "out" / "categories.parquet").to_pylist()
    forward = sum(row["busy_ns"] for row in rows if (row["phase"], row["category"]) == ("forward", "compute"))
    assert forward == 4 * round(job.timeline.durations.forward.compute[1, 0, 0] * 1e9)


def test_write_traces_are_json_and_say_what_they_are(tmp_path: Path) -> None:
    job = simulated(Layout(tp=2, pp=2, dp=2, schedule="1f1b"), model="llama3-30b")
    write_traces(tmp_path, job, [3], [0, 1])
    trace = json.loads(gzip.decompress((tmp_path / "rank3.json.gz").read_bytes()))
    assert trace["simulated"] is True
    assert (trace["distributedInfo"]["rank"], trace["distributedInfo"]["world_size"]) == (3, 8)
    # Ranks 0-3 are stage 0, in it 0 and 1 share tensors, 1 and 3 data.
    listed = {group["pg_name"]: group["ranks"] for group in trace["distributedInfo"]["pg_config"]}
    assert listed == {"tp 2": [2, 3], "dp 1": [1, 3], "pp 3": [3, 7]}
    events = trace["traceEvents"]
    kernels = [event for event in events if event.get("cat") == "kernel"]
    launches = {event["args"]["correlation"]: event for event in events if event.get("cat") == "cuda_runtime"}
    assert len(launches) == len(kernels) == len({event["args"]["correlation"] for event in kernels})
    assert all(launches[event["args"]["correlation"]]["ts"] <= event["ts"] for event in kernels)
    assert {event["name"] for event in events if event.get("cat") == "user_annotation"} >= {
        "ProfilerStep#0",
        "ProfilerStep#1",
        "forward stage=0 microbatch=0",
        "backward stage=0 microbatch=3",
        "grad_sync",
        "optimizer",
    }
    send = next(event for event in kernels if event["args"].get("Collective name") == "send")
    assert send["args"]["Process Group Ranks"] == "[3, 7]"


@pytest.mark.parametrize("gpu", ["a100", "h200", "mi250"])
@pytest.mark.parametrize("model", ["gpt3-30b", "mixtral-8x7b"])
def test_names_are_of_the_class_of_the_operation(gpu: str, model: str) -> None:
    precision = "fp8" if gpu == "h200" else "bf16"
    job = simulated(Layout(tp=2, pp=2, schedule="1f1b"), model=model, gpu=gpu, precision=precision)
    passes = [part for stage in job.stages for chunk in stage.chunks for part in vars(chunk).values() if part]
    operations = [op for part in passes if isinstance(part, tuple) for op in part]
    operations += [op for stage in job.stages for op in (*stage.gradient_sync, *stage.optimizer)]
    for operation in operations:
        if isinstance(operation, Kernel):
            assert load_scheme().device(kernel_name(operation, job.job.gpu)).cls == operation.cls, operation
        else:
            assert load_scheme().device(communication_names(operation, job.job.gpu)[0]).cls == "comm"


def h200_point(**changes: Any) -> Any:
    cluster = PointCluster(name="h200x32", device="cuda", gpu="h200", gpus_per_node=8)
    model = Catalogue(CONFIG).model("llama3-30b")
    fields = {"cluster": cluster, "engine": "simulated", "num_gpus": 16, "layout": Layout(tp=8, dp=2), "model": model}
    return tiny_point(**(fields | {"sequence_length": 2048, "trace_ranks": (0,), "precision": "bf16"} | changes))


def test_write_run_leaves_what_a_launch_leaves(tmp_path: Path) -> None:
    run = planned(h200_point())
    job: Simulated = simulated(run.point.layout, model="llama3-30b", global_batch_size=4, slow=(1.0, 1.5))
    raw = tmp_path / "raw"
    write_run(raw, run, job, datetime.now(UTC))
    manifest = read_manifest(raw / "manifest.json")
    assert (manifest.origin, manifest.status, manifest.digest) == ("simulated", "ok", run.digest)
    assert [[device.rank for device in node.devices] for node in manifest.nodes] == [[*range(8)], [*range(8, 16)]]
    steps = STEPS.read(raw / "steps.parquet")
    assert steps.num_rows == 16 * 4
    first = steps.slice(0, 4).to_pylist()
    assert [row["kind"] for row in first] == ["warmup", "measured", "measured", "profiled"]
    assert first[1]["t_start_ns"] - first[0]["t_start_ns"] == round(job.timeline.step_time_s * 1e9)
    # Rank 0 is of the fast class: its own optimizer ends before the other's.
    ends = np.array(steps["t_end_ns"]).reshape(16, 4)[:, 0]
    assert ends[0] < ends[8] == first[1]["t_start_ns"]
    assert sorted(path.name for path in (raw / "traces").iterdir()) == ["rank0.groups.json", "rank0.json.gz"]


def test_write_run_has_recordings_the_telemetry_stage_takes(tmp_path: Path) -> None:
    run = planned(h200_point())
    job = simulated(run.point.layout, model="llama3-30b", global_batch_size=4)
    manifest = write_run(tmp_path, run, job, datetime.now(UTC))
    align_run(tmp_path, tmp_path / "telemetry.parquet")
    telemetry = TELEMETRY.read(tmp_path / "telemetry.parquet")
    assert manifest.nodes[1].telemetry is not None
    assert telemetry.num_rows == sum(node.telemetry.num_samples for node in manifest.nodes if node.telemetry) > 0
    assert telemetry["gpu_power_w"].null_count == telemetry.num_rows
    assert not any(telemetry["is_gap"].to_pylist())
    assert {"nvlink_tx_bytes", "infiniband_rx_bytes"} <= set(manifest.nodes[1].telemetry.measured)
    assert "doctor --files h200" in manifest.nodes[1].telemetry.absent["gpu_power_w"]


def test_write_failure_says_why(tmp_path: Path) -> None:
    write_failure(
        tmp_path, planned(h200_point()), "NeMo b70681c", "oom", "weights 200 GiB of 141 GiB", datetime.now(UTC)
    )
    manifest = read_manifest(tmp_path / "manifest.json")
    assert (manifest.status, manifest.origin, manifest.nodes) == ("oom", "simulated", ())
    assert manifest.evidence is not None
    assert manifest.evidence.message == "weights 200 GiB of 141 GiB"


def test_groups_of_are_in_megatrons_order() -> None:
    job = simulated(Layout(tp=2, cp=2, dp=2, pp=2, schedule="1f1b"), model="llama3-30b").job
    found = groups_of(job, 13, ["tp", "cp", "dp", "pp"])
    assert {name: group.ranks for name, group in found.items()} == {
        "tp": (12, 13),
        "cp": (13, 15),
        "dp": (9, 13),
        "pp": (5, 13),
    }


def gemm(count: int = 1) -> Kernel:
    return Kernel("gemm", "forward", 5e8, 0.0, (1, 1, 1), count=count)


def test_lay_out_layers_take_turns() -> None:
    norm = Kernel("norm", "forward", 0.0, 1e6, count=2)
    laid = lay_out((gemm(), gemm(2), norm, gemm()), time_of, 1000, 0)
    assert laid.which.tolist() == [0, 1, 2, 1, 2, 3]
    assert laid.start[0] == 0
    assert (laid.start[1:] == laid.end[:-1]).all()
    assert laid.end[-1] == 1000


def test_lay_out_leaves_gaps_where_the_gpu_waits_for_the_host() -> None:
    laid = lay_out((gemm(), gemm()), lambda operation: 1.0, 1000, 0, 400)
    assert laid.duration.tolist() == [300, 300]
    assert laid.start.tolist() == [200, 700], "a gap before each, and the pass as long as it was"


def test_lay_out_messages_beside_cover_the_rest() -> None:
    # 10 us and 1 us of message beside 4 us of kernels: the last 7 us have no kernel beside them.
    beside = Communication("all_gather", "dp", 2e5, is_overlapped=True)
    laid = lay_out((beside, gemm()), time_of, 4000, 7000)
    assert [laid.stream[index] for index in range(2)] == ["dp", ""]
    assert (laid.start.tolist(), laid.duration.tolist()) == ([0, 0], [11000, 4000])


def test_lay_out_ends_with_pass() -> None:
    beside = Communication("all_gather", "dp", 2e5, is_overlapped=True)
    laid = lay_out((beside, gemm()), lambda operation: 1e-6, 4000, 0, ends_with_pass=True)
    assert (laid.start.tolist(), laid.end.tolist()) == ([3000, 0], [4000, 4000])


@pytest.mark.parametrize(
    ("host_share", "start_ns", "end_ns"),
    [
        (0.0, [60, 570, 1380, 1890, 2700], [510, 1320, 1830, 2640, 3150]),
        (1.0, [60, 1020, 1380, 2340, 2700], [510, 1320, 1830, 2640, 3150]),  # no kernel is launched earlier
    ],
)
def test_wait_for_slowest_arrives_early_and_leaves_together(
    host_share: float, start_ns: list[int], end_ns: list[int]
) -> None:
    all_reduce = Communication("all_reduce", "tp", 2e4)
    slowest = lay_out((gemm(), all_reduce, gemm(), all_reduce, gemm()), time_of, 3000, 600, 300)
    assert slowest.start.tolist() == [60, 1020, 1380, 2340, 2700]
    assert slowest.end.tolist() == [960, 1320, 2280, 2640, 3600]
    laid = wait_for_slowest(slowest, 0.5, host_share)
    assert laid.start.tolist() == start_ns
    assert laid.end.tolist() == end_ns


@pytest.mark.parametrize(("pace", "joined_ns"), [(0.9, 3000), (0.5, 2000)])
def test_wait_for_slowest_joins_overlapped_communication_when_its_kernels_are_done(pace: float, joined_ns: int) -> None:
    beside = Communication("all_gather", "dp", 2e5, is_overlapped=True, count=2)
    slowest = lay_out((beside, gemm()), lambda operation: 5e-7, 4000, 0, ends_with_pass=True)
    laid = wait_for_slowest(slowest, pace)
    of_stream = [index for index, stream in enumerate(laid.stream) if stream == "dp"]
    assert laid.start[of_stream].tolist() == [joined_ns, 3500]
    assert laid.end[of_stream].tolist() == [3500, 4000]


operations = st.lists(
    st.one_of(
        st.builds(gemm, st.integers(1, 4)),
        st.builds(
            Communication, st.just("all_reduce"), st.sampled_from(["tp", "dp"]), st.floats(0, 1e7), st.booleans()
        ),
    ),
    min_size=1,
    max_size=6,
)


@given(operations, st.integers(0, 10**6), st.integers(0, 10**6))
def test_lay_out_kernels_have_all_the_computation(ops: list[Operation], compute_ns: int, comm_ns: int) -> None:
    ops = [*ops, gemm()]
    laid = lay_out(ops, time_of, compute_ns, comm_ns)
    is_kernel = np.array([isinstance(laid.operations[which], Kernel) for which in laid.which], dtype=bool)
    assert laid.duration[is_kernel].sum() == compute_ns
    assert (laid.start >= 0).all()
    assert laid.end.max(initial=0) <= compute_ns + comm_ns
    if any(isinstance(op, Communication) for op in ops):
        # All instants of the pass have something: kernels and what they leave free.
        borders = np.unique(np.concatenate((laid.start, laid.end)))
        middle = (borders[1:] + borders[:-1]) / 2
        assert all(((laid.start < at) & (at < laid.end)).any() for at in middle)
        assert laid.end.max(initial=0) == compute_ns + comm_ns


@given(operations, st.integers(0, 10**6), st.integers(0, 10**6), st.floats(0.1, 1))
def test_wait_for_slowest_scales_computation_alone(
    ops: list[Operation], compute_ns: int, comm_ns: int, pace: float
) -> None:
    slowest = lay_out([*ops, gemm()], time_of, compute_ns, comm_ns, ends_with_pass=True)
    laid = wait_for_slowest(slowest, pace)
    of_kernels, of_slowest = (
        sum(run.duration[index] for index, which in enumerate(run.which) if isinstance(run.operations[which], Kernel))
        for run in (laid, slowest)
    )
    assert abs(of_kernels - pace * of_slowest) <= len(slowest.which)
    ends, of_slowest_ends = (
        sorted(run.end[[isinstance(run.operations[which], Communication) for which in run.which]].tolist())
        for run in (laid, slowest)
    )
    assert ends == of_slowest_ends
    assert (laid.start >= 0).all()
