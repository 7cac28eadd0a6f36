"""Clocks of a gang: round trips between its agents, from which each node's clock is put on the first node's.

The agent of node 0 answers, the others ask: many times at the start and at the end, now and then in between. Nothing
but monotonic clocks is read, so a wall clock that is set meanwhile does no harm.

It answers only who knows the token that it leaves in the shared folder, readable by the owner alone.
"""

import contextlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from triplepoint import manifest
from triplepoint.launch.slurm import hosts
from triplepoint.node_clock import TOKEN_BYTES, Clock, admits, answer_clock, ask_clock
from triplepoint.units import NS_PER_S, NS_PER_US

_MOST_DRIFT_PPM = 1000.0
"""Two clocks that NTP slews, each by at most 500 ppm (adjtimex(2)), in opposite directions."""
_ROUNDING_US = 1e-6
"""The linear programs are solved to about 1e-7."""
EDGE_TRIPS = 32
"""Round trips at the start and at the end: enough that some are not held up in either direction."""
BETWEEN_TRIPS = 8
BETWEEN_S = 30.0
ANSWER_S = 5.0
"""How long an answer is waited for."""
LAST_S = 60.0
"""How long the first node, once done, waits for the others' last questions: theirs may still write traces."""
_SELF = "SLURMD_NODENAME"
_PORT_OF_NOTHING = 9
"""Port of the discard service; nothing is sent there."""


@dataclass(frozen=True)
class Bounds:
    """What a burst of round trips says of `first node's clock - own clock`; the tightest of each direction."""

    asked_ns: int
    """Own time a question was sent."""
    at_most_ns: int
    """The difference then is no more than this."""
    answered_ns: int
    """Own time an answer came."""
    at_least_ns: int
    """The difference then is no less than this."""
    delay_ns: int
    """Shortest round trip, without the time the other side took. Unit: ns."""
    num_trips: int
    """Round trips of the burst."""


@dataclass(frozen=True)
class Meeting:
    """Where the first node's agent answers, and what it wants to hear first."""

    address: str | None
    """Address it listens at; None for all of its host's."""
    port: int
    token: str
    """Hexadecimal."""


