"""Read a folder of recordings: which file is of which format and host, on one clock, as samples of each host."""

import re
import tarfile
import zipfile
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, tzinfo
from pathlib import Path

from triplepoint.errors import UserError
from triplepoint.importers import formats
from triplepoint.importers.clocks import Span, check_hosts, check_work, find_shift, span_of
from triplepoint.importers.declaration import Asked, Content, Format, Found, Series
from triplepoint.importers.hosts import in_order, name_hosts
from triplepoint.importers.mapped import draft_mapping, read_mapping
from triplepoint.importers.notes import of_files, of_hosts
from triplepoint.importers.samples import HostSamples, assemble
from triplepoint.importers.text import read_content
from triplepoint.importers.times import find_zone, read_times, show_span, to_utc
from triplepoint.recording import Part
from triplepoint.trace.kineto.source import head as head_of
from triplepoint.trace.profilers import rocprof_csv, rocprof_json
from triplepoint.trace.profilers.database import MAGIC
from triplepoint.trace.reader import read_parts
from triplepoint.units import NS_PER_S

_HEAD_BYTES = 1 << 16
_MOST_NAMED = 5
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Wanted:
    """What the user says of a folder."""

    mapping: Path | None = None
    """`--map`: a mapping for CSV files of other tools."""
    timezone: str | None = None
    offsets: Mapping[str, float] = field(default_factory=dict)
    """Seconds to add to the clock of a host, of all hosts under the empty name."""
    start: str | None = None
    """Time of the first sample, for recordings without times; the date, for those with times of day."""
    period_s: float | None = None
    """Time between samples of recordings without times. Unit: s."""
    hosts: tuple[str, ...] = ()
    """Hosts in the order of ranks."""
    host_pattern: str | None = None
    asked: Asked = Asked()


@dataclass
class Listing:
    """The files of a folder by what they are."""

    telemetry: list[tuple[Path, Format]] = field(default_factory=list)
    traces: list[Path] = field(default_factory=list)
    others: list[Path] = field(default_factory=list)


@dataclass
class Telemetry:
    """Samples of all hosts, on the wall clock in UTC."""

    hosts: dict[str, HostSamples]
    """In the order of ranks."""
    facts: dict[tuple[str, str], dict[str, str]]
    """`product` and `uuid` of devices, by host and device."""
    formats: dict[str, int]
    """Number of files by format."""
    notes: list[str]
    left_out: dict[str, str]
    """Columns that were not taken, each with the reason."""
    is_amd: bool = False
    """Whether its GPUs are AMD's."""
    shift_ns: int = 0
    """What local times are ahead of UTC by, as the traces show; 0 where that was not needed. Unit: ns."""


def list_folder(folder: Path, mapping: Path | None = None, skipped: Sequence[Path] = ()) -> Listing:
    """Return which files of a folder are telemetry, of which format, and which are traces.

    Args:
        folder: The folder, or one file.
        mapping: `--map`, which goes before the formats that are known.
        skipped: Files and folders that are something else.

    Raises:
        UserError: If there is no such folder, or it has neither.
    """
    if not folder.exists():
        raise UserError(f"{folder}: no such folder; expected one with recordings of a job")
    known = [*([read_mapping(mapping)] if mapping else []), *formats()]
    ignored = [path.resolve() for path in (*skipped, *([mapping] if mapping else []))]
    found = Listing()
    paths = (
        [folder] if folder.is_file() else sorted(path for path in folder.rglob("*") if not path.name.startswith("."))
    )
    for path in paths:
        where = path.resolve()
        if not where.is_file() or not where.stat().st_size or any(where.is_relative_to(each) for each in ignored):
            continue
        _sort(path, known, found)
    if not found.telemetry and not found.traces:
        for path in found.others:
            if advice := _advice(path):
                raise UserError(f"{path if folder.is_dir() else folder}: {advice}")
        names = ", ".join(path.name for path in found.others[:_MOST_NAMED]) if folder.is_dir() else "another file"
        raise UserError(
            f"{folder}: no telemetry and no traces; found {names or 'nothing'}; known are "
            f"{', '.join(one.name for one in formats())} and traces of Kineto, Nsight Systems and rocprof; name the "
            "columns of another CSV with --map"
        )
    return found


_QUERY = "nvidia-smi --query-gpu=timestamp,index,name,power.draw.instant,temperature.gpu,clocks.sm --format=csv -l 1"
_FOR_SCREENS = (
    (r"NVSMI LOG", "the report of nvidia-smi -q", _QUERY),
    (r"\| NVIDIA-SMI \d", "the table that nvidia-smi shows on a screen", _QUERY),
    (r"ROCm System Management Interface", "what rocm-smi shows on a screen", "rocm-smi --showpower --showtemp --csv"),
    (r"^GPU: \d+\s*$", "the list that amd-smi shows on a screen", "amd-smi metric -p -c -t -u -E -w 1 --csv"),
    (r"emissions_rate", "CodeCarbon's sums over whole runs, without samples", _QUERY),
)
"""What tools print that is no recording: how it is known, what it is, and the command that records."""


