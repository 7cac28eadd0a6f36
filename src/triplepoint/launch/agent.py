"""The agent of one node: start the sampler and the node's ranks, watch them, and write a report.

One agent runs on each node: a task of the submitit job, or a fork of the launcher of a local gang. It is the parent
process of the ranks, so it knows how each of them ended. The launcher, on another host, does not.
"""

import contextlib
import errno
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

from triplepoint.config.contents import Digests, check_contents
from triplepoint.config.plan import PlannedRun, read_planned_run
from triplepoint.config.point import Point
from triplepoint.errors import UserError
from triplepoint.files import write_json
from triplepoint.launch.attempt import CONTENTS, failed_nodes, is_told_to_stop
from triplepoint.launch.clock import Meeting, NodeClock
from triplepoint.launch.outcome import Failure, judge_kill, root_cause
from triplepoint.launch.slurm import count_host_kills, memory_limit, missing_devices, placement, rank_environment
from triplepoint.launch.standstill import Watch
from triplepoint.launch.watch import Ending, Ranks, Sampler, read_status, stop
from triplepoint.processes import adopt_orphans, allow_open_files, die_with_parent, free_port, has_ended, start_ticks
from triplepoint.provenance import host_memory_bytes
from triplepoint.redact import Redactor
from triplepoint.status import Status
from triplepoint.units import NS_PER_S

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
"""Set for every rank to its share of the cores, whatever values they have: Snakemake sets them for its own jobs, and
spinning threads of ranks that share cores make a step twenty times slower."""
RENDEZVOUS_S = 300.0
"""Time for node 0 to publish its address."""
LOOK_AROUND_S = 1.0
"""Time between two checks of the shared folder for messages of the launcher and of other nodes."""
ABSENT_S = 60.0
"""Time without access to the shared folder after which it counts as removed: an automount, or a file server that
restarts, comes back sooner."""
LAST_MOVE_S = 0.25
"""Time that sampling continues after the last step: GPUs update their energy counter every 0.1 s."""
_MEETING = "rendezvous.json"
POWER_LIMIT = "power limit"
"""Name of the doctor's check of power limits."""
DOCTOR_S = 20.0
"""Longest time that ranks wait for the check of their node: without persistence mode a driver takes seconds to open 8
GPUs."""


@dataclass(frozen=True)
class Launcher:
    """The process that started a local gang, which ends with it."""

    host: str
    pid: int
    ticks: int | None
    """Start time in clock ticks since boot, which does not depend on the wall clock."""

    @classmethod
    def this(cls) -> "Launcher":
        """Return the current process."""
        return cls(socket.gethostname(), os.getpid(), start_ticks(os.getpid()))

    def is_gone(self) -> bool:
        """Return whether the launcher has ended; False on another host, where that cannot be seen."""
        if self.host != socket.gethostname() or self.ticks is None:
            return False
        return has_ended(self.pid, self.ticks) is True


@dataclass
class Surroundings:
    """Watches for reasons, outside this node's ranks, to end them: launcher, Slurm, other nodes, the shared folder."""

    raw: Path
    node: int
    launcher: Launcher | None
    """Launcher of a local gang; None in a Slurm job, which continues without its launcher."""
    _ending: Ending | None = field(default=None, init=False)
    _next_look: float = field(default=0.0, init=False)
    _absent_since: float | None = field(default=None, init=False)

    def listen(self) -> None:
        """Handle the signals that Slurm sends before it kills, so that there is time for a report.

        SIGUSR2, sent near the time limit, reaches every process of the job. It is ignored until all are started, since
        processes inherit that.
        """
        signal.signal(signal.SIGTERM, self._on_terminate)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)

    def listen_for_limit(self) -> None:
        """Handle the signal for the time limit. Call it after the sampler and the ranks have been started."""
        if self.launcher is None:
            signal.signal(signal.SIGUSR2, self._on_time_limit)

    def ending(self) -> Ending | None:
        """Return the reason to end the ranks of this node, None if there is none."""
        if self.launcher is not None and self.launcher.is_gone():
            return Ending(Status.CANCELLED, "told to end: the launcher has gone")
        if self._ending is None and time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + LOOK_AROUND_S
            self._ending = self._ending or self._look()
        return self._ending

    def _look(self) -> Ending | None:
        """Return a reason to end in the shared folder. A folder that stays unreachable for `ABSENT_S` is one, too."""
        try:
            self.raw.stat()
            given_up = is_told_to_stop(self.raw)
            failed = [node for node in failed_nodes(self.raw) if node != self.node]
        except OSError:  # missing, or ESTALE, EIO and the like
            now = time.monotonic()
            self._absent_since = now if self._absent_since is None else self._absent_since
            if now - self._absent_since < ABSENT_S:
                return None
            return Ending(Status.CANCELLED, f"told to end: {self.raw} has been out of reach for {ABSENT_S:.0f} s")
        self._absent_since = None
        if given_up:
            return Ending(Status.CANCELLED, "told to end: the launcher gave the attempt up")
        return Ending(Status.CRASHED, f"told to end: node {failed[0]} failed") if failed else None

    def _on_terminate(self, number: int, frame: object) -> None:
        self._ending = self._ending or Ending(Status.CANCELLED, "told to end: SIGTERM from Slurm")

    def _on_time_limit(self, number: int, frame: object) -> None:
        self._ending = self._ending or Ending(Status.TIMEOUT, "Slurm's time limit is near")


