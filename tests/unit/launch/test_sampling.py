"""The agent's watch over its sampler."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launchers import wait_until
from triplepoint.launch import watch
from triplepoint.launch.watch import Sampler

WAITS = "import sys, time; time.sleep(60)"
FAILS = "import sys; print('no sensor here'); sys.exit(3)"


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Programs that stand for the sampler, in the order they are started."""
    scripts: list[str] = []
    started: list[subprocess.Popen[bytes]] = []

    def popen(command: list[str], **options: object) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen([sys.executable, "-c", scripts.pop(0)], **options))  # type: ignore[call-overload]
        return started[-1]

    class Module:
        Popen = staticmethod(popen)
        DEVNULL, STDOUT, TimeoutExpired = subprocess.DEVNULL, subprocess.STDOUT, subprocess.TimeoutExpired

    monkeypatch.setattr(watch, "subprocess", Module)
    yield scripts
    for process in started:
        process.kill()
        process.wait()


def sampler(tmp_path: Path) -> Sampler:
    (tmp_path / "logs").mkdir()
    return Sampler(tmp_path / "telemetry" / "node0.arrow", tmp_path / "logs" / "sampler0.log", "cpu", 0.1, 0.05)


def ends(watched: Sampler, number: int) -> list[tuple[str, bool]]:
    def look() -> bool:
        watched.watch()
        return len(watched.ends) == number

    wait_until(look, f"{number} ends")
    return [(end["message"], end["was_restarted"]) for end in watched.ends]


def test_sampler_dead_at_start_twice(tmp_path: Path, scripts: list[str]) -> None:
    scripts += [FAILS, FAILS]
    watched = sampler(tmp_path)
    said = "exited with status 3: no sensor here"
    assert ends(watched, 2) == [(said, True), (said, False)]
    watched.watch()
    watched.stop()
    assert len(watched.ends) == 2


def test_sampler_told_to_end_is_no_fault(tmp_path: Path, scripts: list[str]) -> None:
    scripts += [WAITS]
    watched = sampler(tmp_path)
    watched.stop()
    assert watched.ends == []


def test_sampler_ended_before_it_was_told(tmp_path: Path, scripts: list[str]) -> None:
    scripts += [FAILS]
    watched = sampler(tmp_path)
    assert watched._process is not None
    watched._process.wait(30)
    watched.stop()
    assert [end["was_restarted"] for end in watched.ends] == [False]


def test_sampler_that_does_not_end_is_named(
    tmp_path: Path, scripts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "SAMPLER_STOP_S", 0.2)
    scripts += ["import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"]
    watched = sampler(tmp_path)
    wait_until(lambda: (tmp_path / "logs/sampler0.log").read_text(), "it is deaf")
    watched.stop()
    (end,) = watched.ends
    assert "SIGKILL" in end["message"]


def test_sampler_started_again_is_deaf_to_slurms_notice(tmp_path: Path, scripts: list[str]) -> None:
    tell = "import signal; print(signal.getsignal(signal.SIGUSR2) == signal.SIG_IGN, flush=True)"
    scripts += [tell, tell]
    before = signal.signal(signal.SIGUSR2, lambda *_: None)
    try:
        ends(sampler(tmp_path), 2)
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert (tmp_path / "logs/sampler0.log").read_text() == "True\nTrue\n"
