"""How far the wall clocks of two nodes are apart, over TCP: the exchange of NTP, of which the quickest one counts.

A reply that took `round_trip` from question to answer was stamped at some time within it, so that the offset of the
quickest exchange is known to half its round trip, whatever the way there and back took.

Source: RFC 5905 (NTP version 4), section 8, offset and delay; section 10, the filter that takes the least delay.
"""

import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass

from triplepoint.units import NS_PER_S

NUM_EXCHANGES = 200
"""A few of as many meet no delay; on a quiet network they take 20 ms."""

_STAMPS = struct.Struct("!qq")
_ASK, _END = b"?", b"."

Clock = Callable[[], int]


@dataclass(frozen=True)
class ClockOffset:
    """Another node's clock against this one's.

    Attributes:
        offset_s: How far the other is ahead. Unit: s.
        uncertainty_s: How far off that may be at most. Unit: s.
        round_trip_s: Of the quickest exchange. Unit: s.
    """

    offset_s: float
    uncertainty_s: float
    round_trip_s: float


def serve_clock(peer: socket.socket, clock: Clock = time.time_ns) -> None:
    """Answer the other side's questions for the time until it has no more.

    Args:
        peer: Connection.
        clock: Wall clock. Unit: ns.
    """
    while peer.recv(1) == _ASK:
        received = clock()
        peer.sendall(_STAMPS.pack(received, clock()))


def measure_offset(peer: socket.socket, clock: Clock = time.time_ns, num_exchanges: int = NUM_EXCHANGES) -> ClockOffset:
    """Return how far the clock of the other side is ahead of ours.

    Args:
        peer: Connection to `serve_clock`.
        clock: Wall clock. Unit: ns.
        num_exchanges: How often to ask.

    Raises:
        OSError: If the connection breaks or is silent for long.
    """
    found = [_exchange(peer, clock) for _ in range(num_exchanges)]
    peer.sendall(_END)
    return min(found, key=lambda one: one.round_trip_s)


def _exchange(peer: socket.socket, clock: Clock) -> ClockOffset:
    asked = clock()
    peer.sendall(_ASK)
    received, answered = _STAMPS.unpack(receive_exactly(peer, _STAMPS.size))
    heard = clock()
    round_trip_s = (heard - asked - (answered - received)) / NS_PER_S
    offset_s = ((received - asked) + (answered - heard)) / 2 / NS_PER_S
    return ClockOffset(offset_s, round_trip_s / 2, round_trip_s)


def receive_exactly(peer: socket.socket, size: int) -> bytes:
    """Return the next `size` bytes. Raises `OSError` if the other side has gone."""
    content = b""
    while len(content) < size:
        part = peer.recv(size - len(content))
        if not part:
            raise ConnectionError("the other node closed the connection")
        content += part
    return content
