"""Sensors, read into buffers made beforehand and decoded once a second; GPUs of any vendor; places in sysfs."""

import ctypes
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from triplepoint.tables.telemetry import GPU_METRICS
from triplepoint.telemetry import _sweep

CLOCK = _sweep.MONOTONIC_NS
"""Address of the function that tells the time. Unit: ns."""
PREAD = _sweep.PREAD
NOT_DONE = -1
"""Result of a step in a slot that is not its."""
RARELY = 1 << 32
"""`Step.every` of what is done in slot 0 only: once a second."""

_NUM_ARGUMENTS = 6
STEP = np.dtype(
    [
        ("function", "u8"),
        ("every", "u8"),
        ("by_value", "u8"),
        ("arguments", "u8", _NUM_ARGUMENTS),
        ("strides", "u8", _NUM_ARGUMENTS),
        ("result", "u8"),
        ("result_stride", "u8"),
    ]
)
"""A step as `_sweep` reads it."""
FAST = "fast"
SLOW = "slow"


@dataclass(frozen=True)
class Value:
    """An argument that is, in each slot, what an array holds for it: a pointer to what a library made."""

    numbers: np.ndarray
    """Shape (num_slots,), type u8."""


@dataclass(frozen=True)
class Step:
    """One call of a C function with up to six whole numbers or pointers."""

    function: int
    """Its address."""
    arguments: tuple[int | np.ndarray | Value, ...]
    """A number goes as it is; of an array, whose first axis is the slots, the address of the slot's part."""
    results: np.ndarray
    """What it returns; of a function that returns an int only the lower half counts. Shape (num_slots,), type i8."""
    every: int = 1
    """It is done in slots that are multiples of this, and leaves `NOT_DONE` in the others."""


class DriverError(Exception):
    """A status other than success, of a vendor's library."""


def address_of(function: Any) -> int:
    """Return where a function of a ctypes library lies."""
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    return address


def tell_time(results: np.ndarray) -> Step:
    """Return the step that keeps the time at which it is done."""
    return Step(CLOCK, (), results)


class Sweep:
    """Steps done in order, once for each slot."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._kept = list(steps)  # whose arrays must not go away
        table = np.zeros(len(steps), STEP)
        for row, step in zip(table, steps, strict=True):
            row["function"], row["every"] = step.function, step.every
            row["result"], row["result_stride"] = step.results.ctypes.data, step.results.strides[0]
            for place, argument in enumerate(step.arguments):
                if isinstance(argument, Value):
                    row["by_value"] |= 1 << place
                    argument = argument.numbers
                row["arguments"][place], row["strides"][place] = _place(argument)
        # A view of plain bytes, made once: numpy would spell out the type of a step each time it is asked for one.
        self._table = table.view("u1").data

    def run(self, slot: int) -> None:
        """Do every step for one slot."""
        _sweep.run(self._table, slot)


def _place(argument: int | np.ndarray) -> tuple[int, int]:
    """Return an argument in slot 0 and what each further slot adds to it."""
    if isinstance(argument, np.ndarray):
        return argument.ctypes.data, argument.strides[0]
    return argument, 0


class Sensor(ABC):
    """What is read in one lane of one device, or of several of a kind.

    The sampling loop does the steps that `allocate` returns, which keep the driver's raw answers in a slot. `take` runs
    at a flush and turns slots into numbers, of all devices at once: that is several times cheaper than one by one.
    """

    devices: tuple[str, ...]
    """Values of the `device` column: `host`, `gpu0`, `gpu1`, ... in the driver's order."""

    columns: tuple[str, ...]
    """Columns of `tables.SAMPLES` it fills."""

    @abstractmethod
    def allocate(self, num_slots: int, period_s: float) -> Sequence[Sequence[Step]]:
        """Make room for the reads between two flushes and return the calls of one read, device by device.

        Args:
            num_slots: Most reads between two flushes.
            period_s: Time between reads. Unit: s.
        """

    @abstractmethod
    def take(self, num_slots: int) -> np.ndarray:
        """Return the first `num_slots` reads in the units of `tables.SAMPLES`, NaN where one failed.

        Columns that only grow count from the sensor's first successful read. Shape (num_slots,
        num_devices, num_columns).
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


class Counters:
    """Counters of the driver turned into totals since their first value, across flushes, wraps and restarts."""

    def __init__(self, num: int) -> None:
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
            values = carried(values, self._last)
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


def carried(values: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Return values with each NaN replaced by the value before it.

    Args:
        values: In time order. Shape (num_values, num_columns).
        last: What stands before the first. Shape (num_columns,).
    """
    carried = np.vstack([last, values])
    rows = np.where(np.isfinite(carried), np.arange(len(carried))[:, None], 0)
    return np.take_along_axis(carried, np.maximum.accumulate(rows, axis=0), axis=0)[1:]


