"""Collect the files of agents and ranks into the record of the launch: `steps.parquet`, then `manifest.json`.

The files of the ranks are removed only after both are written, so that a launcher that was killed can be replaced.
"""

import contextlib
import json
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from triplepoint.config.mesh import RankMesh
from triplepoint.config.plan import PlannedRun
from triplepoint.errors import UserError
from triplepoint.files import load_json
from triplepoint.launch.attempt import read_reports
from triplepoint.launch.clock import bursts_from, fit_clock
from triplepoint.launch.health import Health, Seat, find_suspects, read_health
from triplepoint.launch.outcome import Account, judge, with_suspects
from triplepoint.launch.standstill import interruptions, slow_steps
from triplepoint.launch.watch import read_status
from triplepoint.manifest import (
    Device,
    Evidence,
    Interruption,
    Job,
    Manifest,
    Node,
    Placement,
    SamplerEnd,
    Telemetry,
    ZeusWindow,
    write_manifest,
)
from triplepoint.power_sensor import EnergyCounter
from triplepoint.provenance import git_state, processor, versions
from triplepoint.recording import Recording, read_recording
from triplepoint.redact import redact_logs
from triplepoint.status import Status
from triplepoint.tables import STEPS
from triplepoint.units import NS_PER_S

Gpu = Mapping[str, Any]
"""Facts of one GPU from the sampler: `device`, `uuid`, `serial`, `pci_address`, `instances` (of MIG), ..."""
_NEAR_S = 0.25
"""Updates of the energy counter within this time of a window count for its tolerance."""
ON_CPU = "the ranks compute on the CPU"
_TOLERANCE = 0.01
"""Two readings of one counter agree within this ratio, plus one update of it (ml-energy/zeus issue 12: 1 %)."""


def devices_of_ranks(visible: Sequence[str] | None, gpus: Sequence[Gpu], num_ranks: int) -> tuple[list[str], list[str]]:
    """Return the GPU of each rank of a node, by the sampler's name for it, and problems.

    Local rank N uses the N-th visible device. Variables such as CUDA_VISIBLE_DEVICES name devices in any order, by
    number, by UUID or by the beginning of a UUID; a MIG instance has its own UUID or that of its GPU.
    Source: CUDA C++ Programming Guide, environment variables; ROCm documentation, "GPU isolation techniques".

    Args:
        visible: Devices that the node was given, in order; None for all of them.
        gpus: GPUs that the sampler found; empty if there is no recording.
        num_ranks: Number of ranks of the node.

    Returns:
        A name for each rank, and one message for each visible device that is none of `gpus`. The rank of such a device
        has the name in the variable, not that of a GPU that may be another rank's.
    """
    if not visible:
        return [f"gpu{local_rank}" for local_rank in range(num_ranks)], []
    given = [visible[local_rank % len(visible)] for local_rank in range(num_ranks)]
    devices = [_find_gpu(name, gpus) for name in given]
    unknown = [name for name, device in zip(given, devices, strict=True) if device is None]
    problems = [
        f"device {name} was given to this node and is none of the {len(gpus)} GPUs its sampler found; no telemetry "
        "of its rank"
        for name in dict.fromkeys(unknown)
    ]
    return [device or name for name, device in zip(given, devices, strict=True)], problems


def _find_gpu(name: str, gpus: Sequence[Gpu]) -> str | None:
    """Return the sampler's name of the GPU that a variable names, None if it is not exactly one."""
    if name.isdigit():
        return f"gpu{int(name)}" if not gpus or any(gpu["device"] == f"gpu{int(name)}" for gpu in gpus) else None
    # MIG-GPU-<uuid>/<instance>/<instance> until driver 470, then MIG-<uuid of the instance>.
    identity = name.lower().removeprefix("mig-").removeprefix("gpu-").partition("/")[0]
    matches = {gpu["device"] for gpu in gpus for known in _identities(gpu) if identity and known.startswith(identity)}
    return matches.pop() if len(matches) == 1 else None


def _identities(gpu: Gpu) -> list[str]:
    """Return the identifiers of a GPU, without the vendors' prefixes."""
    # ROCm's "GPU-<16 digits>" is the serial number, which AMD SMI writes as 0x<16 digits>.
    identifiers = [gpu.get("uuid"), gpu.get("serial"), *gpu.get("instances", ())]
    return [
        str(name).lower().removeprefix("mig-").removeprefix("gpu-").removeprefix("0x") for name in identifiers if name
    ]


