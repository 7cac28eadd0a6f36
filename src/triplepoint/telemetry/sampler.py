"""The sampler process: reads all sensors of a node at absolute deadlines until SIGTERM."""

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
from triplepoint.telemetry.amd import open_amd
from triplepoint.telemetry.host import Fabric, Host, Rapl
from triplepoint.telemetry.nvidia import open_nvidia
from triplepoint.telemetry.sensor import GpuSensors, Sensor, Step, Sweep, clock_step, no_gpus, node_folder
from triplepoint.units import NS_PER_S


class GpuLocks:
    """Locks that keep a second sampler from the same GPUs; the kernel releases them when the process ends."""

    def __init__(self, identities: Iterable[str], out: Path, folder: Path | None = None) -> None:
        """Lock GPUs.

        Args:
            identities: UUIDs of the GPUs.
            out: File that this process writes, for the error of a second sampler.
            folder: Folder of the lock files, the same for all users of the machine.

        Raises:
            UserError: If another sampler holds one of the locks.
        """
        self._files: list[int] = []
        for identity in identities:
            path = (folder or node_folder()) / f"triplepoint-{identity.replace('/', '_')}.lock"
            try:
                self._files.append(_lock(path, identity, out))
            except PermissionError:
                continue  # a file of another user in a sticky folder; a second sampler only wastes time
            except UserError:
                self.close()
                raise

    def close(self) -> None:
        """Release the locks."""
        while self._files:
            os.close(self._files.pop())


def _lock(path: Path, identity: str, out: Path) -> int:
    """Lock one GPU and return the open file. Raises `UserError` if another process has the lock."""
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
"""Time between flushes, and so the most that is lost if the sampler is killed."""
_SPARE_SLOTS = 4
"""Slots in addition to those of a second, for a late flush."""


class Lane:
    """Sensors with a common period; missed deadlines are skipped, and later ones are not shifted."""

    def __init__(
        self,
        sensors: Sequence[Sensor],
        period_s: float,
        recorder: Recorder,
        closing: Sequence[Callable[[], None]] = (),
    ) -> None:
        """Allocate the buffers.

        Args:
            sensors: Sensors to read.
            period_s: Time between reads. Unit: s.
            recorder: Destination of the samples.
            closing: Functions to call when the lane is closed, after its sensors.
        """
        self._closing = closing
        self._sensors = list(sensors)
        self._recorder = recorder
        self._period_ns = round(period_s * NS_PER_S)
        self._num_slots = FLUSH_NS // self._period_ns + _SPARE_SLOTS
        self._devices = list(dict.fromkeys(device for sensor in sensors for device in sensor.devices))
        self._columns = columns_of(sensors)
        self._begin_ns = np.zeros((self._num_slots, len(self._devices)), "i8")
        self._end_ns = np.zeros_like(self._begin_ns)
        self._sweep = Sweep(self._steps(period_s))
        self._slot = 0
        self._flushed_ns = self.deadline_ns = 0

    def _steps(self, period_s: float) -> list[Step]:
        """Return the steps of one read of all sensors, device by device."""
        calls: dict[str, list[Step]] = {device: [] for device in self._devices}
        for sensor in self._sensors:
            allocated = sensor.allocate(self._num_slots, period_s)
            for device, steps in zip(sensor.devices, allocated, strict=True):
                calls[device] += steps
        steps = []
        for index, device in enumerate(self._devices):
            steps += [clock_step(self._begin_ns[:, index]), *calls[device], clock_step(self._end_ns[:, index])]
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
        num_periods = -(-(time.monotonic_ns() - self.deadline_ns) // self._period_ns)
        self.deadline_ns += self._period_ns * max(1, num_periods)

    def flush(self) -> None:
        """Decode the reads since the last flush and write them."""
        num, self._slot = self._slot, 0
        if not num:
            return
        values = np.full((num, len(self._devices), len(self._columns)), np.nan)
        for sensor in self._sensors:
            rows = [self._devices.index(device) for device in sensor.devices]
            columns = [self._columns.index(column) for column in sensor.columns]
            values[:, np.array(rows)[:, None], columns] = sensor.take(num)
        t_ns, latency_ns = self._begin_ns[:num], self._end_ns[:num] - self._begin_ns[:num]
        self._recorder.write(
            Part(device, t_ns[:, row], latency_ns[:, row], self._columns, values[:, row])
            for row, device in enumerate(self._devices)
        )

    def close(self) -> None:
        """Write the remaining samples, end the stream and release the devices."""
        if not self._recorder.is_broken:
            self.flush()
        self._recorder.close()
        for sensor in self._sensors:
            sensor.close()
        for close in self._closing:
            close()


def columns_of(sensors: Sequence[Sensor]) -> list[str]:
    """Return the distinct columns of several sensors."""
    return list(dict.fromkeys(column for sensor in sensors for column in sensor.columns))


def open_gpus(kind: str) -> GpuSensors:
    """Return the GPU sensors of this node; `kind` is cpu, cuda or rocm."""
    if kind == "cuda":
        return open_nvidia()
    if kind == "rocm":
        return open_amd()
    return no_gpus("the ranks compute on the CPU")


def open_lanes(out: Path, kind: str, slow_period_s: float, fast_period_s: float) -> list[Lane]:
    """Open all sensors of this node and the files for their samples.

    Args:
        out: File of the slow lane; that of the fast lane is next to it.
        kind: Device of the ranks: cpu, cuda or rocm.
        slow_period_s: Time between reads of traffic, utilisation, memory and the host. Unit: s.
        fast_period_s: Time between reads of power, energy, temperatures, clocks and throttling. Unit: s.
    """
    gpus, host, rapl, fabric = open_gpus(kind), Host(), Rapl(), Fabric()
    locks = GpuLocks((gpu["uuid"] for gpu in gpus.facts if gpu.get("uuid")), out)
    absent = gpus.absent | host.absent | rapl.absent | fabric.absent
    slow: list[Sensor] = [host, *(sensor for sensor in (rapl, fabric) if sensor.columns), *gpus.slow]
    facts = {"gpus": gpus.facts, "infiniband_ports": fabric.ports}
    lanes = []
    if gpus.fast:
        recorder = Recorder(fast_path(out), fast_period_s, absent, columns_of(gpus.fast), facts)
        lanes.append(Lane(gpus.fast, fast_period_s, recorder))
    recorder = Recorder(out, slow_period_s, absent, columns_of(slow), facts)
    lanes.append(Lane(slow, slow_period_s, recorder, (gpus.close, locks.close)))
    return lanes


def sample(lanes: list[Lane], stop: Stop) -> None:
    """Read each lane at its deadlines until a signal sets `stop.asked`."""
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
    """Record samples of this node to a file until SIGTERM, as `triplepoint sample` does."""
    stop = Stop(signal.SIGTERM, signal.SIGINT)
    lanes = open_lanes(out, kind, slow_period_s, fast_period_s)
    try:
        sample(lanes, stop)
    finally:
        for lane in lanes:
            lane.close()
