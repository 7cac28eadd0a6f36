"""One trace of many ranks for ui.perfetto.dev and chrome://tracing: a process per rank, a thread per lane, counters.

The format is Chrome's trace JSON, gzipped: complete events (X) for spans, counter events (C) for samples, metadata (M)
for names; times in us with three decimals from `baseTimeNanoseconds`, as Kineto writes them. Counters are power,
temperature and clocks of the run, on the wall clock of its traces.

Source: Trace Event Format, https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from isal import igzip

from triplepoint.files import whole
from triplepoint.manifest import Manifest, Node
from triplepoint.tables import TIMELINE
from triplepoint.trace import Int64
from triplepoint.trace.timeline import LANES, Drawn, LaneSpans, Look, moved_lane, read_lanes
from triplepoint.units import NS_PER_S, NS_PER_US

_GPU = (
    ("gpu_power_w", "GPU power", "W"),
    ("gpu_temp_c", "GPU temperature", "degC"),
    ("sm_clock_mhz", "SM clock", "MHz"),
)
"""Column of `telemetry`, name of its track, unit."""

Floats = npt.NDArray[np.float64]
FILE_NAME = "perfetto.json.gz"
"""What the merged trace of a run is called, in the run's folder."""

_FIRST_NODE_PID = 1_000_000
_THREADS_PER_LANE = 1000
_LEVEL = 2
"""Of gzip by isal: level 6 of zlib takes ten times as long for an eighth less."""


class Process(NamedTuple):
    """A row of the viewer that holds threads and counters. Its number also orders it, ranks before nodes."""

    pid: int
    title: str


def rank_process(rank: int, title: str) -> Process:
    """Return the process of a rank; the viewers keep number 0 for the idle process."""
    return Process(rank + 1, title)


def node_process(node: int, host: str) -> Process:
    """Return the process that holds what a whole node was measured for."""
    return Process(_FIRST_NODE_PID + node, f"node {node} · {host}")


@dataclass(frozen=True)
class RankTimeline:
    """The lanes of one rank, on the clock all ranks share.

    Attributes:
        process: See `rank_process`.
        lanes: Its lanes, thinned or not; spans of one lane may overlap.
    """

    process: Process
    lanes: list[LaneSpans]


@dataclass(frozen=True)
class CounterTrack:
    """Samples over time; the viewers hold a value until the next one, also over a gap.

    Attributes:
        process: Rank or node they belong to.
        name: What was measured.
        unit: In which unit.
        t_ns: By time, shape (num_samples,). Unit: ns since 1970.
        value: NaN where there is no sample, shape (num_samples,).
    """

    process: Process
    name: str
    unit: str
    t_ns: Int64
    value: npt.NDArray[np.float64]


