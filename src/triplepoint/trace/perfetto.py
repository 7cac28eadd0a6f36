"""Write the merged trace of all ranks for ui.perfetto.dev and chrome://tracing.

Each rank is a process and each of its lanes a thread; power, temperature and clocks are counters. The format is
Chrome's trace JSON, gzipped: complete events (X) for spans, counter events (C) for samples, metadata (M) for names.
Times are in us with three decimals from `baseTimeNanoseconds`, as in Kineto's traces; counters are on the same clock.

Source: Trace Event Format, https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from isal import igzip

from triplepoint.files import atomic_file
from triplepoint.tables import TIMELINE
from triplepoint.trace import Int64
from triplepoint.trace.timeline import LANES, DrawnTime, LaneSpans, Look, moved_lane, read_lanes
from triplepoint.units import NS_PER_S, NS_PER_US

if TYPE_CHECKING:
    from triplepoint.manifest import Manifest, Node

_GPU_COUNTERS = (
    ("gpu_power_w", "GPU power", "W"),
    ("gpu_temp_c", "GPU temperature", "degC"),
    ("sm_clock_mhz", "SM clock", "MHz"),
)
"""Columns of `telemetry` that become counters of a GPU, with title and unit."""
_HOST_COUNTERS = ("cpu_energy_j", "dram_energy_j")
"""Columns of `telemetry` that become the counter of a host: energy of CPU packages and of memory."""

Floats = npt.NDArray[np.float64]
FILE_NAME = "perfetto.json.gz"
"""File name of the merged trace in the run's folder."""

_FIRST_NODE_PID = 1_000_000
_THREADS_PER_LANE = 1000
_DECIMALS = [f".{ns:03d}" for ns in range(NS_PER_US)]
"""Texts of the decimals of a time in us, by its ns."""
_LEVEL = 2
"""Compression level of isal. Level 6 of zlib takes ten times as long, and its files are an eighth smaller."""


class Process(NamedTuple):
    """A process in the viewer, with threads and counters. Viewers sort by its number: ranks before nodes."""

    pid: int
    title: str


def rank_process(rank: int, title: str) -> Process:
    """Return the process of a rank. Viewers reserve number 0 for the idle process."""
    return Process(rank + 1, title)


def node_process(node: int, host: str) -> Process:
    """Return the process for the counters of a whole node."""
    return Process(_FIRST_NODE_PID + node, f"node {node} · {host}")


@dataclass(frozen=True)
class RankTimeline:
    """The lanes of one rank, on the common clock.

    Attributes:
        process: Process of the rank.
        lanes: Lanes of the rank; spans of one lane may overlap.
    """

    process: Process
    lanes: list[LaneSpans]


@dataclass(frozen=True)
class CounterTrack:
    """Samples of one quantity over time. Viewers draw a value up to the next one, even over a gap.

    Attributes:
        process: Rank or node the samples belong to.
        name: Title of the quantity.
        unit: Unit of the values.
        t_ns: Times, sorted, shape (num_samples,). Unit: ns since 1970.
        value: Values, NaN if a sample is missing, shape (num_samples,).
    """

    process: Process
    name: str
    unit: str
    t_ns: Int64
    value: npt.NDArray[np.float64]


def write_merged(
    path: Path, timeline: Path, drawn: DrawnTime, counters: Sequence[CounterTrack], title: Callable[[int], str]
) -> None:
    """Write the merged trace.

    Args:
        path: File to write.
        timeline: Table `timeline` of all ranks.
        drawn: Time that it shows.
        counters: Counters of ranks and nodes, on the common clock.
        title: Returns the title of a rank.
    """
    table = TIMELINE.read(timeline)
    ranks = pc.unique(table["rank"]).to_pylist()
    timelines = (
        RankTimeline(
            rank_process(rank, title(rank)),
            [
                moved_lane(lane, lambda time: time + drawn.start)
                for lane in read_lanes(table.filter(pc.equal(table["rank"], rank)))
            ],
        )
        for rank in ranks
    )
    first = min([drawn.start, *(int(track.t_ns[0]) for track in counters if len(track.t_ns))])
    write_perfetto(path, timelines, counters, first)


