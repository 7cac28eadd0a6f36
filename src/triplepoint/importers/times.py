"""Read times as tools print them: seconds to nanoseconds since 1970, dates with and without a zone, times of day."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np

from triplepoint.errors import UserError, shown
from triplepoint.importers.declaration import Clock
from triplepoint.units import NS_PER_S, NS_PER_US

DATE = re.compile(
    r"(\d{4})[-/](\d\d)[-/](\d\d)[ T_]+(\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?\d*\s*(Z|UTC|GMT|[+-]\d\d:?\d\d)?"
)
"""A date with a time, as most tools write it, and an optional zone."""
_PLAIN = re.compile(r"\d{4}[-/]\d\d[-/]\d\d \d\d:\d\d:\d\d\.\d{3,9}")
_TIME_OF_DAY = re.compile(r"(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?")
_UNIXDATE = re.compile(r"[A-Z][a-z]{2} [A-Z][a-z]{2} +\d{1,2} \d\d:\d\d:\d\d(?: [AP]M)?(?: [A-Z]{2,5})? \d{4}")
_ZONE = re.compile(r"([+-])(\d\d):?(\d\d)$")
_UTC_NAMES = ("Z", "UTC", "GMT")
_EPOCHS = ((1e8, NS_PER_S), (1e11, 1_000_000), (1e14, NS_PER_US), (1e17, 1))
"""Smallest number that is a time since 1970 in s, ms, us and ns, with the factor to ns. All are in 1973, so the ranges
do not overlap."""
_DAY_NS = 86_400 * NS_PER_S
_FIRST_YEAR, _END_YEAR = "1970", "2200"
"""First year that is read, and the year in which times end. Nanoseconds since 1970 in 64 bits end in 2262."""
_END_NS = int(np.datetime64(_END_YEAR, "ns").astype(np.int64))
_MOST_APART_S = 30 * 86_400.0
"""Longest time without a sample in recordings of one job; longer ones are those of a wrong clock. Our choice. Unit: s.
"""


@dataclass(frozen=True)
class _Place:
    """Place of cells, for errors."""

    file: str | Path
    column: str
    """Name of the column; empty if there is none."""
    lines: Sequence[int]
    """Line of each cell; empty if not known."""

    def __getitem__(self, index: int) -> str:
        """Return file, line and column of a cell."""
        line = f":{self.lines[index]}" if len(self.lines) else ""
        return f"{self.file}{line}{f': column {self.column}' if self.column else ''}"


def read_times(
    cells: Sequence[str], file: str | Path, column: str = "", lines: Sequence[int] = ()
) -> tuple[np.ndarray, Clock]:
    """Return times in ns since 1970, or since midnight for times of day, and their kind.

    Args:
        cells: Cells of the file.
        file: The file, for errors.
        column: Name of the column, for errors; empty if there is none.
        lines: Line of each cell, for errors; empty if not known.

    Raises:
        UserError: If a cell is not a time of a known form, or a time is far from all others.
    """
    place = _Place(file, column, lines)
    number, first = next(((number, cell.strip()) for number, cell in enumerate(cells) if cell.strip()), (0, ""))
    if re.fullmatch(r"\d+(\.\d*)?", first):
        t_ns, clock = _epochs(cells, place), Clock()
    elif _TIME_OF_DAY.fullmatch(first):
        return _days(cells, place), Clock(is_naive=True, lacks="date")
    elif _UNIXDATE.fullmatch(first):
        t_ns, clock = _unix_dates(cells, place)
    elif DATE.fullmatch(first):
        t_ns, clock = _dates(cells, place)
    else:
        raise _unknown(first, place[number] if len(cells) else str(file))
    check_near(t_ns, place)
    return t_ns, clock


def from_seconds(times_s: Sequence[float], file: str | Path) -> np.ndarray:
    """Return times in ns, rounded to milliseconds, from seconds since 1970.

    Raises:
        UserError: If one is out of range, or far from all others.
    """
    place, times = _Place(file, "", ()), np.array(times_s, float)
    is_wrong = ~((times >= 0) & (times * NS_PER_S < _END_NS))
    if is_wrong.any():
        raise _out_of_range(f"{times[int(is_wrong.argmax())]:g}", place[int(is_wrong.argmax())])
    t_ns = np.rint(times * 1000).astype(np.int64) * (NS_PER_S // 1000)
    check_near(t_ns, place)
    return np.asarray(t_ns)


def check_near(t_ns: np.ndarray, places: Sequence[str] | _Place) -> None:
    """Check that no time is far from all others, as with a wrong clock.

    Args:
        t_ns: Times in any order. Shape (num_times,). Unit: ns since 1970.
        places: Place of each time, for the error.

    Raises:
        UserError: If some are. The message names the time on the side of the gap with fewer times.
    """
    order = np.argsort(t_ns, kind="stable")
    gaps = np.diff(t_ns[order])
    if not gaps.size or gaps.max() <= _MOST_APART_S * NS_PER_S:
        return
    before = int(gaps.argmax())
    far, near = (before, before + 1) if 2 * (before + 1) < len(order) else (before + 1, before)
    raise UserError(
        f"{places[int(order[far])]}: the time is {show_time(int(t_ns[order[far]]))}, "
        f"{show_span(float(gaps[before]) / NS_PER_S)} from the nearest other one, {show_time(int(t_ns[order[near]]))}; "
        "correct the wrong time, or import the recordings of one job alone"
    )


def _unknown(cell: str, place: str) -> UserError:
    return UserError(
        f"{place}: {shown(cell)} is not a time; expected 2026-05-01 14:03:22.5, with or without a zone, or seconds "
        "since 1970"
    )


def _out_of_range(cell: str, place: str) -> UserError:
    return UserError(
        f"{place}: {shown(cell)} is not a time from {_FIRST_YEAR} to {int(_END_YEAR) - 1}; correct the wrong time"
    )


def _epochs(cells: Sequence[str], place: _Place) -> np.ndarray:
    """Return times in ns from numbers since 1970, whose unit is found by their size."""
    try:
        numbers = np.array(cells, float)
    except ValueError:
        wrong = next(at for at, cell in enumerate(cells) if not re.fullmatch(r"\s*\d+(\.\d*)?\s*", cell))
        raise _unknown(cells[wrong], place[wrong]) from None
    if not np.isfinite(numbers).all():
        wrong = int((~np.isfinite(numbers)).argmax())
        raise _unknown(cells[wrong], place[wrong])
    scales = [scale for least, scale in _EPOCHS if numbers.min() >= least]
    if not scales:
        raise _unknown(cells[int(numbers.argmin())], place[int(numbers.argmin())])
    if numbers.max() * scales[-1] >= _END_NS:
        raise _out_of_range(cells[int(numbers.argmax())], place[int(numbers.argmax())])
    try:
        return np.asarray(np.array(cells, np.int64) * scales[-1])
    except ValueError:  # fractions: whole units are converted apart from the rest, else digits would be lost
        whole = np.floor(numbers)
        return np.asarray(
            whole.astype(np.int64) * scales[-1] + np.rint((numbers - whole) * scales[-1]).astype(np.int64)
        )


def _dates(cells: Sequence[str], place: _Place) -> tuple[np.ndarray, Clock]:
    """Return times in ns from dates with times, which all have a zone or all have none."""
    # The fast path is for the times of nvidia-smi.
    if _PLAIN.fullmatch(cells[0]) and min(cells) >= _FIRST_YEAR and max(cells) < _END_YEAR:
        try:
            stamps = np.array([cell.replace("/", "-") for cell in cells], "datetime64[ns]")
            return stamps.astype(np.int64), Clock(is_naive=True)
        except ValueError:
            pass
    parts, zones = [], set()
    for number, cell in enumerate(cells):
        match = DATE.fullmatch(cell.strip())
        if match is None:
            raise _unknown(cell, place[number])
        if not _FIRST_YEAR <= match[1] < _END_YEAR:
            raise _out_of_range(cell, place[number])
        year, month, day, clock, fraction, zone = match.groups()
        parts.append(f"{year}-{month}-{day}T{clock}.{(fraction or '0').ljust(9, '0')}")
        zones.add(zone)
    try:
        t_ns = np.array(parts, "datetime64[ns]").astype(np.int64)
    except ValueError as error:
        raise UserError(f"{place.file}: no such date ({error}); correct the cell") from None
    if zones == {None}:
        return t_ns, Clock(is_naive=True)
    if None in zones:
        raise UserError(f"{place.file}: some times have a zone and some have none; give every time a zone")
    if len(zones) == 1:
        return t_ns - _zone_ns(zones.pop()), Clock()
    return t_ns - np.array([_zone_ns(DATE.fullmatch(cell.strip())[6]) for cell in cells]), Clock()  # type: ignore[index]


def _zone_ns(zone: str | None) -> int:
    """Return the offset of a zone such as `+02:00`; 0 for UTC. Unit: ns."""
    match = _ZONE.match(zone or "")
    if match is None:
        return 0
    seconds = int(match[2]) * 3600 + int(match[3]) * 60
    return (seconds if match[1] == "+" else -seconds) * NS_PER_S


def _days(cells: Sequence[str], place: _Place) -> np.ndarray:
    """Return times of day in ns since the first midnight; a large step back is a new day."""
    times_ns = []
    for number, cell in enumerate(cells):
        match = _TIME_OF_DAY.fullmatch(cell.strip())
        if match is None:
            raise _unknown(cell, place[number])
        seconds = int(match[1]) * 3600 + int(match[2]) * 60 + int(match[3])
        times_ns.append(seconds * NS_PER_S + int((match[4] or "0").ljust(9, "0")))
    t_ns = np.array(times_ns)
    nights = np.cumsum(np.concatenate([[0], np.diff(t_ns) < -_DAY_NS // 2]))
    return np.asarray(t_ns + nights * _DAY_NS)


def _unix_dates(cells: Sequence[str], place: _Place) -> tuple[np.ndarray, Clock]:
    """Return times as `date` prints them. Only UTC is read as a zone; other abbreviations are ambiguous."""
    times_ns, zones = [], set()
    for number, cell in enumerate(cells):
        words = cell.split()
        zones.add(words.pop(-2) if len(words) > 5 and words[-2] not in ("AM", "PM") else "")
        try:
            time = datetime.strptime(" ".join(words), f"%a %b %d {'%I:%M:%S %p' if len(words) > 5 else '%H:%M:%S'} %Y")
        except ValueError:
            raise _unknown(cell, place[number]) from None
        if not int(_FIRST_YEAR) <= time.year < int(_END_YEAR):
            raise _out_of_range(cell, place[number])
        times_ns.append(round(time.replace(tzinfo=UTC).timestamp()) * NS_PER_S)
    return np.array(times_ns), Clock(is_naive=not zones <= set(_UTC_NAMES))


def find_zone(text: str) -> tzinfo:
    """Return the time zone of a name or an offset: `Europe/Berlin`, `UTC`, `+08:00`.

    Raises:
        UserError: If there is no such zone.
    """
    match = _ZONE.fullmatch(text)
    if match:
        offset = timedelta(hours=int(match[2]), minutes=int(match[3]))
        return timezone(offset if match[1] == "+" else -offset)
    try:
        return ZoneInfo(text)
    except (KeyError, ValueError, OSError):
        raise UserError(
            f"--timezone {text}: no such zone; expected a name such as Europe/Berlin or UTC, or +08:00"
        ) from None


def to_utc(t_ns: np.ndarray, zone: tzinfo) -> np.ndarray:
    """Return UTC for local times; both in ns since 1970. The offset of the zone is looked up for each hour."""
    hours, hour_of = np.unique(t_ns // (3600 * NS_PER_S), return_inverse=True)
    offsets_ns = np.array([_offset_ns(int(hour), zone) for hour in hours], np.int64)
    return np.asarray(t_ns - offsets_ns[hour_of.reshape(-1)])


def _offset_ns(hour: int, zone: tzinfo) -> int:
    """Return the offset of a zone from UTC at a local hour since 1970. Unit: ns."""
    local = (datetime(1970, 1, 1) + timedelta(hours=hour)).replace(tzinfo=zone)
    offset = local.utcoffset()
    assert offset is not None
    return round(offset.total_seconds()) * NS_PER_S


def show_time(t_ns: int) -> str:
    """Return the text of a time in ns since 1970, for messages."""
    return datetime.fromtimestamp(t_ns / NS_PER_S, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def show_span(seconds: float) -> str:
    """Return the text of a duration, for messages: `3 min 2 s`."""
    seconds = abs(seconds)
    if seconds < 120:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