def slots_of(
    gpus: Sequence[Gpu], configured: Mapping[str, int] | Sequence[int] | None
) -> tuple[dict[str, int], list[str]]:
    """Return the physical slot of each GPU of a node, where known, and problems.

    Args:
        gpus: GPUs that the sampler found.
        configured: `cluster.slots`, which override the slots of the driver and the kernel.

    Returns:
        Slots by the sampler's name for the GPU, and one message for each configured name that is no GPU of this node
        and for each slot with two GPUs, which are left without a slot.
    """
    slots, problems = {gpu["device"]: slot for gpu in gpus if (slot := _slot(gpu)) is not None}, []
    if isinstance(configured, Mapping):
        for name, slot in configured.items():
            device = next((gpu["device"] for gpu in gpus if gpu.get("pci_address") == name.lower()), None)
            if device is None:
                problems.append(f"cluster.slots names {name}, where this node has no GPU; the others keep their slots")
            else:
                slots[device] = slot
    elif configured:
        slots |= {f"gpu{number}": slot for number, slot in enumerate(configured)}
    for slot, count in Counter(slots.values()).items():
        if count > 1:
            sharing = [device for device in slots if slots[device] == slot]
            problems.append(f"slot {slot} is that of {' and '.join(sharing)}; none of them is given one")
            slots = {device: other for device, other in slots.items() if other != slot}
    return slots, problems


def _slot(gpu: Gpu) -> int | None:
    # The kernel's number of the slot, or on boards with sockets the driver's number of the module.
    slot = gpu.get("slot") if str(gpu.get("slot")).isdigit() else gpu.get("module")
    return None if slot is None else int(slot)


def compare_with_zeus(path: Path, recording: Recording | None) -> tuple[tuple[ZeusWindow, ...], str | None]:
    """Compare Zeus's energy of each window with the sampler's.

    Args:
        path: Output of the process that ran Zeus.
        recording: The node's recording; None if there is none.

    Returns:
        The compared windows, and the reason if some or all are missing.
    """
    try:
        zeus = load_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return (), "the process that runs Zeus left nothing"
    if recording is None:
        return (), "the sampler left no recording to compare with"
    windows = [compared for window in zeus["windows"] for compared in _compare_window(window, recording)]
    return tuple(windows), zeus["absent"]


def _compare_window(window: dict[str, Any], recording: Recording) -> Iterator[ZeusWindow]:
    samples = recording.samples.select(["t_ns", "device", "gpu_energy_j"]).drop_null()
    devices = samples["device"].to_numpy(zero_copy_only=False)
    times_s, counter_j = samples["t_ns"].to_numpy() / NS_PER_S, samples["gpu_energy_j"].to_numpy()
    ends_s = np.array([window["t_start_ns"], window["t_end_ns"]]) / NS_PER_S
    duration_s = float(ends_s[1] - ends_s[0])
    for device, zeus_j in window["energy_j"].items():
        of_device = devices == device
        counter = EnergyCounter(times_s[of_device], counter_j[of_device])
        comparison: dict[str, Any] = {"sampler_j": None, "difference": None, "tolerance": None, "agrees": None}
        with contextlib.suppress(ValueError):  # the counter has no updates around the window
            comparison = _compare_energy(zeus_j, counter, ends_s)
        yield ZeusWindow(kind=window["kind"], device=device, duration_s=duration_s, zeus_j=zeus_j, **comparison)


def _compare_energy(zeus_j: float, counter: EnergyCounter, ends_s: np.ndarray) -> dict[str, Any]:
    """Compare Zeus's energy with the counter's between two times.

    Raises:
        ValueError: If the counter did not move.
    """
    first_j, last_j = counter.at(ends_s)
    if (counted_j := float(last_j - first_j)) <= 0:
        raise ValueError("the energy counter stood still")
    near = (counter.moved_s > ends_s[0] - _NEAR_S) & (counter.moved_s < ends_s[1] + _NEAR_S)
    difference = zeus_j / counted_j - 1
    tolerance = _TOLERANCE + float(np.diff(counter.values_j[near]).max(initial=0.0)) / counted_j
    agrees = abs(difference) <= tolerance
    return {"sampler_j": counted_j, "difference": difference, "tolerance": tolerance, "agrees": agrees}


def conclude(
    raw: Path,
    planned: PlannedRun,
    account: Account | None = None,
    can_spare: Callable[[frozenset[str]], bool] = lambda hosts: False,
) -> Manifest:
    """Write `steps.parquet` and `manifest.json` of a launch that is over, and return the manifest.

    Args:
        raw: Folder of the attempt.
        planned: The launched run.
        account: Slurm's account of the job; None for a local gang.
        can_spare: Returns whether the launch could be repeated without these hosts; called if a GPU is slow.

    Raises:
        UserError: If the launch failed for a reason that the user can remove, such as a missing corpus.
        OSError: If the disk is full.
    """
    manifest = _collect(raw, planned, account, can_spare)
    redact_logs(raw / "logs")
    write_manifest(raw / "manifest.json", manifest)
    shutil.rmtree(raw / "steps", ignore_errors=True)
    return manifest


