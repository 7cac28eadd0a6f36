"""Declaration of a telemetry format: which of its columns is which of ours, in which unit, and what it cannot show."""

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
"""Units that tools print, by the unit of our column, with what a number in them is multiplied by."""
_COLUMNS = {column.name: column for column in SAMPLES.columns}
_PER_SECOND = re.compile(r"(.+)/s$")


@dataclass(frozen=True)
class Source:
    """One column of a format."""

    metric: str
    """Our column, of `tables.telemetry.METRICS`."""
    unit: str
    """Unit of its numbers where neither the header nor a cell says another. A unit per second stands for a mean rate
    since the previous sample, of which a counter is made."""
    printed: str = ""
    """What the tool calls that unit, where it calls it wrongly: MB for MiB."""
    wraps_at: tuple[float, ...] = ()
    """Where such counters start again at 0: the smallest that no value is above counts. In `unit`."""
    is_draw: bool = False
    """Whether it is NVML's power draw: a mean of about a second, but instantaneous on GA100 and older GPUs."""

    @property
    def is_rate(self) -> bool:
        """Whether it is a rate of what our column counts."""
        return _PER_SECOND.fullmatch(self.unit) is not None

    def factor(self, unit: str = "") -> float | None:
        """Return what turns numbers in a unit into ours; None for a unit that does not fit.

        Args:
            unit: Unit as it is printed; empty for the declared one.
        """
        if not unit or unit == self.printed:
            unit = self.unit
        if self.is_rate:
            rate = _PER_SECOND.fullmatch(unit)
            unit = rate[1] if rate else unit
        return _UNITS[_COLUMNS[self.metric].unit].get(unit)

    def series(self, host: str, device: str, t_ns: np.ndarray, values: np.ndarray, part: str = "") -> "Series":
        """Return values in our unit as a series that keeps what is to be known of its column."""
        limits = tuple(limit * (self.factor() or 1.0) for limit in self.wraps_at)
        return Series(host, device, self.metric, t_ns, values, limits, self.is_rate, self.is_draw, part)


@dataclass
class Series:
    """Values of one column of one device, in our unit, in the order of the file."""

    host: str
    """Host as the file says it; empty where it does not."""
    device: str
    """`host`, or gpu0, gpu1, ... in the driver's order."""
    metric: str
    t_ns: np.ndarray
    """Shape (num_values,). Unit: ns."""
    values: np.ndarray
    """NaN where not read. Shape (num_values,)."""
    wraps_at: tuple[float, ...] = ()
    is_rate: bool = False
    is_draw: bool = False
    part: str = ""
    """Port, package or the like it is of, where all of them are summed."""


class Clock(NamedTuple):
    """What the times of a file are."""

    is_naive: bool = False
    """Whether they are local times whose zone the file does not say."""
    lacks: str = ""
    """What they lack: `time` where they are numbers of samples, `date` where they are times of day, else nothing."""


@dataclass
class Found:
    """Telemetry of one file."""

    series: list[Series]
    clock: Clock = Clock()
    facts: dict[tuple[str, str], dict[str, str]] = field(default_factory=dict)
    """`product`, `uuid` and the like of devices, by host and device."""
    notes: list[str] = field(default_factory=list)
    """What is to be said of the file, such as a half line at its end."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Columns that were not taken, each with the reason."""
    is_amd: bool = False
    """Whether its GPUs are AMD's, as the tool or the names of its columns say."""


@dataclass(frozen=True)
class Asked:
    """What the user says of the recordings where they do not say it themselves."""

    query: tuple[str, ...] = ()
    """Columns of a CSV without a header, as `--query-gpu` took them."""
    gpus_per_node: int | None = None
    """GPUs on each host, where files are named by rank."""
    skip_bad: bool = False
    """Whether lines that cannot be read are left out."""


@dataclass(frozen=True)
class Content:
    """A file as formats see it."""

    path: Path
    text: str
    is_cut: bool
    """Whether it does not end with a line end: its last line may be half of one."""

    @property
    def head(self) -> str:
        """The first few thousand characters."""
        return self.text[:8192]

    @property
    def first_line(self) -> str:
        """The first line that is not empty."""
        return next((line for line in self.head.splitlines() if line.strip()), "")


@dataclass(frozen=True)
class Format:
    """A telemetry format."""

    name: str
    """What messages call it."""
    recorded_by: str
    """Command or tool that writes it."""
    columns: Mapping[str, Source]
    """Columns that are taken, by their names in lower case; of two for one of ours the first that is there counts."""
    matches: Callable[[Content], bool]
    """Whether a file is of this format."""
    read: Callable[[Content, Asked], Found]
    """Raises `UserError` for a file that cannot be read."""
    shows: str
    """What its numbers can and cannot show, in one or two sentences."""
    shows_of_columns: Mapping[str, str] = field(default_factory=dict)
    """What is said only where one of our columns was read, by its name."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Columns that are known and not taken, with the reason."""
    times: Sequence[str] = ()
    """Columns with the time; of several that are there the first counts."""
    devices: Sequence[str] = ()
    """Columns that tell GPUs apart, likewise."""
    hosts: Sequence[str] = ()
    """Columns with the host, likewise."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """Columns that say what a GPU is: `product`, `uuid`."""
    is_amd: bool = False
    """Whether the tool is for AMD's GPUs alone."""