def write_perfetto(path: Path, ranks: Iterable[RankTimeline], counters: Iterable[CounterTrack], base_ns: int) -> None:
    """Write the merged trace atomically, lane by lane.

    Args:
        path: File to write, `.json.gz`.
        ranks: The ranks in order; with a generator only one is in memory at a time.
        counters: Counters of ranks and nodes.
        base_ns: Base time of the file, at best that of the earliest span or sample. Unit: ns since 1970.
    """
    events = _events(ranks, counters, base_ns)
    head = f'{{"schemaVersion":1,"displayTimeUnit":"ms","baseTimeNanoseconds":{base_ns},"traceEvents":[\n'
    with (
        atomic_file(path) as scratch,
        scratch.open("wb") as file,
        # Without name and time in the gzip header, the same trace gives the same bytes.
        igzip.IGzipFile(filename="", mode="wb", compresslevel=_LEVEL, fileobj=file, mtime=0) as out,
    ):
        out.write(head.encode())
        separator = ""
        for batch in events:
            out.write((separator + ",\n".join(batch)).encode(errors="replace"))
            separator = ",\n"
        out.write(b"\n]}\n")


def _events(ranks: Iterable[RankTimeline], counters: Iterable[CounterTrack], base_ns: int) -> Iterator[list[str]]:
    """Yield non-empty lists of events: those of one lane or counter, or metadata."""
    written_pids: set[int] = set()
    for timeline in ranks:
        yield from _process_events(timeline.process, written_pids)
        for lane in timeline.lanes:
            yield from _lane_events(timeline.process.pid, lane, base_ns)
    for track in counters:
        yield from _process_events(track.process, written_pids)
        if np.isfinite(track.value).any():
            yield _counter_events(track, base_ns)


def _process_events(process: Process, written_pids: set[int]) -> Iterator[list[str]]:
    """Yield the metadata of a process, unless it is among `written_pids`, and add it there."""
    if process.pid not in written_pids:
        written_pids.add(process.pid)
        yield [
            _metadata("process_name", process.pid, 0, name=process.title),
            _metadata("process_sort_index", process.pid, 0, sort_index=process.pid),
        ]


def _lane_events(pid: int, lane: LaneSpans, base_ns: int) -> Iterator[list[str]]:
    """Yield the events of one lane, by thread and time; a lane without spans has no thread."""
    order = LANES.index(lane.lane) if lane.lane in LANES else len(LANES)
    looks = [_look_json(lane.lane, look) for look in lane.looks]
    for row, spans in enumerate(_rows_without_overlap(lane)):
        tid = order * _THREADS_PER_LANE + row + 1
        yield [
            _metadata("thread_name", pid, tid, name=lane.lane if row == 0 else f"{lane.lane} ({row + 1})"),
            _metadata("thread_sort_index", pid, tid, sort_index=tid),
        ]
        head = f'{{"ph":"X","pid":{pid},"tid":{tid},"ts":'
        starts, durations = _us(lane.start[spans] - base_ns), _us(lane.end[spans] - lane.start[spans])
        spans_text = zip(starts, durations, lane.look[spans].tolist(), strict=True)
        yield [f'{head}{start},"dur":{duration},{looks[look]}' for start, duration, look in spans_text]


def _look_json(lane: str, look: Look) -> str:
    """Return the second half of an event's JSON, the same for all spans of one look."""
    arguments = {name: value for name, value in look._asdict().items() if name != "label" and value is not None}
    return _dump({"name": look.label, "cat": lane, "args": arguments})[1:]


def _rows_without_overlap(lane: LaneSpans) -> Iterator[Int64]:
    """Distribute a lane's spans over as few rows without overlap as possible: viewers draw overlaps wrongly.

    Yields:
        Indices of the spans of a row, by time.
    """
    order = np.argsort(lane.start, kind="stable")
    start, end = lane.start[order], lane.end[order]
    if (start[1:] >= end[:-1]).all():
        return iter([order] if len(order) else [])
    ends: list[int] = []
    rows: list[list[int]] = []
    for span, span_start, span_end in zip(order.tolist(), start.tolist(), end.tolist(), strict=True):
        row = next((row for row, row_end in enumerate(ends) if row_end <= span_start), len(ends))
        if row == len(ends):
            ends.append(span_end)
            rows.append([])
        ends[row] = span_end
        rows[row].append(span)
    return (np.array(row) for row in rows)


def _counter_events(track: CounterTrack, base_ns: int) -> list[str]:
    measured = np.isfinite(track.value)
    head = f'{{"ph":"C","pid":{track.process.pid},"tid":0,"name":{_dump(track.name)},"ts":'
    unit = _dump(track.unit)
    samples = zip(_us(track.t_ns[measured] - base_ns), track.value[measured].tolist(), strict=True)
    return [f'{head}{time},"args":{{{unit}:{value:.6g}}}}}' for time, value in samples]


def _metadata(kind: str, pid: int, tid: int, **arguments: Any) -> str:
    return _dump({"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": arguments})


