"""Declaration of a telemetry format: its columns with their column of table `telemetry` and unit, and its limits."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from triplepoint.tables.telemetry import SAMPLES
from triplepoint.units import GIB, GIGA, KIB, KILO, MEGA, MIB

_UNITS = {
    "W": {"W": 1.0, "mW": 1e-3, "uW": 1e-6, "kW": KILO},
    "J": {"J": 1.0, "mJ": 1e-3, "uJ": 1e-6, "kJ": KILO, "Wh": 3600.0, "kWh": 3.6e6},
    "s": {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9},
    "degC": {"degC": 1.0, "C": 1.0, "°C": 1.0, "mC": 1e-3},
    "MHz": {"MHz": 1.0, "Mhz": 1.0, "kHz": 1e-3, "KHz": 1e-3, "Hz": 1e-6, "GHz": KILO},
    "byte": {
        "byte": 1.0,
        "bytes": 1.0,
        "B": 1.0,
        "kB": KILO,
        "KB": KILO,
        "MB": MEGA,
        "GB": GIGA,
        "KiB": float(KIB),
        "MiB": float(MIB),
        "GiB": float(GIB),
    },
    "1": {"1": 1.0, "%": 1e-2},
}
"""Factor from each unit that tools print to the unit of our column, by the latter."""
USUAL_GPUS_PER_NODE = 8
"""GPUs of a node if neither the recording nor the user says."""
_COLUMNS = {column.name: column for column in SAMPLES.columns}
_PER_SECOND = re.compile(r"(.+)/s$")


@dataclass(frozen=True)
class Source:
    """One column of a format."""

    metric: str
    """Column of table `telemetry` (`tables.telemetry.METRICS`) that it is read into."""
    unit: str
    """Unit of its numbers if neither the header nor a cell has another. A unit per second is a mean rate since the
    previous sample; it is summed to a counter."""
    printed: str = ""
    """Wrong name that the tool prints for `unit`: MB for MiB."""
    wraps_at: tuple[float, ...] = ()
    """Values at which such counters restart at 0, in `unit`; the smallest that no value exceeds is taken."""
    is_draw: bool = False
    """Whether it is NVML's power draw: a mean over about one second, but instantaneous on GA100 and older GPUs."""

    @property
    def is_rate(self) -> bool:
        """Whether it is the rate of a counter."""
        return _PER_SECOND.fullmatch(self.unit) is not None

    def factor(self, unit: str = "") -> float | None:
        """Return the factor from a unit to that of our column; None for a unit of another quantity.

        Args:
            unit: Unit as the tool prints it; empty for the declared one.
        """
        if not unit or unit == self.printed:
            unit = self.unit
        if self.is_rate:
            rate = _PER_SECOND.fullmatch(unit)
            unit = rate[1] if rate else unit
        return _UNITS[_COLUMNS[self.metric].unit].get(unit)

    def series(self, host: str, device: str, t_ns: np.ndarray, values: np.ndarray, part: str = "") -> "Series":
        """Return the series of values of a device. Values are in the unit of our column."""
        limits = tuple(limit * (self.factor() or 1.0) for limit in self.wraps_at)
        return Series(host, device, self.metric, t_ns, values, limits, self.is_rate, self.is_draw, part)


@dataclass
class Series:
    """Values of one column of one device, in the unit of our column, in the order of the file."""

    host: str
    """Host that the file names; empty if it names none."""
    device: str
    """`host`, or gpu0, gpu1, ... in the driver's order."""
    metric: str
    t_ns: np.ndarray
    """Shape (num_values,). Unit: ns."""
    values: np.ndarray
    """Values; NaN if not read. Shape (num_values,)."""
    wraps_at: tuple[float, ...] = ()
    is_rate: bool = False
    is_draw: bool = False
    part: str = ""
    """Port, package or other part of the device; all parts are combined later."""


class Clock(NamedTuple):
    """Kind of the times of a file."""

    is_naive: bool = False
    """Whether they are local times without a time zone."""
    lacks: str = ""
    """`time` if they are only numbers of samples, `date` if they are times of day, else empty."""


@dataclass
class FileTelemetry:
    """Telemetry of one file."""

    series: list[Series]
    clock: Clock = Clock()
    facts: dict[tuple[str, str], dict[str, str]] = field(default_factory=dict)
    """Facts of devices, such as `product` and `uuid`, by host and device."""
    notes: list[str] = field(default_factory=list)
    """Remarks for the user, such as an incomplete last line."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Columns that were not read, with the reason."""
    is_amd: bool = False
    """Whether its GPUs are AMD's, by the tool or its column names."""


@dataclass(frozen=True)
class ReadOptions:
    """Options for files that lack information."""

    query: tuple[str, ...] = ()
    """`--query-gpu`: columns of a CSV without a header."""
    gpus_per_node: int | None = None
    """GPUs of each host, for files that are named by rank."""
    skip_bad: bool = False
    """Whether lines that cannot be read are left out."""


@dataclass(frozen=True)
class Content:
    """Text of a file."""

    path: Path
    text: str
    is_cut: bool
    """Whether the last line has no line end, so it may be incomplete."""

    @property
    def head(self) -> str:
        """First few thousand characters."""
        return self.text[:8192]

    @property
    def first_line(self) -> str:
        """First line that is not empty."""
        return next((line for line in self.head.splitlines() if line.strip()), "")


@dataclass(frozen=True)
class Format:
    """A telemetry format."""

    name: str
    """Name in messages."""
    recorded_by: str
    """Command or tool that writes it."""
    columns: Mapping[str, Source]
    """Columns that are read, by name in lower case. If a file has two for one of our columns, the first is read."""
    matches: Callable[[Content], bool]
    """Returns whether a file has this format."""
    read: Callable[[Content, ReadOptions], FileTelemetry]
    """Reads a file. Raises `UserError` if it cannot be read."""
    shows: str
    """What the numbers can and cannot show, in one or two sentences."""
    shows_of_columns: Mapping[str, str] = field(default_factory=dict)
    """The same for single columns of ours, by name."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Known columns that are not read, with the reason."""
    times: Sequence[str] = ()
    """Columns with the time; the first that a file has is read."""
    devices: Sequence[str] = ()
    """Columns with the GPU; the first that a file has is read."""
    hosts: Sequence[str] = ()
    """Columns with the host; the first that a file has is read."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """Fact of a GPU (`product` or `uuid`) that a column holds, by column."""
    is_amd: bool = False
    """Whether the tool is only for AMD's GPUs."""
