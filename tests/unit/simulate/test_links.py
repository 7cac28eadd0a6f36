"""Link counters of simulated runs: bytes by hand, and against what the traces of the same run say."""

import dataclasses
import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from tests.points import planned, tiny_point
from tests.unit.simulate.stand_ins import simulated
from triplepoint.config.plan import PlannedRun
from triplepoint.config.point import Layout, PointCluster
from triplepoint.recording import read_recording
from triplepoint.simulate.artefacts.links import NodeSpread, spread_of_ranks, traffic
from triplepoint.simulate.artefacts.recordings import count_bytes, sample_times, write_recordings
from triplepoint.simulate.artefacts.write import write_traces
from triplepoint.simulate.fabric import Fabric

PER_NODE = 4
JOBS = {
    "tensor parallel in a node": Layout(tp=4, dp=2),
    "data parallel across nodes": Layout(tp=2, dp=4, data_parallel_sharding="optim"),
    "pipeline across nodes": Layout(tp=2, pp=4, schedule="1f1b"),
    "interleaved": Layout(tp=2, pp=2, dp=2, vp=2, schedule="interleaved_1f1b"),
}


@pytest.mark.parametrize(
    ("kind", "ranks", "inside", "outside"),
    [
        # 800 byte among 4 on one node: each passes 3/4 of it on, twice in an all-reduce.
        ("all_reduce", (0, 1, 2, 3), 1200, 0),
        ("all_gather", (0, 1, 2, 3), 600, 0),
        # One a node: all of it leaves.
        ("reduce_scatter", (0, 4, 8, 12), 0, 600),
        # Two on each of two nodes: of the ring's four hops two leave.
        ("all_reduce", (0, 2, 4, 6), 600, 600),
        # To three others 200 each, one of them on the node.
        ("all_to_all", (0, 2, 4, 6), 200, 400),
    ],
)
def test_traffic_by_hand(kind: str, ranks: tuple[int, ...], inside: float, outside: float) -> None:
    assert traffic(kind, 800, spread_of_ranks(ranks, 0, PER_NODE)) == pytest.approx((inside, outside))  # type: ignore[arg-type]