def write_merged(
    path: Path, timeline: Path, drawn: Drawn, counters: Sequence[CounterTrack], title: Callable[[int], str]
) -> None:
    """Write the merged trace.

    Args:
        path: File to write.
        timeline: Table `timeline` of all ranks.
        drawn: What time it shows.
        counters: Tracks of power, temperature and clocks, on the common clock.
        title: Returns what a rank is called.
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
    """Write the merged trace, lane by lane, in one piece.

    Args:
        path: File to write, `.json.gz`.
        ranks: The ranks, in the order they are to be read; a generator keeps only one in memory.
        counters: Counters of ranks and nodes.
        base_ns: Time the file counts from: the earliest span or sample, best. Unit: ns since 1970.
    """
    events = _events(ranks, counters, base_ns)
    head = f'{{"schemaVersion":1,"displayTimeUnit":"ms","baseTimeNanoseconds":{base_ns},"traceEvents":[\n'
    with (
        whole(path) as scratch,
        scratch.open("wb") as file,
        # No name and no time in the gzip header: the same trace gives the same bytes.
        igzip.IGzipFile(filename="", mode="wb", compresslevel=_LEVEL, fileobj=file, mtime=0) as out,
    ):
        out.write(head.encode())
        separator = ""
        for batch in events:
            out.write((separator + ",\n".join(batch)).encode())
            separator = ",\n"
        out.write(b"\n]}\n")


def _events(ranks: Iterable[RankTimeline], counters: Iterable[CounterTrack], base_ns: int) -> Iterator[list[str]]:
    """Yield events, some thousands at a time; none of them empty."""
    named: set[int] = set()
    for timeline in ranks:
        yield from _introduce(timeline.process, named)
        for lane in timeline.lanes:
            yield from _lane_events(timeline.process.pid, lane, base_ns)
    for track in counters:
        yield from _introduce(track.process, named)
        if np.isfinite(track.value).any():
            yield _counter_events(track, base_ns)


def _introduce(process: Process, named: set[int]) -> Iterator[list[str]]:
    """Name a process the first time it is met."""
    if process.pid not in named:
        named.add(process.pid)
        yield [
            _metadata("process_name", process.pid, 0, name=process.title),
            _metadata("process_sort_index", process.pid, 0, sort_index=process.pid),
        ]


def _lane_events(pid: int, lane: LaneSpans, base_ns: int) -> Iterator[list[str]]:
    """Yield the events of one lane, thread by thread and by time; a lane without spans has no thread."""
    order = LANES.index(lane.lane) if lane.lane in LANES else len(LANES)
    looks = [_look_text(lane.lane, look) for look in lane.looks]
    for row, spans in enumerate(_without_overlap(lane)):
        tid = order * _THREADS_PER_LANE + row + 1
        yield [
            _metadata("thread_name", pid, tid, name=lane.lane if row == 0 else f"{lane.lane} ({row + 1})"),
            _metadata("thread_sort_index", pid, tid, sort_index=tid),
        ]
        head = f'{{"ph":"X","pid":{pid},"tid":{tid},"ts":'
        starts, durations = _us(lane.start[spans] - base_ns), _us(lane.end[spans] - lane.start[spans])
        looked = zip(starts, durations, lane.look[spans].tolist(), strict=True)
        yield [f'{head}{start},"dur":{duration},{looks[look]}' for start, duration, look in looked]


def _look_text(lane: str, look: Look) -> str:
    """Return the end of an event's text: what all spans of one look share."""
    arguments = {name: value for name, value in look._asdict().items() if name != "label" and value is not None}
    return _dump({"name": look.label, "cat": lane, "args": arguments})[1:]


def _without_overlap(lane: LaneSpans) -> Iterator[Int64]:
    """Return the numbers of a lane's spans, by time, in as few rows as have no overlap: viewers misdraw overlaps."""
    order = np.argsort(lane.start, kind="stable")
    start, end = lane.start[order], lane.end[order]
    if (start[1:] >= end[:-1]).all():
        return iter([order] if len(order) else [])
    ends: list[int] = []
    rows: list[list[int]] = []
    for span, begins, stops in zip(order.tolist(), start.tolist(), end.tolist(), strict=True):
        row = next((row for row, reached in enumerate(ends) if reached <= begins), len(ends))
        if row == len(ends):
            ends.append(stops)
            rows.append([])
        ends[row] = stops
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
    return json.dumps(content, separators=(",", ":"), allow_nan=False)


def _us(times_ns: Int64) -> list[str]:
    """Return nanoseconds as microseconds, exactly."""
    if len(times_ns) and times_ns.min() < 0:
        return [
            f"{'-' if time < 0 else ''}{abs(time) // NS_PER_US}.{abs(time) % NS_PER_US:03d}"
            for time in times_ns.tolist()
        ]
    return [f"{time // NS_PER_US}.{time % NS_PER_US:03d}" for time in times_ns.tolist()]


