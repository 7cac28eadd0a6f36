"""Reads the text of a trace, given piece by piece, into rows of integers. Written in C, in `scanner/`."""

from typing_extensions import Buffer

ROW_BYTES: int
"""Bytes of one row; its layout is `rows.ROW`."""

class Scanner:
    """The reading of one trace; to be used by one thread at a time."""

    num_events: int
    """Whole events read so far, of whatever kind."""
    num_damaged: int
    """Events so far that could not be read, or without a usable time or name."""
    has_events: bool
    """Whether a list of events was found."""
    is_closed: bool
    """Whether the document was closed as it was opened; false while reading, and of a truncated file."""

    def __init__(self, *, host: bool = False, streams: bool = False) -> None:
        """Start reading.

        Args:
            host: Give rows of operators on the CPU too, not only of those that communicate.
            streams: Give rows of every event that carries a stream or a correlation, whatever its category.
        """

    def feed(self, data: Buffer) -> None:
        """Read the next piece of text; other threads run meanwhile. Raises MemoryError."""

    def finish(self) -> None:
        """Read what is left as the end of the text. Raises MemoryError."""

    def feed_event(self, data: Buffer) -> bool:
        """Read the text of one event already counted as damaged; return whether it gave a row."""

    def take_rows(self) -> bytes:
        """Return the rows read since the last call."""

    def take_launches(self) -> bytes:
        """Return the calls of the runtime read since the last call, which with `streams` stand among the rows."""

    def take_metadata(self) -> list[bytes]:
        """Return the members beside the events since the last call: key, value, key, value, ... as they stand."""

    def take_damaged(self) -> list[bytes]:
        """Return the texts stepped over since the last call, each of one damaged event or several."""

    def names(self, first: int) -> list[bytes]:
        """Return the names from number `first` on, escapes as they stand."""

    def threads(self, first: int) -> list[bytes]:
        """Return the threads from number `first` on: process, tab, thread."""

    def messages(self, first: int) -> list[bytes]:
        """Return what events say about communication, from number `first` on, each a JSON object."""

    def geometries(self, first: int) -> list[bytes]:
        """Return how kernels were launched, from number `first` on, each a JSON object."""
