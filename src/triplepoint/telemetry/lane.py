"""One lane of the sampler: sensors read at one rate into buffers made once, written once a second."""

import time
from collections.abc import Callable, Sequence

import numpy as np

from triplepoint.recording.write import Part, Recorder
from triplepoint.telemetry.sensor import Sensor
from triplepoint.telemetry.sweep import Step, Sweep, tell_time
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
        self._devices = list(dict.fromkeys(device for sensor in sensors for device in sensor.devices))
        self._columns = columns_of(sensors)
        self._begin_ns = np.zeros((self._num_slots, len(self._devices)), "i8")
        self._end_ns = np.zeros_like(self._begin_ns)
        self._sweep = Sweep(self._steps(period_s))
        self._slot = 0
        self.num_missed = 0
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
        passed = max(1, -(-(time.monotonic_ns() - self.deadline_ns) // self._period_ns))
        self.num_missed += passed - 1
        self.deadline_ns += self._period_ns * passed

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
