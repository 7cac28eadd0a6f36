"""Causes of slow GPUs on simulated clusters whose truth is known."""

import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from tests.made_up_clusters import (
    CLUSTERS,
    LATE_CLUSTERS,
    PER_NODE,
    Fault,
    confusion_table,
    replica_and_stage,
    why_late,
    with_fault,
    write_cluster,
)
from triplepoint.why.answer import Answer, why_run
from triplepoint.why.run_operations import operations_of_traces

DOCS = Path("docs/why.md")


class Judged(NamedTuple):
    fault: Fault
    answer: Answer
    lost_s: float
    """What the fault makes of the step; NaN where no sound twin was simulated."""

    @property
    def said(self) -> str | None:
        return self.answer.findings[0].cause if self.answer.findings else None


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[Fault, Path]:
    return {fault: write_cluster(tmp_path_factory.mktemp("cluster"), fault) for fault in CLUSTERS}


@pytest.fixture(scope="module")
def judged(runs: dict[Fault, Path]) -> list[Judged]:
    answers = {fault: why_run(run) for fault, run in runs.items()}
    sound_s = {fault.seed: answers[fault].step_s for fault in CLUSTERS if fault.cause is None}
    found = [Judged(fault, one, one.step_s - sound_s.get(fault.seed, np.nan)) for fault, one in answers.items()]
    operations = operations_of_traces(runs[CLUSTERS[0]], replica_and_stage, PER_NODE)
    for fault in LATE_CLUSTERS:
        usual = float(with_fault(operations, Fault(None, seed=fault.seed)).step_time_s.mean())
        answer = why_late(runs[CLUSTERS[0]], fault)
        found.append(Judged(fault, answer, answer.step_s - usual))
    return found


@pytest.mark.long
def test_every_cause_is_told_and_sound_clusters_have_none(judged: list[Judged]) -> None:
    assert len(judged) >= 20
    assert [(one.fault.cause, one.said) for one in judged if one.said != one.fault.cause] == []


@pytest.mark.long
def test_the_slow_gpu_is_named(judged: list[Judged]) -> None:
    for one in judged:
        if one.fault.cause == "heat":  # both of a node
            assert one.answer.findings[0].rank // PER_NODE == one.fault.gpu[0]
        elif one.fault.cause is not None:
            assert one.answer.findings[0].rank == one.fault.rank, one.fault


@pytest.mark.long
def test_what_a_gpu_costs_is_what_its_fault_made_of_the_step(judged: list[Judged]) -> None:
    known = [one for one in judged if one.fault.cause is not None and np.isfinite(one.lost_s)]
    assert len(known) >= 15
    for one in known:
        told_s = sum(finding.lost_s for finding in one.answer.findings)
        assert told_s == pytest.approx(one.lost_s, rel=0.25, abs=0.01 * one.answer.step_s), one.fault


@pytest.mark.long
def test_where_heat_explains_nothing_it_is_said(judged: list[Judged]) -> None:
    for one in judged:
        is_of_heat = one.fault.cause in ("heat", "contact")
        assert one.answer.heat.startswith("Heat explains nothing here") == (not is_of_heat), one.fault


@pytest.mark.long
def test_documented_confusion_table(judged: list[Judged]) -> None:
    table = confusion_table([(one.fault.cause, one.said) for one in judged])
    assert "\n".join(table) in DOCS.read_text(), "\n".join(table)


def test_clocks_alone_tell_the_cause_and_a_bound_where_there_are_no_traces(tmp_path: Path) -> None:
    fault = next(fault for fault in CLUSTERS if fault.limit_w == 450)
    whole = write_cluster(tmp_path / "whole", fault)
    bare = shutil.copytree(whole, tmp_path / "bare")
    (bare / "timeline.parquet").unlink()
    answer = why_run(bare)
    found = answer.findings[0]
    assert (answer.source, found.rank, found.cause, found.is_bound) == ("step times", fault.rank, "power limit", True)
    assert "no traces" in answer.notes[0]
    assert found.lost_s > next(iter(why_run(whole).findings)).lost_s
