"""Read a folder of recordings: find the format and host of each file, and join the samples of each host in UTC."""

import lzma
import re
import tarfile
import zipfile
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, tzinfo
from pathlib import Path

import numpy as np

from triplepoint.errors import UserError
from triplepoint.importers import formats
from triplepoint.importers.clocks import Span, check_hosts, check_work, find_shift, span_of
from triplepoint.importers.declaration import Content, FileTelemetry, Format, ReadOptions, Series
from triplepoint.importers.hosts import name_hosts, order_hosts
from triplepoint.importers.mapped import draft_mapping, read_mapping
from triplepoint.importers.notes import sum_up_file_notes, sum_up_host_notes
from triplepoint.importers.samples import HostSamples, assemble
from triplepoint.importers.text import read_content
from triplepoint.importers.times import check_near, find_zone, read_times, show_span, to_utc
from triplepoint.recording import Part
from triplepoint.trace.kineto.source import head as head_of
from triplepoint.trace.profilers import rocprof_csv, rocprof_json
from triplepoint.trace.profilers.database import MAGIC
from triplepoint.trace.reader import read_parts
from triplepoint.units import NS_PER_S

_HEAD_BYTES = 1 << 16
"""Part of a file in which its format is recognised. Unit: byte."""
_MOST_NAMED = 5
"""Number of files that a message names."""
Progress = Callable[[str], None]


@dataclass(frozen=True)
class ImportOptions:
    """Options of `triplepoint import` on a folder of recordings."""

    mapping: Path | None = None
    """`--map`: mapping of the columns of CSV files of other tools."""
    timezone: str | None = None
    """Time zone of local times; None if not given."""
    offsets: Mapping[str, float] = field(default_factory=dict)
    """Offsets to add to the clocks of hosts; the empty name is for all hosts. Unit: s."""
    start: str | None = None
    """Time of the first sample, for recordings without times; the date, for recordings with times of day."""
    period_s: float | None = None
    """Time between samples of recordings without times. Unit: s."""
    hosts: tuple[str, ...] = ()
    """Hosts in the order of ranks; empty for the order of their names."""
    host_pattern: str | None = None
    """Regular expression that finds the host in a path."""
    read_options: ReadOptions = ReadOptions()
    """Options for files that lack information."""


@dataclass
class Listing:
    """Files of a folder by kind."""

    telemetry: list[tuple[Path, Format]] = field(default_factory=list)
    """Files of telemetry, with their format."""
    traces: list[Path] = field(default_factory=list)
    others: list[Path] = field(default_factory=list)


@dataclass
class Telemetry:
    """Samples of all hosts, in UTC."""

    hosts: dict[str, HostSamples]
    """Samples of each host, in the order of ranks."""
    facts: dict[tuple[str, str], dict[str, str]]
    """`product` and `uuid` of devices, by host and device."""
    formats: dict[str, int]
    """Number of files by format."""
    notes: list[str]
    """Remarks for the user."""
    left_out: dict[str, str]
    """Columns that were not read, with the reason."""
    is_amd: bool = False
    """Whether its GPUs are AMD's."""
    shift_ns: int = 0
    """Time by which local times are ahead of UTC, found by the traces; 0 if not needed. Unit: ns."""


def list_folder(folder: Path, mapping: Path | None = None, skipped: Sequence[Path] = ()) -> Listing:
    """Return the files of a folder: telemetry with its formats, traces, and others.

    Args:
        folder: The folder, or one file.
        mapping: `--map`; it is tried before the known formats.
        skipped: Files and folders that are not recordings.

    Raises:
        UserError: If there is no such folder, or it has neither telemetry nor traces.
    """
    if not folder.exists():
        raise UserError(f"{folder}: no such folder; expected one with recordings of a job")
    known = [*([read_mapping(mapping)] if mapping else []), *formats()]
    ignored = [path.resolve() for path in (*skipped, *([mapping] if mapping else []))]
    listing = Listing()
    paths = (
        [folder] if folder.is_file() else sorted(path for path in folder.rglob("*") if not path.name.startswith("."))
    )
    for path in paths:
        file = path.resolve()
        if not file.is_file() or not file.stat().st_size or any(file.is_relative_to(each) for each in ignored):
            continue
        _add(path, known, listing)
    if not listing.telemetry and not listing.traces:
        for path in listing.others:
            if advice := _advice(path):
                raise UserError(f"{path if folder.is_dir() else folder}: {advice}")
        others = ", ".join(path.name for path in listing.others[:_MOST_NAMED])
        names = others if folder.is_dir() else "a file of another format"
        raise UserError(
            f"{folder}: no telemetry and no traces; found {names or 'nothing'}; known are "
            f"{', '.join(one.name for one in formats())} and traces of Kineto, Nsight Systems and rocprof; name the "
            "columns of another CSV with --map"
        )
    return listing