def _collect(
    raw: Path, planned: PlannedRun, account: Account | None, can_spare: Callable[[frozenset[str]], bool]
) -> Manifest:
    """Gather the steps of all ranks into `steps.parquet` and return the manifest of the launch."""
    reports = sorted(read_reports(raw), key=lambda report: report["node"])
    outcome = judge(raw, planned, reports, account)
    steps = _gather_steps(raw)
    interrupted = interruptions(reports, steps)
    interrupted_steps = frozenset(step for interruption in interrupted for step in interruption.measured_steps)
    num_steps = Counter(row["rank"] for row in steps)
    if outcome[0] == Status.OK and (problem := _check_steps(raw, planned, reports[0]["host"], num_steps, interrupted)):
        outcome = Status.CRASHED, problem
    # Without measured steps no clock is compared: while a rank is suspended clocks fall, and no GPU is at fault.
    nodes, gang = _examine(raw, planned, reports, [] if interrupted_steps else steps)
    suspects = find_suspects(gang)
    status, evidence = with_suspects(*outcome, suspects, can_spare)
    commit, dirty = git_state(Path(__file__).parent)
    started, duration_s = _time_of(raw, reports)
    return Manifest(
        run=planned.run,
        digest=planned.digest,
        status=status,
        evidence=evidence,
        origin="measured",
        engine=planned.point.engine,
        versions=versions(),
        git_commit=commit,
        git_dirty=dirty,
        seed=planned.point.seed,
        started_at=started.isoformat(),
        ended_at=(started + timedelta(seconds=duration_s)).isoformat(),
        duration_s=duration_s,
        nodes=nodes,
        suspects=suspects,
        interruptions=interrupted,
        slow_steps=slow_steps(steps, interrupted_steps),
        job=Job(job_id=account.job_id, state=account.state.state if account.state else "") if account else None,
        facts=_facts(raw, reports, evidence) | {"num_steps_finished": min(num_steps.values(), default=0)},
    )


def _check_steps(
    raw: Path, planned: PlannedRun, host: str, num_steps: Counter[int], interrupted: Sequence[Interruption]
) -> Evidence | None:
    """Return why a launch whose ranks all finished is no result: files are missing, or all steps were interrupted."""
    if missing := _missing_files(raw, planned, num_steps):
        return Evidence(rank=None, host=host, message=missing, log_tail=())
    interrupted_steps = {step for interruption in interrupted for step in interruption.measured_steps}
    if len(interrupted_steps) < planned.point.steps.measured:
        return None
    message = f"every measured step was interrupted; {interrupted[0]}"
    return Evidence(rank=interrupted[0].rank, host=interrupted[0].host, message=message, log_tail=())


def _time_of(raw: Path, reports: list[dict[str, Any]]) -> tuple[datetime, float]:
    """Return the begin of the first agent, and the duration of the longest one in s.

    The duration is from monotonic clocks, since a wall clock may be set during the launch.
    """
    if not reports:  # then no duration is known
        return datetime.fromtimestamp(raw.joinpath("point.json").stat().st_mtime, UTC), 0.0
    begun_ns = min(report["wall_ns"] for report in reports)
    return datetime.fromtimestamp(begun_ns / NS_PER_S, UTC), max(report["duration_s"] for report in reports)


def _facts(raw: Path, reports: list[dict[str, Any]], evidence: Evidence | None) -> dict[str, Any]:
    """Return the facts of the first rank, or, if the launch failed, those of the rank with the root cause."""
    if evidence is not None and evidence.rank is not None:
        return dict((read_status(raw, evidence.rank) or {}).get("facts", {}))
    return dict(next((report["facts"] for report in reports if report.get("facts")), {}))


def _missing_files(raw: Path, planned: PlannedRun, num_steps: Counter[int]) -> str | None:
    """Return an error message if steps or traces of ranks that report success are missing, else None."""
    point = planned.point
    expected = len(point.steps.kinds)
    incomplete = [rank for rank in range(point.num_gpus) if num_steps[rank] != expected]
    if incomplete:
        rank = incomplete[0]
        return f"rank {rank} left {num_steps[rank]} of {expected} steps; was {raw} changed meanwhile?"
    traces = [raw / "traces" / f"rank{rank}.json.gz" for rank in point.traced_ranks]
    missing = [path.name for path in traces if not path.is_file()]
    return f"{missing[0]} is missing; was {raw} changed meanwhile?" if missing else None


