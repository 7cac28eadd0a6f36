"""Clock offset between two nodes, from timestamps exchanged over TCP as in NTP.

The other side takes its timestamps at an unknown time within the round trip. So the offset from the fastest exchange
has an uncertainty of half its round trip, however the delay splits into the two directions.

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
"""Time limit for a connection to present the token."""
_QUESTION, _END = b"?", b"."
_STAMPS = struct.Struct("!qq")


class Exchange(NamedTuple):
    """The four timestamps of a request and its reply, in the order they are taken. Unit: ns."""

    asked: int
    """Time on this clock when the request was sent."""
    came: int
    """Time on the other clock when the request arrived."""
    left: int
    """Time on the other clock when the reply was sent."""
    answered: int
    """Time on this clock when the reply arrived."""

    @property
    def delay_ns(self) -> int:
        """Round trip without the processing time of the other side. Unit: ns."""
        return self.answered - self.asked - (self.left - self.came)


class ClockOffset(NamedTuple):
    """Offset of another node's clock from this one's.

    Attributes:
        offset_s: Other clock minus this one. Unit: s.
        uncertainty_s: Largest error of the offset. Unit: s.
        round_trip_s: Round trip of the fastest exchange. Unit: s.
    """

    offset_s: float
    uncertainty_s: float
    round_trip_s: float


def admits(connection: socket.socket, token: bytes) -> bool:
    """Return whether a connection presents the token within `HELLO_S`, so that no other program can join."""
    deadline, received = time.monotonic() + HELLO_S, b""
    while len(received) < len(token) and (left_s := deadline - time.monotonic()) > 0:
        connection.settimeout(left_s)
        part = connection.recv(len(token) - len(received))
        if not part:
            return False
        received += part
    connection.settimeout(None)
    return secrets.compare_digest(received, token)


def answer_clock(peer: socket.socket, clock: Clock) -> None:
    """Answer time requests of the other side until it ends the exchange or closes the connection."""
    while peer.recv(1) == _QUESTION:
        came = clock()
        peer.sendall(_STAMPS.pack(came, clock()))


def ask_clock(peer: socket.socket, clock: Clock) -> Exchange:
    """Request the time of the other side once.

    Raises:
        OSError: If the connection breaks or is silent for long.
    """
    asked = clock()
    peer.sendall(_QUESTION)
    came, left = _STAMPS.unpack(receive_exactly(peer, _STAMPS.size))
    return Exchange(asked, came, left, clock())


def measure_offset(peer: socket.socket, clock: Clock, num_exchanges: int) -> ClockOffset:
    """Measure the clock offset of the other side, then end the exchange.

    Args:
        peer: Connection to `answer_clock`.
        clock: The clock of this side.
        num_exchanges: Number of requests.

    Raises:
        OSError: If the connection breaks or is silent for long.
    """
    exchanges = [ask_clock(peer, clock) for _ in range(num_exchanges)]
    peer.sendall(_END)
    fastest = min(exchanges, key=lambda exchange: exchange.delay_ns)
    offset_ns = ((fastest.came - fastest.asked) + (fastest.left - fastest.answered)) / 2
    round_trip_s = fastest.delay_ns / NS_PER_S
    return ClockOffset(offset_ns / NS_PER_S, round_trip_s / 2, round_trip_s)


def receive_exactly(peer: socket.socket, size: int) -> bytes:
    """Return the next `size` bytes. Raises `OSError` if the other side has closed the connection."""
    content = b""
    while len(content) < size:
        part = peer.recv(size - len(content))
        if not part:
            raise ConnectionError("the other node closed the connection")
        content += part
    return content