def run_node(raw: Path, launcher: Launcher | None) -> None:
    """Run this node's share of the gang and write `nodes/node<N>.json`.

    Args:
        raw: Folder of the attempt, with `point.json`.
        launcher: Launcher of a local gang; None in a Slurm job.
    """
    die_with_parent(signal.SIGKILL if launcher is None else 0)  # the end of a launcher is noticed, and reported
    planned = read_planned_run(raw / "point.json")
    node = find_place(planned.point.hosts)
    around = Surroundings(raw, node, launcher)
    if launcher is None:
        around.listen()
    report = _describe_node(node)
    _begin(raw, report)
    kills_before = count_host_kills()
    ranks = _ranks_of(node, planned)
    doctor = _start_doctor(raw, node, planned, ranks)
    sampler = Sampler(
        raw / "telemetry" / f"node{node}.arrow",
        raw / "logs" / f"sampler{node}.log",
        planned.point.cluster.device,
        planned.point.telemetry_period_s,
        planned.limits.fast_telemetry_period_s,
    )
    zeus = _start_zeus(raw, node, planned, ranks)
    clock = NodeClock(node, planned.point.num_nodes)
    report["checks"] = _finish_doctor(raw, node, doctor)
    watch = Watch()
    try:
        if obstacle := find_obstacle(raw, ranks, planned, report["checks"]):
            failures = [obstacle]
        else:
            failures = _train(raw, ranks, planned, around, clock, watch, sampler)
        if zeus is not None and not failures:
            time.sleep(LAST_MOVE_S)
    finally:
        if zeus is not None:
            stop(zeus)
        sampler.stop()
    bursts, report["clock_absent"] = clock.finish(has_failed=bool(failures))
    if node == 0:
        with contextlib.suppress(OSError):  # it has the private token of the clock, which nobody needs any more
            (raw / _MEETING).unlink()
    report["clock"] = [asdict(burst) for burst in bursts]
    report["standstills"] = [asdict(standstill) for standstill in watch.found]
    report |= {"sampler_ends": sampler.ends, "ranks": list(ranks)} | _outcome(raw, ranks, failures, kills_before)
    report["duration_s"] = (time.monotonic_ns() - report["monotonic_ns"]) / NS_PER_S
    _write_report(raw, node, report)


def find_place(hosts: Sequence[str]) -> int:
    """Return this node's number in rank order: its index in the point's `hosts`, else Slurm's number."""
    slurm_number, own_names = int(os.environ.get("SLURM_NODEID", "0")), _own_names()
    return next((place for place, host in enumerate(hosts) if host in own_names), slurm_number)


def _own_names() -> set[str]:
    """Return the names of this host: with and without domain, and Slurm's."""
    host = socket.gethostname()
    return {host, host.partition(".")[0], os.environ.get("SLURMD_NODENAME", host)}


def _outcome(raw: Path, ranks: range, failures: list[Failure], kills_before: int) -> dict[str, Any]:
    """Return the outcome for the report: the root cause of the failures, or the facts of the node's first rank."""
    if not failures:
        return {"failure": None, "facts": (read_status(raw, ranks[0]) or {}).get("facts", {})}
    judged = [judge_kill(failure, count_host_kills() - kills_before) for failure in failures]
    return {"failure": asdict(root_cause(judged))}


def _write_report(raw: Path, node: int, report: dict[str, Any]) -> None:
    """Write the report of a node, and wait for the shared folder if it is unreachable for a while."""
    is_given_up = report["failure"] is not None and report["failure"]["status"] == Status.CANCELLED
    deadline = time.monotonic() + (0.0 if is_given_up else ABSENT_S)
    while True:
        try:
            raw.stat()  # else writing would create the folder, below a missing mount
            write_json(raw / "nodes" / f"node{node}.json", Redactor().content(report))
            return
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT) or time.monotonic() > deadline:
                raise
        time.sleep(LOOK_AROUND_S)