_QUERY = "nvidia-smi --query-gpu=timestamp,index,name,power.draw.instant,temperature.gpu,clocks.sm --format=csv -l 1"
_FOR_SCREENS = (
    (r"NVSMI LOG", "the report of nvidia-smi -q", _QUERY),
    (r"\| NVIDIA-SMI \d", "the table that nvidia-smi shows on a screen", _QUERY),
    (r"ROCm System Management Interface", "what rocm-smi shows on a screen", "rocm-smi --showpower --showtemp --csv"),
    (r"^GPU: \d+\s*$", "the list that amd-smi shows on a screen", "amd-smi metric -p -c -t -u -E -w 1 --csv"),
    (r"emissions_rate", "CodeCarbon's sums over whole runs, without samples", _QUERY),
)
"""Outputs of tools that are not recordings: a pattern, the name of the output, and the command that records."""


def _advice(path: Path) -> str:
    """Return the kind of a file that is neither telemetry nor a trace, and what to do; empty if it is not known."""
    if _is_archive(path):
        return "an archive; unpack it, and import the folder that it makes"
    try:
        read_parts(path)
    except UserError as error:
        return str(error).removeprefix(f"{path.name}: ")
    try:
        content = read_content(path, _HEAD_BYTES)
    except UserError as error:
        return str(error).removeprefix(f"{path}: ")
    for pattern, output, command in _FOR_SCREENS:
        if re.search(pattern, content.head, re.MULTILINE):
            return f"{output}; record with: {command}"
    if draft := draft_mapping(content):
        return (
            "a CSV of a tool that is not known; write what its columns are into a YAML file, and name it with --map. A "
            f"draft, whose names and units you should check: {draft}"
        )
    return ""


def _is_archive(path: Path) -> bool:
    try:
        return tarfile.is_tarfile(path) or zipfile.is_zipfile(path)
    except (EOFError, OSError, lzma.LZMAError, zlib.error):  # compressed and damaged
        return False


def _add(path: Path, known: Sequence[Format], listing: Listing) -> None:
    """Add a file to a listing, by its name and content."""
    if path.name.endswith((".json.zst", ".json.zstd")) or _is_of_profiler(path):
        listing.traces.append(path)
        return
    try:
        content = read_content(path, _HEAD_BYTES)
    except UserError:  # such as a file named .gz that is not compressed
        listing.others.append(path)
        return
    is_text = "\0" not in content.head and bool(content.text.strip())
    if _is_kineto(content):
        listing.traces.append(path)
    elif is_text and (declared := next((one for one in known if one.matches(content)), None)):
        listing.telemetry.append((path, declared))
    else:
        listing.others.append(path)


def _is_of_profiler(path: Path) -> bool:
    """Return whether a file is a trace of Nsight Systems or rocprof; other SQLite files are not."""
    try:
        start = head_of(path, 4096)
        is_text = rocprof_json.JSON_START.match(start) is not None or rocprof_csv.is_kernel_csv(start)
        return is_text or (start.startswith(MAGIC) and bool(read_parts(path)))
    except UserError:
        return False


def _is_kineto(content: Content) -> bool:
    """Return whether a file is a trace in JSON."""
    return content.text.lstrip()[:1] in ("{", "[") and any(
        mark in content.text
        for mark in ('"traceEvents"', '"deviceProperties"', '"baseTimeNanoseconds"', '"ph":', '"ph" :')
    )


