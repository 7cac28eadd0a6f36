"""Progress of a command on standard error: one line that is rewritten on a terminal, plain lines elsewhere."""

import contextlib
import os
import re
import shutil
import sys
import threading
import time
from types import TracebackType

_QUIET_S = 1.0
"""What takes no longer shows nothing."""
_PLAIN_PERIOD_S = 5.0
"""Between two lines of a log."""
_COUNTS, _PERCENT = re.compile(r"\b(\d+) of (\d+)\b"), re.compile(r"\b(\d+) % of ")
"""How far a line says that it is, by which the time left is told."""
_CLEAR = "\r\x1b[K"


class Progress:
    """Shows the latest of the lines it is called with, from one second on, while the block runs.

    The lines are written by a thread, and past Python's buffers: a process that is forked meanwhile inherits no lock.
    """

    _current: "Progress | None" = None
    """The one that is shown, of several that run within one another."""

    def __init__(self, doing: str = "") -> None:
        """Show nothing yet.

        Args:
            doing: What is shown until the first call.
        """
        self._line = doing
        self._outer: Progress | None = None
        self._shown = ""
        self._shown_s = 0.0
        self._began_s = time.monotonic()
        self._part: tuple[float, int, float] | None = None
        """What was done of how many when a part was first seen, and when that was. Unit: s."""
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._file = sys.stderr.fileno() if _has_file() else None
        self._is_terminal = self._file is not None and os.isatty(self._file)

    def __call__(self, line: str) -> None:
        """Say how far it is."""
        self._line = line

    def __enter__(self) -> "Progress":
        """Begin; what was shown before waits meanwhile."""
        self._outer, Progress._current = Progress._current, self
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave a clean line behind on a terminal."""
        self._done.set()
        self._thread.join()
        Progress._current = self._outer
        if self._is_terminal and self._shown:
            self._write(_CLEAR)

    def _run(self) -> None:
        while not self._done.wait(_QUIET_S):
            self._show(time.monotonic())

    def _show(self, now_s: float) -> None:
        line = self._line
        if not line or Progress._current not in (self, None):
            return
        taken_s, left = now_s - self._began_s, self._time_left(line, now_s)
        if self._is_terminal:
            width = shutil.get_terminal_size().columns - 1
            self._write(_CLEAR + f"{line}, {taken_s:.0f} s{left}"[:width])
        elif line == self._shown or (self._shown and now_s - self._shown_s < _PLAIN_PERIOD_S):
            return
        else:
            self._write(f"{line}{left}\n")
        self._shown, self._shown_s = line, now_s

    def _time_left(self, line: str, now_s: float) -> str:
        """Return about how long the part that a line is about goes on, by its pace so far; '' where none is known."""
        far = how_far(line)
        if far is None or self._part is None or far[1] != self._part[1] or far[0] < self._part[0]:
            self._part = None if far is None else (*far, now_s)
            return ""
        done, whole = far
        first, _, began_s = self._part
        left_s = (now_s - began_s) * (whole - done) / (done - first) if done > first else 0.0
        return f", about {left_s:.0f} s left" if left_s >= 1 else ""

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # nobody reads it
            os.write(self._file if self._file is not None else 2, text.encode(errors="replace"))


def how_far(line: str) -> tuple[float, int] | None:
    """Return what is done, and of how many, as a line says by `3 of 8` and by `45 %` of the one that is under way."""
    counts, percent = _COUNTS.search(line), _PERCENT.search(line)
    if not counts and not percent:
        return None
    number, whole = map(int, counts.groups()) if counts else (1, 1)
    return (number - 1 + int(percent[1]) / 100 if percent else number), whole


def _has_file() -> bool:
    try:
        sys.stderr.fileno()
    except (OSError, ValueError, AttributeError):
        return False
    return True
