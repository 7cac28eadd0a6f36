"""Measurements between nodes: clock offsets, and whether they share a folder, how soon, how fast and how full.

Node 0 serves, the others connect to it.
"""

import contextlib
import json
import os
import secrets
import socket
import struct
import time
from pathlib import Path
from typing import Any

from triplepoint.config.base import Strict
from triplepoint.files import write_json
from triplepoint.node_clock import TOKEN_BYTES, Clock, admits, answer_clock, measure_offset, receive_exactly
from triplepoint.units import MIB

POLL_S = 0.005
SHOWN_WITHIN_S = 90.0
"""NFS keeps what it knows of a folder for up to 60 s by default (acdirmax). Source: nfs(5)."""

CHUNK_BYTES = 16 * MIB
MOST_BYTES = 256 * MIB
MOST_S = 5.0
"""Writing is measured for no longer, nor with more data."""


def show(path: Path, text: str) -> None:
    """Write a mark for other nodes to see."""
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def wait_until_shown(path: Path, text: str, patience_s: float = SHOWN_WITHIN_S) -> float | None:
    """Return how long it takes until a mark can be read here, None if it never can. Unit: s."""
    begin = time.monotonic()
    while (waited := time.monotonic() - begin) < patience_s:
        with contextlib.suppress(OSError):  # not there yet
            if path.read_text(encoding="utf-8") == text:
                return waited
        time.sleep(POLL_S)
    return None


def write_rate(folder: Path, name: str) -> float:
    """Return how fast this node writes to a folder, up to the disk and back. Unit: byte/s.

    Args:
        folder: The folder.
        name: Of a scratch file, which is removed.

    Raises:
        OSError: From the file system.
    """
    chunk, written = os.urandom(CHUNK_BYTES), 0
    path = folder / name
    begin = time.monotonic()
    try:
        with path.open("wb", buffering=0) as file:
            while written < MOST_BYTES and time.monotonic() - begin < MOST_S:
                written += file.write(chunk)
                os.fsync(file.fileno())
            duration_s = time.monotonic() - begin
    finally:
        path.unlink(missing_ok=True)
    return written / duration_s


def free_bytes(folder: Path) -> int:
    """Return the space left for this user. Unit: byte."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


PATIENCE_S = 120.0
"""How long nodes wait for one another: they may start a minute apart."""

NUM_EXCHANGES = 200
"""A few of as many meet no delay; on a quiet network they take 20 ms."""

_LENGTH = struct.Struct("!I")


class Meeting(Strict):
    """What one node found out; the first five are None on node 0, against which they are measured."""

    node: int
    """Number in the job."""
    offset_s: float | None = None
    """How far its wall clock is ahead of node 0's. Unit: s."""
    uncertainty_s: float | None = None
    """How far off that may be. Unit: s."""
    round_trip_s: float | None = None
    """Quickest round trip to node 0, through Python and TCP. Unit: s."""
    sees_after_s: float | None = None
    """How long a file of node 0 took to be seen here; None if it never was. Unit: s."""
    is_seen_after_s: float | None = None
    """How long a file of this node took to be seen on node 0; None if it never was. Unit: s."""
    write_bytes_per_s: float
    """Rate of writing to the folder, all nodes at once. Unit: byte/s."""
    free_bytes: int
    """Space left in the folder. Unit: byte."""


def meet(folder: Path, node: int, num_nodes: int, address: str, clock: Clock = time.time_ns) -> Meeting:
    """Take part in the meeting and return what this node found out.

    Args:
        folder: Folder that all nodes should share.
        node: Number of this node.
        num_nodes: How many there are.
        address: Where this node can be reached.
        clock: Wall clock. Unit: ns.

    Raises:
        OSError: If nodes cannot reach one another, or the folder cannot be written.
    """
    if node == 0:
        return _serve(folder, num_nodes, address, clock)
    with socket.create_connection(await_address(folder / "meeting.json"), PATIENCE_S) as server:
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        server.sendall(bytes.fromhex(json.loads((folder / "meeting.json").read_text(encoding="utf-8"))["token"]))
        return _visit(folder, node, server, clock)


