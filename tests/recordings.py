"""Writer of recordings, sample by sample."""

from typing import Any

import numpy as np

from triplepoint.recording import Part, Recorder
from triplepoint.tables.telemetry import METRICS


class SampleRecorder(Recorder):
    """A recorder that keeps single samples until the next flush."""

    def __init__(self, *arguments: Any, columns: tuple[str, ...] = METRICS) -> None:
        super().__init__(*arguments, columns=columns)
        self._columns, self._kept = columns, {}

    def add(self, t_ns: int, read_latency_ns: int, device: str, values: dict[str, float]) -> None:
        row = [values.get(name, np.nan) for name in self._columns]
        self._kept.setdefault(device, []).append((t_ns, read_latency_ns, row))

    def flush(self) -> None:
        parts = []
        for device, samples in self._kept.items():
            times, latencies, rows = (np.array(each) for each in zip(*samples, strict=True))
            parts.append(Part(device, times, latencies, self._columns, rows))
        self._kept = {}
        self.write(parts)

    def close(self) -> None:
        self.flush()
        super().close()
