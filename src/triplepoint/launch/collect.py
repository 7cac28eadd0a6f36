"""Collect what agents and ranks left into the record of the launch: `steps.parquet`, then `manifest.json`.

What the ranks left is removed only once both stand, so that collecting can be done again after any end of the launcher.
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
from triplepoint.launch.attempt import read_reports
from triplepoint.launch.clock import bursts_from, fit_clock
from triplepoint.launch.health import Health, Seat, find_suspects, read_health
from triplepoint.launch.outcome import Account, judge, with_suspects
from triplepoint.launch.watch import interruptions, read_status, slow_steps
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
from triplepoint.status import Status
from triplepoint.tables import STEPS
from triplepoint.units import NS_PER_S

Gpu = Mapping[str, Any]
"""Facts of one GPU from the sampler: `device`, `uuid`, `serial`, `pci_address`, `instances` (of MIG), ..."""
_NEAR_S = 0.25
"""Around a window, moves of the counter count as near it."""
ON_CPU = "the ranks compute on the CPU"
_TOLERANCE = 0.01
"""Two readings of one counter agree within this, plus one update of it (ml-energy/zeus issue 12: 1 %)."""


def devices_of_ranks(visible: Sequence[str] | None, gpus: Sequence[Gpu], num_ranks: int) -> tuple[list[str], list[str]]:
    """Return the GPU of each rank of a node, by the name the sampler gives it, and what could not be told.

    A rank takes the visible device of its place on the node. Variables such as CUDA_VISIBLE_DEVICES name devices in any
    order, by number, by UUID or by the beginning of one; a MIG instance is told by its own UUID or by its GPU's.
    Source: CUDA C++ Programming Guide, environment variables; ROCm documentation, "GPU isolation techniques".

    Args:
        visible: Devices the node was given, in order; None for all of them.
        gpus: The GPUs the sampler found; none where there is no recording.
        num_ranks: Ranks of the node.

    Returns:
        A name for each rank, and one line for each visible device that is none of `gpus`: its rank goes by what the
        variable says, rather than by the name of a GPU that may be another's.
    """
    if not visible:
        return [f"gpu{place}" for place in range(num_ranks)], []
    wanted = [visible[place % len(visible)] for place in range(num_ranks)]
    names = [_find(name, gpus) for name in wanted]
    lost = [name for name, found in zip(wanted, names, strict=True) if found is None]
    lines = [
        f"device {name} was given to this node and is none of the {len(gpus)} GPUs its sampler found; no telemetry "
        "of its rank"
        for name in dict.fromkeys(lost)
    ]
    return [found or name for name, found in zip(wanted, names, strict=True)], lines


def _find(name: str, gpus: Sequence[Gpu]) -> str | None:
    """Return the GPU that a variable names, None where that is no single one."""
    if name.isdigit():
        return f"gpu{int(name)}" if not gpus or any(gpu["device"] == f"gpu{int(name)}" for gpu in gpus) else None
    # MIG-GPU-<uuid>/<instance>/<instance> until driver 470, then MIG-<uuid of the instance>.
    identity = name.lower().removeprefix("mig-").removeprefix("gpu-").partition("/")[0]
    found = {gpu["device"] for gpu in gpus for known in _identities(gpu) if identity and known.startswith(identity)}
    return found.pop() if len(found) == 1 else None


def _identities(gpu: Gpu) -> list[str]:
    """Return all that a GPU is known by, without what vendors put in front."""
    # ROCm's "GPU-<16 digits>" are the serial number, which AMD SMI writes as 0x<16 digits>.
    known = [gpu.get("uuid"), gpu.get("serial"), *gpu.get("instances", ())]
    return [str(each).lower().removeprefix("mig-").removeprefix("gpu-").removeprefix("0x") for each in known if each]


def slots_of(
    gpus: Sequence[Gpu], configured: Mapping[str, int] | Sequence[int] | None
) -> tuple[dict[str, int], list[str]]:
    """Return the physical slot of each GPU of a node, where known, and what is wrong with the slots named.

    Args:
        gpus: The GPUs the sampler found.
        configured: `cluster.slots`; it comes before what the driver and the kernel say.

    Returns:
        Slots by the sampler's name for the GPU, and one line for each name that is no GPU here and each slot with two:
        those GPUs are left without a slot.
    """
    slots, lines = {gpu["device"]: slot for gpu in gpus if (slot := _slot(gpu)) is not None}, []
    if isinstance(configured, Mapping):
        for name, slot in configured.items():
            device = next((gpu["device"] for gpu in gpus if gpu.get("pci_address") == name.lower()), None)
            if device is None:
                lines.append(f"cluster.slots names {name}, where this node has no GPU; the others keep their slots")
            else:
                slots[device] = slot
    elif configured:
        slots |= {f"gpu{place}": slot for place, slot in enumerate(configured)}
    for slot, count in Counter(slots.values()).items():
        if count > 1:
            twice = [device for device in slots if slots[device] == slot]
            lines.append(f"slot {slot} is that of {' and '.join(twice)}; none of them is given one")
            slots = {device: other for device, other in slots.items() if other != slot}
    return slots, lines


def _slot(gpu: Gpu) -> int | None:
    # Boards with sockets for modules number those; elsewhere the kernel names the slot.
    slot = gpu.get("slot") if str(gpu.get("slot")).isdigit() else gpu.get("module")
    return None if slot is None else int(slot)


def compare_with_zeus(path: Path, recording: Recording | None) -> tuple[tuple[ZeusWindow, ...], str | None]:
    """Return Zeus's windows with the sampler's energy of the same time, and why there are none, or not all.

    Args:
        path: What the process that runs Zeus left.
        recording: The node's recording; None if there is none.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return (), "the process that runs Zeus left nothing"
    if recording is None:
        return (), "the sampler left no recording to compare with"
    windows = [compared for window in found["windows"] for compared in _compare(window, recording)]
    return tuple(windows), found["absent"]


