"""What the sampler reads: sensors that write into buffers made beforehand, decoded once a second."""

from abc import ABC, abstractmethod

import numpy as np

FAST = "fast"
SLOW = "slow"


class Sensor(ABC):
    """Everything of one device that is read in one lane.

    `read` runs in the sampling loop: it calls the driver and keeps the raw answer in a slot. `take` runs at a flush and
    turns slots into numbers.
    """

    device: str
    """Value of the `device` column: `host`, `gpu0`, `gpu1`, ... in the driver's order."""

    columns: tuple[str, ...]
    """Columns of `tables.SAMPLES` it fills."""

    @abstractmethod
    def allocate(self, num_slots: int) -> None:
        """Make room for `num_slots` reads between two flushes."""

    @abstractmethod
    def read(self, slot: int) -> None:
        """Read now and keep the answer in `slot`."""

    @abstractmethod
    def take(self, num_slots: int) -> dict[str, np.ndarray]:
        """Return the first `num_slots` reads in the units of `tables.SAMPLES`, NaN where one failed.

        Columns that only grow count from the sensor's first successful read.
        """

    def close(self) -> None:
        """Give the device back."""
        return


class Counter:
    """A counter of the driver turned into a total since its first value, across flushes, wraps and restarts."""

    def __init__(self, scale: float = 1.0) -> None:
        self._scale = scale
        self._last: float | None = None
        self._total = 0.0

    def advance(self, values: np.ndarray, wraps_at: float | None = None) -> np.ndarray:
        """Return totals since the first value, NaN where `values` is.

        Args:
            values: Counter values in time order. Shape (num_values,).
            wraps_at: Where the counter starts again at 0; None for one that does not.
        """
        good = np.isfinite(values)
        found = np.full(values.shape, np.nan)
        if not good.any():
            return found
        first = values[good][0] if self._last is None else self._last
        steps = np.diff(values[good], prepend=first)
        # A counter that goes back without wrapping was set to zero, by a driver reload say: what was lost is unknown.
        steps = np.where(steps < 0, steps + wraps_at if wraps_at else 0.0, steps)
        totals = self._total + np.cumsum(steps)
        self._last, self._total = float(values[good][-1]), float(totals[-1])
        found[good] = totals * self._scale
        return found
