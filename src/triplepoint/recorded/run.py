"""Write a recorded run: raw folder, manifest and `point.json` of a job that Triplepoint did not launch.

The stages after `launch` work on it as on any other run.
"""

import gzip
import json
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from triplepoint.config.catalogue import Catalogue
from triplepoint.config.plan import Limits, PlannedRun, read_planned_run, run_id
from triplepoint.config.point import Point, PointCluster, Recorded, Steps
from triplepoint.errors import UserError
from triplepoint.files import temporary_folder, write_text
from triplepoint.launch.collect import account_of
from triplepoint.launch.standstill import slow_steps
from triplepoint.manifest import NO_STEP, Evidence, Manifest, Node, read_manifest, write_manifest
from triplepoint.provenance import git_state
from triplepoint.recorded.description import Description, check_size, find_type, point_of, type_of
from triplepoint.recorded.job import Job, MarkedSteps, RecordedGpu, RecordedNode, Row, mark_steps, seat_ranks
from triplepoint.recorded.studies import RECORDED, add_to_study, check_study
from triplepoint.recording import Recorder, Recording, again_path, fast_path, read_recording
from triplepoint.status import Status
from triplepoint.tables import STEPS
from triplepoint.trace.profilers.rocprof_csv import files_beside
from triplepoint.units import NS_PER_S, counted, show_seconds

_KEPT_SUFFIXES = (".json.zst", "_kernel_trace.csv", ".sqlite", ".db", ".rpd", ".csv")
"""Endings of trace names that a copy keeps; any other trace is Kineto's and is copied as `.json.gz`."""

__all__ = ["Description", "Ending", "RecordedGpu", "RecordedNode", "write_run"]


@dataclass(frozen=True)
class Ending:
    """Outcome of a recorded job, as far as it is known."""

    status: Status = Status.OK
    evidence: Evidence | None = None
    """Evidence for a status that is not ok."""
    facts: Mapping[str, int | float | str | bool | None] = field(default_factory=dict)
    """Facts for the manifest: command, exit status, source of its steps."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions of its software."""


def write_run(
    runs_folder: Path,
    description: Description,
    nodes: Sequence[RecordedNode],
    traces: Mapping[int, Path],
    steps: Iterable[Row],
    *,
    source: str,
    catalogue: Catalogue | None = None,
    study: str = RECORDED,
    ending: Ending | None = None,
) -> str:
    """Write a recorded run with its `point.json`, add it to its study, and return its name.

    Args:
        runs_folder: `results/runs`.
        description: Description of the job.
        nodes: Hosts, in the order of ranks.
        traces: Traces by rank, to be copied. Their profiled steps are rows of `steps` with the same numbers.
        steps: Rows of table `steps` of any ranks. A rank without rows gets those of the first rank with rows. Without
            any rows the whole recording is one measured step.
        source: Tool that recorded it: `triplepoint record`, or the imported formats.
        catalogue: The configuration, for models, clusters and GPU types; None without one.
        study: Study of recorded runs that the run is added to.
        ending: Outcome of the job; None for ok.

    Raises:
        UserError: If there is no host, nothing was recorded, or the description contradicts the recording.
    """
    check_study(study)
    if not nodes:
        raise UserError(f"{source}: the recording has no host; record again")
    ending = ending or Ending()
    runs_folder.mkdir(parents=True, exist_ok=True)
    with temporary_folder(".partial-", runs_folder) as scratch:
        for path in dict.fromkeys(traces.values()):
            ranks = [rank for rank, trace in traces.items() if trace == path]
            _copy_trace(path, scratch / "raw" / "traces", ranks)
        recordings = [_write_recording(scratch / "raw", number, node) for number, node in enumerate(nodes)]
        job = Job(description, nodes, seat_ranks(nodes), recordings, source)
        check_size(description, len(job.seats))
        marked = mark_steps(list(steps), job)
        point = _point(job, catalogue, marked, sorted(traces), ending)
        for row in marked.rows:
            row["num_tokens"] = point.num_tokens if point.knows("global_batch_size", "sequence_length") else None
        STEPS.write(scratch / "raw" / "steps.parquet", STEPS.from_rows(marked.rows))
        manifest = _manifest(point, job, marked, ending)
        write_manifest(scratch / "raw" / "manifest.json", manifest)
        planned = PlannedRun(
            run=manifest.run, digest=manifest.digest, point=point, limits=_limits(manifest.duration_s, recordings)
        )
        write_text(scratch / "point.json", planned.model_dump_json(indent=2) + "\n")
        scratch.chmod(0o755)
        shutil.rmtree(runs_folder / manifest.run, ignore_errors=True)
        scratch.replace(runs_folder / manifest.run)
    add_to_study(runs_folder.parent, study, manifest.run)
    return manifest.run


