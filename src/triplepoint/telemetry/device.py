"""Sensors read by several small functions, such as the host's, where no C library fills a buffer."""

from abc import abstractmethod

import numpy as np

from triplepoint.telemetry.sensor import Sensor


class Device(Sensor):
    """A sensor that answers with a dictionary; metrics it cannot measure here are in `absent` with the reason."""

    absent: dict[str, str]

    @abstractmethod
    def measure(self) -> dict[str, float]:
        """Return the metrics read now, in the units of `tables.SAMPLES`; one that failed this time is left out."""

    def allocate(self, num_slots: int) -> None:
        """Make room for `num_slots` reads."""
        self._values = np.full((num_slots, len(self.columns)), np.nan)

    def read(self, slot: int) -> None:
        """Read now and keep the answer in `slot`."""
        found = self.measure()
        self._values[slot] = [found.get(column, np.nan) for column in self.columns]

    def take(self, num_slots: int) -> np.ndarray:
        """Return the first `num_slots` reads."""
        return self._values[:num_slots].copy()