def _compare(window: dict[str, Any], recording: Recording) -> Iterator[ZeusWindow]:
    samples = recording.samples.select(["t_ns", "device", "gpu_energy_j"]).drop_null()
    devices = samples["device"].to_numpy(zero_copy_only=False)
    times_s, counter_j = samples["t_ns"].to_numpy() / NS_PER_S, samples["gpu_energy_j"].to_numpy()
    ends_s = np.array([window["t_start_ns"], window["t_end_ns"]]) / NS_PER_S
    length_s = float(ends_s[1] - ends_s[0])
    for device, zeus_j in window["energy_j"].items():
        mine = devices == device
        counter = EnergyCounter(times_s[mine], counter_j[mine])
        found: dict[str, Any] = {"sampler_j": None, "difference": None, "tolerance": None, "agrees": None}
        with contextlib.suppress(ValueError):  # it did not move around the window
            found = _difference(zeus_j, counter, ends_s)
        yield ZeusWindow(kind=window["kind"], device=device, duration_s=length_s, zeus_j=zeus_j, **found)


def _difference(zeus_j: float, counter: EnergyCounter, ends_s: np.ndarray) -> dict[str, Any]:
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
        planned: What was launched.
        account: What Slurm says of the job; None where there was none.
        can_spare: Tells whether the launch could be done again without some hosts; asked where a GPU is slow.

    Raises:
        UserError: If the launch failed by something the user can mend: a missing corpus, a full disk.
        OSError: If the disk is full.
    """
    manifest = _collect(raw, planned, account, can_spare)
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
    spoiled = frozenset(step for found in interrupted for step in found.measured_steps)
    num_steps = Counter(row["rank"] for row in steps)
    if outcome[0] == Status.OK and (problem := _check_steps(raw, planned, reports[0]["host"], num_steps, interrupted)):
        outcome = Status.CRASHED, problem
    # Clocks sink while a rank stands still, and nobody is to blame for that.
    nodes, gang = _examine(raw, planned, reports, [] if spoiled else steps)
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
        slow_steps=slow_steps(steps, spoiled),
        job=Job(job_id=account.job_id, state=account.state.state if account.state else "") if account else None,
        facts=_facts(raw, reports, evidence) | {"num_steps_finished": min(num_steps.values(), default=0)},
    )


def _check_steps(
    raw: Path, planned: PlannedRun, host: str, num_steps: Counter[int], interrupted: Sequence[Interruption]
) -> Evidence | None:
    """Return why the steps of ranks that all finished are no result, or None: a result is whole or is none."""
    if missing := _missing(raw, planned, num_steps):
        return Evidence(rank=None, host=host, message=missing, log_tail=())
    if len({step for found in interrupted for step in found.measured_steps}) < planned.point.steps.measured:
        return None
    message = f"every measured step was interrupted; {interrupted[0]}"
    return Evidence(rank=interrupted[0].rank, host=interrupted[0].host, message=message, log_tail=())


def _time_of(raw: Path, reports: list[dict[str, Any]]) -> tuple[datetime, float]:
    """Return when the agents began, and how long the longest of them took, in s; wall clocks may be set meanwhile."""
    if not reports:  # then nobody measured how long
        return datetime.fromtimestamp(raw.joinpath("point.json").stat().st_mtime, UTC), 0.0
    begun_ns = min(report["wall_ns"] for report in reports)
    return datetime.fromtimestamp(begun_ns / NS_PER_S, UTC), max(report["duration_s"] for report in reports)


def _facts(raw: Path, reports: list[dict[str, Any]], evidence: Evidence | None) -> dict[str, Any]:
    """Return what the first rank says of itself, or where the launch failed the rank it was seen on first."""
    if evidence is not None and evidence.rank is not None:
        return dict((read_status(raw, evidence.rank) or {}).get("facts", {}))
    return dict(next((report["facts"] for report in reports if report.get("facts")), {}))


def _missing(raw: Path, planned: PlannedRun, num_steps: Counter[int]) -> str | None:
    """Return what ranks that report success have not left, or None."""
    point = planned.point
    expected = len(point.steps.kinds)
    short = [rank for rank in range(point.num_gpus) if num_steps[rank] != expected]
    if short:
        return f"rank {short[0]} left {num_steps[short[0]]} of {expected} steps; was {raw} changed meanwhile?"
    traces = [raw / "traces" / f"rank{rank}.json.gz" for rank in point.traced_ranks]
    lost = [path.name for path in traces if not path.is_file()]
    return f"{lost[0]} is missing; was {raw} changed meanwhile?" if lost else None


def _gather_steps(raw: Path) -> list[dict[str, Any]]:
    """Join the ranks' step files to `steps.parquet`, dropping a last line that was cut off, and return the rows.

    A `steps.parquet` of an earlier try is taken as it is: it was written in one piece, before any file was removed.
    """
    rows: list[dict[str, Any]] = []
    with contextlib.suppress(UserError):
        rows = STEPS.read(raw / "steps.parquet").to_pylist()
    if rows:
        return rows
    for path in raw.glob("steps/rank*.jsonl"):
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                break
    rows.sort(key=lambda row: (row["rank"], row["step"]))
    STEPS.write(raw / "steps.parquet", STEPS.from_rows(rows))
    return rows


def _examine(
    raw: Path, planned: PlannedRun, reports: Iterable[dict[str, Any]], steps: Sequence[dict[str, Any]]
) -> tuple[tuple[Node, ...], dict[Seat, Health]]:
    """Return the record of each node, and the health of the GPUs of all."""
    nodes: list[Node] = []
    gang: dict[Seat, Health] = {}
    for report in reports:
        recording, absent = _recording(raw, report["node"])
        nodes.append(_node(raw, report, planned, recording, absent))
        if recording is not None:
            gang |= _healths(nodes[-1], recording, planned, steps)
    return tuple(nodes), gang


def _healths(
    node: Node, recording: Recording, planned: PlannedRun, steps: Iterable[dict[str, Any]]
) -> dict[Seat, Health]:
    """Return the health of the GPUs of a node's ranks, in the measured steps."""
    devices = {device.rank: device for device in node.devices}
    measured = [row for row in steps if row["rank"] in devices and row["kind"] == "measured"]
    begins, ends = [row["t_start_ns"] for row in measured], [row["t_end_ns"] for row in measured]
    found = read_health(recording.samples, (min(begins), max(ends)) if measured else None)
    mesh = RankMesh(planned.point.layout)
    return {
        Seat(rank, node.host, device.device, device.uuid, mesh.place(rank).pp): found[device.device]
        for rank, device in devices.items()
        if device.device in found
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
    """Return the devices of a node's ranks with the identity the sampler found, and what could not be told of them."""
    ranks = sorted(report["ranks"])
    if planned.point.cluster.device == "cpu":
        return tuple(Device(rank=rank, device="cpu", product=processor()) for rank in ranks), ()
    names, lost = devices_of_ranks(report["placement"]["devices"], gpus, len(ranks))
    slots, wrong = slots_of(gpus, planned.limits.slots)
    for line in (*lost, *wrong):
        print(f"triplepoint: {report['host']}: {line}", file=sys.stderr)
    product = report.get("facts", {}).get("device_name")
    known = {gpu["device"]: gpu for gpu in gpus}
    devices = (
        Device(
            rank=rank,
            device=name,
            product=product or known.get(name, {}).get("product"),
            uuid=known.get(name, {}).get("uuid"),
            slot=slots.get(name),
        )
        for rank, name in zip(ranks, names, strict=True)
    )
    return tuple(devices), (*lost, *wrong)


def _recording(raw: Path, node: int) -> tuple[Recording | None, str | None]:
    """Return what a node's sampler recorded, or why there is nothing: the steps are a result without it."""
    try:
        return read_recording(raw / "telemetry" / f"node{node}.arrow"), None
    except UserError as error:
        return None, str(error).removeprefix(f"{raw / 'telemetry'}/")


def account_of(found: Recording) -> Telemetry:
    """Return what a manifest says of a recording."""
    return Telemetry(
        period_s=found.period_s,
        num_samples=found.samples.num_rows,
        measured=found.measured,
        absent={metric: reason for metric, reason in found.absent.items() if metric not in found.measured},
        stale=found.stale,
    )