def _advice(path: Path) -> str:
    """Return what a file is that is neither telemetry nor a trace, and what to do about it; '' where nothing tells."""
    if tarfile.is_tarfile(path) or zipfile.is_zipfile(path):
        return "an archive; unpack it, and import the folder that it makes"
    try:
        read_parts(path)
    except UserError as error:
        return str(error).removeprefix(f"{path.name}: ")
    try:
        content = read_content(path, _HEAD_BYTES)
    except UserError:
        return ""
    for mark, what, command in _FOR_SCREENS:
        if re.search(mark, content.head, re.MULTILINE):
            return f"{what}; record with: {command}"
    if draft := draft_mapping(content):
        return (
            "a CSV of a tool that is not known; write what its columns are into a YAML file, and name it with --map. A "
            f"draft, whose names and units you should check: {draft}"
        )
    return ""


def _sort(path: Path, known: Sequence[Format], found: Listing) -> None:
    if path.name.endswith((".json.zst", ".json.zstd")):
        found.traces.append(path)
        return
    if _is_of_profiler(path):
        found.traces.append(path)
        return
    try:
        head = read_content(path, _HEAD_BYTES)
    except UserError:  # named .gz and is none: nothing that was recorded
        found.others.append(path)
        return
    if _is_trace(head):
        found.traces.append(path)
        return
    declared = next((one for one in known if "\0" not in head.head and head.text.strip() and one.matches(head)), None)
    if declared is None:
        found.others.append(path)
    else:
        found.telemetry.append((path, declared))


def _is_of_profiler(path: Path) -> bool:
    """Return whether a file is a trace of Nsight Systems or rocprof; of another SQLite file it is not."""
    try:
        start = head_of(path, 4096)
        is_text = rocprof_json.JSON_START.match(start) is not None or rocprof_csv.is_kernel_csv(start)
        return is_text or (start.startswith(MAGIC) and bool(read_parts(path)))
    except UserError:
        return False


def _is_trace(head: Content) -> bool:
    return head.text.lstrip()[:1] in ("{", "[") and any(
        mark in head.text
        for mark in ('"traceEvents"', '"deviceProperties"', '"baseTimeNanoseconds"', '"ph":', '"ph" :')
    )


def read_telemetry(listing: Listing, folder: Path, wanted: Wanted, work: Span | None, progress: Progress) -> Telemetry:
    """Return the telemetry of a folder.

    Args:
        listing: Its files.
        folder: The folder.
        wanted: What the user says of it.
        work: First and last time of traces and steps, in ns since 1970 UTC; None where they do not tell.
        progress: Called with the file that is being read.

    Raises:
        UserError: If a file cannot be read, times are missing or without a zone that can be told, or clocks disagree.
    """
    found: dict[Path, Found] = {}
    for number, (path, declared) in enumerate(listing.telemetry, 1):
        progress(f"reading {declared.name} {path.name} ({number} of {len(listing.telemetry)})")
        found[path] = declared.read(read_content(path), wanted.asked)
    notes = of_files((path.name, note) for path, one in found.items() for note in one.notes)
    left_out = {name: why for one in found.values() for name, why in one.left_out.items()}
    for path, one in found.items():
        _give_times(path, one, wanted)
    shift_ns, said = _to_utc([one for one in found.values() if one.clock.is_naive], wanted, work)
    notes += said
    silent = [path for path, one in found.items() if any(not series.host for series in one.series)]
    named = name_hosts(silent, folder if folder.is_dir() else folder.parent, wanted.host_pattern)
    by_host: dict[str, list[Series]] = defaultdict(list)
    facts: dict[tuple[str, str], dict[str, str]] = {}
    for path, one in found.items():
        for series in one.series:
            by_host[series.host or named[path]].append(series)
        for (host, device), known in one.facts.items():
            facts.setdefault((host or named[path], device), {}).update(known)
    _check_offsets(by_host, wanted.offsets)
    hosts = {}
    for host in in_order(list(by_host), wanted.hosts):
        products = {device: said.get("product", "") for (of, device), said in facts.items() if of == host}
        hosts[host] = assemble(by_host[host], products)
    notes += of_hosts((host, note) for host, one in hosts.items() for note in one.notes)
    _check(hosts, wanted, work)
    by_format = dict(Counter(one.name for _, one in listing.telemetry))
    is_amd = any(one.is_amd for one in found.values())
    return Telemetry(hosts, facts, by_format, notes, left_out, is_amd, shift_ns)


