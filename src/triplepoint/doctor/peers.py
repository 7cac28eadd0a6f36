"""Measurements between nodes: clock offsets, and visibility, write rate and free space of the shared folder.

Node 0 is the server, to which the other nodes connect.
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
"""Time between two looks at a file. Unit: s."""
SHOWN_WITHIN_S = 90.0
"""Time to wait for a file of another node. NFS caches the content of a folder for up to 60 s by default (acdirmax).
Source: nfs(5). Unit: s."""

CHUNK_BYTES = 16 * MIB
"""Data per write. Unit: byte."""
MOST_BYTES = 256 * MIB
"""Most data to write in a measurement. Unit: byte."""
MOST_S = 5.0
"""Longest measurement of the write rate. Unit: s."""


def show(path: Path, text: str) -> None:
    """Write a marker file for other nodes to see."""
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def wait_until_shown(path: Path, text: str, patience_s: float = SHOWN_WITHIN_S) -> float | None:
    """Return the time until a marker file can be read here; None if it takes longer than `patience_s`. Unit: s."""
    begin = time.monotonic()
    while (waited := time.monotonic() - begin) < patience_s:
        with contextlib.suppress(OSError):  # The file is not visible yet.
            if path.read_text(encoding="utf-8") == text:
                return waited
        time.sleep(POLL_S)
    return None


def write_rate(folder: Path, name: str) -> float:
    """Measure the rate at which this node writes to a folder, with a sync after each chunk. Unit: byte/s.

    Args:
        folder: The folder.
        name: Name of a scratch file, which is removed.

    Raises:
        OSError: If the file cannot be written.
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
    """Return the free space of a folder for this user. Unit: byte."""
    stats = os.statvfs(folder)
    return stats.f_bavail * stats.f_frsize


PATIENCE_S = 120.0
"""Time that nodes wait for each other, as they may start a minute apart. Unit: s."""

NUM_EXCHANGES = 200
"""Exchanges of clock readings, so that a few meet no delay. On a quiet network they take 20 ms."""

_LENGTH = struct.Struct("!I")
"""Header of a message: its length."""


class Meeting(Strict):
    """Measurements of one node against node 0; those against itself are None on node 0."""

    node: int
    """Number of the node in the job."""
    offset_s: float | None = None
    """Time by which its wall clock is ahead of that of node 0. Unit: s."""
    uncertainty_s: float | None = None
    """Uncertainty of the offset on either side. Unit: s."""
    round_trip_s: float | None = None
    """Shortest round trip to node 0, through Python and TCP. Unit: s."""
    sees_after_s: float | None = None
    """Time until a file of node 0 was visible here; None if it never was. Unit: s."""
    is_seen_after_s: float | None = None
    """Time until a file of this node was visible on node 0; None if it never was. Unit: s."""
    write_bytes_per_s: float
    """Rate of writing to the folder while all nodes write. Unit: byte/s."""
    free_bytes: int
    """Free space of the folder. Unit: byte."""


def meet(folder: Path, node: int, num_nodes: int, address: str, clock: Clock = time.time_ns) -> Meeting:
    """Measure together with the other nodes, and return the measurements of this node.

    Args:
        folder: Folder that all nodes should share.
        node: Number of this node.
        num_nodes: Number of nodes.
        address: Address of this node for the others.
        clock: Wall clock. Unit: ns.

    Raises:
        OSError: If nodes cannot reach each other, or the folder cannot be written.
    """
    if node == 0:
        return _serve(folder, num_nodes, address, clock)
    with socket.create_connection(await_address(folder / "meeting.json"), PATIENCE_S) as server:
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        server.sendall(bytes.fromhex(json.loads((folder / "meeting.json").read_text(encoding="utf-8"))["token"]))
        return _visit(folder, node, server, clock)


def _serve(folder: Path, num_nodes: int, address: str, clock: Clock) -> Meeting:
    """Run the meeting as node 0."""
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
    """Accept the connections of the other nodes, which present a token that only this user can read."""
    token = secrets.token_bytes(TOKEN_BYTES)
    visitors: list[socket.socket] = []
    with socket.create_server(("", 0), backlog=num) as listener:
        listener.settimeout(PATIENCE_S)
        invitation = {"address": address, "port": listener.getsockname()[1], "token": token.hex()}
        write_json(folder / "meeting.json", invitation, is_private=True)
        while len(visitors) < num:
            visitor, _ = listener.accept()
            with contextlib.suppress(OSError):  # A stranger closed the connection or sent nothing.
                if admits(visitor, token):
                    visitor.settimeout(PATIENCE_S)
                    visitor.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    visitors.append(visitor)
                    continue
            visitor.close()
    return visitors


def _attend(folder: Path, visitor: socket.socket, clock: Clock) -> None:
    """Measure with one visitor as node 0, in the same steps as `_visit`."""
    _send(visitor, "begin")
    answer_clock(visitor, clock)
    node = _receive(visitor)
    # The visitor has looked for the file before it exists, to detect a file system that caches its absence.
    show(folder / f"mark0-{node}", "node 0")
    _send(visitor, "written")
    _receive(visitor)
    (folder / f"mark{node}-0").exists()
    _send(visitor, "looked")
    _receive(visitor)
    _send(visitor, wait_until_shown(folder / f"mark{node}-0", f"node {node}"))


def _visit(folder: Path, node: int, server: socket.socket, clock: Clock) -> Meeting:
    """Measure with node 0 as another node."""
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
    """Wait for the file of node 0 with its address, and return host and port.

    Raises:
        TimeoutError: If the file does not become visible here.
    """
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            time.sleep(POLL_S)
            continue
        return content["address"], content["port"]
    raise TimeoutError(f"{path} of node 0 was not seen here within {PATIENCE_S:.0f} s")


def _send(peer: socket.socket, content: Any) -> None:
    text = json.dumps(content).encode()
    peer.sendall(_LENGTH.pack(len(text)) + text)


def _receive(peer: socket.socket) -> Any:
    (length,) = _LENGTH.unpack(receive_exactly(peer, _LENGTH.size))
    return json.loads(receive_exactly(peer, length))
