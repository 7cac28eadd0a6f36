"""Asking a device library: what it refuses is remembered with its reason, and stops nothing."""

from collections.abc import Callable
from typing import TypeVar

Answer = TypeVar("Answer")


class Questions:
    """Questions to one GPU.

    Attributes:
        refused: What was refused, each with the reason in the library's words.
    """

    def __init__(self, error: type[Exception]) -> None:
        """Take exceptions of type `error` as refusals; others are bugs and pass."""
        self._error = error
        self.refused: dict[str, str] = {}

    def ask(self, name: str, question: Callable[[], Answer]) -> Answer | None:
        """Return the answer, or None and remember why not.

        Args:
            name: What is asked, a field of `GpuFacts` or a metric of telemetry.
            question: Asks the library.
        """
        try:
            return question()
        except self._error as error:
            self.refused[name] = " ".join(str(error).split())
            return None
