"""What is done after an attempt without a result."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.points import planned, tiny_point
from triplepoint.config.site import Gang
from triplepoint.launch.attempt import again, bad_nodes, may_requeue, note_bad_node, with_less_time, with_more_time
from triplepoint.manifest import Evidence, Manifest, Suspect
from triplepoint.status import Status

FAILURES: tuple[Status, ...] = (
    *("crashed", "collective", "hung", "timeout"),
    *("preempted", "lost", "bad_node", "cancelled"),
)


def ended(status: Status, host: str = "") -> Manifest:
    return Manifest(
        run="tiny",
        digest="0",
        status=status,
        evidence=Evidence(rank=None, host=host, message="it went wrong", log_tail=()),
        origin="measured",
        engine="native",
        versions={},
        git_commit=None,
        git_dirty=None,
        seed=1,
        started_at="2026-01-01T00:00:00+00:00",
        ended_at="2026-01-01T00:01:00+00:00",
        duration_s=60.0,
        nodes=(),
        facts={},
    )


@pytest.mark.parametrize(
    ("statuses", "goes_on"),
    [
        (["preempted"], True),
        (["preempted", "lost", "bad_node"], True),
        (["preempted", "lost", "bad_node", "lost"], False),
        (["crashed"], True),
        (["crashed", "hung"], False),
        (["lost", "crashed", "lost"], True),
        (["timeout"], True),
        (["timeout", "timeout"], False),
        (["timeout", "preempted"], True),
        (["cancelled"], False),
        (["lost", "cancelled"], False),
    ],
)
def test_again_counts_each_kind_by_itself(statuses: list[Status], goes_on: bool) -> None:
    found = again([ended(status) for status in statuses], Gang(requeues=3, retries=1))
    assert (found is not None) == goes_on


@given(st.lists(st.sampled_from(FAILURES), max_size=40))
def test_again_always_ends(statuses: list[Status]) -> None:
    options = Gang(requeues=3, retries=1)
    tried: list[Manifest] = []
    for status in statuses:
        tried.append(ended(status))
        if again(tried, options) is None:
            break
    assert len(tried) <= 1 + options.requeues + options.retries + 1


def test_again_timeout_gets_twice_the_time() -> None:
    found = again([ended("timeout")], Gang())
    assert found is not None
    assert with_more_time(planned(tiny_point(), time_limit_s=100.0), found.time_factor).limits.time_limit_s == 200.0


def test_again_leaves_out_broken_nodes_and_those_lost_twice() -> None:
    once = again([ended("lost", "n1")], Gang())
    twice = again([ended("lost", "n1"), ended("lost", "n1")], Gang())
    broken = again([ended("bad_node", "n2"), ended("lost", "n1")], Gang())
    assert once and not once.exclude
    assert twice and twice.exclude == {"n1"}
    assert broken and broken.exclude == {"n2"}


def test_note_bad_node_is_read_by_later_launches(tmp_path: Path) -> None:
    assert bad_nodes(tmp_path) == frozenset()
    path = note_bad_node(tmp_path, ended("bad_node", "n7"))
    assert path == tmp_path / "bad_nodes" / "n7.json"
    assert bad_nodes(tmp_path) == {"n7"}
    assert note_bad_node(tmp_path, ended("lost", "n8")) is None


def test_with_less_time_never_gives_more() -> None:
    run = planned(tiny_point(), time_limit_s=100.0)
    assert with_less_time(run, 40.0).limits.time_limit_s == 40.0
    assert with_less_time(run, 400.0) is run
    assert with_less_time(run, None) is run
    assert with_less_time(run, 40.0).digest == run.digest


@pytest.mark.parametrize("statuses", [[], ["preempted", "bad_node"], ["crashed", "timeout", "lost", "lost"]])
def test_may_requeue_agrees_with_again(statuses: list[Status]) -> None:
    tried = [ended(status) for status in statuses]
    assert may_requeue(tried, Gang(requeues=3)) == (again([*tried, ended("bad_node")], Gang(requeues=3)) is not None)


def test_may_requeue_ends() -> None:
    assert not may_requeue([ended("bad_node")] * 3, Gang(requeues=3))


@pytest.mark.parametrize(("is_broken", "folder"), [(True, "bad_nodes"), (False, "slow_nodes")])
def test_note_bad_node_tells_slow_from_broken(tmp_path: Path, is_broken: bool, folder: str) -> None:
    found = Suspect(rank=0, host="n7", device="gpu0", uuid=None, message="it is odd", is_broken=is_broken)
    manifest = ended("bad_node", "n7").model_copy(update={"suspects": (found,)})
    assert note_bad_node(tmp_path, manifest) == tmp_path / folder / "n7.json"
    assert bad_nodes(tmp_path) == ({"n7"} if is_broken else frozenset())
