"""What the sampler reads: sensors that write into buffers made beforehand, decoded once a second."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

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
    def take(self, num_slots: int) -> np.ndarray:
        """Return the first `num_slots` reads in the units of `tables.SAMPLES`, NaN where one failed.

        Columns that only grow count from the sensor's first successful read. Shape (num_slots, num_columns).
        """

    def close(self) -> None:
        """Give the device back."""
        return


@dataclass
class Found:
    """Sensors of one kind of device on this node."""

    fast: list[Sensor] = field(default_factory=list)
    slow: list[Sensor] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)
    """Metrics no device here measures, each with the reason."""
    facts: list[dict[str, Any]] = field(default_factory=list)
    """One entry per device: identity, sources of its metrics, and what it alone lacks."""
    close: Callable[[], None] = lambda: None
    """Gives the driver's library back."""


def absent_everywhere(missing: Sequence[dict[str, str]]) -> dict[str, str]:
    """Return what every one of several devices lacks, with the reason of the first."""
    return {name: why for name, why in missing[0].items() if all(name in each for each in missing)}


class Counters:
    """Counters of the driver turned into totals since their first value, across flushes, wraps and restarts."""

    def __init__(self, num: int) -> None:
        """Start `num` counters."""
        self._last = np.full(num, np.nan)
        self._total = np.zeros(num)

    def advance(self, values: np.ndarray, wraps_at: np.ndarray) -> np.ndarray:
        """Return totals since the first value, NaN where `values` is.

        Args:
            values: Counter values in time order. Shape (num_values, num_counters).
            wraps_at: Where each counter starts again at 0; 0 for one that does not. Shape (num_counters,).
        """
        # A failed read keeps the value before it, so that the next step spans both.
        good = np.isfinite(values)
        is_whole = bool(good.all())
        if not is_whole:
            values = _carried(values, self._last)
        unknown = np.isnan(self._last)
        if unknown.any():
            self._last = np.where(unknown, values[0], self._last)
        steps = np.diff(values, axis=0, prepend=self._last[None])
        if not is_whole:
            steps = np.nan_to_num(steps)
        if (steps < 0).any():
            # One that goes back without wrapping was set to zero, by a driver reload say: what was lost is unknown.
            steps = np.where(steps < 0, np.where(wraps_at > 0, steps + wraps_at, 0.0), steps)
        totals = self._total + np.cumsum(steps, axis=0)
        self._last, self._total = values[-1].copy(), totals[-1].copy()
        return totals if is_whole else np.where(good, totals, np.nan)


def _carried(values: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Return values with each NaN replaced by the value before it; `last` stands before the first."""
    carried = np.vstack([last, values])
    rows = np.where(np.isfinite(carried), np.arange(len(carried))[:, None], 0)
    return np.take_along_axis(carried, np.maximum.accumulate(rows, axis=0), axis=0)[1:]
