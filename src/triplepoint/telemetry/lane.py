"""One lane of the sampler: sensors read at one rate into buffers made once, written once a second."""

import time
from collections.abc import Sequence

import numpy as np

from triplepoint.recording import Part, Recorder
from triplepoint.telemetry.sensor import Sensor
from triplepoint.units import NS_PER_S

FLUSH_NS = NS_PER_S
"""At most this much is lost when the sampler is killed."""
_SPARE = 4
"""Slots beyond a second's worth: a late flush must find room."""


class Lane:
    """Sensors that share a rate; a deadline that was missed is skipped, never shifted."""

    def __init__(self, sensors: Sequence[Sensor], period_s: float, recorder: Recorder) -> None:
        """Make the buffers.

        Args:
            sensors: What to read.
            period_s: Time between reads. Unit: s.
            recorder: Where samples go.
        """
        self._sensors = list(sensors)
        self._recorder = recorder
        self._period_ns = round(period_s * NS_PER_S)
        self._num_slots = FLUSH_NS // self._period_ns + _SPARE
        for sensor in self._sensors:
            sensor.allocate(self._num_slots)
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
        parts = []
        for index, sensor in enumerate(self._sensors):
            times, latencies = self._t_ns[:num, index], self._latency_ns[:num, index]
            parts.append(Part(sensor.device, times, latencies, sensor.columns, sensor.take(num)))
        self._recorder.write(parts)

    def close(self) -> None:
        """Write what is left, end the stream and give the devices back."""
        self.flush()
        self._recorder.close()
        for sensor in self._sensors:
            sensor.close()