Driver = TypeVar("Driver")
Answers = TypeVar("Answers", bound=Hashable)


@dataclass
class Gpu:
    """One GPU that can be sampled."""

    device: str
    handle: int
    facts: dict[str, Any] = field(default_factory=dict)
    """Identity, sources of its metrics, and what it alone lacks."""
    absent: dict[str, str] = field(default_factory=dict)
    """What it does not measure, with the reason."""


@dataclass(frozen=True)
class Vendor(Generic[Driver]):
    """How the GPUs of a vendor are found."""

    stack: str
    """What is to be installed."""
    name: str
    """The library's name in sentences."""
    library: str
    """Its file."""
    load: Callable[[], Driver]
    """Raises OSError without the library and DriverError where it cannot be used."""
    count: Callable[[Driver], int]
    add: Callable[[Driver, Found], Sequence[Gpu]]
    """Adds sensors and facts of all GPUs and returns those that can be sampled."""
    close: Callable[[Driver], None]


def open_vendor(vendor: Vendor[Driver]) -> Found:
    """Return the GPUs of this node; without a driver only reasons."""
    try:
        driver = vendor.load()
        num = vendor.count(driver)
    except OSError:
        return nothing(f"no {vendor.stack} here: {vendor.library} is not found")
    except DriverError as error:
        return nothing(f"{vendor.name} cannot be used: {error}")
    found = Found(close=lambda: vendor.close(driver))
    gpus = vendor.add(driver, found)
    if gpus:
        found.absent = {name: why for name, why in gpus[0].absent.items() if all(name in gpu.absent for gpu in gpus)}
    else:
        reason = f"{vendor.name} can use none of {num} GPUs" if num else f"{vendor.name} finds no GPU"
        found.absent = dict.fromkeys(GPU_METRICS, reason)
    return found


def nothing(reason: str) -> Found:
    """Return no GPUs, and why."""
    return Found(absent=dict.fromkeys(GPU_METRICS, reason))


def alike(asked: Iterable[tuple[Gpu, Answers]]) -> dict[Answers, dict[str, int]]:
    """Return names and handles of GPUs by what they are asked."""
    found: dict[Answers, dict[str, int]] = {}
    for gpu, answers in asked:
        found.setdefault(answers, {})[gpu.device] = gpu.handle
    return found


_SYSFS_VARIABLE = "TRIPLEPOINT_SYSFS"


def sysfs() -> Path:
    """Return the root of sysfs: /sys, or what the environment variable TRIPLEPOINT_SYSFS names in its place."""
    return Path(os.environ.get(_SYSFS_VARIABLE, "/sys"))


def node_folder() -> Path:
    """Return a folder all users of this node share; a node put in the place of the real one has its own."""
    return Path(os.environ.get(_SYSFS_VARIABLE, tempfile.gettempdir()))


def read_text(path: Path) -> str | None:
    """Return the stripped content of a file, None if it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def slot_of(address: str | None) -> str | None:
    """Return the name of the physical slot of a PCI device, None where the kernel knows none.

    Args:
        address: Domain:bus:device.function; slots list the first three parts.
    """
    if address is None:
        return None
    for path in sorted(sysfs().glob("bus/pci/slots/*/address")):
        if read_text(path) == address.partition(".")[0]:
            return path.parent.name
    return None
