"""Align the clocks of a gang's nodes with node 0 by round trips between the agents.

The agents of the other nodes ask the agent of node 0 for its time: many times at the start and at the end, and now and
then in between. Only monotonic clocks are read, so that setting a wall clock during the run does no harm.

Node 0 answers only agents that send the token in the shared folder, in a file that only its owner can read.
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

_MAX_DRIFT_PPM = 1000.0
"""Largest drift between two clocks: NTP slews each by at most 500 ppm (adjtimex(2)), perhaps in opposite directions."""
_ROUNDING_US = 1e-6
"""Slack added for rounding: the linear programs are solved to about 1e-7."""
EDGE_TRIPS = 32
"""Round trips at the start and at the end: enough that some are not delayed in either direction."""
BETWEEN_TRIPS = 8
"""Round trips of a burst in between."""
BETWEEN_S = 30.0
"""Time between bursts."""
ANSWER_S = 5.0
"""Time limit for an answer."""
LAST_S = 60.0
"""Time that node 0, once done, waits for the last questions of nodes that may still write traces."""
_SELF = "SLURMD_NODENAME"
_DISCARD_PORT = 9
"""Port of the discard service; nothing is sent there."""


@dataclass(frozen=True)
class Bounds:
    """Bounds on `node 0's clock - own clock` from a burst of round trips: the tightest in each direction."""

    asked_ns: int
    """Time a question was sent, on the own clock."""
    at_most_ns: int
    """Upper bound on the difference at that time. Unit: ns."""
    answered_ns: int
    """Time an answer arrived, on the own clock."""
    at_least_ns: int
    """Lower bound on the difference at that time. Unit: ns."""
    delay_ns: int
    """Shortest round trip, without the time that node 0 took to answer. Unit: ns."""
    num_trips: int
    """Round trips of the burst."""


@dataclass(frozen=True)
class Meeting:
    """Address and token of node 0's clock server."""

    address: str | None
    """Address it listens at; None for all addresses of its host."""
    port: int
    token: str
    """Token to send first, hexadecimal."""


class ClockServer:
    """Answers the other agents with the arrival time of a question and the departure time of the answer."""

    def __init__(self, clock: Clock = time.monotonic_ns, address: str | None = "127.0.0.1") -> None:
        """Listen on a free port.

        Args:
            clock: Clock to report.
            address: Address to listen at; None for all addresses of this host.
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
        with contextlib.suppress(OSError), connection:  # the agent at the other end may die
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if not admits(connection, self._token):
                return
            self._admitted.append(threading.current_thread())
            answer_clock(connection, self._clock)

    def close(self, wait_s: float = LAST_S) -> None:
        """Wait for the last questions of the admitted agents, then stop listening.

        Args:
            wait_s: Longest time to wait. Unit: s.
        """
        deadline = time.monotonic() + wait_s
        for thread in list(self._admitted):
            thread.join(max(0.0, deadline - time.monotonic()))
        with contextlib.suppress(OSError):  # wakes the thread that waits for connections
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class ClockClient:
    """Asks node 0 for its time, in a thread of its own."""

    def __init__(
        self, address: str, meeting: Meeting, clock: Clock = time.monotonic_ns, between_s: float = BETWEEN_S
    ) -> None:
        """Connect and start to ask.

        Args:
            address: Address of node 0, if `meeting` has none.
            meeting: Address and token of its clock server.
            clock: Clock to compare with it.
            between_s: Time between bursts. Unit: s.

        Raises:
            OSError: If node 0 cannot be reached.
        """
        self._clock, self._between_s = clock, between_s
        self.bounds: list[Bounds] = []
        self.problem: str | None = None
        """Reason why asking ended early, if it did."""
        self._is_over = threading.Event()
        self._socket = socket.create_connection((meeting.address or address, meeting.port), ANSWER_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(bytes.fromhex(meeting.token))
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def finish(self) -> list[Bounds]:
        """Ask for the last time and return the bounds of all bursts."""
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
        tightest_above = min(trips, key=lambda trip: trip.came - trip.asked)
        tightest_below = max(trips, key=lambda trip: trip.left - trip.answered)
        return Bounds(
            tightest_above.asked,
            tightest_above.came - tightest_above.asked,
            tightest_below.answered,
            tightest_below.left - tightest_below.answered,
            min(trip.delay_ns for trip in trips),
            num_trips,
        )


class NodeClock:
    """Clock comparison of one agent: server on node 0, client on the others. A gang of one node compares nothing."""

    def __init__(self, node: int, num_nodes: int) -> None:
        self._node = node
        self._server = ClockServer(address=own_address()) if node == 0 and num_nodes > 1 else None
        self._client: ClockClient | None = None
        self._problem: str | None = "the gang ended before its agents met" if node else None

    @property
    def meeting(self) -> Meeting | None:
        """Address and token of this agent's clock server; None if it has none."""
        return self._server.meeting if self._server else None

    def follow(self, address: str, meeting: Meeting | None) -> None:
        """Start to compare this node's clock with node 0's.

        Args:
            address: Address of node 0, if `meeting` has none.
            meeting: Address and token of its clock server.
        """
        if self._node == 0 or meeting is None:
            return
        try:
            self._client, self._problem = ClockClient(address, meeting), None
        except OSError as error:
            where = f"{meeting.address or address}:{meeting.port}"
            self._problem = f"the first node's agent at {where} cannot be reached ({error})"

    def finish(self, has_failed: bool) -> tuple[list[Bounds], str | None]:
        """Ask for the last time, and end the comparison.

        Args:
            has_failed: Whether this node failed: then it does not wait for the others.

        Returns:
            Bounds of all bursts, and the reason if some are missing.
        """
        if self._server:
            self._server.close(0.0 if has_failed else LAST_S)
        if self._client is None:
            return [], self._problem
        return self._client.finish(), self._client.problem


