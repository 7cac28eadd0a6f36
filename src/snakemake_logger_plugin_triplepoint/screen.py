"""Terminal output: lines that stay, and lines at the bottom of a terminal that are redrawn in place."""

import shutil
from collections.abc import Sequence
from typing import TextIO

_UP = "\x1b[{}F"
_CLEAR_LINE = "\x1b[2K"
_CLEAR_BELOW = "\x1b[J"
_RED, _RESET = "\x1b[31m", "\x1b[0m"


class Screen:
    """Output stream with lines that stay and, on a terminal, lines at the bottom that are redrawn.

    After the terminal or pipe was closed nothing more is written, and the workflow continues.
    """

    def __init__(self, stream: TextIO, is_terminal: bool, has_colour: bool) -> None:
        """Write to `stream`. Lines are redrawn on a terminal only; failures are red there if `has_colour`."""
        self._stream, self._is_terminal, self._has_colour = stream, is_terminal, has_colour
        self._is_gone = False
        self._num_drawn = 0

    @property
    def is_plain(self) -> bool:
        """Whether the stream accepts ASCII only."""
        return not (getattr(self._stream, "encoding", None) or "").lower().replace("-", "").startswith("utf")

    def say(self, text: str, is_failure: bool = False) -> None:
        """Write lines that stay, above those that are redrawn."""
        if is_failure and self._is_terminal and self._has_colour:
            text = f"{_RED}{text}{_RESET}"
        self._write(self._erase() + text + "\n")

    def redraw(self, lines: Sequence[str]) -> None:
        """Replace the lines at the bottom of a terminal; do nothing elsewhere."""
        if not self._is_terminal:
            return
        width, height = shutil.get_terminal_size()
        if len(lines) >= height:
            lines = lines[-1:]
        text = "".join(f"{_CLEAR_LINE}{line[: width - 1]}\n" for line in lines)
        self._write(self._erase() + text)
        self._num_drawn = len(lines)

    def _erase(self) -> str:
        """Return the escape sequence that erases the lines at the bottom."""
        num, self._num_drawn = self._num_drawn, 0
        return _UP.format(num) + _CLEAR_BELOW if num else ""

    def _write(self, text: str) -> None:
        if self._is_gone:
            return
        try:
            encoding = getattr(self._stream, "encoding", None) or "ascii"
            self._stream.write(text.encode(encoding, "replace").decode(encoding))
            self._stream.flush()
        except (OSError, ValueError):
            self._is_gone = True
