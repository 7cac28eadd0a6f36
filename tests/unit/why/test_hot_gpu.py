"""One hot GPU of 16 is named with its cause from 30 steps, and its cost is what the simulator makes of the step."""

from pathlib import Path

import pytest

from tests.benchmarks.hot_gpu import NUM_STEPS, Case, Judged, hot_run, judge, sound_step_s
from tests.made_up_clusters import write_cluster
from triplepoint.why.answer import why_run

CASES = (Case(0, 11, 4.0), Case(0, 2, 5.5))


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> list[Judged]:
    sound_s = sound_step_s(0, tmp_path_factory.mktemp("sound"))
    return [judge(case, sound_s, tmp_path_factory.mktemp("hot")) for case in CASES]


def test_hot_gpu_is_named_and_its_cost_is_told(judged: list[Judged]) -> None:
    assert [one.is_named for one in judged] == [True, True]
    for one in judged:
        assert one.lost_s > 0.2 * one.answer.step_s
        assert one.error == pytest.approx(0, abs=0.15), one.case


def test_hot_gpu_without_traces_is_named_with_a_bound(tmp_path: Path, judged: list[Judged]) -> None:
    """Ranks end their steps together but for a little: their clocks tell more than the lengths of their steps."""
    run = write_cluster(tmp_path / "hot", CASES[1].fault, hot_run(0, 0))
    answer = why_run(run)
    found = answer.findings[0]
    assert (answer.source, answer.num_steps) == ("step times", NUM_STEPS)
    assert (found.rank, found.cause, found.is_bound) == (2, "contact", True)
    assert judged[1].lost_s < found.lost_s < answer.step_s
