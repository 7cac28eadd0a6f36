"""Make a run of a folder of recordings: hosts, GPUs and ranks put together, and what its sensors can show."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from triplepoint.config.catalogue import Catalogue
from triplepoint.errors import UserError
from triplepoint.importers import formats
from triplepoint.importers.clocks import check_work
from triplepoint.importers.folder import (
    Listing,
    Telemetry,
    Wanted,
    list_folder,
    offset_ns,
    read_telemetry,
    telemetry_span,
)  # fmt: skip
from triplepoint.importers.notes import of_hosts
from triplepoint.importers.samples import HostSamples
from triplepoint.importers.times import find_zone, show_span, show_time, to_utc
from triplepoint.importers.work import WALL_NS, Row, Work, join_steps, read_log, read_steps, read_traces
from triplepoint.power_sensor import find_updates
from triplepoint.recorded.run import Description, Ending, RecordedGpu, RecordedNode, write_run
from triplepoint.recorded.studies import RECORDED
from triplepoint.recording import Part
from triplepoint.tables.telemetry import GPU_METRICS
from triplepoint.units import NS_PER_S

USUAL_GPUS = 8
"""GPUs of a node where only traces are there and nothing is said."""
_AVERAGE_S = 1.0
"""Window of NVML's average. Source: nvml.h."""
_IDLE = 0.4
"""Highest power over the host's highest, below which a GPU is taken for one that did no work: H100 idles at 0.15 of its
limit, MI355X at 0.25. Our choice."""


@dataclass(frozen=True)
class Job:
    """What the user says of the job."""

    described: Description
    gpus: tuple[int, ...] = ()
    """GPUs of each host that worked for it; empty for all."""
    steps: Path | None = None
    """`--steps`: a CSV of its steps."""
    log: Path | None = None
    """`--log`: a training log whose lines mark steps, by `step_pattern`."""
    step_pattern: str = ""
    study: str = RECORDED


@dataclass
class Imported:
    """What was imported, as it is told to the user."""

    run: str
    hosts: list[dict[str, Any]]
    """By host: name, GPUs, number of samples, period, first and last time, columns."""
    num_traces: int
    steps: dict[str, int]
    """Number of steps of rank 0 by kind."""
    formats: dict[str, int]
    """Number of files by format."""
    shows: list[str]
    """What the sensors can and cannot show."""
    notes: list[str]
    left_out: dict[str, str]
    others: list[str] = field(default_factory=list)
    """Files that are neither telemetry nor traces."""


def import_folder(
    folder: Path,
    results: Path,
    job: Job,
    wanted: Wanted,
    catalogue: Catalogue | None,
    progress: Callable[[str], None] = lambda line: None,
) -> Imported:
    """Write a run of the recordings in a folder.

    Args:
        folder: The folder, or one file.
        results: Folder of results.
        job: What is known of the job.
        wanted: What is known of the recordings.
        catalogue: The configuration; None where there is none.
        progress: Called with what is being read.

    Raises:
        UserError: If something cannot be read, is of another job or another time, or does not fit together.
    """
    marked = [path for path in (job.steps, job.log) if path is not None]
    listing = list_folder(folder, wanted.mapping, [results, *marked])
    traced = read_traces(listing.traces, progress, is_alone=not listing.telemetry and not marked)
    telemetry, told = _read(listing, folder, job, wanted, traced, progress)
    nodes = make_nodes(telemetry, traced, job, wanted)
    offsets = [node.wall_ns - node.monotonic_ns for node in nodes for _ in node.gpus or range(node.num_ranks or 1)]
    rows, said = join_steps(traced, told, dict(enumerate(offsets)))
    described = job.described
    if telemetry.is_amd and described.device is None:
        described = described.model_copy(update={"device": "rocm"})
    progress("writing the run")
    run = write_run(
        results / "runs",
        described,
        nodes,
        {rank: one.path for rank, one in traced.traces.items()},
        rows,
        source=f"import of {', '.join(telemetry.formats) or 'traces'}",
        catalogue=catalogue,
        study=job.study,
        ending=Ending(facts=_facts(telemetry)),
    )
    kinds = {kind: sum(row["rank"] == rows[0]["rank"] and row["kind"] == kind for row in rows) for kind in _kinds(rows)}
    return Imported(
        run=run,
        hosts=[_account_of(node) for node in nodes],
        num_traces=len(traced.traces),
        steps=kinds,
        formats=telemetry.formats,
        shows=_shows_of(telemetry, rows),
        notes=[*telemetry.notes, *said, *_times_of(traced), *of_hosts(_idle_gpus(nodes))],
        left_out=telemetry.left_out,
        others=[str(path) for path in listing.others],
    )