def read_telemetry(
    listing: Listing, folder: Path, options: ImportOptions, work: Span | None, progress: Progress
) -> Telemetry:
    """Return the telemetry of a folder.

    Args:
        listing: Files of the folder.
        folder: The folder.
        options: Options of the user.
        work: First and last time of traces and steps, in ns since 1970 UTC; None if not known.
        progress: Called with lines of progress.

    Raises:
        UserError: If a file cannot be read, times are missing or their zone cannot be found, or clocks disagree.
    """
    files: dict[Path, FileTelemetry] = {}
    for number, (path, declared) in enumerate(listing.telemetry, 1):
        progress(f"reading {declared.name} {path.name} ({number} of {len(listing.telemetry)})")
        files[path] = declared.read(read_content(path), options.read_options)
    notes = sum_up_file_notes((path.name, note) for path, file in files.items() for note in file.notes)
    left_out = {name: reason for file in files.values() for name, reason in file.left_out.items()}
    for path, file in files.items():
        _complete_times(path, file, options)
    shift_ns, notes_on_zone = _to_utc([file for file in files.values() if file.clock.is_naive], options, work)
    notes += notes_on_zone
    without_host = [path for path, file in files.items() if any(not series.host for series in file.series)]
    host_of = name_hosts(without_host, folder if folder.is_dir() else folder.parent, options.host_pattern)
    by_host: dict[str, list[Series]] = defaultdict(list)
    files_of: dict[str, list[Path]] = defaultdict(list)
    facts: dict[tuple[str, str], dict[str, str]] = {}
    for path, file in files.items():
        for series in file.series:
            by_host[series.host or host_of[path]].append(series)
            files_of[series.host or host_of[path]].append(path)
        for (host, device), known in file.facts.items():
            facts.setdefault((host or host_of[path], device), {}).update(known)
    for host, all_series in by_host.items():
        _check_one_time(all_series, files_of[host])
    _check_offsets(by_host, options.offsets)
    hosts = {}
    for host in order_hosts(list(by_host), options.hosts):
        products = {device: known.get("product", "") for (name, device), known in facts.items() if name == host}
        hosts[host] = assemble(by_host[host], products)
    notes += sum_up_host_notes((host, note) for host, samples in hosts.items() for note in samples.notes)
    _check(hosts, options, work)
    num_files = dict(Counter(declared.name for _, declared in listing.telemetry))
    is_amd = any(file.is_amd for file in files.values())
    return Telemetry(hosts, facts, num_files, notes, left_out, is_amd, shift_ns)


def offset_ns(host: str, offsets: Mapping[str, float]) -> int:
    """Return the offset to add to the clock of a host. Unit: ns."""
    return round((offsets.get(host, 0.0) + offsets.get("", 0.0)) * NS_PER_S)


def _check(hosts: Mapping[str, HostSamples], options: ImportOptions, work: Span | None) -> None:
    """Check that there are values, and that the clocks agree. Raises `UserError` if not."""
    parts = _parts(hosts, options.offsets)
    if hosts and not parts:
        raise UserError("the telemetry has no value, every cell is empty or N/A; record it again")
    if work is not None and (sampled := telemetry_span(hosts, options.offsets)) is not None:
        check_work(sampled, work, "the traces and steps")
    check_hosts(parts, options.offsets)


def _parts(hosts: Mapping[str, HostSamples], offsets: Mapping[str, float]) -> dict[str, list[Part]]:
    """Return the samples of each host that has any, with the user's offsets added to their times."""
    return {
        host: [replace(part, t_ns=part.t_ns + offset_ns(host, offsets)) for part in samples.parts]
        for host, samples in hosts.items()
        if samples.parts
    }


def telemetry_span(hosts: Mapping[str, HostSamples], offsets: Mapping[str, float]) -> Span | None:
    """Return the first and last time of all samples, with offsets; None without samples. Unit: ns."""
    spans = [span_of(parts) for parts in _parts(hosts, offsets).values()]
    return (min(first for first, _ in spans), max(last for _, last in spans)) if spans else None