def _gather_steps(raw: Path) -> list[dict[str, Any]]:
    """Join the ranks' step files into `steps.parquet` and return the rows; an incomplete last line is dropped.

    An existing `steps.parquet` is used as it is: it was written atomically, before any step file was removed.
    """
    rows: list[dict[str, Any]] = []
    with contextlib.suppress(UserError):
        rows = STEPS.read(raw / "steps.parquet").to_pylist()
    if rows:
        return rows
    for path in raw.glob("steps/rank*.jsonl"):
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                rows.append(load_json(line))
            except json.JSONDecodeError:
                break
    rows.sort(key=lambda row: (row["rank"], row["step"]))
    STEPS.write(raw / "steps.parquet", STEPS.from_rows(rows))
    return rows


def _examine(
    raw: Path, planned: PlannedRun, reports: Iterable[dict[str, Any]], steps: Sequence[dict[str, Any]]
) -> tuple[tuple[Node, ...], dict[Seat, Health]]:
    """Return the manifest's record of each node, and the health of all GPUs."""
    nodes: list[Node] = []
    gang: dict[Seat, Health] = {}
    for report in reports:
        recording, absent = _recording(raw, report["node"])
        nodes.append(_node(raw, report, planned, recording, absent))
        if recording is not None:
            gang |= _gpu_health(nodes[-1], recording, planned, steps)
    return tuple(nodes), gang


def _gpu_health(
    node: Node, recording: Recording, planned: PlannedRun, steps: Iterable[dict[str, Any]]
) -> dict[Seat, Health]:
    """Return the health of the GPUs of a node's ranks, in the measured steps."""
    devices = {device.rank: device for device in node.devices}
    measured = [row for row in steps if row["rank"] in devices and row["kind"] == "measured"]
    begins, ends = [row["t_start_ns"] for row in measured], [row["t_end_ns"] for row in measured]
    health = read_health(recording.samples, (min(begins), max(ends)) if measured else None)
    mesh = RankMesh(planned.point.layout)
    return {
        Seat(rank, node.host, device.device, device.uuid, mesh.place(rank).pp): health[device.device]
        for rank, device in devices.items()
        if device.device in health
    }


def _node(
    raw: Path, report: dict[str, Any], planned: PlannedRun, recording: Recording | None, absent: str | None
) -> Node:
    on_cpu = planned.point.cluster.device == "cpu"
    zeus, zeus_absent = compare_with_zeus(raw / "telemetry" / f"zeus{report['node']}.json", recording)
    devices, problems = _devices(report, planned, [] if recording is None else recording.facts.get("gpus", []))
    fields = ("node", "host", "monotonic_ns", "wall_ns", "num_cores", "memory_bytes")
    return Node(
        **{name: report[name] for name in fields},
        devices=devices,
        telemetry=None if recording is None else account_of(recording),
        telemetry_absent=absent,
        sampler_ends=tuple(SamplerEnd(**end) for end in report["sampler_ends"]),
        placement=Placement(**report["placement"]),
        checks=report["checks"],
        clock=fit_clock(bursts_from(report["clock"])) if report["clock"] else None,
        clock_absent=report["clock_absent"],
        zeus=zeus,
        zeus_absent=ON_CPU if on_cpu else zeus_absent,
        device_problems=problems,
    )


def _devices(
    report: dict[str, Any], planned: PlannedRun, gpus: list[dict[str, Any]]
) -> tuple[tuple[Device, ...], tuple[str, ...]]:
    """Return the devices of a node's ranks, as the sampler identified them, and problems."""
    ranks = sorted(report["ranks"])
    if planned.point.cluster.device == "cpu":
        return tuple(Device(rank=rank, device="cpu", product=processor()) for rank in ranks), ()
    names, device_problems = devices_of_ranks(report["placement"]["devices"], gpus, len(ranks))
    slots, slot_problems = slots_of(gpus, planned.limits.slots)
    problems = (*device_problems, *slot_problems)
    for problem in problems:
        print(f"triplepoint: {report['host']}: {problem}", file=sys.stderr)
    product = report.get("facts", {}).get("device_name")
    by_name = {gpu["device"]: gpu for gpu in gpus}
    devices = (
        Device(
            rank=rank,
            device=name,
            product=product or by_name.get(name, {}).get("product"),
            uuid=by_name.get(name, {}).get("uuid"),
            slot=slots.get(name),
        )
        for rank, name in zip(ranks, names, strict=True)
    )
    return tuple(devices), problems


def _recording(raw: Path, node: int) -> tuple[Recording | None, str | None]:
    """Return a node's recording, or the reason why there is none: the launch is a result without it."""
    try:
        return read_recording(raw / "telemetry" / f"node{node}.arrow"), None
    except UserError as error:
        return None, str(error).removeprefix(f"{raw / 'telemetry'}/")


def account_of(recording: Recording) -> Telemetry:
    """Return the manifest's description of a recording."""
    return Telemetry(
        period_s=recording.period_s,
        num_samples=recording.samples.num_rows,
        measured=recording.measured,
        absent={metric: reason for metric, reason in recording.absent.items() if metric not in recording.measured},
        stale=recording.stale,
    )