def wall_shift_ns(manifest: Manifest) -> int:
    """Return what to add to a time of table `telemetry` for the wall clock. Unit: ns.

    That table is on the first node's monotonic clock; the manifest holds one reading of both clocks of that node, taken
    together. Traces are on the wall clock of their own node: across nodes this is as good as their wall clocks agree.
    """
    first = manifest.nodes[0]
    return first.wall_ns - first.monotonic_ns


def rank_title(manifest: Manifest, rank: int) -> str:
    """Return what a rank is called: `rank 3 · node0 · gpu3`; a rank the manifest does not know has its number only."""
    for node in manifest.nodes:
        for device in node.devices:
            if device.rank == rank:
                return f"rank {rank} · {node.host} · {device.device}"
    return f"rank {rank}"


def telemetry_counters(telemetry: pa.Table, manifest: Manifest, start_ns: int, end_ns: int) -> list[CounterTrack]:
    """Return the counters of a run around a stretch of its time; what was not measured has no track.

    A GPU's counters belong to its rank, to its node where it had none; those of the host belong to the node.

    Args:
        telemetry: Table `telemetry` of the run.
        manifest: The run's manifest.
        start_ns: Start of the stretch; the last sample before it is kept, so that values reach it. Unit: ns since 1970.
        end_ns: End of the stretch. Unit: ns since 1970.
    """
    tracks = [track for node in manifest.nodes for track in _node_tracks(telemetry, manifest, node)]
    cut = (cut_track(track, start_ns, end_ns) for track in tracks)
    return [track for track in cut if np.isfinite(track.value).any()]


def _node_tracks(telemetry: pa.Table, manifest: Manifest, node: Node) -> Iterator[CounterTrack]:
    own = telemetry.filter(pc.equal(telemetry["node"], node.node))
    ranks = {device.device: device.rank for device in node.devices}
    of_node = node_process(node.node, node.host)
    for device in sorted(set(own["device"].to_pylist()), key=lambda name: (len(name), name)):
        samples = own.filter(pc.equal(own["device"], device)).sort_by("t_ns")
        t_ns = samples["t_ns"].to_numpy() + wall_shift_ns(manifest)
        if device == "host":
            yield _host_power(samples, t_ns, of_node)
            continue
        has_rank = device in ranks
        process = rank_process(ranks[device], rank_title(manifest, ranks[device])) if has_rank else of_node
        for column, name, unit in _GPU:
            yield CounterTrack(process, name if has_rank else f"{device} {name}", unit, t_ns, _values(samples, column))


def _host_power(samples: pa.Table, t_ns: Int64, process: Process) -> CounterTrack:
    """Return the host's mean power from each sample to the next, from its energy counters."""
    cpu_j, dram_j = _values(samples, "cpu_energy_j"), _values(samples, "dram_energy_j")
    has_dram = bool(np.isfinite(dram_j).any())
    energy_j = cpu_j + dram_j if has_dram else cpu_j
    known = np.isfinite(energy_j)
    t_ns, energy_j = t_ns[known], energy_j[known]
    power_w = np.diff(energy_j) / (np.diff(t_ns) / NS_PER_S)
    return CounterTrack(process, f"CPU package{' and DRAM' if has_dram else ''} power", "W", t_ns[:-1], power_w)


def _values(samples: pa.Table, column: str) -> Floats:
    return np.asarray(samples[column].to_numpy(zero_copy_only=False), dtype=np.float64)


def cut_track(track: CounterTrack, start_ns: int, end_ns: int) -> CounterTrack:
    """Return the samples of a stretch of time, and the last measured one before it at its start."""
    measured = np.isfinite(track.value)
    t_ns, value = track.t_ns[measured], track.value[measured]
    first = max(int(np.searchsorted(t_ns, start_ns, side="right")) - 1, 0)
    last = int(np.searchsorted(t_ns, end_ns, side="right"))
    kept_ns = np.maximum(t_ns[first:last], start_ns)
    return CounterTrack(track.process, track.name, track.unit, kept_ns, value[first:last])