def _serve(folder: Path, num_nodes: int, address: str, clock: Clock) -> Meeting:
    visitors = _visitors(folder, num_nodes - 1, address) if num_nodes > 1 else []
    try:
        for visitor in visitors:
            _attend(folder, visitor, clock)
        for visitor in visitors:
            _send(visitor, "write")
        rate = write_rate(folder, ".write0")
        for visitor in visitors:
            _receive(visitor)
    finally:
        for visitor in visitors:
            visitor.close()
    return Meeting(node=0, write_bytes_per_s=rate, free_bytes=free_bytes(folder))


def _visitors(folder: Path, num: int, address: str) -> list[socket.socket]:
    """Return the connections of the other nodes, which present the token that only this user can read."""
    token = secrets.token_bytes(TOKEN_BYTES)
    visitors: list[socket.socket] = []
    with socket.create_server(("", 0), backlog=num) as listener:
        listener.settimeout(PATIENCE_S)
        place = {"address": address, "port": listener.getsockname()[1], "token": token.hex()}
        write_json(folder / "meeting.json", place, is_private=True)
        while len(visitors) < num:
            visitor, _ = listener.accept()
            with contextlib.suppress(OSError):  # a stranger that hung up or said nothing
                if admits(visitor, token):
                    visitor.settimeout(PATIENCE_S)
                    visitor.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    visitors.append(visitor)
                    continue
            visitor.close()
    return visitors


def _attend(folder: Path, visitor: socket.socket, clock: Clock) -> None:
    """Do one visitor's part at node 0; the steps are those of `_visit`."""
    _send(visitor, "begin")
    answer_clock(visitor, clock)
    node = _receive(visitor)
    # It has looked for the mark, so that a file system that remembers absence is caught at it.
    show(folder / f"mark0-{node}", "node 0")
    _send(visitor, "written")
    _receive(visitor)
    (folder / f"mark{node}-0").exists()
    _send(visitor, "looked")
    _receive(visitor)
    _send(visitor, wait_until_shown(folder / f"mark{node}-0", f"node {node}"))


def _visit(folder: Path, node: int, server: socket.socket, clock: Clock) -> Meeting:
    server.settimeout(PATIENCE_S)
    _receive(server)
    offset = measure_offset(server, clock, NUM_EXCHANGES)
    (folder / f"mark0-{node}").exists()
    _send(server, node)
    _receive(server)
    sees_after_s = wait_until_shown(folder / f"mark0-{node}", "node 0")
    _send(server, "seen")
    _receive(server)
    show(folder / f"mark{node}-0", f"node {node}")
    _send(server, "written")
    is_seen_after_s = _receive(server)
    _receive(server)
    rate = write_rate(folder, f".write{node}")
    _send(server, "done")
    return Meeting(
        node=node,
        offset_s=-offset.offset_s,
        uncertainty_s=offset.uncertainty_s,
        round_trip_s=offset.round_trip_s,
        sees_after_s=sees_after_s,
        is_seen_after_s=is_seen_after_s,
        write_bytes_per_s=rate,
        free_bytes=free_bytes(folder),
    )


def await_address(path: Path) -> tuple[str, int]:
    """Return host and port that node 0 wrote to a file.

    Raises:
        TimeoutError: If the file is not seen here.
    """
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            place = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            time.sleep(POLL_S)
            continue
        return place["address"], place["port"]
    raise TimeoutError(f"{path} of node 0 was not seen here within {PATIENCE_S:.0f} s")


def _send(peer: socket.socket, content: Any) -> None:
    text = json.dumps(content).encode()
    peer.sendall(_LENGTH.pack(len(text)) + text)


def _receive(peer: socket.socket) -> Any:
    (length,) = _LENGTH.unpack(receive_exactly(peer, _LENGTH.size))
    return json.loads(receive_exactly(peer, length))
