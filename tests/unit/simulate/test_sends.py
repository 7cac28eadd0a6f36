"""Sends between pipeline stages: the adapters they share, and waiting for the later rank."""

from dataclasses import replace
from pathlib import Path

import pytest

from triplepoint.config.catalogue import Catalogue
from triplepoint.config.point import Layout
from triplepoint.plan import select
from triplepoint.simulate.artefacts.simulate_run import job_of
from triplepoint.simulate.calibration import Constants
from triplepoint.simulate.job import Job
from triplepoint.simulate.step import costs_of

CONFIG = Path("config")
MIB = 2**20


def published(**fields: object) -> Job:
    """Return a job of the published grid by its layout: 4 nodes of 8 GPUs with two adapters of 12.5e9 byte/s."""
    entries = select(CONFIG, ["microbatch"], ["cpu-local"], ["h200x32"]).valid
    layouts = ((entry.planned.point, entry.planned.point.layout) for entry in entries)
    point = next(point for point, own in layouts if all(getattr(own, name) == value for name, value in fields.items()))
    return job_of(point, Catalogue(CONFIG))


def send_s(job: Job, stage: int) -> float:
    return costs_of(job, Constants(), CONFIG).send_s(48 * MIB, stage)


def without_wait(job: Job) -> Job:
    return replace(job, software=job.software.model_copy(update={"send_wait": None}))


def test_send_over_a_nodes_edge_has_the_adapters_to_itself() -> None:
    """Of a rank a stage one sends over the edge, at the rate of one adapter; of eight each has a share of both."""
    alone, all_eight = (send_s(without_wait(published(tp=tp, pp=32 // tp)), 32 // tp // 4 - 1) for tp in (1, 8))
    # 48 MiB at 12.5e9 byte/s are 4.03 ms; links reach 80 to 100 % of it.
    assert 48 * MIB / 12.5e9 < alone < 48 * MIB / 12.5e9 / 0.8
    assert all_eight == pytest.approx(4 * alone, rel=0.02)
    inside = send_s(without_wait(published(tp=1, pp=32)), 0)
    assert inside < alone / 10


def test_send_waits_for_the_later_rank_on_the_published_software() -> None:
    job = published(tp=1, pp=32)
    assert job.software.send_wait is not None
    for stage in (0, 7):
        assert send_s(job, stage) - send_s(without_wait(job), stage) == pytest.approx(job.software.send_wait.value)


@pytest.mark.parametrize(("sharding", "engine", "expected"), [
    ("optim_grads_params", "simulated", {"grad", "param"}), ("optim_grads_params", "deepspeed", set()),
    ("optim", "simulated", set()),
])  # fmt: skip
def test_job_of_fsdp_overlaps_whatever_the_flags_say(sharding: str, engine: str, expected: set[str]) -> None:
    entries = select(CONFIG, ["microbatch"], ["cpu-local"], ["h200x32"]).valid
    point = next(one.planned.point for one in entries if one.planned.point.model.name == "llama3-70b")
    layout = Layout(tp=8, dp=4, data_parallel_sharding=sharding)
    changed = point.model_copy(update={"layout": layout, "engine": engine, "overlap": ()})
    assert job_of(changed, Catalogue(CONFIG), "NeMo b70681c").overlap == expected