def sum_up(run: Path) -> str:
    """Return one line on a recorded run: its steps, and power and temperature of its GPUs.

    Args:
        run: Folder of the run, as `write_run` left it.
    """
    manifest, point = read_manifest(run / "raw" / "manifest.json"), read_planned_run(run / "point.json").point
    rows = STEPS.read(run / "raw" / "steps.parquet")
    rows = rows.filter(pc.equal(rows["kind"], "measured"))
    rank, step, start_ns, end_ns = (rows[name].to_numpy() for name in ("rank", "step", "t_start_ns", "t_end_ns"))
    steps_s = [float((end_ns - start_ns)[step == number].max()) / NS_PER_S for number in np.unique(step)]
    num_gpus = sum(device.device != "cpu" for node in manifest.nodes for device in node.devices)
    devices_text = counted(num_gpus, "GPU") if num_gpus else counted(len(np.unique(rank)), "rank")
    median = show_seconds(float(np.median(steps_s)))
    parts = [f"{counted(len(steps_s), 'measured step')} on {devices_text}, {median} in the median"]
    if NO_STEP in manifest.facts:
        num = point.steps.profiled
        steps = f"{counted(num, 'profiled step')} and none measured" if num else "no measured step"
        parts = [f"{show_seconds(max(steps_s))} on {devices_text}, {steps}"]
    power_w, temp_c = np.array([]), np.array([])
    for node in manifest.nodes:
        path, is_of_node = _telemetry_path(run / "raw", node.node), np.isin(rank, [one.rank for one in node.devices])
        if not path.is_file() or not is_of_node.any():
            continue
        samples = read_recording(path).samples
        t_ns, devices = (samples[name].to_numpy(zero_copy_only=False) for name in ("t_ns", "device"))
        chosen = np.isin(devices, [device.device for device in node.devices])
        chosen &= (t_ns >= start_ns[is_of_node].min()) & (t_ns < end_ns[is_of_node].max())
        power_w = np.append(power_w, _values(samples, chosen, "gpu_power_w", "gpu_power_average_w"))
        temp_c = np.append(temp_c, _values(samples, chosen, "gpu_temp_c"))
    if num_gpus:
        parts.append(f"{power_w.mean():.0f} W a GPU in the mean" if power_w.size else "power not recorded")
    if temp_c.size:
        parts.append(f"at most {temp_c.max():.0f} degC")
    return ", ".join(parts)


def _values(samples: pa.Table, chosen: np.ndarray, *names: str) -> np.ndarray:
    """Return the known values in chosen rows of the first column that has any."""
    for name in names:
        values = samples[name].to_numpy(zero_copy_only=False)[chosen].astype(float)
        if np.isfinite(values).any():
            return np.asarray(values[np.isfinite(values)])
    return np.array([])


def _telemetry_path(raw: Path, node: int) -> Path:
    """Return the file of the samples of a node in a run."""
    return raw / "telemetry" / f"node{node}.arrow"


