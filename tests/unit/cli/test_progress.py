"""Progress of a command: nothing in the first second, one line rewritten on a terminal, plain lines in a log."""

import os
import pty
import sys
import time
from pathlib import Path

import pytest

from triplepoint.cli import progress as module
from triplepoint.cli.progress import Progress


@pytest.fixture(autouse=True)
def _shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Show progress, which is off in other tests."""
    monkeypatch.delenv(module.SWITCH)


class Clocked(Progress):
    """Shows when told to, at the time told, instead of every second."""

    def show(self, now_s: float) -> None:
        self._show(self._began_s + now_s)


def log_of(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "stderr", (folder / "log").open("w"))
    return folder / "log"


def test_log_has_plain_lines_five_seconds_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_of(tmp_path, monkeypatch)
    progress = Clocked("reading")
    progress.show(1)
    progress("10 %")
    progress.show(2)
    progress.show(6.5)
    progress.show(20)
    progress("90 %")
    progress.show(21)
    assert log.read_text() == "reading\n10 %\n90 %\n"


def test_nothing_is_said_in_the_first_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_of(tmp_path, monkeypatch)
    began_s = time.monotonic()
    with Progress("reading") as progress:
        progress("10 %")
    assert log.read_text() == "" or time.monotonic() - began_s >= 1


def test_progress_in_a_log_can_be_turned_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_of(tmp_path, monkeypatch)
    monkeypatch.setenv(module.SWITCH, "0")
    Clocked("reading").show(10)
    assert log.read_text() == ""


def test_first_line_comes_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_of(tmp_path, monkeypatch)
    monkeypatch.setattr(module, "_QUIET_S", 0.01)
    with Progress("reading") as progress:
        deadline_s = time.monotonic() + 10
        while not log.read_text() and time.monotonic() < deadline_s:
            time.sleep(0.01)
        progress("unseen: five seconds have not passed")
    assert log.read_text() == "reading\n"


@pytest.mark.parametrize(
    ("line", "far"),
    [
        ("read rank1.json.gz (2 of 8)", (2, 8)),
        ("reading rank1.json: 50 % of 120 MB, 7 events (2 of 3)", (1.5, 3)),
        ("reading one.json: 25 % of 80 MB, 7 events", (0.25, 1)),
        ("writing the run", None),
    ],
)
def test_line_says_how_far_it_is(line: str, far: tuple[float, int] | None) -> None:
    assert module.parse_progress(line) == far


def test_time_left_follows_from_the_pace_of_the_part_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_of(tmp_path, monkeypatch)
    progress = Clocked("reading")
    for now_s, line in ((10, "time: 4 of 8"), (20, "time: 6 of 8"), (30, "heat: 5 of 50"), (40, "heat: 10 of 50")):
        progress(line)
        progress.show(now_s)
    assert log.read_text().splitlines() == [
        "time: 4 of 8", "time: 6 of 8, about 10 s left", "heat: 5 of 50", "heat: 10 of 50, about 80 s left",
    ]  # fmt: skip


def test_terminal_has_one_line_that_is_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setenv("COLUMNS", "20")
        monkeypatch.setattr(module, "_QUIET_S", 1000)  # shown by the test alone
        with Clocked("reading a trace of a long name") as progress:
            progress.show(1)
            progress("90 %")
            progress.show(2)
        written = ""
        while not written.endswith("s\r\x1b[K"):  # a terminal may give it in pieces
            written += os.read(ours, 1000).decode()
    os.close(ours)
    assert written == "\r\x1b[Kreading a trace of \r\x1b[K90 %, 2 s\r\x1b[K"


def test_standard_error_may_be_closed_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    progress = Clocked("reading")
    reader, writer = os.pipe()
    os.close(reader)
    progress._file = writer
    progress.show(1)
    os.close(writer)
