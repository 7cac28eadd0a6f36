"""Scan the text of a trace, piece by piece, into rows of integers. Written in C, in `scanner/`."""

from typing_extensions import Buffer

ROW_BYTES: int
"""Size of one row, whose layout is `kineto.ROW`. Unit: byte."""

class Scanner:
    """State of scanning one trace; to be used by one thread at a time."""

    num_events: int
    """Undamaged events so far, of any kind."""
    num_damaged: int
    """Events so far that could not be read, or have no usable time or name."""
    has_events: bool
    """Whether a list of events was found."""
    is_closed: bool
    """Whether the document was closed; false while reading, and for a truncated file."""

    def __init__(self, *, host: bool = False, streams: bool = False) -> None:
        """Start scanning.

        Args:
            host: Whether to return rows of all operators on the CPU, and not only of communicating ones.
            streams: Whether to return rows of every event that has a stream or a correlation, whatever its category.
        """

    def feed(self, data: Buffer) -> None:
        """Scan the next piece of text. Other threads run meanwhile. Raises MemoryError."""

    def finish(self) -> None:
        """Scan the remaining text, as the end of the document. Raises MemoryError."""

    def feed_event(self, data: Buffer) -> bool:
        """Scan the text of one event that counts as damaged already; return whether it gave a row."""

    def take_rows(self) -> bytes:
        """Return the rows since the last call."""

    def take_launches(self) -> bytes:
        """Return the runtime calls since the last call; with `streams` they are among the rows instead."""

    def take_metadata(self) -> list[bytes]:
        """Return the members other than events since the last call: key, value, key, value, ... as in the text."""

    def take_damaged(self) -> list[bytes]:
        """Return the damaged texts since the last call; each may have several events."""

    def names(self, first: int) -> list[bytes]:
        """Return the names from number `first` on, with escapes as in the text."""

    def threads(self, first: int) -> list[bytes]:
        """Return the threads from number `first` on, as process, tab, thread."""

    def messages(self, first: int) -> list[bytes]:
        """Return the communication arguments from number `first` on, each a JSON object."""

    def geometries(self, first: int) -> list[bytes]:
        """Return the launch geometries from number `first` on, each a JSON object."""
