"""Faults of a pipeline without replicas: no other stage does the same work."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import yaml

from tests.made_up_clusters import CONFIG
from tests.points import simulated_plan
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.plan import PlannedRun
from triplepoint.config.point import Layout
from triplepoint.manifest import read_manifest
from triplepoint.simulate.artefacts.simulate_run import simulate_run
from triplepoint.tables import RANKS
from triplepoint.telemetry.align import align_run
from triplepoint.trace.run_traces import trace_run
from triplepoint.trace.taxonomy import load_scheme
from triplepoint.why.answer import Answer, why_run
from triplepoint.why.traced_operations import traced_operations

PP, TP = 3, 4


def why_with(folder: Path, **changed: Any) -> Answer:
    """Return why a run of three stages, each a tensor parallel group on a node of four GPUs, is slow."""
    traced = changed.pop("traced", "all")
    return why_run(run_with(folder, lambda config: planned(config, traced), **changed))


def run_with(folder: Path, plan_in: Callable[[Path], PlannedRun], **changed: Any) -> Path:
    """Return a simulated run, with its tables, on nodes of four GPUs with changed settings of the cluster."""
    config = shutil.copytree(CONFIG, folder / "config")
    path = config / "clusters" / "h200x32.yaml"
    cluster = yaml.safe_load(path.read_text())
    conditions = cluster["conditions"] | changed.pop("conditions", {})
    size = {"num_nodes": PP, "gpus_per_node": TP, "conditions": conditions}
    path.write_text(yaml.safe_dump(cluster | size | changed))
    run = folder / "results" / "runs" / "run"
    run.mkdir(parents=True)
    run_planned = plan_in(config)
    manifest = simulate_run(run_planned, run / "raw", config)
    assert manifest.status == "ok", manifest.evidence
    (run / "point.json").write_text(run_planned.model_dump_json())
    align_run(run / "raw", run / "telemetry.parquet")
    trace_run(run, load_scheme(), lambda line: None, 1)
    return run


def planned(config: Path, traced: Literal["all"] | tuple[int, ...], micro_batch_size: int = 1) -> PlannedRun:
    entries = simulated_plan("h200x32").valid
    run = next(entry.planned for entry in entries if "llama3-30b_h200x32_tp4-pp4-dp2" in entry.run)
    point = run.point.model_copy(update={
        "model": Catalogue(config).model("llama2-7b").model_copy(update={"num_layers": 33}),
        "layout": Layout(pp=PP, tp=TP, schedule="1f1b"), "num_gpus": PP * TP, "global_batch_size": 24,
        "micro_batch_size": micro_batch_size, "sequence_length": 4096, "recompute": "none", "trace_ranks": traced,
        "cluster": run.point.cluster.model_copy(update={"gpus_per_node": TP}),
        "steps": run.point.steps.model_copy(update={"warmup": 2, "measured": 6, "profiled": 1}),
    })  # fmt: skip
    return run.model_copy(update={"run": "run", "point": point, "digest": point.digest()})


def test_a_node_under_the_power_brake_is_degraded_and_not_too_many_layers(tmp_path: Path) -> None:
    answer = why_with(tmp_path, conditions={"braked_nodes": [1]})
    (found,) = answer.findings
    assert (found.name, found.cause, found.is_bound) == ("all 4 GPUs of node 1", "degraded", True)
    assert "power brake for 100 % of the time, 990 MHz against" in found.evidence
    assert answer.sentence.startswith("all 4 GPUs of node 1 are slow, cause: degraded; they cost up to ")
    # The traced step shows what the brake costs of the mean of the other stages.
    assert answer.slowdown.slowdown > 1.0


def test_a_slow_gpu_of_a_tensor_parallel_group_is_named(tmp_path: Path) -> None:
    """Its group waits for it, and its clock is as high as theirs: the traces of its peers show it."""
    run = run_with(tmp_path, lambda config: planned(config, "all", micro_batch_size=4), slow_gpus={"node2.gpu3": 0.9})
    answer = why_run(run)
    (found,) = answer.findings
    assert (found.rank, found.cause) == (11, "computation")
    assert found.excess == pytest.approx(1 / 0.9 - 1, rel=0.02)
    assert "longer than the other ranks of its stage" in found.evidence
    assert any("their clocks fall when they wait less" in note for note in answer.notes)
    operations = traced_operations(run, lambda rank: (0, rank // TP), TP)
    ends_s = [operations.end_s[~operations.is_comm & (operations.worker == rank)][:-1] for rank in range(8, 12)]
    for of_rank in ends_s[:3]:  # its peers leave each pass together with it
        assert np.allclose(np.sort(of_rank, axis=0), np.sort(ends_s[3], axis=0), atol=1e-6)


def test_a_slow_gpu_whose_passes_wait_for_the_host_is_not_named(tmp_path: Path) -> None:
    """With micro-batches of one sequence it makes the step 0.03 % longer."""
    assert why_with(tmp_path, slow_gpus={"node2.gpu3": 0.9}).findings == []


def long_run(config: Path, profiled: int = 2) -> PlannedRun:
    """Return a run of two stages with many micro-batches and some ranks traced, as a study has."""
    run = planned(config, (0, 4, 6, 7))
    point = run.point.model_copy(update={
        "model": Catalogue(config).model("llama3-8b"), "layout": Layout(pp=2, tp=TP, schedule="1f1b"),
        "num_gpus": 2 * TP, "global_batch_size": 128, "micro_batch_size": 2, "sequence_length": 8192,
        "steps": run.point.steps.model_copy(update={"profiled": profiled}),
    })  # fmt: skip
    return run.model_copy(update={"point": point, "digest": point.digest()})


def test_a_slow_gpu_of_a_long_pipeline_costs_what_its_repair_saves(tmp_path: Path) -> None:
    run = run_with(tmp_path / "slow", long_run, slow_gpus={"node1.gpu2": 0.9})
    ranks = RANKS.read(run / "ranks.parquet")
    assert ranks["clock_measured_ns"].to_pylist() == ranks["clock_spread_ns"].to_pylist() == [0, 0, 0, 0]
    sound = run_with(tmp_path / "sound", lambda config: long_run(config, profiled=1))
    slow_s, sound_s = (read_manifest(one / "raw" / "manifest.json").facts["step_time_s"] for one in (run, sound))
    assert isinstance(slow_s, float) and isinstance(sound_s, float)
    answer = why_run(run)
    (found,) = answer.findings
    assert (found.rank, found.cause) == (6, "computation")
    assert answer.step_s == pytest.approx(slow_s, rel=1e-6)
    assert found.lost_s == pytest.approx(slow_s - sound_s, rel=0.15)


def test_a_hot_gpu_whose_rank_has_no_trace_is_named(tmp_path: Path) -> None:
    answer = why_with(tmp_path, traced=(0, 4, 8), conditions={"bad_contact": {"node1.gpu2": 5}})
    (found,) = answer.findings
    assert (found.rank, found.cause, found.is_bound) == (6, "contact", True)
    assert "heat held the clock 100 % of the time against 0 %" in found.evidence


def test_a_sound_pipeline_has_no_cause(tmp_path: Path) -> None:
    assert why_with(tmp_path).findings == []
