"""Scrapes of exporters in Prometheus' text format, one or several per file.

A scrape has no time of its own. The time is that of a line before it (as `date` or `date +%s` prints it), of its lines,
or of the file's name.

Source: Prometheus documentation, exposition formats.
"""

import re
from collections import defaultdict

import numpy as np

from triplepoint.errors import UserError
from triplepoint.importers.declaration import Clock, Content, FileTelemetry, Format, ReadOptions
from triplepoint.importers.prometheus import COLUMNS, DEVICES, HOSTS, LEFT_OUT, SHOWS, add_series, find_source
from triplepoint.importers.times import read_times
from triplepoint.units import NS_PER_S

_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+(\d{10,19}))?\s*$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_TIME = re.compile(r"^#?\s*(\d{10}(?:\.\d+)?|\d{13}|\d{4}-\d\d-\d\d[T ]\S.*|[A-Z][a-z]{2} [A-Z][a-z]{2} .*\d{4})\s*$")
_IN_NAME = re.compile(r"(?<!\d)(\d{10}|\d{13}|\d{4}-?\d\d-?\d\d[T_-]?\d\d[:-]?\d\d[:-]?\d\d)(?!\d)")


def _read(content: Content, options: ReadOptions) -> FileTelemetry:
    values: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    stamps: list[str] = []
    seen: set[tuple[str, str]] = set()
    scrape, own_ms = -1, dict[int, str]()
    for number, line in enumerate(content.text.splitlines(), 1):
        stamp, sample = _TIME.match(line), _SAMPLE.match(line)
        if stamp:
            stamps.append(stamp[1])
            scrape, seen = scrape + 1, set()
        elif sample:
            key = (sample[1], sample[2] or "")
            if key in seen or scrape < 0:
                scrape, seen = scrape + 1, set()
            seen.add(key)
            values[key][scrape] = _number(sample[3], content, number)
            if sample[4]:
                own_ms.setdefault(scrape, sample[4])
    t_ns, clock = _times(content, stamps, own_ms, scrape + 1)
    telemetry = FileTelemetry([], clock)
    for (name, text), by_scrape in values.items():
        labels = {label: value.replace('\\"', '"') for label, value in _LABEL.findall(text)}
        add_series(telemetry, name, labels, t_ns[list(by_scrape)], np.array(list(by_scrape.values()), float))
    if not telemetry.series:
        raise UserError(
            f"{content.path}: none of its metrics is known; scrape the exporter of the GPUs, see docs/import.md"
        )
    return telemetry


def _number(text: str, content: Content, line: int) -> float:
    try:
        return float(text)
    except ValueError:
        raise UserError(f"{content.path}:{line}: {text!r} is not a number; scrape the exporter again") from None


def _times(content: Content, stamps: list[str], own: dict[int, str], num: int) -> tuple[np.ndarray, Clock]:
    """Return the time of each scrape; its number if no time is known."""
    if len(stamps) == num and num:
        return read_times(stamps, content.path)
    if len(own) == num and num:
        return read_times([own[number] for number in range(num)], content.path)
    if num == 1 and (named := _IN_NAME.search(content.path.name)):
        digits = re.sub(r"\D", "", named[1])
        if len(digits) == 14:
            text = f"{digits[:4]}-{digits[4:6]}-{digits[6:8]} {digits[8:10]}:{digits[10:12]}:{digits[12:]}"
            return read_times([text], content.path)
        return np.array([int(digits) * (NS_PER_S if len(digits) == 10 else NS_PER_S // 1000)]), Clock()
    return np.arange(num), Clock(lacks="time")


def _matches(content: Content) -> bool:
    samples = (_SAMPLE.match(line) for line in content.head.splitlines())
    return any(
        sample and find_source(sample[1], dict(_LABEL.findall(sample[2] or ""))) is not None for sample in samples
    )


FORMAT = Format(
    name="Prometheus text",
    recorded_by="while sleep 1; do date +%s; curl -s localhost:9400/metrics; done",
    columns=COLUMNS,
    left_out=LEFT_OUT,
    devices=DEVICES,
    hosts=HOSTS,
    matches=_matches,
    read=_read,
    shows=SHOWS,
)
