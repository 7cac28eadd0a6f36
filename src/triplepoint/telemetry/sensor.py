"""Sensor interface of the sampler, GPUs of any vendor, and paths in sysfs.

A read must be fast and must not allocate memory. So each sensor describes its reads as C calls (`Step`) that write into
preallocated buffers with one slot per read. The C extension `_sweep` makes all calls of a slot. Once a second, at a
flush, the sensors decode the slots.
"""

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
"""Address of the C function that returns the monotonic time. Unit: ns."""
PREAD = _sweep.PREAD
"""Address of the C function pread."""
NOT_DONE = -1
"""Result of a step in the slots that it skips."""
ONCE_PER_FLUSH = 1 << 32
"""`Step.every` of a step that is made in slot 0 only, so once a second."""

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
"""Memory layout of a step, as `_sweep` reads it."""
FAST = "fast"
"""Lane of power, energy, temperatures, clocks and throttling."""
SLOW = "slow"
"""Lane of all other sensors."""


@dataclass(frozen=True)
class PerSlot:
    """An argument that differs by slot, such as a pointer to an object of the driver's library."""

    numbers: np.ndarray
    """Value in each slot. Shape (num_slots,), type u8."""


@dataclass(frozen=True)
class Step:
    """A call of a C function with up to six integer or pointer arguments, made once per slot."""

    function: int
    """Address of the function."""
    arguments: tuple[int | np.ndarray | PerSlot, ...]
    """Arguments: an integer; an array with slots as its first axis, passed as the address of the slot's part; or a
    value per slot."""
    results: np.ndarray
    """Return values; if the function returns an int, only the lower half is valid. Shape (num_slots,), type i8."""
    every: int = 1
    """The call is made in slots that are multiples of this number; the others get `NOT_DONE`."""


class DriverError(Exception):
    """A status other than success from a vendor's library."""


def address_of(function: Any) -> int:
    """Return the address of a function of a ctypes library."""
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    return address


def clock_step(results: np.ndarray) -> Step:
    """Return a step that records the monotonic time at which it is made. Unit: ns."""
    return Step(CLOCK, (), results)


class Sweep:
    """A sequence of steps, made in order for one slot at a time."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = list(steps)  # keeps their arrays alive
        table = np.zeros(len(steps), STEP)
        for row, step in zip(table, steps, strict=True):
            row["function"], row["every"] = step.function, step.every
            row["result"], row["result_stride"] = step.results.ctypes.data, step.results.strides[0]
            for index, argument in enumerate(step.arguments):
                if isinstance(argument, PerSlot):
                    row["by_value"] |= 1 << index
                    argument = argument.numbers
                row["arguments"][index], row["strides"][index] = _base_and_stride(argument)
        # A view of bytes, made once: exporting a buffer of type STEP would format its description at every call.
        self._table = table.view("u1").data

    def run(self, slot: int) -> None:
        """Make all steps for one slot."""
        _sweep.run(self._table, slot)


def _base_and_stride(argument: int | np.ndarray) -> tuple[int, int]:
    """Return the argument of slot 0 and the difference from one slot to the next."""
    if isinstance(argument, np.ndarray):
        return argument.ctypes.data, argument.strides[0]
    return argument, 0


class Sensor(ABC):
    """The reads of one device, or of several equal ones, in one lane.

    The sampling loop makes the steps that `allocate` returns, which store the driver's raw values in a slot. `take`
    runs at a flush and decodes the slots of all devices at once, several times faster than one by one.
    """

    devices: tuple[str, ...]
    """Values of column `device`: `host`, `gpu0`, `gpu1`, ... in the driver's order."""

    columns: tuple[str, ...]
    """Columns of `tables.SAMPLES` that the sensor fills."""

    @abstractmethod
    def allocate(self, num_slots: int, period_s: float) -> Sequence[Sequence[Step]]:
        """Allocate buffers for the reads between two flushes; return the steps of one read, for each device.

        Args:
            num_slots: Most reads between two flushes.
            period_s: Time between reads. Unit: s.
        """

    @abstractmethod
    def take(self, num_slots: int) -> np.ndarray:
        """Decode the first `num_slots` reads.

        Returns:
            Values in the units of `tables.SAMPLES`, NaN where a read failed. Counters start from 0 at the sensor's
            first successful read. Shape (num_slots, num_devices, num_columns).
        """

    def close(self) -> None:
        """Release the device."""
        return


@dataclass
class GpuSensors:
    """Sensors and facts of the GPUs of this node."""

    fast: list[Sensor] = field(default_factory=list)
    """Sensors of the fast lane."""
    slow: list[Sensor] = field(default_factory=list)
    """Sensors of the slow lane."""
    absent: dict[str, str] = field(default_factory=dict)
    """Metrics that no GPU of the node measures, each with the reason."""
    facts: list[dict[str, Any]] = field(default_factory=list)
    """One entry per GPU: identity, sources of its metrics, and metrics that only this GPU lacks."""
    close: Callable[[], None] = lambda: None
    """Releases the driver's library."""


