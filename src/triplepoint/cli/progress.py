"""Progress of a command on standard error: one line that is rewritten on a terminal, plain lines elsewhere."""

import contextlib
import os
import re
import shutil
import sys
import threading
import time
from types import TracebackType

SWITCH = "TRIPLEPOINT_PROGRESS"
"""Environment variable: `0` shows no progress where standard error is not a terminal."""
_QUIET_S = 1.0
"""A command that ends earlier shows nothing."""
_PLAIN_PERIOD_S = 5.0
"""Time between two lines of a log."""
_COUNTS, _PERCENT = re.compile(r"\b(\d+) of (\d+)\b"), re.compile(r"\b(\d+) % of ")
"""Progress stated in a line, from which the time left is estimated."""
_CLEAR = "\r\x1b[K"


class Progress:
    """Context manager that shows the latest line it is called with, from one second on.

    A thread writes the lines, without Python's buffers, so that a process forked meanwhile inherits no lock.
    """

    _current: "Progress | None" = None
    """The innermost one, which alone is shown."""

    def __init__(self, doing: str = "") -> None:
        """Show nothing yet.

        Args:
            doing: Line until the first call.
        """
        self._line = doing
        self._outer: Progress | None = None
        self._shown = ""
        self._shown_s = 0.0
        self._began_s = time.monotonic()
        self._part: tuple[float, int, float] | None = None
        """When a part began: number done, total number, and time in s."""
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._file = sys.stderr.fileno() if _has_file() else None
        self._is_terminal = self._file is not None and os.isatty(self._file)
        self._is_off = not self._is_terminal and os.environ.get(SWITCH) == "0"

    def __call__(self, line: str) -> None:
        """Set the line to show."""
        self._line = line

    def __enter__(self) -> "Progress":
        """Start; an outer one is hidden meanwhile."""
        self._outer, Progress._current = Progress._current, self
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop, and clear the line on a terminal."""
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
        if self._is_off or not line or Progress._current not in (self, None):
            return
        elapsed_s, left = now_s - self._began_s, self._time_left(line, now_s)
        if self._is_terminal:
            width = shutil.get_terminal_size().columns - 1
            self._write(_CLEAR + f"{line}, {elapsed_s:.0f} s{left}"[:width])
        elif line == self._shown or (self._shown and now_s - self._shown_s < _PLAIN_PERIOD_S):
            return
        else:
            self._write(f"{line}{left}\n")
        self._shown, self._shown_s = line, now_s

    def _time_left(self, line: str, now_s: float) -> str:
        """Return the estimated time left of the current part; empty if the line states no progress."""
        progress = parse_progress(line)
        if progress is None or self._part is None or progress[1] != self._part[1] or progress[0] < self._part[0]:
            self._part = None if progress is None else (*progress, now_s)
            return ""
        done, total = progress
        first, _, began_s = self._part
        left_s = (now_s - began_s) * (total - done) / (done - first) if done > first else 0.0
        return f", about {left_s:.0f} s left" if left_s >= 1 else ""

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # the reader has gone
            os.write(self._file if self._file is not None else 2, text.encode(errors="replace"))


def parse_progress(line: str) -> tuple[float, int] | None:
    """Return the progress in a line such as `3 of 8, 45 % of file.json`: number done and total; None without any.

    With a percentage, the item of the count is under way: this example has 2.45 of 8 done.
    """
    counts, percent = _COUNTS.search(line), _PERCENT.search(line)
    if not counts and not percent:
        return None
    number, total = map(int, counts.groups()) if counts else (1, 1)
    return (number - 1 + int(percent[1]) / 100 if percent else number), total


def _has_file() -> bool:
    """Return whether standard error is a file of the system, not for example a buffer of a test."""
    try:
        sys.stderr.fileno()
    except (OSError, ValueError, AttributeError):
        return False
    return True