def _read(
    listing: Listing, folder: Path, job: Job, wanted: Wanted, traced: Work, progress: Callable[[str], None]
) -> tuple[Telemetry, Work]:
    """Return telemetry and steps that a CSV tells, both in UTC."""
    told = read_steps(job.steps) if job.steps else Work()
    if job.log is not None:
        told = read_log(job.log, job.step_pattern)
    if wanted.timezone and told.is_naive:
        told = _moved(told, wanted)
    known = traced if told.is_naive else Work(traced.traces, traced.rows + told.rows)
    telemetry = read_telemetry(listing, folder, wanted, known.span, progress)
    if told.is_naive and telemetry.shift_ns:
        told = Work(rows=[_shifted(row, -telemetry.shift_ns) for row in told.rows])
    if told.span is not None and (sampled := telemetry_span(telemetry.hosts, wanted.offsets)) is not None:
        check_work(sampled, told.span, "the steps")
    return telemetry, told


def _times_of(traced: Work) -> list[str]:
    """Return what is to be said of traces whose clock counts from the start of the machine."""
    traces = traced.traces.values()
    if unplaced := [one.path.name for one in traces if not one.start_ns]:
        return [f"{unplaced[0]}: counts time from the start of the machine; its steps have no place in the telemetry"]
    if any(one.start_ns < WALL_NS for one in traces):
        return ["the traces count time from the start of the machine, so the dates of this run mean nothing"]
    return []


def _kinds(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["kind"] for row in rows))


def _moved(told: Work, wanted: Wanted) -> Work:
    zone = find_zone(wanted.timezone or "UTC")
    rows = []
    for row in told.rows:
        start, end = to_utc(np.array([row["t_start_ns"], row["t_end_ns"]]), zone).tolist()
        rows.append(row | {"t_start_ns": start, "t_end_ns": end})
    return Work(rows=rows)


def _shifted(row: Row, shift_ns: int) -> Row:
    return row | {name: row[name] + shift_ns for name in ("t_start_ns", "t_end_ns")}


