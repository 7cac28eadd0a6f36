import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triplepoint.doctor import peers
from triplepoint.doctor.clock import measure_offset, serve_clock
from triplepoint.doctor.peers import meet


def offset_of(ahead_ns: int, delays_s: tuple[float, float] = (0.0, 0.0)) -> tuple[float, float, float]:
    """Measure against a clock that is `ahead_ns` ahead, with delays before and after its stamps."""
    ours, theirs = socket.socketpair()

    def clock() -> int:
        return time.monotonic_ns() + ahead_ns

    def late_clock() -> int:
        time.sleep(delays_s[0])
        return clock()

    server = threading.Thread(target=serve_clock, args=(theirs, late_clock if any(delays_s) else clock))
    server.start()
    found = measure_offset(ours, time.monotonic_ns, num_exchanges=20)
    server.join()
    return found.offset_s, found.uncertainty_s, found.round_trip_s


@settings(max_examples=20, deadline=None)
@given(ahead_ms=st.integers(-10_000, 10_000))
def test_measure_offset_is_right_within_its_uncertainty(ahead_ms: int) -> None:
    offset_s, uncertainty_s, _ = offset_of(ahead_ms * 1_000_000)
    assert abs(offset_s - ahead_ms / 1000) <= uncertainty_s


def test_measure_offset_on_a_slow_server_stays_within_its_uncertainty() -> None:
    # The server stamps late, so that the way there seems long: the worst an asymmetric network can do.
    offset_s, uncertainty_s, round_trip_s = offset_of(0, (0.002, 0.0))
    assert abs(offset_s) <= uncertainty_s
    assert uncertainty_s == pytest.approx(round_trip_s / 2)


def test_measure_offset_takes_the_quickest_exchange() -> None:
    ours, theirs = socket.socketpair()
    stamps = iter([0, 100, 200, 210, 300, 390])  # ns: asked and heard, three times
    answers = iter([1050, 1050, 1205, 1205, 1345, 1345])
    server = threading.Thread(target=serve_clock, args=(theirs, lambda: next(answers)))
    server.start()
    found = measure_offset(ours, lambda: next(stamps), num_exchanges=3)
    server.join()
    assert found.round_trip_s == pytest.approx(10e-9)
    assert found.offset_s == pytest.approx(1000e-9)


def test_meet_three_nodes_tell_offsets_and_see_each_other(tmp_path: Path) -> None:
    ahead_ns = {0: 0, 1: 250_000_000, 2: -40_000_000}

    def take_part(node: int) -> object:
        return meet(tmp_path, node, 3, "127.0.0.1", lambda: time.monotonic_ns() + ahead_ns[node])

    with (
        patch.object(peers, "CHUNK_BYTES", 1 << 16),
        patch.object(peers, "MOST_BYTES", 1 << 18),
        ThreadPoolExecutor(3) as pool,
    ):
        found = list(pool.map(take_part, range(3)))
    assert [meeting.node for meeting in found] == [0, 1, 2]
    assert found[0].offset_s is None
    for meeting in found[1:]:
        assert abs(meeting.offset_s - ahead_ns[meeting.node] / 1e9) <= meeting.uncertainty_s
        assert meeting.sees_after_s is not None
        assert meeting.is_seen_after_s is not None
    assert all(meeting.write_bytes_per_s > 0 for meeting in found)
    assert not list(tmp_path.glob(".write*"))


def test_wait_until_shown_never_shown_is_none(tmp_path: Path) -> None:
    assert peers.wait_until_shown(tmp_path / "mark", "node 0", patience_s=0.02) is None
    peers.show(tmp_path / "mark", "another")
    assert peers.wait_until_shown(tmp_path / "mark", "node 0", patience_s=0.02) is None
    peers.show(tmp_path / "mark", "node 0")
    assert peers.wait_until_shown(tmp_path / "mark", "node 0", patience_s=0.02) is not None
