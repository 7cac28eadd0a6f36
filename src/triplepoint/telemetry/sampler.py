"""The sampler process: reads every device of a node on absolute deadlines until it is told to stop."""

import signal
import time
from pathlib import Path
from types import FrameType

from triplepoint.recording.write import Recorder, fast_path
from triplepoint.tables.telemetry import GPU_METRICS
from triplepoint.telemetry.amd import open_amd
from triplepoint.telemetry.host import Host
from triplepoint.telemetry.infiniband import Fabric
from triplepoint.telemetry.lane import Lane, columns_of
from triplepoint.telemetry.nvidia import open_nvidia
from triplepoint.telemetry.one_sampler import Claim
from triplepoint.telemetry.rapl import Rapl
from triplepoint.telemetry.sensor import Found, Sensor
from triplepoint.units import NS_PER_S


class Stop:
    """Set by SIGTERM and SIGINT; the loop looks at it before every wait."""

    def __init__(self) -> None:
        self.asked = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True


def open_gpus(kind: str) -> Found:
    """Return the GPUs of this node.

    Args:
        kind: What the ranks compute on: cpu, cuda or rocm.
    """
    if kind == "cuda":
        return open_nvidia()
    if kind == "rocm":
        return open_amd()
    return Found(absent=dict.fromkeys(GPU_METRICS, "the ranks compute on the CPU"))


def open_lanes(out: Path, kind: str, slow_period_s: float, fast_period_s: float) -> list[Lane]:
    """Open every sensor of this node and the streams they are written to.

    Args:
        out: Stream of the slow lane; the fast one is kept beside it.
        kind: What the ranks compute on: cpu, cuda or rocm.
        slow_period_s: Time between reads of traffic, utilisation, memory and the host. Unit: s.
        fast_period_s: Time between reads of power, energy, temperatures, clocks and throttling. Unit: s.
    """
    gpus, host, rapl, fabric = open_gpus(kind), Host(), Rapl(), Fabric()
    claim = Claim((gpu["uuid"] for gpu in gpus.facts if gpu.get("uuid")), out)
    absent = gpus.absent | host.absent | rapl.absent | fabric.absent
    slow: list[Sensor] = [host, *(sensor for sensor in (rapl, fabric) if sensor.columns), *gpus.slow]
    facts = {"gpus": gpus.facts, "infiniband_ports": fabric.ports}
    lanes = []
    if gpus.fast:
        recorder = Recorder(fast_path(out), fast_period_s, absent, columns_of(gpus.fast), facts)
        lanes.append(Lane(gpus.fast, fast_period_s, recorder))
    recorder = Recorder(out, slow_period_s, absent, columns_of(slow), facts)
    lanes.append(Lane(slow, slow_period_s, recorder, (gpus.close, claim.close)))
    return lanes


def sample(lanes: list[Lane], stop: Stop) -> None:
    """Read each lane at its deadlines until `stop` is asked.

    Args:
        lanes: What to read.
        stop: Asked by a signal.
    """
    now = time.monotonic_ns()
    for lane in lanes:
        lane.start(now)
    while not stop.asked:
        lane = min(lanes, key=_deadline)
        wait_ns = lane.deadline_ns - time.monotonic_ns()
        if wait_ns > 0:
            time.sleep(wait_ns / NS_PER_S)
            if stop.asked:
                break
        lane.tick()


def run_sampler(out: Path, kind: str, slow_period_s: float, fast_period_s: float) -> None:
    """Sample this node into `out` until SIGTERM: the body of `triplepoint sample`."""
    stop = Stop()
    lanes = open_lanes(out, kind, slow_period_s, fast_period_s)
    try:
        sample(lanes, stop)
    finally:
        for lane in lanes:
            lane.close()


def _deadline(lane: Lane) -> int:
    return lane.deadline_ns