def _check_one_time(series: Sequence[Series], files: Sequence[Path]) -> None:
    """Check that the series of a host are of one time. Raises `UserError` if one is far from all others.

    Args:
        series: Series of the host.
        files: File of each series.
    """
    filled = [(one.t_ns, str(path)) for one, path in zip(series, files, strict=True) if one.t_ns.size]
    ends = [end for t_ns, _ in filled for end in (t_ns.min(), t_ns.max())]
    check_near(np.array(ends, np.int64), [path for _, path in filled for _ in range(2)])


def _check_offsets(hosts: Collection[str], offsets: Mapping[str, float]) -> None:
    if unknown := [host for host in offsets if host and host not in hosts]:
        raise UserError(f"--offset {unknown[0]}=...: no such host; found {', '.join(sorted(hosts))}")


def _complete_times(path: Path, file: FileTelemetry, options: ImportOptions) -> None:
    """Replace numbers of samples, or times of day, by times, with the start and period that the user gave.

    Raises:
        UserError: If the user did not give them.
    """
    if not file.clock.lacks:
        return
    is_date = file.clock.lacks == "date"
    if options.start is None or (options.period_s is None and not is_date):
        lacking = "times of day without a date; give --start with the date" if is_date else (
            "no times in the file; give --start with the time of the first sample and --period with the seconds "
            "between two"
        )  # fmt: skip
        raise UserError(f"{path}: {lacking}, such as --start '2026-05-01 14:00:00'")
    text = (
        options.start
        if any(mark in options.start for mark in ":T") or options.start.isdigit()
        else f"{options.start} 00:00:00"
    )
    start, clock = read_times([text], "--start")
    if is_date:
        day_ns = 86_400 * NS_PER_S
        start = start // day_ns * day_ns
    step_ns = 1 if is_date else round((options.period_s or 0.0) * NS_PER_S)
    for series in file.series:
        series.t_ns = start[0] + series.t_ns * step_ns
    file.clock = clock


def _to_utc(naive: Sequence[FileTelemetry], options: ImportOptions, work: Span | None) -> tuple[int, list[str]]:
    """Convert local times to UTC.

    Args:
        naive: Telemetry of files with local times; changed in place.
        options: Options of the user, with the time zone if given.
        work: First and last time of traces and steps, which show the shift from UTC if no zone is given.

    Returns:
        The shift found by traces and steps in ns, and notes on the zone.

    Raises:
        UserError: If several shifts are possible.
    """
    all_series = [series for file in naive for series in file.series if series.t_ns.size]
    if not all_series:
        return 0, []
    zone: tzinfo = find_zone(options.timezone) if options.timezone else UTC
    shift_ns, notes = 0, []
    if options.timezone is None and work is not None:
        span = min(int(one.t_ns.min()) for one in all_series), max(int(one.t_ns.max()) for one in all_series)
        shift_ns = _choose_shift(find_shift(span, work))
        if shift_ns:
            notes.append(
                f"times without a zone taken as UTC{'+' if shift_ns > 0 else '-'}{show_span(shift_ns / NS_PER_S)}: "
                "only so do traces and steps fall into the telemetry; --timezone overrules"
            )
    elif options.timezone is None:
        notes.append("times without a zone taken as UTC; say another with --timezone")
    for series in all_series:
        series.t_ns = to_utc(series.t_ns, zone) - shift_ns
    return shift_ns, notes


def _choose_shift(shifts: Sequence[int]) -> int:
    """Return the only possible shift of whole hours, or 0 if UTC is possible or nothing is, which is an error later.

    Raises:
        UserError: If several shifts are possible and UTC is not.
    """
    hour = 3600 * NS_PER_S
    whole = [shift for shift in shifts if shift % hour == 0] or list(shifts)
    if not whole:
        return 0
    if len(whole) > 1 and 0 not in whole:
        listed = " or ".join(f"UTC{shift / hour:+g} h" for shift in whole[:4])
        raise UserError(f"times without a zone could be {listed}, by the traces and steps; give --timezone")
    return 0 if 0 in whole else whole[0]