def offset_ns(host: str, offsets: Mapping[str, float]) -> int:
    """Return what is to be added to the clock of a host. Unit: ns."""
    return round((offsets.get(host, 0.0) + offsets.get("", 0.0)) * NS_PER_S)


def _check(hosts: Mapping[str, HostSamples], wanted: Wanted, work: Span | None) -> None:
    """Refuse telemetry without values, and clocks that disagree, after the offsets the user gave."""
    parts = _parts(hosts, wanted.offsets)
    if hosts and not parts:
        raise UserError("the telemetry has no value, every cell is empty or N/A; record it again")
    if work is not None and (sampled := telemetry_span(hosts, wanted.offsets)) is not None:
        check_work(sampled, work, "the traces and steps")
    check_hosts(parts, wanted.offsets)


def _parts(hosts: Mapping[str, HostSamples], offsets: Mapping[str, float]) -> dict[str, list[Part]]:
    """Return the samples of each host that has some, at the times the user's offsets give."""
    return {
        host: [replace(part, t_ns=part.t_ns + offset_ns(host, offsets)) for part in one.parts]
        for host, one in hosts.items()
        if one.parts
    }


def telemetry_span(hosts: Mapping[str, HostSamples], offsets: Mapping[str, float]) -> Span | None:
    """Return the first and last time of all samples, offsets added; None without samples. Unit: ns."""
    spans = [span_of(parts) for parts in _parts(hosts, offsets).values()]
    return (min(first for first, _ in spans), max(last for _, last in spans)) if spans else None


def _check_offsets(hosts: Collection[str], offsets: Mapping[str, float]) -> None:
    if unknown := [host for host in offsets if host and host not in hosts]:
        raise UserError(f"--offset {unknown[0]}=...: no such host; found {', '.join(sorted(hosts))}")


def _give_times(path: Path, one: Found, wanted: Wanted) -> None:
    """Turn numbers of samples, or times of day, into times.

    Raises:
        UserError: If the user did not say what they lack.
    """
    if not one.clock.lacks:
        return
    is_date = one.clock.lacks == "date"
    if wanted.start is None or (wanted.period_s is None and not is_date):
        lacking = "times of day without a date; give --start with the date" if is_date else (
            "no times in the file; give --start with the time of the first sample and --period with the seconds "
            "between two"
        )  # fmt: skip
        raise UserError(f"{path}: {lacking}, such as --start '2026-05-01 14:00:00'")
    text = (
        wanted.start
        if any(mark in wanted.start for mark in ":T") or wanted.start.isdigit()
        else f"{wanted.start} 00:00:00"
    )
    start, clock = read_times([text], "--start")
    if is_date:
        day_ns = 86_400 * NS_PER_S
        start = start // day_ns * day_ns
    step_ns = 1 if is_date else round((wanted.period_s or 0.0) * NS_PER_S)
    for series in one.series:
        series.t_ns = start[0] + series.t_ns * step_ns
    one.clock = clock


def _to_utc(naive: Sequence[Found], wanted: Wanted, work: Span | None) -> tuple[int, list[str]]:
    """Turn local times into UTC and return by how much they were ahead of it, in ns, and what is to be said of it.

    Raises:
        UserError: If several zones fit.
    """
    series = [one for found in naive for one in found.series if one.t_ns.size]
    if not series:
        return 0, []
    zone: tzinfo = find_zone(wanted.timezone) if wanted.timezone else UTC
    shift_ns, notes = 0, []
    if wanted.timezone is None and work is not None:
        span = min(int(one.t_ns.min()) for one in series), max(int(one.t_ns.max()) for one in series)
        shift_ns = _choose(find_shift(span, work))
        if shift_ns:
            notes.append(
                f"times without a zone taken as UTC{'+' if shift_ns > 0 else '-'}{show_span(shift_ns / NS_PER_S)}: "
                "only so do traces and steps fall into the telemetry; --timezone overrules"
            )
    elif wanted.timezone is None:
        notes.append("times without a zone taken as UTC; say another with --timezone")
    for one in series:
        one.t_ns = to_utc(one.t_ns, zone) - shift_ns
    return shift_ns, notes


def _choose(shifts: Sequence[int]) -> int:
    """Return the shift from UTC that fits, 0 where none does, which is refused later."""
    hour = 3600 * NS_PER_S
    whole = [shift for shift in shifts if shift % hour == 0] or list(shifts)
    if not whole:
        return 0
    if len(whole) > 1 and 0 not in whole:
        listed = " or ".join(f"UTC{shift / hour:+g} h" for shift in whole[:4])
        raise UserError(f"times without a zone could be {listed}, by the traces and steps; give --timezone")
    return 0 if 0 in whole else whole[0]
