"""One lane of the sampler: sensors read at one rate into buffers made once, written once a second."""

import time
from collections.abc import Callable, Sequence

import numpy as np

from triplepoint.recording.write import Part, Recorder
from triplepoint.telemetry.sensor import Sensor
from triplepoint.units import NS_PER_S

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
        for sensor in self._sensors:
            sensor.allocate(self._num_slots)
        self._devices: dict[str, list[int]] = {}
        for place, sensor in enumerate(self._sensors):
            self._devices.setdefault(sensor.device, []).append(place)
        self._t_ns = np.zeros((self._num_slots, len(self._sensors)), "i8")
        self._latency_ns = np.zeros_like(self._t_ns)
        self._times = self._t_ns.reshape(-1).data
        self._latencies = self._latency_ns.reshape(-1).data
        self._slot = 0
        self.num_missed = 0
        self._flushed_ns = self.deadline_ns = 0

    def start(self, now_ns: int) -> None:
        """Set the first deadline."""
        self._flushed_ns = self.deadline_ns = now_ns

    def tick(self) -> None:
        """Read every sensor once and set the next deadline."""
        slot, at = self._slot, self._slot * len(self._sensors)
        for index, sensor in enumerate(self._sensors):
            before = time.monotonic_ns()
            sensor.read(slot)
            self._times[at + index] = before
            self._latencies[at + index] = time.monotonic_ns() - before
        self._slot = slot + 1
        now = time.monotonic_ns()
        if now - self._flushed_ns >= FLUSH_NS or self._slot == self._num_slots:
            self.flush()
            self._flushed_ns = now
        passed = max(1, -(-(time.monotonic_ns() - self.deadline_ns) // self._period_ns))
        self.num_missed += passed - 1
        self.deadline_ns += self._period_ns * passed

    def flush(self) -> None:
        """Decode what was read and hand it to the operating system."""
        num, self._slot = self._slot, 0
        if not num:
            return
        self._recorder.write([self._part(device, places, num) for device, places in self._devices.items()])

    def _part(self, device: str, places: list[int], num: int) -> Part:
        """Return the samples of one device: what its sensors read one after the other stands in one row."""
        sensors = [self._sensors[place] for place in places]
        columns = [column for sensor in sensors for column in sensor.columns]
        values = np.concatenate([sensor.take(num) for sensor in sensors], axis=1)
        latencies = self._latency_ns[:num, places].sum(axis=1)
        return Part(device, self._t_ns[:num, places[0]], latencies, columns, values)

    def close(self) -> None:
        """Write what is left, end the stream and give the devices back."""
        if not self._recorder.is_broken:
            self.flush()
        self._recorder.close()
        for sensor in self._sensors:
            sensor.close()
        for close in self._closing:
            close()