def _write_recording(raw: Path, number: int, node: RecordedNode) -> Recording | None:
    """Write the samples of a host into the run and return them; None if there are none."""
    out = _telemetry_path(raw, number)
    out.parent.mkdir(parents=True, exist_ok=True)
    if node.recording is not None:
        for path in (node.recording, fast_path(node.recording), again_path(node.recording)):
            if path.is_file():
                shutil.copyfile(path, out.with_name(path.name.replace(node.recording.stem, out.stem, 1)))
    elif node.parts:
        recorder = Recorder(out, node.period_s, dict(node.absent), facts={"gpus": [vars(gpu) for gpu in node.gpus]})
        recorder.write(node.parts)
        recorder.close()
    else:
        return None
    return read_recording(out)


def _copy_trace(path: Path, folder: Path, ranks: Sequence[int]) -> None:
    """Copy a trace under the name of its ranks; a trace of Kineto has one rank, those of others may have several."""
    folder.mkdir(parents=True, exist_ok=True)
    name = path.name.removesuffix(".gz")
    suffix = next((end for end in _KEPT_SUFFIXES if name.endswith(end)), None)
    if suffix is not None:
        stem = f"rank{min(ranks)}{f'-{max(ranks)}' if len(ranks) > 1 else ''}"
        for end, file in files_beside(path).items():
            shutil.copyfile(file, folder / f"{stem}{end}")
        out = folder / f"{stem}{suffix}"
        with gzip.open(path, "rb") if name != path.name else path.open("rb") as trace, out.open("wb") as copy:
            shutil.copyfileobj(trace, copy)
        return
    out = folder / f"rank{ranks[0]}.json.gz"
    with path.open("rb") as trace:
        is_compressed = trace.read(2) == b"\x1f\x8b"
        trace.seek(0)
        with out.open("wb") if is_compressed else gzip.open(out, "wb") as copy:
            shutil.copyfileobj(trace, copy)


def _point(job: Job, catalogue: Catalogue | None, marked: MarkedSteps, traced: Sequence[int], ending: Ending) -> Point:
    """Return the point of a recorded job; `traced` are its traced ranks.

    Raises:
        UserError: If its GPUs are not those of the described cluster.
    """
    described = job.described
    products = [seat.device.product for seat in job.seats]
    gpu = find_type(described.gpu, catalogue) if described.gpu and catalogue else type_of(products, catalogue)
    num_gpus, cluster = len(job.seats), described.cluster
    device: Literal["cpu", "cuda", "rocm"] = described.device or (
        "cpu" if not any(node.gpus for node in job.nodes) else _platform(products)
    )
    known = catalogue.cluster(cluster) if cluster and catalogue else None
    if known is not None and gpu is not None and known.gpu not in (None, gpu):
        raise UserError(
            f"the job is described on cluster {cluster}, whose GPUs are {known.gpu}; its recording has {gpu}"
        )
    per_node = described.gpus_per_node or max(Counter(seat.node for seat in job.seats).values())
    place = PointCluster(
        name=known.name if known else f"own-{gpu or device}x{num_gpus}",
        device=known.device if known else device,
        gpu=known.gpu if known else gpu,
        gpus_per_node=known.gpus_per_node if known else per_node,
    )
    kinds = Counter(row["kind"] for row in marked.rows if row["rank"] == 0)
    recorded = Recorded(
        source=job.source,
        identity=_identity(job, marked, ending),
        has_steps=marked.has_steps,
        marked_ranks=marked.ranks,
    )
    return point_of(
        described,
        place,
        num_gpus,
        catalogue,
        recorded=recorded,
        steps=Steps(**{kind: kinds[kind] for kind in ("warmup", "measured", "profiled")}),
        trace_ranks=tuple(traced),
        telemetry_period_s=max(0.001, min((samples.period_s for samples in job.recordings if samples), default=1.0)),
    )


def _platform(products: Sequence[str | None]) -> Literal["cuda", "rocm"]:
    """Return the platform of GPUs by their product names; cuda if they do not tell."""
    text = " ".join(product or "" for product in products).lower()
    return "rocm" if "amd" in text or "instinct" in text or "mi2" in text or "mi3" in text else "cuda"


