"""Import a folder of recordings as a run: join hosts, GPUs, ranks and steps, and list what its sensors can show."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from triplepoint.config.catalogue import Catalogue
from triplepoint.errors import UserError
from triplepoint.importers import formats
from triplepoint.importers.clocks import check_work
from triplepoint.importers.declaration import USUAL_GPUS_PER_NODE
from triplepoint.importers.folder import (
    ImportOptions,
    Listing,
    Telemetry,
    list_folder,
    offset_ns,
    read_telemetry,
    telemetry_span,
)  # fmt: skip
from triplepoint.importers.notes import sum_up_host_notes
from triplepoint.importers.samples import HostSamples
from triplepoint.importers.times import find_zone, show_span, show_time, to_utc
from triplepoint.importers.work import WALL_NS, Row, Work, join_steps, read_log, read_steps, read_traces
from triplepoint.power_sensor import AVERAGE_S, find_updates
from triplepoint.recorded.run import Description, Ending, RecordedGpu, RecordedNode, write_run
from triplepoint.recorded.studies import RECORDED
from triplepoint.recording import Part
from triplepoint.tables.telemetry import GPU_METRICS
from triplepoint.units import NS_PER_S

_IDLE = 0.4
"""Ratio of a GPU's highest power to the host's highest below which it counts as idle: H100 idles at 0.15 of its limit,
MI355X at 0.25. Our choice."""

_MOST_READINGS = 2000
"""Most readings by which the update period of power is found: the search takes time by their square. Our choice."""
_GAP = 10
"""Ratio of the time between two samples to the median above which there is a gap. Our choice."""


@dataclass(frozen=True)
class Job:
    """Description of the job by the user."""

    described: Description
    """Settings of the job."""
    gpus: tuple[int, ...] = ()
    """GPUs of each host that the job used; empty for all."""
    steps: Path | None = None
    """`--steps`: CSV of the steps."""
    log: Path | None = None
    """`--log`: training log in which lines that match `step_pattern` mark steps."""
    step_pattern: str = ""
    """`--step-pattern`: framework or regular expression."""
    study: str = RECORDED
    """Study that the run is added to."""


@dataclass
class Imported:
    """Summary of an import."""

    run: str
    """Run id."""
    hosts: list[dict[str, Any]]
    """Name, number of GPUs and samples, period, first and last time, and columns of each host."""
    num_traces: int
    steps: dict[str, int]
    """Number of steps of the first rank by kind."""
    formats: dict[str, int]
    """Number of files by format."""
    shows: list[str]
    """What the sensors can and cannot show."""
    notes: list[str]
    """Remarks for the user."""
    left_out: dict[str, str]
    """Columns that were not read, with the reason."""
    others: list[str] = field(default_factory=list)
    """Files that are neither telemetry nor traces."""


def import_folder(
    folder: Path,
    results: Path,
    job: Job,
    options: ImportOptions,
    catalogue: Catalogue | None,
    progress: Callable[[str], None] = lambda line: None,
) -> Imported:
    """Write a run from the recordings in a folder.

    Args:
        folder: The folder, or one file.
        results: Folder of results.
        job: Description of the job.
        options: Options for the recordings.
        catalogue: The configuration; None without one.
        progress: Called with lines of progress.

    Raises:
        UserError: If a file cannot be read, or files belong to different jobs or times, or contradict each other.
    """
    step_files = [path for path in (job.steps, job.log) if path is not None]
    listing = list_folder(folder, options.mapping, [results, *step_files])
    traced = read_traces(listing.traces, progress, is_alone=not listing.telemetry and not step_files)
    telemetry, listed = _read(listing, folder, job, options, traced, progress)
    nodes = _make_nodes(telemetry, traced, job, options)
    offsets = [node.wall_ns - node.monotonic_ns for node in nodes for _ in node.gpus or range(node.num_ranks or 1)]
    rows, notes_on_steps = join_steps(traced, listed, dict(enumerate(offsets)))
    described = job.described
    if telemetry.is_amd and described.device is None:
        described = described.model_copy(update={"device": "rocm"})
    shows = _shows(telemetry, rows)
    progress("writing the run")
    run = write_run(
        results / "runs",
        described,
        nodes,
        {rank: trace.path for rank, trace in traced.traces.items()},
        rows,
        source=f"import of {', '.join(telemetry.formats) or 'traces'}",
        catalogue=catalogue,
        study=job.study,
        ending=Ending(facts=_facts(telemetry)),
    )
    return Imported(
        run=run,
        hosts=[_summary(node) for node in nodes],
        num_traces=len(traced.traces),
        steps=dict(Counter(row["kind"] for row in rows if row["rank"] == rows[0]["rank"])),
        formats=telemetry.formats,
        shows=shows,
        notes=[
            *telemetry.notes, *notes_on_steps, *_notes_on_clocks(traced), *sum_up_host_notes(_notes_on_idle_gpus(nodes))
        ],
        left_out=telemetry.left_out,
        others=[str(path) for path in listing.others],
    )  # fmt: skip


def _read(
    listing: Listing, folder: Path, job: Job, options: ImportOptions, traced: Work, progress: Callable[[str], None]
) -> tuple[Telemetry, Work]:
    """Return the telemetry and the steps of a CSV or log, both in UTC."""
    listed = read_steps(job.steps) if job.steps else Work()
    if job.log is not None:
        listed = read_log(job.log, job.step_pattern)
    if options.timezone and listed.is_naive:
        zone = find_zone(options.timezone)
        listed = Work(rows=[_with_times(row, lambda times: to_utc(times, zone)) for row in listed.rows])
    known = traced if listed.is_naive else Work(traced.traces, traced.rows + listed.rows)
    telemetry = read_telemetry(listing, folder, options, known.span, progress)
    if listed.is_naive and telemetry.shift_ns:
        listed = Work(rows=[_with_times(row, lambda times: times - telemetry.shift_ns) for row in listed.rows])
    if listed.span is not None and (sampled := telemetry_span(telemetry.hosts, options.offsets)) is not None:
        check_work(sampled, listed.span, "the steps")
    return telemetry, listed


def _with_times(row: Row, convert: Callable[[np.ndarray], np.ndarray]) -> Row:
    """Return a step with its start and end converted; both in ns."""
    start, end = convert(np.array([row["t_start_ns"], row["t_end_ns"]])).tolist()
    return row | {"t_start_ns": start, "t_end_ns": end}


def _notes_on_clocks(traced: Work) -> list[str]:
    """Return a note if a trace counts time from the start of the machine."""
    traces = traced.traces.values()
    if without_date := [trace.path.name for trace in traces if not trace.start_ns]:
        name = without_date[0]
        return [f"{name}: counts time from the start of the machine; its steps have no place in the telemetry"]
    if any(trace.start_ns < WALL_NS for trace in traces):
        return ["the traces count time from the start of the machine, so the dates of this run mean nothing"]
    return []


def _make_nodes(telemetry: Telemetry, traced: Work, job: Job, options: ImportOptions) -> list[RecordedNode]:
    """Return the hosts of the job, in the order of ranks.

    Raises:
        UserError: If the job has another number of ranks than the telemetry has GPUs.
    """
    product = next((trace.product for trace in traced.traces.values() if trace.product), "")
    if not telemetry.hosts:
        return _nodes_from_traces(traced, product, options)
    hosts = _by_rank(telemetry.hosts, traced) if not options.hosts else list(telemetry.hosts)
    nodes = [_node(host, telemetry, product, job, options) for host in hosts]
    num_gpus = sum(len(node.gpus) for node in nodes)
    world = traced.world_size
    is_certain = any(trace.world_size for trace in traced.traces.values())
    if world and num_gpus and (num_gpus != world if is_certain else num_gpus < world):
        more = "name those of the job with --gpus 0-3" if num_gpus > world else "import the telemetry of all hosts"
        raise UserError(
            f"the traces are of {world} ranks, the telemetry is of {num_gpus} GPUs on {len(nodes)} hosts; {more}"
        )
    if world and not num_gpus:
        nodes = [replace(node, num_ranks=-(-world // len(nodes))) for node in nodes]
    return nodes


def _by_rank(hosts: Mapping[str, HostSamples], traced: Work) -> list[str]:
    """Return hosts in the order of their ranks in the traces; hosts without traces come last."""
    first_rank: dict[str, int] = {}
    for rank, trace in sorted(traced.traces.items()):
        for host in hosts:
            if trace.host and trace.host.split(".")[0] == host.split(".")[0]:
                first_rank.setdefault(host, rank)
    return sorted(hosts, key=lambda host: (host not in first_rank, first_rank.get(host, 0)))


def _node(host: str, telemetry: Telemetry, product: str, job: Job, options: ImportOptions) -> RecordedNode:
    """Return a host with its samples. Raises `UserError` if it has no telemetry of a GPU of `--gpus`."""
    samples = telemetry.hosts[host]
    devices = [part.device for part in samples.parts if part.device != "host"]
    if job.gpus:
        chosen = [f"gpu{number}" for number in job.gpus]
        if missing := [device for device in chosen if device not in devices]:
            raise UserError(f"--gpus: {host} has no telemetry of {missing[0]}; found {', '.join(devices) or 'none'}")
        devices = chosen
    facts = {device: telemetry.facts.get((host, device), {}) for device in devices}
    names = ", ".join(telemetry.formats)
    measured = {name for part in samples.parts for name in part.columns}
    start_ns = min((int(part.t_ns[0]) for part in samples.parts), default=0)
    return RecordedNode(
        host=host,
        gpus=[
            RecordedGpu(device, known.get("product") or product or None, known.get("uuid"))
            for device, known in facts.items()
        ],
        parts=[part for part in samples.parts if part.device == "host" or part.device in devices],
        period_s=samples.period_s,
        absent={name: f"not in the recording ({names})" for name in GPU_METRICS if name not in measured},
        monotonic_ns=start_ns,
        wall_ns=start_ns + offset_ns(host, options.offsets),
    )


def _nodes_from_traces(traced: Work, product: str, options: ImportOptions) -> list[RecordedNode]:
    """Return the hosts of a job without telemetry."""
    world = traced.world_size or 1
    per_node = options.read_options.gpus_per_node or min(USUAL_GPUS_PER_NODE, world)
    has_gpus = bool(product) or any(trace.is_of_gpu for trace in traced.traces.values())
    host_of = {
        rank // per_node: trace.host for rank, trace in sorted(traced.traces.items(), reverse=True) if trace.host
    }
    num_nodes = -(-world // per_node)
    names = [host_of.get(number) or f"node{number}" for number in range(num_nodes)]
    if len(set(names)) < num_nodes:
        names = [f"node{number}" for number in range(num_nodes)]
    nodes = []
    for number, host in enumerate(names):
        num_ranks = min(per_node, world - number * per_node)
        gpus = [RecordedGpu(f"gpu{index}", product or None) for index in range(num_ranks)] if has_gpus else []
        nodes.append(RecordedNode(host=host, gpus=gpus, num_ranks=None if has_gpus else num_ranks))
    return nodes


def _facts(telemetry: Telemetry) -> dict[str, int | float | str | bool | None]:
    """Return the facts for the manifest."""
    return {"imported_formats": ", ".join(f"{name} ({num})" for name, num in telemetry.formats.items()) or "traces"}


def _summary(node: RecordedNode) -> dict[str, Any]:
    """Return the entry of a host in `Imported.hosts`."""
    t_ns = [int(time) for part in node.parts for time in (part.t_ns[0], part.t_ns[-1])]
    columns = dict.fromkeys(name for part in node.parts for name in part.columns)
    return {
        "host": node.host,
        "num_gpus": len(node.gpus),
        "num_samples": sum(len(part.t_ns) for part in node.parts),
        "period_s": node.period_s if node.parts else None,
        "start": show_time(min(t_ns)) if t_ns else None,
        "end": show_time(max(t_ns)) if t_ns else None,
        "columns": list(columns),
    }


def _shows(telemetry: Telemetry, rows: Sequence[Row]) -> list[str]:
    """Return what the sensors can and cannot show, by their formats and by the recordings."""
    known = {declared.name: declared for declared in formats()}
    measured = {name for samples in telemetry.hosts.values() for part in samples.parts for name in part.columns}
    lines = []
    for declared in (known[name] for name in telemetry.formats if name in known):
        of_columns = [text for name, text in declared.shows_of_columns.items() if name in measured]
        lines.append(f"{declared.name}: {' '.join([*of_columns, declared.shows])}")
    if update_period := _power_update_period(telemetry):
        lines.append(update_period)
    if "gpu_power_average_w" in measured and not {"gpu_power_w", "gpu_energy_j"} & measured:
        lines.append(
            "power is a running mean: its highest value is below the peak, and energy is computed from the mean"
        )
        steps_s = [(row["t_end_ns"] - row["t_start_ns"]) / NS_PER_S for row in rows if row["kind"] == "measured"]
        if steps_s and float(np.median(steps_s)) < 2 * AVERAGE_S:
            lines.append(
                f"steps of {show_span(float(np.median(steps_s)))} are shorter than two windows of that mean: power is "
                "known of all steps together, not of single steps"
            )
    if rows and not any(row["kind"] == "measured" for row in rows):
        lines.append("all steps are profiled, which slows them; give the times of others with --steps or --log")
    return lines


def _power_update_period(telemetry: Telemetry) -> str:
    """Return a line on the update period of the first GPU's power, from its readings; empty if they do not show it."""
    for samples in telemetry.hosts.values():
        for part in samples.parts:
            name = next((column for column in part.columns if re.match(r"gpu_power_(average_)?w$", column)), None)
            if name is None:
                continue
            values = part.values[:, list(part.columns).index(name)]
            known = np.flatnonzero(np.isfinite(values))
            chosen = known[_longest_stretch(part.t_ns[known])]
            try:
                updates = find_updates(part.t_ns[chosen] / NS_PER_S, values[chosen])
            except (ValueError, IndexError):
                return ""
            new_s, read_s = updates.period_s, samples.period_s
            return f"{name} of {part.device} has a new value every {new_s:.3g} s, and was read every {read_s:.3g} s"
    return ""


