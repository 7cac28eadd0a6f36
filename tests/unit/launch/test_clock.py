"""Clocks of two nodes: what round trips allow, and a real exchange between two agents."""

import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.unit.telemetry.test_align import node, run_folder
from triplepoint import node_clock
from triplepoint.files import write_json
from triplepoint.launch.clock import Bounds, ClockClient, ClockServer, NodeClock, bursts_from, fit_clock, own_address
from triplepoint.manifest import Clock, Manifest, read_manifest

S = 1_000_000_000
MS = 1_000_000
US = 1_000


class Network:
    """Two clocks that differ by a straight line, and a network that holds messages up, more one way than the other."""

    def __init__(self, seed: int, offset_ns: int, drift_ppm: float, out_us: float, back_us: float) -> None:
        self._chance = random.Random(seed)
        self._offset_ns, self._drift_ppm, self._out_us, self._back_us = offset_ns, drift_ppm, out_us, back_us

    def first_ns(self, own_ns: int) -> int:
        """Return the first node's clock when ours shows `own_ns`."""
        return own_ns + self._offset_ns + round(own_ns * self._drift_ppm * 1e-6)

    def burst(self, at_ns: int, num_trips: int) -> Bounds:
        trips = []
        for _ in range(num_trips):
            came = at_ns + round((25 + self._chance.expovariate(1 / self._out_us)) * US)
            left = came + 3 * US
            answered = left + round((25 + self._chance.expovariate(1 / self._back_us)) * US)
            trips.append((at_ns, self.first_ns(came), self.first_ns(left), answered))
            at_ns = answered + 1 * US
        asked = min(trips, key=lambda trip: trip[1] - trip[0])
        answered_at = max(trips, key=lambda trip: trip[2] - trip[3])
        delay = min(t[3] - t[0] - (t[2] - t[1]) for t in trips)
        return Bounds(asked[0], asked[1] - asked[0], answered_at[3], answered_at[2] - answered_at[3], delay, num_trips)

    def run(self, seconds: float) -> list[Bounds]:
        times = [1.0, *np.arange(31.0, seconds, 30.0), seconds]
        sizes = [32, *[8] * (len(times) - 2), 32]
        return [self.burst(round(t * S), size) for t, size in zip(times, sizes, strict=True)]


def error_ns(clock: Clock, network: Network, own_ns: int) -> float:
    manifest = Manifest.model_construct(nodes=(node(0, 0, 0),))
    other = node(1, 0, 0).model_copy(update={"clock": clock})
    (first,) = manifest.on_first_clock(other, np.array([own_ns]))
    return float(abs(int(first) - network.first_ns(own_ns)))


def test_fit_clock_within_a_millisecond_under_50_ms_and_50_ppm() -> None:
    # Messages to the first node wait 5 ms on average, back half a millisecond: means of round trips are 2 ms off.
    network = Network(1, 50 * MS, 50.0, out_us=5000, back_us=500)
    clock = fit_clock(network.run(600))
    errors = [error_ns(clock, network, t * S) for t in (1, 100, 300, 600)]
    assert max(errors) < 1 * MS
    assert max(errors) <= clock.uncertainty_ns < 1 * MS
    assert clock.drift_ppm == pytest.approx(50, abs=1)
    assert clock.offset_ns == pytest.approx(50 * MS + 50 * US, abs=clock.uncertainty_ns)