def make_nodes(telemetry: Telemetry, traced: Work, job: Job, wanted: Wanted) -> list[RecordedNode]:
    """Return the hosts of the job, in the order of ranks.

    Raises:
        UserError: If its ranks and the GPUs of the telemetry are not as many.
    """
    product = next((one.product for one in traced.traces.values() if one.product), "")
    if not telemetry.hosts:
        return _from_traces(traced, product, wanted)
    hosts = _by_rank(telemetry.hosts, traced) if not wanted.hosts else list(telemetry.hosts)
    nodes = [_node(host, telemetry, product, job, wanted) for host in hosts]
    num_gpus = sum(len(node.gpus) for node in nodes)
    world = traced.world_size
    said = any(one.world_size for one in traced.traces.values())
    if world and num_gpus and (num_gpus != world if said else num_gpus < world):
        more = "name those of the job with --gpus 0-3" if num_gpus > world else "import the telemetry of all hosts"
        raise UserError(
            f"the traces are of {world} ranks, the telemetry is of {num_gpus} GPUs on {len(nodes)} hosts; {more}"
        )
    if world and not num_gpus:
        nodes = [replace(node, num_ranks=-(-world // len(nodes))) for node in nodes]
    return nodes


def _by_rank(hosts: Mapping[str, HostSamples], traced: Work) -> list[str]:
    """Return hosts in the order of the ranks that traces say they had, others after them."""
    first: dict[str, int] = {}
    for rank, one in sorted(traced.traces.items()):
        for host in hosts:
            if one.host and one.host.split(".")[0] == host.split(".")[0]:
                first.setdefault(host, rank)
    return sorted(hosts, key=lambda host: (host not in first, first.get(host, 0)))


def _node(host: str, telemetry: Telemetry, product: str, job: Job, wanted: Wanted) -> RecordedNode:
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
            RecordedGpu(device, said.get("product") or product or None, said.get("uuid"))
            for device, said in facts.items()
        ],
        parts=[part for part in samples.parts if part.device == "host" or part.device in devices],
        period_s=samples.period_s,
        absent={name: f"not in the recording ({names})" for name in GPU_METRICS if name not in measured},
        monotonic_ns=start_ns,
        wall_ns=start_ns + offset_ns(host, wanted.offsets),
    )


def _from_traces(traced: Work, product: str, wanted: Wanted) -> list[RecordedNode]:
    """Return hosts of a job of which there are traces alone."""
    world = traced.world_size or 1
    per_node = wanted.asked.gpus_per_node or min(USUAL_GPUS, world)
    is_of_gpus = bool(product) or any(one.is_of_gpu for one in traced.traces.values())
    named = {rank // per_node: one.host for rank, one in sorted(traced.traces.items(), reverse=True) if one.host}
    num = -(-world // per_node)
    names = [named.get(number) or f"node{number}" for number in range(num)]
    if len(set(names)) < num:
        names = [f"node{number}" for number in range(num)]
    nodes = []
    for number, host in enumerate(names):
        here = min(per_node, world - number * per_node)
        gpus = [RecordedGpu(f"gpu{place}", product or None) for place in range(here)] if is_of_gpus else []
        nodes.append(RecordedNode(host=host, gpus=gpus, num_ranks=None if is_of_gpus else here))
    return nodes


def _facts(telemetry: Telemetry) -> dict[str, int | float | str | bool | None]:
    return {"imported_formats": ", ".join(f"{name} ({num})" for name, num in telemetry.formats.items()) or "traces"}


def _account_of(node: RecordedNode) -> dict[str, Any]:
    """Return what is told of a host: GPUs, number of samples, period, first and last time, columns."""
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


def _shows_of(telemetry: Telemetry, rows: Sequence[Row]) -> list[str]:
    """Return what the sensors can and cannot show: of their formats, and of these recordings."""
    known = {declared.name: declared for declared in formats()}
    measured = {name for one in telemetry.hosts.values() for part in one.parts for name in part.columns}
    lines = []
    for declared in (known[name] for name in telemetry.formats if name in known):
        of_columns = [text for name, text in declared.shows_of_columns.items() if name in measured]
        lines.append(f"{declared.name}: {' '.join([*of_columns, declared.shows])}")
    if renewed := _renewal(telemetry):
        lines.append(renewed)
    if "gpu_power_average_w" in measured and not {"gpu_power_w", "gpu_energy_j"} & measured:
        lines.append(
            "power is a running mean: its highest value is below the peak, and energy is computed from the mean"
        )
        steps_s = [(row["t_end_ns"] - row["t_start_ns"]) / NS_PER_S for row in rows if row["kind"] == "measured"]
        if steps_s and float(np.median(steps_s)) < 2 * _AVERAGE_S:
            lines.append(
                f"steps of {show_span(float(np.median(steps_s)))} are shorter than two windows of that mean: power is "
                "known of all steps together, not of single steps"
            )
    if rows and not any(row["kind"] == "measured" for row in rows):
        lines.append("all steps are profiled, which slows them; give the times of others with --steps or --log")
    return lines


def _renewal(telemetry: Telemetry) -> str:
    """Return how often the power of the first GPU is renewed, as its readings show; empty where they do not."""
    for one in telemetry.hosts.values():
        for part in one.parts:
            name = next((each for each in part.columns if re.match(r"gpu_power_(average_)?w$", each)), None)
            if name is None:
                continue
            values = part.values[:, list(part.columns).index(name)]
            known = np.isfinite(values)
            try:
                updates = find_updates(part.t_ns[known] / NS_PER_S, values[known])
            except (ValueError, IndexError):
                return ""
            new_s, read_s = updates.period_s, one.period_s
            return f"{name} of {part.device} has a new value every {new_s:.3g} s, and was read every {read_s:.3g} s"
    return ""


def _idle_gpus(nodes: Sequence[RecordedNode]) -> list[tuple[str, str]]:
    """Return host and note for each host some of whose GPUs did no work while others did."""
    lines = []
    for node in nodes:
        highest = {part.device: _highest_w(part) for part in node.parts if part.device != "host"}
        known = {device: power_w for device, power_w in highest.items() if power_w is not None}
        idle = [device for device, power_w in known.items() if power_w < _IDLE * max(known.values())]
        if idle:
            note = (
                f"{', '.join(idle)} drew at most {max(known[device] for device in idle):.0f} W, others "
                f"{max(known.values()):.0f} W; if the job did not use them, name those it used with --gpus"
            )
            lines.append((node.host, note))
    return lines


def _highest_w(part: Part) -> float | None:
    for name in ("gpu_power_w", "gpu_power_average_w"):
        if name in part.columns:
            values = part.values[:, list(part.columns).index(name)]
            if np.isfinite(values).any():
                return float(np.nanmax(values))
    return None