def traced_bytes(path: Path) -> tuple[float, float]:
    """Return what a trace's rank sent inside its node and out of it, from the arguments of its kernels alone."""
    total = {True: 0.0, False: 0.0}
    for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]:
        told = event.get("args", {})
        kind = told.get("Collective name")
        if kind is None:
            continue
        ranks = json.loads(told["Process Group Ranks"])
        whole = max(told["In msg nelems"], told["Out msg nelems"])
        share = (len(ranks) - 1) / len(ranks) * whole * (2 if kind == "allreduce" else 1)
        nodes = {one // PER_NODE for one in ranks}
        leaving = len(nodes) / len(ranks) if len(nodes) > 1 else 0.0
        total[True] += share * (1 - leaving)
        total[False] += share * leaving
    return total[True], total[False]


@pytest.mark.parametrize("name", ["tensor parallel in a node", "data parallel across nodes"])
def test_counters_are_the_bytes_of_the_trace(name: str, tmp_path: Path) -> None:
    job = simulated(JOBS[name], model="llama3-30b")
    write_traces(tmp_path, job, [0, 5], [0])
    length = round(job.timeline.step_time_s * 1e9)
    counted = count_bytes(run_of(JOBS[name]), job, np.array([0, length, 3 * length]))
    for rank in (0, 5):
        inside, outside = traced_bytes(tmp_path / f"rank{rank}.json.gz")
        assert counted[rank, 0].tolist() == [0, 0, 0, 0]
        # A whole number of elements a message is told to the trace.
        assert counted[rank, 1].tolist() == pytest.approx([inside, outside, inside, outside], rel=1e-6)
        assert counted[rank, 2] == pytest.approx(3 * counted[rank, 1])
    assert counted[:, 1].sum() > 0


@pytest.mark.parametrize("name", JOBS)
def test_counters_receive_what_others_send(name: str) -> None:
    job = simulated(JOBS[name], model="llama3-30b")
    length = round(job.timeline.step_time_s * 1e9)
    times = np.linspace(0, 2 * length, 41).astype(np.int64)
    counted = count_bytes(run_of(JOBS[name]), job, times)
    assert counted[:, -1, 0].sum() == pytest.approx(counted[:, -1, 2].sum(), rel=1e-9)
    assert counted[:, -1, 1].sum() == pytest.approx(counted[:, -1, 3].sum(), rel=1e-9)
    assert (np.diff(counted, axis=1) >= -1e-3).all(), "counters only grow"


def test_counters_of_a_pipeline_by_hand() -> None:
    job = simulated(JOBS["pipeline across nodes"], model="llama3-30b")
    length = round(job.timeline.step_time_s * 1e9)
    counted = count_bytes(run_of(JOBS["pipeline across nodes"]), job, np.array([length]))
    activation = job.stages[0].chunks[0].send_bytes
    # Stages 1 and 2 are on different nodes: 4 activations of one rank forward, 4 gradients of the other back.
    assert counted[2, 0, 1] == counted[4, 0, 1] == pytest.approx(4 * activation)
    assert counted[0, 0, 1] == 0


def test_write_recordings_has_gpus_and_adapters(tmp_path: Path) -> None:
    job, run = simulated(JOBS["data parallel across nodes"], model="llama3-30b"), run_of(Layout(tp=2, dp=4))
    write_recordings(tmp_path, run, job, count_bytes(run, job, sample_times(run, job)))
    found = read_recording(tmp_path / "node1.arrow")
    last = {row["device"]: row for row in found.samples.to_pylist()}
    assert set(last) == {"host", "gpu0", "gpu1", "gpu2", "gpu3"}
    sent = sum(last[f"gpu{number}"]["pcie_tx_bytes"] for number in range(PER_NODE))
    assert last["host"]["infiniband_tx_bytes"] == pytest.approx(sent, abs=PER_NODE)
    assert last["gpu0"]["nvlink_tx_bytes"] > 0


def test_write_recordings_counts_all_bytes_on_pcie_where_it_joins_the_gpus(tmp_path: Path) -> None:
    linked, run = simulated(JOBS["data parallel across nodes"], model="llama3-30b"), run_of(Layout(tp=2, dp=4))
    inside, *outside = linked.job.fabric.levels
    levels = (dataclasses.replace(inside, counters="pcie"), *outside)
    on_pcie = dataclasses.replace(linked, job=dataclasses.replace(linked.job, fabric=Fabric(levels)))
    sent = {}
    for name, job in (("nvlink", linked), ("pcie", on_pcie)):
        write_recordings(tmp_path / name, run, job, count_bytes(run, job, sample_times(run, job)))
        sent[name] = read_recording(tmp_path / name / "node0.arrow").samples.to_pylist()
    last = {name: {row["device"]: row for row in rows}["gpu0"] for name, rows in sent.items()}
    both = last["nvlink"]["nvlink_tx_bytes"] + last["nvlink"]["pcie_tx_bytes"]
    assert last["pcie"]["pcie_tx_bytes"] == pytest.approx(both, abs=2)
    assert last["pcie"]["nvlink_tx_bytes"] is None


def run_of(layout: Layout) -> PlannedRun:
    point = tiny_point().model_copy(
        update={
            "layout": layout,
            "num_gpus": 8,
            "engine": "simulated",
            "cluster": PointCluster(name="h200x8", device="cuda", gpu="h200", gpus_per_node=PER_NODE),
        }
    )
    return planned(point)


def test_traffic_of_what_two_ranks_exchange() -> None:
    assert traffic("send_recv", 100.0, NodeSpread(4, 4, 1)) == (100.0, 0.0)
    assert traffic("send_recv", 100.0, NodeSpread(16, 8, 2)) == (0.0, 100.0)
