"""The sampler process: reads every device of a node at absolute deadlines until it is told to stop."""

import fcntl
import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from triplepoint.errors import UserError
from triplepoint.processes import Stop
from triplepoint.recording import Part, Recorder, fast_path
from triplepoint.tables.telemetry import GPU_METRICS
from triplepoint.telemetry.amd import open_amd
from triplepoint.telemetry.host import Fabric, Host, Rapl
from triplepoint.telemetry.nvidia import open_nvidia
from triplepoint.telemetry.sensor import Found, Sensor, Step, Sweep, node_folder, tell_time
from triplepoint.units import NS_PER_S


class Claim:
    """GPUs this process samples, until it closes the claim or ends, however it ends."""

    def __init__(self, identities: Iterable[str], out: Path, folder: Path | None = None) -> None:
        """Claim GPUs.

        Args:
            identities: UUIDs of the GPUs.
            out: Where this process writes; named to whoever comes second.
            folder: Where the locks are, the same for all users of the machine.

        Raises:
            UserError: If another sampler holds one of them.
        """
        self._held: list[int] = []
        for identity in identities:
            path = (folder or node_folder()) / f"triplepoint-{identity.replace('/', '_')}.lock"
            try:
                self._held.append(_lock(path, identity, out))
            except PermissionError:
                continue  # another user's leftover below a sticky folder: sampling twice is a waste, not a fault
            except UserError:
                self.close()
                raise

    def close(self) -> None:
        """Let another sampler have the GPUs."""
        while self._held:
            os.close(self._held.pop())


def _lock(path: Path, identity: str, out: Path) -> int:
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(file, 4096, 0).decode(errors="replace").strip() or "?"
        os.close(file)
        raise UserError(
            f"GPU {identity} is already sampled by process {owner}; stop that process first (lock {path})"
        ) from None
    os.ftruncate(file, 0)
    os.pwrite(file, f"{os.getpid()} into {out}".encode(), 0)
    return file


FLUSH_NS = NS_PER_S
"""At most this much is lost when the sampler is killed."""
_SPARE = 4
"""Slots beyond a second's worth: a late flush must find room."""


class Lane:
    """Sensors that share a rate; a deadline that was missed is skipped, never shifted."""

    def __init__(
        self,
        sensors: Sequence[Sensor],
        period_s: float,
        recorder: Recorder,
        closing: Sequence[Callable[[], None]] = (),
    ) -> None:
        """Make the buffers.

        Args:
            sensors: What to read.
            period_s: Time between reads. Unit: s.
            recorder: Where samples go.
            closing: Called when the lane is closed, after its sensors.
        """
        self._closing = closing
        self._sensors = list(sensors)
        self._recorder = recorder
        self._period_ns = round(period_s * NS_PER_S)
        self._num_slots = FLUSH_NS // self._period_ns + _SPARE
        self._devices = list(dict.fromkeys(device for sensor in sensors for device in sensor.devices))
        self._columns = columns_of(sensors)
        self._begin_ns = np.zeros((self._num_slots, len(self._devices)), "i8")
        self._end_ns = np.zeros_like(self._begin_ns)
        self._sweep = Sweep(self._steps(period_s))
        self._slot = 0
        self._flushed_ns = self.deadline_ns = 0

    def _steps(self, period_s: float) -> list[Step]:
        """Return the calls of one read of all sensors, device by device."""
        calls: dict[str, list[Step]] = {device: [] for device in self._devices}
        for sensor in self._sensors:
            allocated = sensor.allocate(self._num_slots, period_s)
            for device, steps in zip(sensor.devices, allocated, strict=True):
                calls[device] += steps
        steps = []
        for place, device in enumerate(self._devices):
            steps += [tell_time(self._begin_ns[:, place]), *calls[device], tell_time(self._end_ns[:, place])]
        return steps

    def start(self, now_ns: int) -> None:
        """Set the first deadline."""
        self._flushed_ns = self.deadline_ns = now_ns

    def tick(self) -> None:
        """Read every sensor once and set the next deadline."""
        self._sweep.run(self._slot)
        self._slot += 1
        now = time.monotonic_ns()
        if now - self._flushed_ns >= FLUSH_NS or self._slot == self._num_slots:
            self.flush()
            self._flushed_ns = now
        passed = -(-(time.monotonic_ns() - self.deadline_ns) // self._period_ns)
        self.deadline_ns += self._period_ns * max(1, passed)

    def flush(self) -> None:
        """Decode what was read and hand it to the operating system."""
        num, self._slot = self._slot, 0
        if not num:
            return
        values = np.full((num, len(self._devices), len(self._columns)), np.nan)
        for sensor in self._sensors:
            rows = [self._devices.index(device) for device in sensor.devices]
            places = [self._columns.index(column) for column in sensor.columns]
            values[:, np.array(rows)[:, None], places] = sensor.take(num)
        t_ns, latency_ns = self._begin_ns[:num], self._end_ns[:num] - self._begin_ns[:num]
        self._recorder.write(
            Part(device, t_ns[:, row], latency_ns[:, row], self._columns, values[:, row])
            for row, device in enumerate(self._devices)
        )

    def close(self) -> None:
        """Write what is left, end the stream and give the devices back."""
        if not self._recorder.is_broken:
            self.flush()
        self._recorder.close()
        for sensor in self._sensors:
            sensor.close()
        for close in self._closing:
            close()


def columns_of(sensors: Sequence[Sensor]) -> list[str]:
    """Return the columns that sensors fill, each once."""
    return list(dict.fromkeys(column for sensor in sensors for column in sensor.columns))


def open_gpus(kind: str) -> Found:
    """Return the GPUs of this node."""
    if kind == "cuda":
        return open_nvidia()
    if kind == "rocm":
        return open_amd()
    return Found(absent=dict.fromkeys(GPU_METRICS, "the ranks compute on the CPU"))


def open_lanes(out: Path, kind: str, slow_period_s: float, fast_period_s: float) -> list[Lane]:
    """Open every sensor of this node and the streams they are written to.

    Args:
        out: Stream of the slow lane; the fast one is written next to it.
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
    """Read each lane at its deadlines until `stop` is asked."""
    now = time.monotonic_ns()
    for lane in lanes:
        lane.start(now)
    while not stop.asked:
        lane = min(lanes, key=lambda lane: lane.deadline_ns)
        wait_ns = lane.deadline_ns - time.monotonic_ns()
        if wait_ns > 0:
            time.sleep(wait_ns / NS_PER_S)
            if stop.asked:
                break
        lane.tick()


def run_sampler(out: Path, kind: str, slow_period_s: float, fast_period_s: float) -> None:
    """Sample this node into `out` until SIGTERM: the body of `triplepoint sample`."""
    stop = Stop(signal.SIGTERM, signal.SIGINT)
    lanes = open_lanes(out, kind, slow_period_s, fast_period_s)
    try:
        sample(lanes, stop)
    finally:
        for lane in lanes:
            lane.close()
