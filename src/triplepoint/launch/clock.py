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
from dataclasses import dataclass

from triplepoint.launch.slurm import hosts
from triplepoint.node_clock import Clock, answer_clock, ask_clock

EDGE_TRIPS = 32
"""Round trips at the start and at the end: enough that some are not held up in either direction."""
BETWEEN_TRIPS = 8
BETWEEN_S = 30.0
ANSWER_S = 5.0
"""How long an answer is waited for."""
LAST_S = 60.0
"""How long the first node, once done, waits for the others' last questions: theirs may still write traces."""
HELLO_S = 5.0
"""How long a connection may take to present the token."""
_TOKEN_BYTES = 32
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
        self._token = secrets.token_bytes(_TOKEN_BYTES)
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
            if not self._admits(connection):
                return
            self._admitted.append(threading.current_thread())
            answer_clock(connection, self._clock)

    def _admits(self, connection: socket.socket) -> bool:
        """Return whether a connection presents the token, all of it in time."""
        deadline, said = time.monotonic() + HELLO_S, b""
        while len(said) < _TOKEN_BYTES and (left_s := deadline - time.monotonic()) > 0:
            connection.settimeout(left_s)
            part = connection.recv(_TOKEN_BYTES - len(said))
            if not part:
                return False
            said += part
        connection.settimeout(None)
        return secrets.compare_digest(said, self._token)

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
        """Compare for the last time and return what was learned, and why not all, if so.

        Args:
            has_failed: Whether this node failed: the others wait for its word, so it does not wait for them.
        """
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