def _identity(job: Job, marked: MarkedSteps, ending: Ending) -> str:
    """Return an identity of a recording: its hosts, its start, and a digest of samples, steps and facts."""
    first = min(job.start_ns(number, marked.rows) for number in range(len(job.nodes)))
    hosts = ",".join(node.host for node in job.nodes)
    spans = [(row["rank"], row["step"], row["t_start_ns"], row["t_end_ns"]) for row in marked.rows]
    samples = [None if recording is None else _digest(recording.samples) for recording in job.recordings]
    content = json.dumps([hosts, first, spans, samples, dict(ending.facts)], sort_keys=True)
    return f"{hosts} {datetime.fromtimestamp(first / NS_PER_S, UTC).isoformat()} {sha256(content.encode()).hexdigest()}"


def _digest(samples: pa.Table) -> str:
    """Return the SHA-256 of samples."""
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, samples.schema) as stream:
        stream.write_table(samples)
    return sha256(out.getvalue()).hexdigest()


def _limits(duration_s: float, recordings: Sequence[Recording | None]) -> Limits:
    """Return the limits of a run that was not launched: its own duration."""
    fast = [recording.fast_period_s for recording in recordings if recording is not None and recording.fast_period_s]
    longest_s = max(duration_s, 1.0)
    limits = Limits(executor="local", time_limit_s=longest_s, hang_timeout_s=longest_s)
    return limits.model_copy(update={"fast_telemetry_period_s": min(fast)}) if fast else limits


def _manifest(point: Point, job: Job, marked: MarkedSteps, ending: Ending) -> Manifest:
    start_ns = min(job.start_ns(number, marked.rows) for number in range(len(job.nodes)))
    end_ns = max(job.end_ns(number, marked.rows) for number in range(len(job.nodes)))
    nodes = tuple(_node(number, node, job) for number, node in enumerate(job.nodes))
    commit, dirty = git_state(Path(__file__).parent)
    return Manifest(
        run=run_id(point),
        digest=point.digest(),
        status=ending.status,
        evidence=ending.evidence,
        origin="measured",
        engine=point.engine if point.knows("engine") else RECORDED,
        versions=dict(ending.versions),
        git_commit=commit,
        git_dirty=dirty,
        seed=point.seed if point.knows("seed") else None,
        started_at=datetime.fromtimestamp(start_ns / NS_PER_S, UTC).isoformat(),
        ended_at=datetime.fromtimestamp(end_ns / NS_PER_S, UTC).isoformat(),
        duration_s=max(0.0, (end_ns - start_ns) / NS_PER_S),
        nodes=nodes,
        slow_steps=slow_steps(marked.rows, frozenset()) if marked.has_steps else None,
        facts={"recorded_by": job.source, **_no_step(marked), **ending.facts},
    )


def _no_step(marked: MarkedSteps) -> dict[str, str]:
    """Return the fact that the run has no measured step, so its only one is the whole recording; else no fact."""
    if marked.has_steps:
        return {}
    num = len({row["step"] for row in marked.rows}) - 1
    reason = f"all {num} steps are warm-up or profiled" if num else "no step was seen"
    return {NO_STEP: f"{reason}: the whole recording counts as one window, with power and heat but no step time"}


def _node(number: int, node: RecordedNode, job: Job) -> Node:
    recording = job.recordings[number]
    return Node(
        node=number,
        host=node.host,
        monotonic_ns=node.monotonic_ns,
        wall_ns=node.wall_ns,
        num_cores=node.num_cores,
        memory_bytes=node.memory_bytes,
        devices=tuple(seat.device for seat in job.seats if seat.node == number),
        telemetry=None if recording is None else account_of(recording),
        telemetry_absent=None if recording is not None else "nothing was recorded of this host",
        checks=node.checks,
        clock_absent="recorded without round trips between hosts: as good as their wall clocks agree",
        zeus_absent="recorded, not launched",
    )
