"""Clocks of a gang: round trips between its agents, from which each node's clock is put on the first node's.

The agent of node 0 answers, the others ask: many times at the start and at the end, now and then in between. Nothing
but monotonic clocks is read, so a wall clock that is set meanwhile does no harm.
"""

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

EDGE_TRIPS = 32
"""Round trips at the start and at the end: enough that some are not held up in either direction."""
BETWEEN_TRIPS = 8
BETWEEN_S = 30.0
ANSWER_S = 5.0
"""How long an answer is waited for."""
LAST_S = 60.0
"""How long the first node, once done, waits for the others' last questions: theirs may still write traces."""
_QUESTION = b"?"
_ANSWER = struct.Struct("!qq")

Clock = Callable[[], int]
"""Returns monotonic time. Unit: ns."""


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


class ClockServer:
    """Answers the other agents with the time a question came and the time the answer leaves."""

    def __init__(self, clock: Clock = time.monotonic_ns) -> None:
        """Listen on a free port.

        Args:
            clock: The clock to tell.
        """
        self._clock = clock
        self._socket = socket.create_server(("", 0))
        self.port: int = self._socket.getsockname()[1]
        self._answering: list[threading.Thread] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                connection, _ = self._socket.accept()
                self._answering.append(threading.Thread(target=self._answer, args=(connection,), daemon=True))
                self._answering[-1].start()

    def _answer(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:  # an agent that died takes its connection with it
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while connection.recv(1):
                came_ns = self._clock()
                connection.sendall(_ANSWER.pack(came_ns, self._clock()))

    def close(self, wait_s: float = LAST_S) -> None:
        """Wait until the others have asked their last question, then stop listening.

        Args:
            wait_s: How long to wait for them at most. Unit: s.
        """
        deadline = time.monotonic() + wait_s
        for thread in list(self._answering):
            thread.join(max(0.0, deadline - time.monotonic()))
        with contextlib.suppress(OSError):  # wakes the thread that waits for connections
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class ClockClient:
    """Asks the first node's agent for its time, in a thread of its own."""

    def __init__(self, address: str, port: int, clock: Clock = time.monotonic_ns, between_s: float = BETWEEN_S) -> None:
        """Connect and ask for the first time.

        Args:
            address: Of the first node.
            port: Of its clock.
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
        self._socket = socket.create_connection((address, port), ANSWER_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
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
        trips = [self._trip() for _ in range(num_trips)]
        asked_ns, came_ns, _, _ = min(trips, key=lambda trip: trip[1] - trip[0])
        _, _, left_ns, answered_ns = max(trips, key=lambda trip: trip[2] - trip[3])
        delay_ns = min(answered - asked - (left - came) for asked, came, left, answered in trips)
        return Bounds(asked_ns, came_ns - asked_ns, answered_ns, left_ns - answered_ns, delay_ns, num_trips)

    def _trip(self) -> tuple[int, int, int, int]:
        """Return when a question was sent, came, was answered, and the answer came."""
        asked_ns = self._clock()
        self._socket.sendall(_QUESTION)
        answer = b""
        while len(answer) < _ANSWER.size:
            part = self._socket.recv(_ANSWER.size - len(answer))
            if not part:
                raise ConnectionError("connection closed")
            answer += part
        answered_ns = self._clock()
        came_ns, left_ns = _ANSWER.unpack(answer)
        return asked_ns, came_ns, left_ns, answered_ns


class NodeClock:
    """One agent's side of the comparison; nothing happens where the gang has one node."""

    def __init__(self, node: int, num_nodes: int) -> None:
        self._node = node
        self._server = ClockServer() if node == 0 and num_nodes > 1 else None
        self._client: ClockClient | None = None
        self._problem: str | None = "the gang ended before its agents met" if node else None

    @property
    def port(self) -> int | None:
        """Where this agent answers; None where it does not."""
        return self._server.port if self._server else None

    def follow(self, address: str, port: int | None) -> None:
        """Begin to compare this node's clock with the first node's."""
        if self._node == 0 or port is None:
            return
        try:
            self._client, self._problem = ClockClient(address, port), None
        except OSError as error:
            self._problem = f"the first node's agent at {address}:{port} cannot be reached ({error})"

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
