"""One owner at a time, without flock: through races, kills, hosts that cannot see each other, and takeovers."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from triplepoint import claims
from triplepoint.claims import HELD, STALE_S, Claim, Owner
from triplepoint.errors import UserError

ADD = """
import sys, time
from pathlib import Path
from triplepoint.claims import Claim
path, counter = Path(sys.argv[1]), Path(sys.argv[2])
for _ in range(25):
    with Claim(path, "counter"):
        number = int(counter.read_text())
        time.sleep(0.001)
        counter.write_text(str(number + 1))
"""
HOLD = """
import sys, time
from pathlib import Path
from triplepoint.claims import Claim
Claim(Path(sys.argv[1]), "folder").acquire()
print("held", flush=True)
time.sleep(120)
"""


@pytest.fixture(autouse=True)
def _no_claims_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HELD, "")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(claims.time, "monotonic", lambda: now[0])
    return now


def claim(path: Path) -> Claim:
    return Claim(path, "folder")


def stranger(path: Path, **changed: object) -> Path:
    """Make the claim of a process that is not this one, by default on a host that cannot be seen."""
    owner = replace(Owner.this(), **{"host": "node7", "place": "elsewhere", **changed})
    path.mkdir()
    file = path / owner.name
    file.touch()
    return file


def holder(path: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_claim_race_excludes(tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0")
    command = [sys.executable, "-c", ADD, str(tmp_path / "claim"), str(counter)]
    adders = [subprocess.Popen(command) for _ in range(4)]
    assert [adder.wait(60) for adder in adders] == [0] * 4
    assert counter.read_text() == "100"
    assert list(tmp_path.iterdir()) == [counter]


def test_claim_killed_owner_replaced_at_once(tmp_path: Path) -> None:
    path = tmp_path / "claim"
    process = holder(path)
    waiting = claim(path)
    owner = waiting.try_acquire()
    assert owner is not None
    assert owner.pid == process.pid
    process.kill()
    process.wait()
    assert waiting.try_acquire() is None
    (file,) = path.iterdir()
    assert f"~{os.getpid()}~" in file.name


def test_claim_killed_owner_not_waited_for_replaced(tmp_path: Path) -> None:
    process = holder(tmp_path / "claim")
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # ended, and still in the list of processes
    assert claim(tmp_path / "claim").try_acquire() is None
    process.wait()


def test_claim_stopped_owner_kept(tmp_path: Path, clock: list[float]) -> None:
    process = holder(tmp_path / "claim")
    process.send_signal(signal.SIGSTOP)
    waiting = claim(tmp_path / "claim")
    for _ in range(3):
        assert waiting.try_acquire() is not None
        clock[0] += STALE_S
    process.kill()
    process.wait()


def test_claim_number_used_again_is_not_the_owner(tmp_path: Path) -> None:
    me = Owner.this()
    stranger(tmp_path / "claim", place=me.place, ticks=me.ticks - 1)
    assert claim(tmp_path / "claim").try_acquire() is None


def test_claim_other_host_replaced_when_silent(tmp_path: Path, clock: list[float]) -> None:
    stranger(tmp_path / "claim")
    waiting = claim(tmp_path / "claim")
    assert str(waiting.try_acquire()) == f"process {os.getpid()} on node7"
    clock[0] += STALE_S
    assert waiting.try_acquire() is not None
    clock[0] += 1
    assert waiting.try_acquire() is None


def test_claim_other_host_with_signs_of_life_kept(tmp_path: Path, clock: list[float]) -> None:
    file = stranger(tmp_path / "claim")
    waiting = claim(tmp_path / "claim")
    # Times of files are those of the other host's clock, far off and stepped back: only that they change counts.
    for time_s in (5e9, 1e9, 3e9, 2e9):
        os.utime(file, (time_s, time_s))
        assert waiting.try_acquire() is not None
        clock[0] += STALE_S - 1


def test_claim_stale_taken_once(tmp_path: Path, clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    file = stranger(tmp_path / "claim")
    first, second = claim(tmp_path / "claim"), claim(tmp_path / "claim")
    assert first.try_acquire() is not None
    assert second.try_acquire() is not None
    clock[0] += STALE_S + 1
    found = second._owner()
    assert first.try_acquire() is None
    monkeypatch.setenv(HELD, "")
    monkeypatch.setattr(second, "_is_silent", lambda owner: True)  # it looked before the first one was faster
    monkeypatch.setattr(second, "_owner", lambda: found)
    assert second.try_acquire() == found
    assert not file.exists()
    first.check()


def test_claim_taken_from_owner_says_so_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "claim"
    mine = claim(path).acquire()
    (held,) = path.iterdir()
    taker = path / replace(Owner.this(), host="node7", pid=42).name
    held.rename(taker)
    with pytest.raises(UserError, match=r"^folder: process 42 on node7 took over while process"):
        mine.check()
    mine.release()
    assert list(path.iterdir()) == [taker]


def test_claim_inherited_by_children(tmp_path: Path) -> None:
    path = tmp_path / "claim"
    child = "import sys; from pathlib import Path; from triplepoint.claims import Claim\n"
    child += "with Claim(Path(sys.argv[1]), 'folder') as claim: claim.check()\n"
    with claim(path):
        subprocess.run([sys.executable, "-c", child, str(path)], check=True, timeout=60)
        assert path.exists()
        assert os.environ[HELD]
    assert not path.exists()
    assert not os.environ[HELD]


def test_claim_acquire_tells_who_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = stranger(tmp_path / "claim")
    naps: list[float] = []

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 3:
            file.unlink()

    monkeypatch.setattr(claims.time, "sleep", sleep)
    told: list[str] = []
    claim(tmp_path / "claim").acquire(told.append)
    assert told == [f"folder: process {os.getpid()} on node7 has it; waiting"]


def test_claim_beats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "BEAT_S", 0.01)
    with claim(tmp_path / "claim"):
        (file,) = (tmp_path / "claim").iterdir()
        os.utime(file, (0, 0))
        while file.stat().st_mtime == 0:  # ends by the test's own time limit otherwise
            pass


def test_claim_strangers_files_named(tmp_path: Path) -> None:
    (tmp_path / "claim").mkdir()
    (tmp_path / "claim" / "notes.txt").touch()
    with pytest.raises(UserError, match=r"claim: holds 'notes.txt', which is not a claim; remove that folder"):
        claim(tmp_path / "claim").try_acquire()


def test_claim_empty_folder_is_free(tmp_path: Path) -> None:
    (tmp_path / "claim").mkdir()
    assert claim(tmp_path / "claim").try_acquire() is None