@settings(max_examples=examples(60), deadline=None)
@given(
    seed=st.integers(0, 10**6),
    offset_ns=st.integers(-(10**15), 10**15),
    drift_ppm=st.floats(-400, 400),
    out_us=st.floats(1, 20_000),
    back_us=st.floats(1, 20_000),
    seconds=st.floats(2, 4000),
)
def test_fit_clock_never_further_off_than_it_says(
    seed: int, offset_ns: int, drift_ppm: float, out_us: float, back_us: float, seconds: float
) -> None:
    network = Network(seed, offset_ns, drift_ppm, out_us, back_us)
    bursts = network.run(seconds)
    clock = fit_clock(bursts)
    for own_ns in (bursts[0].asked_ns, (bursts[0].asked_ns + bursts[-1].answered_ns) // 2, bursts[-1].answered_ns):
        assert error_ns(clock, network, own_ns) <= clock.uncertainty_ns + 2 * US


def test_fit_clock_slewed_meanwhile_says_how_far_it_is_off() -> None:
    steady, slewed = Network(1, 0, 0.0, 20, 20), Network(2, 4 * MS, 0.0, 20, 20)
    bursts = [steady.burst(1 * S, 32), steady.burst(300 * S, 32), slewed.burst(600 * S, 32)]
    clock = fit_clock(bursts)
    # No straight line goes through 0, 0 and 4 ms: the best is 1 ms off at each.
    assert error_ns(clock, steady, 300 * S) == pytest.approx(1 * MS, rel=0.1)
    assert clock.uncertainty_ns >= 0.95 * MS


def test_fit_clock_of_one_burst_knows_its_offset() -> None:
    network = Network(3, -7 * S, 10.0, 50, 50)
    clock = fit_clock([network.burst(5 * S, 32)])
    assert error_ns(clock, network, 5 * S) <= clock.uncertainty_ns < 1 * MS


def shifted_ns() -> int:
    """Return a clock that is 50 ms behind and 50 ppm slow."""
    return round(time.monotonic_ns() * (1 - 50e-6)) - 50 * MS


AGENT = """
import json, sys, time
from dataclasses import asdict
from tests.unit.launch.test_clock import shifted_ns
from triplepoint.launch.clock import ClockClient, Meeting
client = ClockClient("first", Meeting(**json.loads(sys.argv[1])), shifted_ns, between_s=0.2)
time.sleep(1.5)
print(json.dumps([asdict(burst) for burst in client.finish()]))
"""


def test_exchange_between_two_processes_over_loopback() -> None:
    server = ClockServer()
    meeting = json.dumps(asdict(server.meeting))
    done = subprocess.run(
        [sys.executable, "-c", AGENT, meeting], capture_output=True, text=True, check=True, timeout=60
    )
    server.close()
    bursts = bursts_from(json.loads(done.stdout))
    assert len(bursts) > 3
    clock = fit_clock(bursts)
    manifest = Manifest.model_construct(nodes=(node(0, 0, 0),))
    other = node(1, 0, 0).model_copy(update={"clock": clock})
    now_ns = time.monotonic_ns()
    (found,) = manifest.on_first_clock(other, np.array([round(now_ns * (1 - 50e-6)) - 50 * MS]))
    assert abs(int(found) - now_ns) <= clock.uncertainty_ns + 100 * US  # a moment after the last burst
    assert clock.uncertainty_ns < 1 * MS


def test_client_of_an_agent_that_ends_says_so() -> None:
    server = ClockServer()
    client = ClockClient("first", server.meeting, between_s=0.05)
    while not client.bounds:
        time.sleep(0.01)
    server._socket.close()
    for thread in server._admitted:
        assert thread.is_alive()
    client._socket.shutdown(2)
    client._thread.join(10)
    assert client.problem is not None and "stopped answering" in client.problem
    assert client.bounds


def test_node_clock_that_reaches_nobody_gives_the_reason() -> None:
    node_clock = NodeClock(1, 2)
    with_server = ClockServer()
    with_server.close()
    node_clock.follow("first", with_server.meeting)
    bursts, problem = node_clock.finish(has_failed=False)
    assert bursts == [] and problem is not None and f"127.0.0.1:{with_server.meeting.port}" in problem


def test_server_does_not_wait_for_strangers() -> None:
    server = ClockServer()
    known = ClockClient("first", server.meeting, between_s=0.05)
    strangers = [socket.create_connection(("127.0.0.1", server.meeting.port)) for _ in range(3)]
    strangers[1].sendall(b"?")
    strangers[2].sendall(bytes(32))
    assert strangers[2].recv(16) == b""  # sent away: this is no token of ours
    while not known.bounds:
        time.sleep(0.01)
    closer = threading.Thread(target=server.close)
    closer.start()
    assert known.finish() and known.problem is None
    closer.join(20)  # a stranger would hold it for 60 s
    assert not closer.is_alive()
    for stranger in strangers:
        stranger.close()


def test_server_sends_a_silent_connection_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_clock, "HELLO_S", 0.05)
    server = ClockServer()
    with socket.create_connection(("127.0.0.1", server.meeting.port), 20) as stranger:
        assert stranger.recv(16) == b""
    server.close()


def test_server_listens_at_its_address_only() -> None:
    server = ClockServer(address="127.0.0.1")
    assert server._socket.getsockname()[0] == "127.0.0.1"
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.2", server.meeting.port), 5)
    server.close()


def test_own_address_is_the_one_towards_another_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scontrol = tmp_path / "scontrol"
    scontrol.write_text("#!/bin/sh\nprintf 'h200-1\\nlocalhost\\n'\n")
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "h200-1,localhost")
    monkeypatch.setenv("SLURMD_NODENAME", "h200-1")
    assert own_address() == "127.0.0.1"
    monkeypatch.setenv("SLURM_JOB_NODELIST", "")
    assert own_address() is None


def test_write_json_private_is_read_by_nobody_else(tmp_path: Path) -> None:
    write_json(tmp_path / "rendezvous.json", {"token": "x"}, is_private=True)
    assert (tmp_path / "rendezvous.json").stat().st_mode & 0o777 == 0o600


def test_node_clock_of_one_node_does_nothing() -> None:
    node_clock = NodeClock(0, 1)
    assert node_clock.meeting is None
    assert node_clock.finish(has_failed=False) == ([], None)


def test_manifest_keeps_the_clock_of_a_node(tmp_path: Path) -> None:
    clock = fit_clock([Network(3, 5 * MS, 10.0, 50, 50).burst(5 * S, 32)])
    other = node(1, 0, 0).model_copy(update={"clock": clock})
    raw = run_folder(tmp_path / "raw", (node(0, 0, 0), other), {}, [])
    assert read_manifest(raw / "manifest.json").nodes[1].clock == clock
    assert bursts_from([asdict(Bounds(1, 2, 3, 4, 5, 6))]) == [Bounds(1, 2, 3, 4, 5, 6)]
