"""Output: lines that are redrawn in place at the foot of a terminal, or plain lines one below the other."""

import shutil
from collections.abc import Sequence
from typing import TextIO

_UP = "\x1b[{}F"
_CLEAR_LINE = "\x1b[2K"
_CLEAR_BELOW = "\x1b[J"
_RED, _RESET = "\x1b[31m", "\x1b[0m"


class Screen:
    """A stream that takes lines that stay, and on a terminal lines at its foot that are redrawn.

    A terminal or pipe that has gone is written to no more: the workflow goes on without it.
    """

    def __init__(self, stream: TextIO, is_terminal: bool, has_colour: bool) -> None:
        """Write to `stream`; only a terminal is redrawn, and coloured if `has_colour`."""
        self._stream, self._is_terminal, self._has_colour = stream, is_terminal, has_colour
        self._is_gone = False
        self._num_drawn = 0

    @property
    def is_plain(self) -> bool:
        """Whether the stream takes ASCII only."""
        return not (getattr(self._stream, "encoding", None) or "").lower().replace("-", "").startswith("utf")

    def say(self, text: str, is_failure: bool = False) -> None:
        """Write lines that stay, above those that are redrawn."""
        if is_failure and self._is_terminal and self._has_colour:
            text = f"{_RED}{text}{_RESET}"
        self._write(self._up() + text + "\n")

    def redraw(self, lines: Sequence[str]) -> None:
        """Draw lines at the foot of a terminal in place of those drawn before; elsewhere nothing."""
        if not self._is_terminal:
            return
        width, height = shutil.get_terminal_size()
        if len(lines) >= height:
            lines = lines[-1:]
        text = "".join(f"{_CLEAR_LINE}{line[: width - 1]}\n" for line in lines)
        self._write(self._up() + text)
        self._num_drawn = len(lines)

    def _up(self) -> str:
        """Return what takes the lines at the foot away."""
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