def _describe_node(node: int) -> dict[str, Any]:
    return {
        "node": node,
        "host": socket.gethostname(),
        "monotonic_ns": time.monotonic_ns(),
        "wall_ns": time.time_ns(),
        "num_cores": os.cpu_count() or 0,
        "memory_bytes": host_memory_bytes(),
        "placement": placement(),
    }


def _begin(raw: Path, report: dict[str, Any]) -> None:
    """Create the folders of the attempt, and record that this node has begun.

    The record includes the memory limit: if memory runs out, there may be no agent left to report it.

    Raises:
        FileExistsError: If this node has begun in this folder before, which would mix two gangs.
    """
    limit = memory_limit(report["memory_bytes"])
    beginning = {key: report[key] for key in ("node", "host", "memory_bytes")}
    path = raw / "nodes" / f"begun{report['node']}.json"
    for folder in ("nodes", "logs", "steps", "status", "telemetry", "traces"):
        # Until the launch is over, logs may show secrets that the job prints.
        (raw / folder).mkdir(mode=0o700 if folder == "logs" else 0o777, exist_ok=True)
    with path.open("x") as file:
        json.dump(beginning | {"memory_limit": asdict(limit) if limit else None}, file)


def _ranks_of(node: int, planned: PlannedRun) -> range:
    first = node * planned.point.cluster.gpus_per_node
    return range(first, min(first + planned.point.cluster.gpus_per_node, planned.point.num_gpus))


def _train(
    raw: Path,
    ranks: range,
    planned: PlannedRun,
    around: Surroundings,
    clock: NodeClock,
    watch: Watch,
    sampler: Sampler,
) -> list[Failure]:
    """Run the node's ranks to their end and return their failures."""
    meeting = _rendezvous(raw, around, clock)
    if isinstance(meeting, Ending):
        return [Failure(ranks[0], meeting.status, meeting.message, time.time_ns())]
    started = _start_ranks(raw, ranks, planned, meeting)
    around.listen_for_limit()

    def ending() -> Ending | None:
        with contextlib.suppress(OSError):  # the folder is unreachable: the sampler is not restarted
            sampler.watch()
        return around.ending()

    with watch.over(started.pids):
        return started.wait(ending)


def find_obstacle(
    raw: Path, ranks: range, planned: PlannedRun, checks: Sequence[Mapping[str, str]] | None
) -> Failure | None:
    """Return a failure if this node's ranks cannot be started, else None.

    Devices may be missing, a file may have changed, the host may not be in the point's `hosts`, or a GPU may have
    another power limit, and too few open files may be allowed.

    Args:
        raw: Folder of the attempt.
        ranks: Ranks of this node.
        planned: The run being launched.
        checks: Results of the check of this node; None if the check failed.
    """
    if problem := missing_devices(planned.point.cluster.device, len(ranks)):
        return Failure(ranks[0], Status.BAD_NODE, problem, time.time_ns())
    problem = _mismatch(planned.point, ranks, checks)
    try:
        allow_open_files(len(ranks))
        check_contents(planned.point, Digests(raw / CONTENTS, is_kept=False))
    except UserError as error:
        problem = str(error)
    return Failure(ranks[0], Status.CRASHED, problem, time.time_ns(), is_user_error=True) if problem else None