def _dump(content: Any) -> str:
    # As UTF-8: Perfetto shows the names of processes as they stand, with escapes.
    return json.dumps(content, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def _us(times_ns: Int64) -> list[str]:
    """Return times in ns as texts in us, exactly."""
    whole, rest = np.divmod(np.abs(times_ns), NS_PER_US)
    texts = [f"{time}{_DECIMALS[ns]}" for time, ns in zip(whole.tolist(), rest.tolist(), strict=True)]
    if len(times_ns) and times_ns.min() < 0:
        return [f"-{text}" if time < 0 else text for time, text in zip(times_ns.tolist(), texts, strict=True)]
    return texts


def wall_shift_ns(manifest: "Manifest") -> int:
    """Return the wall clock minus the clock of table `telemetry`. Unit: ns.

    That table is on the first node's monotonic clock, and the manifest has one simultaneous reading of both clocks of
    that node. Traces are on the wall clock of their own node, so across nodes the result is as good as wall clocks
    agree.
    """
    first_node = manifest.nodes[0]
    return first_node.wall_ns - first_node.monotonic_ns


def rank_title(manifest: "Manifest", rank: int) -> str:
    """Return the title of a rank, such as `rank 3 · node0 · gpu3`; only its number if the manifest does not have it."""
    for node in manifest.nodes:
        for device in node.devices:
            if device.rank == rank:
                return f"rank {rank} · {node.host} · {device.device}"
    return f"rank {rank}"


def telemetry_counters(telemetry: pa.Table, manifest: "Manifest", start_ns: int, end_ns: int) -> list[CounterTrack]:
    """Return the counters of a run within a window. Quantities that were not measured have no counter.

    Counters of a GPU belong to its rank, or to the node if it has no rank. Counters of the host belong to the node.

    Args:
        telemetry: Table `telemetry` of the run.
        manifest: The run's manifest.
        start_ns: Start of the window; the last sample before is kept, so that its value is drawn. Unit: ns since 1970.
        end_ns: End of the window. Unit: ns since 1970.
    """
    telemetry = telemetry.select(["node", "device", "t_ns", *(name for name, _, _ in _GPU_COUNTERS), *_HOST_COUNTERS])
    tracks = [track for node in manifest.nodes for track in _node_tracks(telemetry, manifest, node)]
    in_window = (cut_track(track, start_ns, end_ns) for track in tracks)
    return [track for track in in_window if np.isfinite(track.value).any()]


def _node_tracks(telemetry: pa.Table, manifest: "Manifest", node: "Node") -> Iterator[CounterTrack]:
    on_node = telemetry.filter(pc.equal(telemetry["node"], node.node))
    ranks = {device.device: device.rank for device in node.devices}
    process_of_node = node_process(node.node, node.host)
    for device in sorted(pc.unique(on_node["device"]).to_pylist(), key=lambda name: (len(name), name)):
        samples = on_node.filter(pc.equal(on_node["device"], device)).sort_by("t_ns")
        t_ns = samples["t_ns"].to_numpy() + wall_shift_ns(manifest)
        if device == "host":
            yield _host_power(samples, t_ns, process_of_node)
            continue
        has_rank = device in ranks
        process = rank_process(ranks[device], rank_title(manifest, ranks[device])) if has_rank else process_of_node
        for column, name, unit in _GPU_COUNTERS:
            yield CounterTrack(process, name if has_rank else f"{device} {name}", unit, t_ns, _values(samples, column))


def _host_power(samples: pa.Table, t_ns: Int64, process: Process) -> CounterTrack:
    """Return the host's mean power between samples, from its energy counters."""
    cpu_j, dram_j = (_values(samples, name) for name in _HOST_COUNTERS)
    has_dram = bool(np.isfinite(dram_j).any())
    energy_j = cpu_j + dram_j if has_dram else cpu_j
    is_measured = np.isfinite(energy_j)
    t_ns, energy_j = t_ns[is_measured], energy_j[is_measured]
    power_w = np.diff(energy_j) / (np.diff(t_ns) / NS_PER_S)
    return CounterTrack(process, f"CPU package{' and DRAM' if has_dram else ''} power", "W", t_ns[:-1], power_w)


def _values(samples: pa.Table, column: str) -> Floats:
    return np.asarray(samples[column].to_numpy(zero_copy_only=False), dtype=np.float64)


def cut_track(track: CounterTrack, start_ns: int, end_ns: int) -> CounterTrack:
    """Return the samples within a window, and the last one before it, moved to its start."""
    measured = np.isfinite(track.value)
    t_ns, value = track.t_ns[measured], track.value[measured]
    first = max(int(np.searchsorted(t_ns, start_ns, side="right")) - 1, 0)
    last = int(np.searchsorted(t_ns, end_ns, side="right"))
    in_window_ns = np.maximum(t_ns[first:last], start_ns)
    return CounterTrack(track.process, track.name, track.unit, in_window_ns, value[first:last])