class ClockServer:
    """Answers the other agents with the time a question came and the time the answer leaves."""

    def __init__(self, clock: Clock = time.monotonic_ns, address: str | None = "127.0.0.1") -> None:
        """Listen on a free port.

        Args:
            clock: The clock to tell.
            address: Where to listen; None for all addresses of this host.
        """
        self._clock = clock
        self._socket = socket.create_server((address or "", 0))
        self._token = secrets.token_bytes(TOKEN_BYTES)
        self.meeting = Meeting(address, self._socket.getsockname()[1], self._token.hex())
        self._admitted: list[threading.Thread] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                connection, _ = self._socket.accept()
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:  # an agent that died takes its connection with it
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if not admits(connection, self._token):
                return
            self._admitted.append(threading.current_thread())
            answer_clock(connection, self._clock)

    def close(self, wait_s: float = LAST_S) -> None:
        """Wait until the admitted have asked their last question, then stop listening.

        Args:
            wait_s: How long to wait for them at most. Unit: s.
        """
        deadline = time.monotonic() + wait_s
        for thread in list(self._admitted):
            thread.join(max(0.0, deadline - time.monotonic()))
        with contextlib.suppress(OSError):  # wakes the thread that waits for connections
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class ClockClient:
    """Asks the first node's agent for its time, in a thread of its own."""

    def __init__(
        self, address: str, meeting: Meeting, clock: Clock = time.monotonic_ns, between_s: float = BETWEEN_S
    ) -> None:
        """Connect and ask for the first time.

        Args:
            address: Of the first node, where its clock names none.
            meeting: Of its clock.
            clock: The clock to compare with it.
            between_s: Time between bursts. Unit: s.

        Raises:
            OSError: If the first node cannot be reached.
        """
        self._clock, self._between_s = clock, between_s
        self.bounds: list[Bounds] = []
        self.problem: str | None = None
        """Why no more was asked, if so."""
        self._is_over = threading.Event()
        self._socket = socket.create_connection((meeting.address or address, meeting.port), ANSWER_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(bytes.fromhex(meeting.token))
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def finish(self) -> list[Bounds]:
        """Ask for the last time and return all that was learned."""
        self._is_over.set()
        self._thread.join(2 * ANSWER_S)
        return self.bounds

    def _ask(self) -> None:
        try:
            with self._socket:
                self.bounds.append(self._burst(EDGE_TRIPS))
                while not self._is_over.wait(self._between_s):
                    self.bounds.append(self._burst(BETWEEN_TRIPS))
                self.bounds.append(self._burst(EDGE_TRIPS))
        except OSError as error:
            self.problem = f"the first node's agent stopped answering ({error})"

    def _burst(self, num_trips: int) -> Bounds:
        trips = [ask_clock(self._socket, self._clock) for _ in range(num_trips)]
        highest = min(trips, key=lambda trip: trip.came - trip.asked)
        lowest = max(trips, key=lambda trip: trip.left - trip.answered)
        return Bounds(
            highest.asked,
            highest.came - highest.asked,
            lowest.answered,
            lowest.left - lowest.answered,
            min(trip.delay_ns for trip in trips),
            num_trips,
        )


class NodeClock:
    """One agent's side of the comparison; nothing happens where the gang has one node."""

    def __init__(self, node: int, num_nodes: int) -> None:
        self._node = node
        self._server = ClockServer(address=own_address()) if node == 0 and num_nodes > 1 else None
        self._client: ClockClient | None = None
        self._problem: str | None = "the gang ended before its agents met" if node else None

    @property
    def meeting(self) -> Meeting | None:
        """Where this agent answers; None where it does not."""
        return self._server.meeting if self._server else None

    def follow(self, address: str, meeting: Meeting | None) -> None:
        """Begin to compare this node's clock with the first node's."""
        if self._node == 0 or meeting is None:
            return
        try:
            self._client, self._problem = ClockClient(address, meeting), None
        except OSError as error:
            where = f"{meeting.address or address}:{meeting.port}"
            self._problem = f"the first node's agent at {where} cannot be reached ({error})"

    def finish(self, has_failed: bool) -> tuple[list[Bounds], str | None]:
        """Return all bursts, the last ones now, and why not all, if so; a failed node does not wait for the others."""
        if self._server:
            self._server.close(0.0 if has_failed else LAST_S)
        if self._client is None:
            return [], self._problem
        return self._client.finish(), self._client.problem


def own_address() -> str | None:
    """Return this host's address on the way to another node of its Slurm job; None if that cannot be told."""
    peers = [node for node in hosts(os.environ.get("SLURM_JOB_NODELIST", "")) if node != os.environ.get(_SELF)]
    if not peers:
        return None
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((peers[0], _PORT_OF_NOTHING))  # sends nothing, but looks up the way
        address: str = probe.getsockname()[0]
        return address
    return None


def bursts_from(rows: Sequence[dict[str, int]]) -> list[Bounds]:
    """Return bursts as an agent's report holds them."""
    return [Bounds(**row) for row in rows]


def fit_clock(bursts: Sequence[Bounds]) -> manifest.Clock:
    """Return offset and drift of a node's clock: the middle of all straight lines that the round trips allow.

    A question that came at `came` says that the first node's clock was no further than that when it was sent; an answer
    that left at `left`, no less when it came. Every line below all the former and above all the latter may be the
    difference of the clocks: the middle of them at both ends of the run is taken, half their width is the uncertainty.
    Trips that were delayed allow anything and so do not count. Where no line fits, because a clock was slewed
    meanwhile, the bounds are widened until one does, and that is added to the uncertainty.

    Source:
        Minimum-delay filter: RFC 5905 section 10; lines between bounds: Duda et al., ICDCS 1987.
    """
    reference_ns, base_ns = bursts[0].asked_ns, bursts[0].at_least_ns
    above = np.array([(b.asked_ns - reference_ns, b.at_most_ns - base_ns) for b in bursts]) / (NS_PER_S, NS_PER_US)
    below = np.array([(b.answered_ns - reference_ns, b.at_least_ns - base_ns) for b in bursts]) / (NS_PER_S, NS_PER_US)
    end_s = float(below[-1, 0])
    slack_us, ranges_us = _lines_between(above, below, (0.0, end_s))
    first_us, last_us = (sum(ends) / 2 for ends in ranges_us)
    widest_us = max(high - low for low, high in ranges_us)
    return manifest.Clock(
        reference_ns=reference_ns,
        offset_ns=base_ns + round(first_us * NS_PER_US),
        drift_ppm=(last_us - first_us) / end_s,
        uncertainty_ns=round((widest_us / 2 + slack_us) * NS_PER_US),
        least_delay_ns=min(burst.delay_ns for burst in bursts),
        num_bursts=len(bursts),
        num_round_trips=sum(burst.num_trips for burst in bursts),
        duration_s=end_s,
    )


def _lines_between(
    above: np.ndarray, below: np.ndarray, at_s: tuple[float, ...]
) -> tuple[float, list[tuple[float, float]]]:
    """Return by how much points have to be moved apart for a line to fit, and the range of all such lines at times.

    Args:
        above: Time and value of points no line lies above. Shape (num_points, 2). Units: s, us.
        below: Those no line lies below.
        at_s: The times. Unit: s.
    """
    from scipy.optimize import linprog

    # Unknown are the offset, the drift, and by how much the points are moved. Units: us, ppm, us.
    ones = np.ones(len(above))
    rows = np.vstack([np.column_stack([ones, above[:, 0], -ones]), np.column_stack([-ones, -below[:, 0], -ones])])
    limits = np.concatenate([above[:, 1], -below[:, 1]])

    def least(cost: tuple[float, float, float], slack: tuple[float, float | None]) -> float:
        drift = (-_MOST_DRIFT_PPM, _MOST_DRIFT_PPM)
        return float(linprog(cost, rows, limits, bounds=[(None, None), drift, slack]).fun)

    slack_us = least((0, 0, 1), (0, None)) + _ROUNDING_US
    fixed = (slack_us, slack_us)
    return slack_us, [(least((1, t, 0), fixed), -least((-1, -t, 0), fixed)) for t in at_s]