def own_address() -> str | None:
    """Return this host's address on the route to another node of its Slurm job; None if it cannot be determined."""
    peers = [node for node in hosts(os.environ.get("SLURM_JOB_NODELIST", "")) if node != os.environ.get(_SELF)]
    if not peers:
        return None
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((peers[0], _DISCARD_PORT))  # looks up the route, and sends nothing
        address: str = probe.getsockname()[0]
        return address
    return None


def bursts_from(rows: Sequence[dict[str, int]]) -> list[Bounds]:
    """Return the bursts in an agent's report."""
    return [Bounds(**row) for row in rows]


def fit_clock(bursts: Sequence[Bounds]) -> manifest.Clock:
    """Return offset and drift of a node's clock: the middle of all straight lines within the bounds.

    A question that arrived at `came` was sent before: when it was sent, node 0's clock showed at most `came`. An answer
    that left at `left` arrived later: when it arrived, node 0's clock showed at least `left`. Every straight line below
    all upper bounds and above all lower bounds may be the difference of the clocks. The result is the middle of these
    lines at both ends of the run; half their width is the uncertainty. Delayed trips give loose bounds and so do not
    count. If no line fits, because a clock was slewed during the run, the bounds are widened until one does, and that
    is added to the uncertainty.

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
    """Return the range of all lines between upper and lower bounds, by linear programming.

    Args:
        above: Times and values of upper bounds, shape (num_points, 2). Units: s, us.
        below: Times and values of lower bounds, shape (num_points, 2). Units: s, us.
        at_s: Times at which to evaluate the lines. Unit: s.

    Returns:
        Slack by which the bounds must be widened for a line to fit, and lowest and highest value of all lines at each
        time. Unit: us.
    """
    from scipy.optimize import linprog

    # Variables: offset in us, drift in ppm, slack in us.
    ones = np.ones(len(above))
    rows = np.vstack([np.column_stack([ones, above[:, 0], -ones]), np.column_stack([-ones, -below[:, 0], -ones])])
    limits = np.concatenate([above[:, 1], -below[:, 1]])

    def minimise(cost: tuple[float, float, float], slack_range: tuple[float, float | None]) -> float:
        drift_range = (-_MAX_DRIFT_PPM, _MAX_DRIFT_PPM)
        return float(linprog(cost, rows, limits, bounds=[(None, None), drift_range, slack_range]).fun)

    slack_us = minimise((0, 0, 1), (0, None)) + _ROUNDING_US
    fixed = (slack_us, slack_us)
    return slack_us, [(minimise((1, t, 0), fixed), -minimise((-1, -t, 0), fixed)) for t in at_s]