class Counters:
    """Totals of counters since their first value, across flushes, wraps and resets."""

    def __init__(self, num: int) -> None:
        self._last = np.full(num, np.nan)
        self._total = np.zeros(num)

    def advance(self, values: np.ndarray, wraps_at: np.ndarray) -> np.ndarray:
        """Return totals since the first value, NaN where `values` is NaN.

        Args:
            values: Counter values in time order. Shape (num_values, num_counters).
            wraps_at: Value at which each counter wraps to 0; 0 for a counter that does not. Shape (num_counters,).
        """
        # A failed read takes the previous value, so that the next difference covers both.
        is_read = np.isfinite(values)
        are_all_read = bool(is_read.all())
        if not are_all_read:
            values = fill_forward(values, self._last)
        is_new = np.isnan(self._last)
        if is_new.any():
            self._last = np.where(is_new, values[0], self._last)
        increments = np.diff(values, axis=0, prepend=self._last[None])
        if not are_all_read:
            increments = np.nan_to_num(increments)
        if (increments < 0).any():
            # A decrease without wrap is a reset, for example by a driver reload; the lost increment is unknown.
            increments = np.where(increments < 0, np.where(wraps_at > 0, increments + wraps_at, 0.0), increments)
        totals = self._total + np.cumsum(increments, axis=0)
        self._last, self._total = values[-1].copy(), totals[-1].copy()
        return totals if are_all_read else np.where(is_read, totals, np.nan)


def fill_forward(values: np.ndarray, before: np.ndarray) -> np.ndarray:
    """Return values with each NaN replaced by the last finite value before it.

    Args:
        values: Values in time order. Shape (num_values, num_columns).
        before: Values before the first. Shape (num_columns,).
    """
    filled = np.vstack([before, values])
    rows = np.where(np.isfinite(filled), np.arange(len(filled))[:, None], 0)
    return np.take_along_axis(filled, np.maximum.accumulate(rows, axis=0), axis=0)[1:]


Driver = TypeVar("Driver")
Key = TypeVar("Key", bound=Hashable)


@dataclass
class Gpu:
    """One GPU that can be sampled."""

    device: str
    """Name in column `device`, such as `gpu0`."""
    handle: int
    """Handle in the driver's library."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Identity, sources of its metrics, and metrics that only this GPU lacks."""
    absent: dict[str, str] = field(default_factory=dict)
    """Metrics it does not measure, each with the reason."""


@dataclass(frozen=True)
class Vendor(Generic[Driver]):
    """Access to the GPUs of a vendor."""

    stack: str
    """Name of the software to install, for messages."""
    name: str
    """Name of the library, for messages."""
    library: str
    """File of the library."""
    load: Callable[[], Driver]
    """Loads the library. Raises `OSError` if it is missing and `DriverError` if it cannot be used."""
    count: Callable[[Driver], int]
    """Returns the number of GPUs."""
    add: Callable[[Driver, GpuSensors], Sequence[Gpu]]
    """Adds sensors and facts of all GPUs; returns the GPUs that can be sampled."""
    close: Callable[[Driver], None]
    """Releases the library."""


def open_vendor(vendor: Vendor[Driver]) -> GpuSensors:
    """Return the sensors of a vendor's GPUs on this node; without a driver, only reasons for missing metrics."""
    try:
        driver = vendor.load()
        num = vendor.count(driver)
    except OSError:
        return no_gpus(f"no {vendor.stack} here: {vendor.library} is not found")
    except DriverError as error:
        return no_gpus(f"{vendor.name} cannot be used: {error}")
    sensors = GpuSensors(close=lambda: vendor.close(driver))
    gpus = vendor.add(driver, sensors)
    if gpus:
        sensors.absent = {name: why for name, why in gpus[0].absent.items() if all(name in gpu.absent for gpu in gpus)}
    else:
        reason = f"{vendor.name} can use none of {num} GPUs" if num else f"{vendor.name} finds no GPU"
        sensors.absent = dict.fromkeys(GPU_METRICS, reason)
    return sensors


def no_gpus(reason: str) -> GpuSensors:
    """Return no sensors, with the reason for all GPU metrics."""
    return GpuSensors(absent=dict.fromkeys(GPU_METRICS, reason))


def group_by_key(keyed: Iterable[tuple[Gpu, Key]]) -> dict[Key, dict[str, int]]:
    """Return the GPUs with equal keys, as handles by device name."""
    groups: dict[Key, dict[str, int]] = {}
    for gpu, key in keyed:
        groups.setdefault(key, {})[gpu.device] = gpu.handle
    return groups


_SYSFS_VARIABLE = "TRIPLEPOINT_SYSFS"


def sysfs() -> Path:
    """Return the root of sysfs: /sys, or the folder in the environment variable TRIPLEPOINT_SYSFS."""
    return Path(os.environ.get(_SYSFS_VARIABLE, "/sys"))


def node_folder() -> Path:
    """Return a folder that all users of this node share; a fake node has one of its own."""
    return Path(os.environ.get(_SYSFS_VARIABLE, tempfile.gettempdir()))


def read_text(path: Path) -> str | None:
    """Return the stripped content of a file; None if it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def slot_of(address: str | None) -> str | None:
    """Return the name of the physical slot of a PCI device; None if the kernel knows none.

    Args:
        address: Domain:bus:device.function; sysfs lists slots without the function.
    """
    if address is None:
        return None
    for path in sorted(sysfs().glob("bus/pci/slots/*/address")):
        if read_text(path) == address.partition(".")[0]:
            return path.parent.name
    return None
