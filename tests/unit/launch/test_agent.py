"""What ends a node's share of a gang from outside, and what does not."""

import errno
import os
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from triplepoint.files import write_json
from triplepoint.launch import agent, gang, watch
from triplepoint.launch.agent import Surroundings
from triplepoint.launch.attempt import tell_to_stop
from triplepoint.launch.gang import LocalGang, wait
from triplepoint.launch.watch import Ranks


@dataclass
class VirtualTime:
    """The clock of an agent, moved by hand."""

    now_s: float = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> VirtualTime:
    made = VirtualTime()
    monkeypatch.setattr(agent, "time", made)
    return made


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    (tmp_path / "raw" / "nodes").mkdir(parents=True)
    return tmp_path / "raw"


def look_for(around: Surroundings, clock: VirtualTime, seconds: float) -> str | None:
    """Return why the agent would end within some seconds, None if it would not."""
    until = clock.now_s + seconds
    while clock.now_s < until:
        if ending := around.ending():
            return ending.message
        clock.now_s += 0.1
    return None


def test_surroundings_folder_away_for_seconds_ends_nothing(raw: Path, clock: VirtualTime) -> None:
    around, away = Surroundings(raw, 0, None), raw.with_name("away")
    for _ in range(3):  # many short absences are no long one
        raw.rename(away)
        assert look_for(around, clock, 30.0) is None
        away.rename(raw)
        assert look_for(around, clock, 5.0) is None


def test_surroundings_folder_away_for_a_minute_ends_the_node(raw: Path, clock: VirtualTime) -> None:
    around = Surroundings(raw, 0, None)
    raw.rename(raw.with_name("away"))
    assert look_for(around, clock, 58.0) is None
    message = look_for(around, clock, 5.0)
    assert message is not None and "out of reach for 60 s" in message


@pytest.mark.parametrize("code", [errno.ESTALE, errno.EIO])
def test_surroundings_file_server_that_restarts_ends_nothing(
    raw: Path, clock: VirtualTime, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    around, stat = Surroundings(raw, 0, None), Path.stat

    def broken(path: Path, **options: bool) -> os.stat_result:
        raise OSError(code, os.strerror(code), str(path))

    monkeypatch.setattr(Path, "stat", broken)
    assert look_for(around, clock, 10.0) is None
    monkeypatch.setattr(Path, "stat", stat)
    assert look_for(around, clock, 100.0) is None


def test_surroundings_word_of_the_launcher_ends_the_node_at_once(raw: Path, clock: VirtualTime) -> None:
    around = Surroundings(raw, 0, None)
    tell_to_stop(raw)
    assert look_for(around, clock, 2.0) == "told to end: the launcher gave the attempt up"


def test_surroundings_other_node_that_failed_ends_the_node(raw: Path, clock: VirtualTime) -> None:
    write_json(raw / "nodes" / "node1.json", {"node": 1, "failure": {"status": "crashed"}})
    assert look_for(Surroundings(raw, 0, None), clock, 2.0) == "told to end: node 1 failed"


def test_leave_report_waits_for_a_folder_that_is_away(
    raw: Path, clock: VirtualTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = raw.with_name("away")
    raw.rename(away)

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        if clock.now_s > 1010.0 and away.exists():
            away.rename(raw)

    monkeypatch.setattr(agent, "time", SimpleNamespace(sleep=sleep, monotonic=clock.monotonic))
    agent._write_report(raw, 0, {"node": 0, "failure": None})
    assert (raw / "nodes" / "node0.json").is_file()
    assert 1010.0 < clock.now_s < 1020.0


class Rank:
    """A process that ends at a given time."""

    def __init__(self, clock: VirtualTime, end_s: float) -> None:
        self._clock, self._end_s = clock, end_s

    def poll(self) -> int | None:
        return 0 if self._clock.now_s >= self._end_s else None

    def send(self, number: int) -> None:
        self._end_s = 0.0

    def wait(self) -> int:
        return 0


@pytest.mark.parametrize(("is_suspended", "failed"), [(True, []), (False, ["hung"])])
def test_ranks_time_of_a_suspension_does_not_count(
    raw: Path, monkeypatch: pytest.MonkeyPatch, is_suspended: bool, failed: list[str]
) -> None:
    clock = VirtualTime()

    def sleep(seconds: float) -> None:
        # The gang is suspended for an hour with its agent, or hangs while the agent looks at it.
        clock.now_s += 3600.0 if is_suspended and 1010.0 <= clock.now_s < 1020.0 else seconds

    fake = SimpleNamespace(monotonic=clock.monotonic, sleep=sleep, time_ns=lambda: 0)
    monkeypatch.setattr(watch, "time", fake)
    monkeypatch.setattr(Ranks, "_dump_stacks", lambda self: None)
    (raw / "steps").mkdir()
    (raw / "steps" / "rank0.jsonl").write_text("{}\n")
    rank = Rank(clock, end_s=4650.0)
    ranks = Ranks(raw, range(1), SimpleNamespace(), -1, time_limit_s=3000.0, hang_timeout_s=100.0, _started=clock.now_s)  # type: ignore[arg-type]
    ranks._is_started, ranks._processes[0] = True, rank  # type: ignore[assignment]
    assert [failure.status for failure in ranks.wait(lambda: None)] == failed


def test_agent_of_a_local_gang_sees_the_gpus_of_its_launcher(raw: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setattr(gang, "run_node", lambda raw, _: (raw / "seen").write_text(os.environ["CUDA_VISIBLE_DEVICES"]))
    wait(LocalGang(raw), lambda: None)
    assert (raw / "seen").read_text() == "3"
