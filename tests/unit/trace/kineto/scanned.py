"""What the scanner makes of a text, with everything its rows refer to put in their place."""

from typing import Any, NamedTuple

import numpy as np

from triplepoint.trace.kineto import LAUNCH, ROW
from triplepoint.trace.kineto._scanner import ROW_BYTES, Scanner


class Row(NamedTuple):
    """One row, its numbers looked up. Unit: ns."""

    name: bytes
    start: int
    duration: int
    category: int
    correlation: int
    flags: int
    thread: bytes
    message: bytes | None
    geometry: bytes | None


class Scanned(NamedTuple):
    """All that a scanner gives."""

    rows: list[Row]
    launches: list[tuple[int, int, bytes, bytes | None]]
    metadata: dict[bytes, bytes]
    damaged: list[bytes]
    num_events: int
    num_damaged: int
    has_events: bool
    is_closed: bool


def scan(text: bytes, piece: int = 1 << 18, **options: bool) -> Scanned:
    """Scan a text given in pieces of some bytes."""
    assert ROW.itemsize == ROW_BYTES
    scanner = Scanner(**options)
    for at in range(0, len(text), piece):
        scanner.feed(text[at : at + piece])
    scanner.finish()
    rows = np.frombuffer(scanner.take_rows(), dtype=ROW)
    members = scanner.take_metadata()
    return Scanned(
        look_up(scanner, rows),
        look_up_launches(scanner, np.frombuffer(scanner.take_launches(), dtype=LAUNCH)),
        dict(zip(members[::2], members[1::2], strict=True)),
        scanner.take_damaged(),
        scanner.num_events,
        scanner.num_damaged,
        scanner.has_events,
        scanner.is_closed,
    )


def look_up(scanner: Scanner, rows: np.ndarray) -> list[Row]:
    """Return rows of `ROW` with what their numbers stand for."""
    names, threads = scanner.names(0), scanner.threads(0)
    messages: list[Any] = [*scanner.messages(0), None]
    geometries: list[Any] = [*scanner.geometries(0), None]
    return [
        Row(
            names[row["name"]],
            int(row["start"]),
            int(row["duration"]),
            int(row["category"]),
            int(row["correlation"]),
            int(row["flags"]),
            threads[row["thread"]],
            messages[row["message"]],
            geometries[row["geometry"]],
        )
        for row in rows
    ]


def look_up_launches(scanner: Scanner, launches: np.ndarray) -> list[tuple[int, int, bytes, bytes | None]]:
    """Return calls of the runtime: correlation, start, thread, geometry."""
    threads, geometries = scanner.threads(0), [*scanner.geometries(0), None]
    return [(number, start, threads[thread], geometries[how]) for number, start, thread, how in launches.tolist()]
