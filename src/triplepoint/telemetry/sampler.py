"""The sampler process: reads every device of a node on absolute deadlines until it is told to stop."""

import signal
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from triplepoint.recording import Recorder
from triplepoint.telemetry.device import METRICS, Device
from triplepoint.telemetry.host import Host
from triplepoint.units import NS_PER_S

FLUSH_NS = NS_PER_S
"""At most this much is lost when the sampler is killed."""


class Stop:
    """Set by SIGTERM and SIGINT; the loop looks at it before every wait."""

    def __init__(self) -> None:
        self.asked = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True


def open_devices(kind: str) -> tuple[list[Device], dict[str, str]]:
    """Return the devices of this node, and every metric none of them measures with the reason.

    Args:
        kind: What the ranks compute on: cpu, cuda or rocm.
    """
    host = Host()
    no_gpu = "the ranks compute on the CPU" if kind == "cpu" else f"no {kind} sampler in this version of triplepoint"
    absent = {metric: no_gpu for metric in METRICS if metric.startswith(("gpu_", "sm_"))}
    return [host], {**absent, **host.absent}


def sample(devices: Sequence[Device], recorder: Recorder, period_s: float, stop: Stop) -> None:
    """Read `devices` every `period_s` until `stop` is asked; a deadline that was missed is skipped, never shifted.

    Args:
        devices: What to read.
        recorder: Where samples go; flushed every second, closed at the end.
        period_s: Time between samples. Unit: s.
        stop: Asked by a signal.
    """
    period_ns = round(period_s * NS_PER_S)
    deadline = flushed = time.monotonic_ns()
    while not stop.asked:
        for device in devices:
            before = time.monotonic_ns()
            values = device.read()
            recorder.add(before, time.monotonic_ns() - before, device.name, values)
        now = time.monotonic_ns()
        if now - flushed >= FLUSH_NS:
            recorder.flush()
            flushed = now
        deadline += period_ns * max(1, -(-(now - deadline) // period_ns))
        time.sleep(max(0, deadline - time.monotonic_ns()) / NS_PER_S)
    recorder.close()


def run_sampler(out: Path, kind: str, period_s: float) -> None:
    """Sample this node into `out` until SIGTERM: the body of `triplepoint sample`."""
    stop = Stop()
    devices, absent = open_devices(kind)
    recorder = Recorder(out, period_s, absent)
    try:
        sample(devices, recorder, period_s, stop)
    finally:
        for device in devices:
            device.close()
