import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import patch

from triplepoint.doctor import peers
from triplepoint.doctor.peers import meet


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


def test_meet_takes_no_stranger_for_a_node(tmp_path: Path) -> None:
    with (
        patch.object(peers, "CHUNK_BYTES", 1 << 16),
        patch.object(peers, "MOST_BYTES", 1 << 16),
        ThreadPoolExecutor(2) as pool,
    ):
        first = pool.submit(meet, tmp_path, 0, 2, "127.0.0.1")
        place = peers.await_address(tmp_path / "meeting.json")
        with socket.create_connection(place) as stranger:
            stranger.sendall(bytes(32))
            assert stranger.recv(16) == b"", "sent away: this is no token of ours"
        second = pool.submit(meet, tmp_path, 1, 2, "127.0.0.1")
        assert [first.result(60).node, second.result(60).node] == [0, 1]
    assert (tmp_path / "meeting.json").stat().st_mode & 0o777 == 0o600