def _mismatch(point: Point, ranks: range, checks: Sequence[Mapping[str, str]] | None) -> str | None:
    """Return an error message if the host, or a power limit of its GPUs, is not the point's; else None."""
    this_host = socket.gethostname()
    if point.hosts and point.hosts[ranks[0] // point.cluster.gpus_per_node] not in _own_names():
        return f"hosts names {', '.join(point.hosts)}, this is {this_host}; name the hosts of this cluster"
    if not limits_of(point, ranks):
        return None
    check = next((check for check in checks or () if check["name"] == POWER_LIMIT), None)
    if check is None:
        return f"gpu_power_limits_w: power limits of {this_host} cannot be read; leave it out, or see logs/doctor*.log"
    if check["status"] == "fail":
        advice = "set it as root: nvidia-smi -i N -pl W, or amd-smi set"
        return f"gpu_power_limits_w: {this_host}: {check['found']}; {advice}"
    return None


def limits_of(point: Point, ranks: range) -> dict[int, float]:
    """Return the power limits that a point sets for GPUs of one node, by device number. Unit: W."""
    host = point.hosts[ranks[0] // point.cluster.gpus_per_node] if point.hosts else ""
    return {device: limit_w for (name, device), limit_w in point.power_limits_w.items() if name == host}


def _start_ranks(raw: Path, ranks: range, planned: PlannedRun, meeting: tuple[str, int]) -> Ranks:
    """Start the process that starts the ranks; until they are there, this process adopts orphaned descendants."""
    environment = rank_environment(planned.point.cluster.device) | {
        "WORLD_SIZE": str(planned.point.num_gpus),
        "MASTER_ADDR": meeting[0],
        "MASTER_PORT": str(meeting[1]),
        **dict.fromkeys(THREAD_VARIABLES, str(max(1, len(os.sched_getaffinity(0)) // len(ranks)))),
        "PYTHONUNBUFFERED": "1",
    }
    adopt_orphans()
    read, write = os.pipe()
    numbers = map(str, (write, ranks.start, ranks.stop))
    with (raw / "logs" / f"rank{ranks[0]}.log").open("wb") as log:
        starter = subprocess.Popen(
            [sys.executable, "-m", "triplepoint.launch.rank", *numbers, str(raw)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=[write],
        )
    os.close(write)
    return Ranks(raw, ranks, starter, read, planned.limits.time_limit_s, planned.limits.hang_timeout_s)


def _rendezvous(raw: Path, around: Surroundings, clock: NodeClock) -> tuple[str, int] | Ending:
    """Return address and port of the ranks' rendezvous, and start to compare clocks with node 0.

    Node 0 writes its address, a free port, and the address of its clock; the other nodes read them.

    Returns:
        Address and port, or the reason to end if node 0 does not come.
    """
    path = raw / _MEETING
    if around.node == 0:
        has_other_nodes = int(os.environ.get("SLURM_NNODES", "1")) > 1
        address = socket.gethostname() if has_other_nodes else "127.0.0.1"
        meeting = asdict(clock.meeting) if clock.meeting else None
        write_json(path, {"address": address, "port": free_port(), "clock": meeting}, is_private=True)
    deadline = time.monotonic() + RENDEZVOUS_S
    while (meeting := _read_meeting(path)) is None:
        if ending := around.ending():
            return ending
        if time.monotonic() > deadline:
            return Ending(Status.LOST, f"node 0 has not come within {RENDEZVOUS_S:.0f} s")
        time.sleep(0.05)
    clock.follow(meeting["address"], Meeting(**meeting["clock"]) if meeting["clock"] else None)
    return meeting["address"], meeting["port"]


def _read_meeting(path: Path) -> dict[str, Any] | None:
    try:
        meeting: dict[str, Any] = json.loads(path.read_text())
    except OSError:  # not there yet, or the folder is unreachable for a moment
        return None
    return meeting


def _start_doctor(raw: Path, node: int, planned: PlannedRun, ranks: range) -> ForkProcess:
    """Start the short check of this node, which inspects the GPUs before they have work.

    Ranks wait for the check. It is a fork, because almost all modules it needs are imported already, and because a
    driver that hangs then blocks only the check.
    """
    arguments = [str(_checks_file(raw, node)), planned.point.cluster.device]
    arguments.append(json.dumps(limits_of(planned.point, ranks)))
    doctor = ForkProcess(target=_run_doctor, args=(arguments, raw / "logs" / f"doctor{node}.log"), daemon=True)
    doctor.start()
    return doctor


def _run_doctor(arguments: list[str], log: Path) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with log.open("wb") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    sys.argv[1:] = arguments
    # By name, since the doctor imports this package and not the other way round.
    runpy.run_module("triplepoint.doctor.check_node", run_name="__main__")


def _finish_doctor(raw: Path, node: int, doctor: ForkProcess) -> list[dict[str, str]] | None:
    """Return the results of the check, None if it failed or took too long: a launch does not depend on it."""
    doctor.join(DOCTOR_S)
    if doctor.is_alive():
        doctor.kill()
        doctor.join()
    try:
        checks: list[dict[str, str]] = json.loads(_checks_file(raw, node).read_text())
    except (OSError, ValueError):
        return None
    return checks


def _checks_file(raw: Path, node: int) -> Path:
    return raw / "nodes" / f"checks{node}.json"


def _start_zeus(raw: Path, node: int, planned: PlannedRun, ranks: range) -> subprocess.Popen[bytes] | None:
    """Start Zeus alongside the sampler, if there are GPUs, as an independent measurement of the same steps."""
    if planned.point.cluster.device == "cpu":
        return None
    command = [sys.executable, "-m", "triplepoint.telemetry.zeus_windows", str(raw / "telemetry" / f"zeus{node}.json")]
    command += [str(raw / "steps" / f"rank{ranks[0]}.jsonl"), json.dumps(planned.point.steps.kinds), str(len(ranks))]
    with (raw / "logs" / f"zeus{node}.log").open("wb") as log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