def _longest_stretch(t_ns: np.ndarray) -> slice:
    """Return the middle of the longest stretch of samples without a gap, at most `_MOST_READINGS` of them."""
    gaps = np.diff(t_ns)
    ends = np.flatnonzero(gaps > _GAP * np.median(gaps)) + 1 if gaps.size else np.array([], int)
    starts, ends = np.concatenate([[0], ends]), np.concatenate([ends, [len(t_ns)]])
    longest = int((ends - starts).argmax())
    start = max(int(starts[longest]), int(starts[longest] + ends[longest] - _MOST_READINGS) // 2)
    return slice(start, min(int(ends[longest]), start + _MOST_READINGS))


def _notes_on_idle_gpus(nodes: Sequence[RecordedNode]) -> list[tuple[str, str]]:
    """Return host and note for each host on which some GPUs were idle while others worked."""
    notes = []
    for node in nodes:
        highest = {part.device: _highest_w(part) for part in node.parts if part.device != "host"}
        known = {device: power_w for device, power_w in highest.items() if power_w is not None}
        idle = [device for device, power_w in known.items() if power_w < _IDLE * max(known.values())]
        if idle:
            note = (
                f"{', '.join(idle)} drew at most {max(known[device] for device in idle):.0f} W, others "
                f"{max(known.values()):.0f} W; if the job did not use them, name those it used with --gpus"
            )
            notes.append((node.host, note))
    return notes


def _highest_w(part: Part) -> float | None:
    """Return the highest power of a GPU; None if it is not known. Unit: W."""
    for name in ("gpu_power_w", "gpu_power_average_w"):
        if name in part.columns:
            values = part.values[:, list(part.columns).index(name)]
            if np.isfinite(values).any():
                return float(np.nanmax(values))
    return None
