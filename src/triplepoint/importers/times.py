"""Times as tools print them: seconds to nanoseconds since 1970, dates with and without a zone, times of day."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

import numpy as np

from triplepoint.errors import UserError, shown
from triplepoint.importers.declaration import Clock
from triplepoint.units import NS_PER_S, NS_PER_US

DATE = re.compile(
    r"(\d{4})[-/](\d\d)[-/](\d\d)[ T_]+(\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?\d*\s*(Z|UTC|GMT|[+-]\d\d:?\d\d)?"
)
"""A date with a time, as most tools write it, and its zone where it has one."""
_PLAIN = re.compile(r"\d{4}[-/]\d\d[-/]\d\d \d\d:\d\d:\d\d\.\d{3,9}")
_TIME_OF_DAY = re.compile(r"(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?")
_UNIXDATE = re.compile(r"[A-Z][a-z]{2} [A-Z][a-z]{2} +\d{1,2} \d\d:\d\d:\d\d(?: [AP]M)?(?: [A-Z]{2,5})? \d{4}")
_ZONE = re.compile(r"([+-])(\d\d):?(\d\d)$")
_UTC_NAMES = ("Z", "UTC", "GMT")
_EPOCHS = ((1e8, NS_PER_S), (1e11, 1_000_000), (1e14, NS_PER_US), (1e17, 1))
"""Smallest number that is a time since 1970 in s, ms, us and ns: 1973; each is below the smallest of the next."""
_DAY_NS = 86_400 * NS_PER_S


def read_times(cells: Sequence[str], where: str) -> tuple[np.ndarray, Clock]:
    """Return times in ns since 1970, or since midnight where only times of day are given, and what they lack.

    Args:
        cells: As they stand in the file.
        where: File and column, for errors.

    Raises:
        UserError: If one is no time that is known.
    """
    first = next((cell.strip() for cell in cells if cell.strip()), "")
    if re.fullmatch(r"\d+(\.\d*)?", first):
        return _epochs(cells, where), Clock()
    if _TIME_OF_DAY.fullmatch(first):
        return _days(cells, where), Clock(is_naive=True, lacks="date")
    if _UNIXDATE.fullmatch(first):
        return _unix_dates(cells, where)
    if DATE.fullmatch(first):
        return _dates(cells, where)
    raise _unknown(first, where)


def _unknown(cell: str, where: str) -> UserError:
    return UserError(
        f"{where}: {shown(cell)} is not a time; expected 2026-05-01 14:03:22.5, with or without a zone, or seconds "
        "since 1970"
    )


def _epochs(cells: Sequence[str], where: str) -> np.ndarray:
    try:
        numbers = np.array(cells, float)
    except ValueError:
        raise _unknown(next(c for c in cells if not re.fullmatch(r"\s*\d+(\.\d*)?\s*", c)), where) from None
    scales = [scale for least, scale in _EPOCHS if numbers.min() >= least]
    if not scales:
        raise _unknown(cells[int(numbers.argmin())], where)
    try:
        return np.asarray(np.array(cells, np.int64) * scales[-1])
    except ValueError:  # a fraction: whole units and the rest apart, or digits would be lost
        whole = np.floor(numbers)
        return np.asarray(
            whole.astype(np.int64) * scales[-1] + np.rint((numbers - whole) * scales[-1]).astype(np.int64)
        )


def _dates(cells: Sequence[str], where: str) -> tuple[np.ndarray, Clock]:
    if _PLAIN.fullmatch(cells[0]):  # as nvidia-smi prints them: all at once
        try:
            stamps = np.array([cell.replace("/", "-") for cell in cells], "datetime64[ns]")
            return stamps.astype(np.int64), Clock(is_naive=True)
        except ValueError:
            pass
    parts, zones = [], set()
    for cell in cells:
        match = DATE.fullmatch(cell.strip())
        if match is None:
            raise _unknown(cell, where)
        year, month, day, clock, fraction, zone = match.groups()
        parts.append(f"{year}-{month}-{day}T{clock}.{(fraction or '0').ljust(9, '0')}")
        zones.add(zone)
    try:
        t_ns = np.array(parts, "datetime64[ns]").astype(np.int64)
    except ValueError as error:
        raise UserError(f"{where}: no such date ({error})") from None
    if zones == {None}:
        return t_ns, Clock(is_naive=True)
    if None in zones:
        raise UserError(f"{where}: some times have a zone and some have none; give every time a zone")
    if len(zones) == 1:
        return t_ns - _zone_ns(zones.pop()), Clock()
    return t_ns - np.array([_zone_ns(DATE.fullmatch(cell.strip())[6]) for cell in cells]), Clock()  # type: ignore[index]


def _zone_ns(zone: str | None) -> int:
    match = _ZONE.match(zone or "")
    if match is None:
        return 0
    seconds = int(match[2]) * 3600 + int(match[3]) * 60
    return (seconds if match[1] == "+" else -seconds) * NS_PER_S


def _days(cells: Sequence[str], where: str) -> np.ndarray:
    found = []
    for cell in cells:
        match = _TIME_OF_DAY.fullmatch(cell.strip())
        if match is None:
            raise _unknown(cell, where)
        seconds = int(match[1]) * 3600 + int(match[2]) * 60 + int(match[3])
        found.append(seconds * NS_PER_S + int((match[4] or "0").ljust(9, "0")))
    t_ns = np.array(found)
    nights = np.cumsum(np.concatenate([[0], np.diff(t_ns) < -_DAY_NS // 2]))
    return np.asarray(t_ns + nights * _DAY_NS)


def _unix_dates(cells: Sequence[str], where: str) -> tuple[np.ndarray, Clock]:
    """Return times as `date` prints them; a zone is only taken where it is UTC, other names mean several."""
    found, names = [], set()
    for cell in cells:
        words = cell.split()
        zone = words.pop(-2) if len(words) > 5 and words[-2] not in ("AM", "PM") else ""
        names.add(zone)
        try:
            made = datetime.strptime(" ".join(words), f"%a %b %d {'%I:%M:%S %p' if len(words) > 5 else '%H:%M:%S'} %Y")
        except ValueError:
            raise _unknown(cell, where) from None
        found.append(round(made.replace(tzinfo=UTC).timestamp()) * NS_PER_S)
    return np.array(found), Clock(is_naive=not names <= set(_UTC_NAMES))


def find_zone(text: str) -> tzinfo:
    """Return the zone that a name or an offset means: `Europe/Berlin`, `UTC`, `+08:00`.

    Raises:
        UserError: If there is none such.
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
    """Return local times in ns since 1970 as UTC; the zone's offset is looked up hour by hour."""
    hours, places = np.unique(t_ns // (3600 * NS_PER_S), return_inverse=True)
    found = np.array([_offset_ns(int(hour), zone) for hour in hours], np.int64)
    return np.asarray(t_ns - found[places.reshape(-1)])


def _offset_ns(hour: int, zone: tzinfo) -> int:
    local = (datetime(1970, 1, 1) + timedelta(hours=hour)).replace(tzinfo=zone)
    offset = local.utcoffset()
    assert offset is not None
    return round(offset.total_seconds()) * NS_PER_S


def show_time(t_ns: int) -> str:
    """Return a time as messages show it."""
    return datetime.fromtimestamp(t_ns / NS_PER_S, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def show_span(seconds: float) -> str:
    """Return a length of time as messages show it: `3 min 2 s`."""
    seconds = abs(seconds)
    if seconds < 120:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
