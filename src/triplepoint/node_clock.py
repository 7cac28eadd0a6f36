"""Clock of another node: timestamps exchanged over TCP, as NTP does.

A reply that took `round_trip` from question to answer was stamped at some time within it, so the offset of the quickest
exchange is uncertain by half its round trip, whatever the way there and back took.

Source: RFC 5905 (NTP version 4), section 8, offset and delay; section 10, the filter that takes the least delay.
"""

import secrets
import socket
import struct
import time
from collections.abc import Callable
from typing import NamedTuple

from triplepoint.units import NS_PER_S

Clock = Callable[[], int]
"""Returns the time of a clock. Unit: ns."""

TOKEN_BYTES = 32
HELLO_S = 5.0
"""How long a connection may take to present the token."""
_QUESTION, _END = b"?", b"."
_STAMPS = struct.Struct("!qq")


class Exchange(NamedTuple):
    """One question and its answer. Unit: ns, each on the clock of its side."""

    asked: int
    """When the question left here."""
    came: int
    """When it came there."""
    left: int
    """When the answer left there."""
    answered: int
    """When it came here."""

    @property
    def delay_ns(self) -> int:
        """Return the round trip without the time the other side took. Unit: ns."""
        return self.answered - self.asked - (self.left - self.came)


class ClockOffset(NamedTuple):
    """Another node's clock against this one's.

    Attributes:
        offset_s: How far the other is ahead. Unit: s.
        uncertainty_s: How far off that may be at most. Unit: s.
        round_trip_s: Of the quickest exchange. Unit: s.
    """

    offset_s: float
    uncertainty_s: float
    round_trip_s: float


def admits(connection: socket.socket, token: bytes) -> bool:
    """Return whether a connection presents the token, all of it in time; strangers do not."""
    deadline, said = time.monotonic() + HELLO_S, b""
    while len(said) < len(token) and (left_s := deadline - time.monotonic()) > 0:
        connection.settimeout(left_s)
        part = connection.recv(len(token) - len(said))
        if not part:
            return False
        said += part
    connection.settimeout(None)
    return secrets.compare_digest(said, token)


def answer_clock(peer: socket.socket, clock: Clock) -> None:
    """Answer the other side's questions for the time until it has no more, or has gone."""
    while peer.recv(1) == _QUESTION:
        came = clock()
        peer.sendall(_STAMPS.pack(came, clock()))


def ask_clock(peer: socket.socket, clock: Clock) -> Exchange:
    """Ask the other side for its time once.

    Raises:
        OSError: If the connection breaks or is silent for long.
    """
    asked = clock()
    peer.sendall(_QUESTION)
    came, left = _STAMPS.unpack(receive_exactly(peer, _STAMPS.size))
    return Exchange(asked, came, left, clock())


def measure_offset(peer: socket.socket, clock: Clock, num_exchanges: int) -> ClockOffset:
    """Return how far the clock of the other side is ahead of ours, and let the other side go on.

    Args:
        peer: Connection to `answer_clock`.
        clock: The clock of this side.
        num_exchanges: How often to ask.

    Raises:
        OSError: If the connection breaks or is silent for long.
    """
    exchanges = [ask_clock(peer, clock) for _ in range(num_exchanges)]
    peer.sendall(_END)
    quickest = min(exchanges, key=lambda exchange: exchange.delay_ns)
    offset_ns = ((quickest.came - quickest.asked) + (quickest.left - quickest.answered)) / 2
    round_trip_s = quickest.delay_ns / NS_PER_S
    return ClockOffset(offset_ns / NS_PER_S, round_trip_s / 2, round_trip_s)


def receive_exactly(peer: socket.socket, size: int) -> bytes:
    """Return the next `size` bytes. Raises `OSError` if the other side has gone."""
    content = b""
    while len(content) < size:
        part = peer.recv(size - len(content))
        if not part:
            raise ConnectionError("the other node closed the connection")
        content += part
    return content
