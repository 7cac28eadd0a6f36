"""Write the run of a recording that has ended, or whose processes were killed."""

import json
import re
import shutil
import signal
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from triplepoint.config.catalogue import Catalogue
from triplepoint.errors import UserError
from triplepoint.files import load_json
from triplepoint.launch.collect import devices_of_ranks
from triplepoint.launch.error_texts import classify
from triplepoint.launch.outcome import HOST_MEMORY, LOG_TAIL_LINES, describe_exit, is_aftershock
from triplepoint.manifest import NO_STEP, Evidence, Manifest
from triplepoint.provenance import COLLECTIVE_SETTINGS
from triplepoint.recorded.description import read_description
from triplepoint.recorded.job import NothingRecordedError
from triplepoint.recorded.marks import RANGES, REQUEST, SOURCES
from triplepoint.recorded.run import Ending, RecordedGpu, RecordedNode, write_run
from triplepoint.recorded.session import ENDING_SIGNALS, Session
from triplepoint.recorded.studies import RECORDED
from triplepoint.recording import read_recording
from triplepoint.redact import redact_logs
from triplepoint.status import Status
from triplepoint.units import NS_PER_S

SOURCE = "triplepoint record"
_MARKED_BY = SOURCES | {"log": "lines of its log that match --step-pattern"}
_TOLD = {
    signal.SIGINT: "ended by hand: Ctrl-C (SIGINT)",
    signal.SIGTERM: "told to end: SIGTERM",
    signal.SIGHUP: "told to end: its terminal was closed (SIGHUP)",
}
"""Message on a job that received one of `ENDING_SIGNALS`."""
_PLACES = ("_DIR", "_HOME", "_FILE", "_PATH")
"""Endings of names of variables that hold a path."""
_ERROR = re.compile(
    r"\b\w*(Error|Exception)\b|\berror: |can't open file|\b(fatal|FATAL|Fatal)\b|command not found"
    r"|No such file or directory|Permission denied|terminate called|Segmentation fault|Bus error|\bAborted\b"
)
"""Pattern of log lines that tell why a job failed: of Python, argparse, the shell, compiled code."""
_OF_LAUNCHER = re.compile(r"ChildFailedError|CalledProcessError|^\s*raise |^\s*at |failed \(exitcode|srun: error: ")
"""Pattern of lines in which a launcher reports a failed rank, and of source lines of a traceback; neither tells why."""

_RANK_ENDED = tuple(
    re.compile(text)
    for text in (
        r"failed \(exitcode: (?P<status>-?\d+)\) local_rank: (?P<rank>\d+)",
        r"'--local_rank=(?P<rank>\d+)'.* exits with return code = (?P<status>-?\d+)",
        r"process rank (?P<rank>\d+) with .* exited on signal (?P<signal>\d+)",
        r"srun: error: .*task (?P<rank>\d+): (Exited with exit code (?P<status>\d+)|(?P<words>[A-Z][\w ]+))",
    )
)
"""Lines of launchers on the rank that ended first: torchrun of torch 2.13, DeepSpeed 0.19, Open MPI 4.1, Slurm
22.05."""
_BY_SIGNAL = {signal.strsignal(number): -number for number in signal.valid_signals()}
"""Exit status by the description of its signal."""
_WORDLESS = (-signal.SIGKILL, -signal.SIGSEGV, -signal.SIGBUS)
"""Exit statuses of ranks that could not write a message."""


def finish(session: Session, results: Path, config: Path) -> str:
    """Write the run of a recording, remove the recording, and return the run's name.

    Args:
        session: The recording.
        results: Folder of results.
        config: Folder of the configuration; without it models and GPU types are not known.

    Raises:
        UserError: If nothing was recorded, or the description contradicts the recording.
    """
    setup = session.setup()
    catalogue = Catalogue(config) if config.is_dir() else None
    described = read_description(None, setup.get("describe", {}), catalogue)
    rows, marked_by = steps_of(session.folder, int(setup.get("warmup", 0)))
    nodes = nodes_of(session)
    traces = {
        int(path.name.split(".")[0].removeprefix("rank")): path for path in session.folder.glob("traces/rank*.gz")
    }
    if not traces:
        rows = [row | {"kind": "warmup"} if row["kind"] == "profiled" else row for row in rows]
    facts: dict[str, Any] = {"steps_marked_by": _MARKED_BY[marked_by] if marked_by else "nothing"}
    facts |= _not_profiled(session.folder, rows, len(traces))
    if setup.get("steps") == "log" and marked_by != "log":
        others = f"steps are marked by {_MARKED_BY[marked_by]}" if marked_by else "nothing else marked steps"
        facts["no_line_matched"] = f"fewer than two lines of the log matched --step-pattern; {others}"
    ranks = session.ranks()
    versions: dict[str, str] = next((rank["versions"] for rank in ranks), {})
    facts |= _rank_facts(ranks) | {"job_commit": setup.get("commit")}
    ending = _ending(session.ends(), rows, facts, versions, setup)
    try:
        run = write_run(
            results / "runs",
            described,
            nodes,
            traces,
            rows,
            source=SOURCE,
            catalogue=catalogue,
            study=setup.get("study", RECORDED),
            ending=ending,
        )
    except NothingRecordedError:
        outcome = _describe_outcome(ending.status, ending.facts)
        early = "the job ended before its first sample and step, so no run is written"
        raise NothingRecordedError(f"record: {outcome}; {early}" if outcome else f"record: {early}") from None
    redact_logs(session.folder / "logs")
    shutil.copytree(session.folder / "logs", results / "runs" / run / "raw" / "logs", dirs_exist_ok=True)
    shutil.rmtree(session.folder, ignore_errors=True)
    return run


def _rank_facts(ranks: Sequence[Mapping[str, Any]]) -> dict[str, str | None]:
    """Return the facts in the reports of ranks: script, libraries and variables; empty without ranks."""
    if not ranks:
        return {}
    values: dict[str, list[str]] = {}
    for rank in ranks:
        for name, value in rank.get("variables", {}).items():
            values.setdefault(name, []).append(value)
    # Paths of caches and files change nothing.
    settings = {name: "|".join(dict.fromkeys(values[name])) for name in sorted(values) if not name.endswith(_PLACES)}
    collective = {name: value for name, value in settings.items() if name.startswith(COLLECTIVE_SETTINGS)}
    others = {name: value for name, value in settings.items() if name not in collective}
    return {
        **ranks[0].get("facts", {}),
        "collective_settings": _joined(collective) or "none: defaults of the library",
        "environment": _joined(others) or "none",
    }


def _joined(settings: Mapping[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in settings.items())


def notes_of(manifest: Manifest) -> list[str]:
    """Return notes on a recorded run for its user: the outcome of the job, missing steps and traces."""
    outcome = _describe_outcome(manifest.status, manifest.facts)
    return ([outcome] if outcome else []) + [
        str(manifest.facts[name]) for name in (NO_STEP, "no_line_matched", "not_profiled") if name in manifest.facts
    ]


def _describe_outcome(status: Status, facts: Mapping[str, Any]) -> str:
    """Return outcome, cause and exit status of a job that failed or was told to end; empty for any other job."""
    if not (ending := facts.get("ending")):
        return ""
    exit_status = facts.get("exit_status")
    adds_status = (
        exit_status and exit_status > 0 and status is not Status.CANCELLED and f"status {exit_status}" not in ending
    )
    label = "" if status is Status.OK else f"{status.label}: "
    return f"{label}{ending}{f' (exit status {exit_status})' if adds_status else ''}"


def _not_profiled(folder: Path, rows: Sequence[Mapping[str, Any]], num_traces: int) -> dict[str, str]:
    """Return the fact that requested steps were not profiled, with the reason; empty if all were.

    Args:
        folder: Folder of the recording.
        rows: Marked steps.
        num_traces: Number of traces.
    """
    if not (folder / REQUEST).is_file():
        return {}
    request = load_json((folder / REQUEST).read_text())
    first, last = request["first"], request["first"] + request["num"] - 1
    profiled = len({row["step"] for row in rows if row["kind"] == "profiled"})
    if not num_traces and (marked := sorted((folder / RANGES).glob("rank*"))):
        window = f"steps {first} to {last} are in ranges 'iteration N' of {marked[0].read_text()}"
        return {"not_profiled": f"{window}: 'triplepoint import' the trace of the profiler that ran outside"}
    if not num_traces:
        num = max((int(row["step"]) for row in rows), default=-1) + 1
        reason = (
            "no rank wrote a trace; ranks need torch, NVTX or ROCTX, no profiler of their own, and room on the disk"
        )
        if num <= first:
            reason = f"the job ended after {num} steps, counted from 0" if rows else "no step was marked"
        return {"not_profiled": f"steps {first} to {last} were not profiled: {reason}"}
    if 0 < profiled < request["num"]:
        return {"not_profiled": f"{profiled} of steps {first} to {last} profiled: the job ended before the others"}
    return {}


def steps_of(folder: Path, num_warmup: int) -> tuple[list[dict[str, Any]], str | None]:
    """Return the steps that the most certain source marked, and that source; None if no step was marked.

    Args:
        folder: Folder of the recording.
        num_warmup: Number of first steps that are warm-up.
    """
    rows = [row for path in sorted(folder.glob("steps/*.jsonl")) for row in _lines(path)]
    for source in ("log", *SOURCES):
        chosen = _of_longest_process([row for row in rows if row["by"] == source])
        if not chosen:
            continue
        first = min(row["step"] for row in chosen)
        kinds: dict[int, str] = {}
        for row in chosen:
            kinds[row["step"]] = _strongest(row["kind"], kinds.get(row["step"], "measured"))
        for row in chosen:
            is_early = row["step"] < first + num_warmup and kinds[row["step"]] == "measured"
            row["kind"] = "warmup" if is_early else kinds[row["step"]]
        return [{name: value for name, value in row.items() if name not in ("by", "pid")} for row in chosen], source
    return [], None


def _of_longest_process(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return for each rank the steps of the process that marked most of them.

    A rank may have several processes, since launchers restart ranks and scripts may train several times.
    """
    num = Counter((row["rank"], row.get("pid")) for row in rows)
    longest: dict[int, Any] = {}
    for rank, pid in num:
        if rank not in longest or num[rank, pid] >= num[rank, longest[rank]]:
            longest[rank] = pid
    return [row for row in rows if row.get("pid") == longest[row["rank"]]]


def _strongest(kind: str, other: str) -> str:
    """Return the kind that a step has if ranks disagree: profiled before warm-up before measured."""
    return max(kind, other, key=("measured", "warmup", "profiled").index)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the JSON lines of a file up to the first damaged one: a kill may leave an incomplete last line."""
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            yield load_json(line)
        except json.JSONDecodeError:
            return


def nodes_of(session: Session) -> list[RecordedNode]:
    """Return the nodes of a recording, with the GPUs of their ranks.

    Raises:
        UserError: If the recording of no node began.
    """
    reports = session.nodes()
    if not reports:
        raise UserError(f"{session.folder}: this recording ended before its first sample; remove the folder")
    ranks = session.ranks()
    by_host = {report["host"]: [rank for rank in ranks if rank["host"] == report["host"]] for report in reports}
    nodes = []
    for report in reports:
        path = session.folder / "telemetry" / f"{report['host']}.arrow"
        gpus: list[RecordedGpu] = []
        has_samples = path.is_file() and path.stat().st_size > 0
        if has_samples and report["device"] != "cpu":
            facts = read_recording(path).facts.get("gpus", [])
            gpus = _gpus(facts, by_host[report["host"]], report["visible"])
        nodes.append(
            RecordedNode(
                host=report["host"],
                gpus=gpus,
                recording=path if has_samples else None,
                monotonic_ns=report["monotonic_ns"],
                wall_ns=report["wall_ns"],
                num_ranks=max(1, len(by_host[report["host"]])),
                num_cores=report["num_cores"],
                memory_bytes=report["memory_bytes"],
            )
        )
    gpu_ranks = [gpu.rank for node in nodes for gpu in node.gpus]
    if sorted(rank for rank in gpu_ranks if rank is not None) != list(range(len(gpu_ranks))):
        # Some ranks are not known: all ranks are then in the order of hosts and devices, as launchers assign them.
        return [replace(node, gpus=[replace(gpu, rank=None) for gpu in node.gpus]) for node in nodes]
    return nodes


def _gpus(
    facts: Sequence[Mapping[str, Any]], ranks: Sequence[Mapping[str, Any]], visible: Sequence[str] | None
) -> list[RecordedGpu]:
    """Return the GPUs of a node that its ranks computed on; all visible GPUs if no rank reported.

    Args:
        facts: Facts of the GPUs in the recording.
        ranks: Reports of the ranks of the node.
        visible: GPUs that the scheduler made visible; None if it did not say.
    """
    known = {gpu["device"]: gpu for gpu in facts if "unusable" not in gpu}
    rank_of_device: dict[str, int | None] = {}
    for rank in ranks:
        index = rank["local_rank"] if rank["device"] is None else rank["device"]
        names = rank["visible"].split(",") if rank["visible"] else None
        name = names[index % len(names)] if names else str(index)
        rank_of_device[devices_of_ranks([name], facts, 1)[0][0]] = rank["rank"]
    if not rank_of_device:
        rank_of_device = dict.fromkeys(devices_of_ranks(visible, facts, len(visible))[0] if visible else known)
    return [
        RecordedGpu(device, known[device].get("product"), known[device].get("uuid"), _slot(known[device]), rank)
        for device, rank in rank_of_device.items()
        if device in known
    ]


def _slot(gpu: Mapping[str, Any]) -> int | None:
    """Return the physical slot of a GPU; None if it is not a number."""
    slot = gpu.get("slot")
    return int(str(slot)) if str(slot).isdigit() else None


def _ending(
    ends: Sequence[Mapping[str, Any]],
    rows: Sequence[Mapping[str, Any]],
    facts: dict[str, Any],
    versions: Mapping[str, str],
    setup: Mapping[str, Any],
) -> Ending:
    """Return the outcome of a job, and add its facts to `facts`.

    It is ok if no process failed, or if the job was told to end by a signal after measured steps. Such a signal
    explains every failure except out of memory, since launchers then end with exit statuses and messages of their own.

    Args:
        ends: Ends of its processes.
        rows: Marked steps.
        facts: Facts of the run, changed in place.
        versions: Versions of its software.
        setup: Content of `session.json`.
    """
    facts["command"] = " ".join(setup.get("command") or (ends[0]["command"] if ends else ["unknown"]))
    failed = [end for end in ends if end["status"] not in (0, None)]
    if not ends:
        facts["ending"] = "its end is not known: 'triplepoint record' was killed, or the disk was full"
        return Ending(facts=facts, versions=versions)
    facts["exit_status"] = failed[0]["status"] if failed else ends[0]["status"]
    if not failed:
        if told_to_end := [end for end in ends if _told_by(end) is not None]:
            facts["ending"] = _message(Status.CANCELLED, told_to_end[0])
        return Ending(facts=facts, versions=versions)
    status, end = min(
        ((_status_of(end), end) for end in failed),
        key=lambda pair: (pair[0] is not Status.OOM, pair[0] is Status.CANCELLED, is_aftershock(_message(*pair))),
    )
    facts["ending"] = message = _message(status, end)
    is_measured = any(row["kind"] == "measured" for row in rows) or (setup.get("steps") == "none" and not rows)
    if status is Status.CANCELLED and is_measured:
        return Ending(facts=facts, versions=versions)
    evidence = Evidence(
        rank=end["rank"] if len(ends) > 1 else None,
        host=end["host"],
        message=message,
        log_tail=tuple(end["log_tail"][-LOG_TAIL_LINES:]),
    )
    return Ending(status, evidence, facts, versions)


def _status_of(end: Mapping[str, Any]) -> Status:
    """Return the status of a process by its exit status, its log, signals and kills for lack of memory."""
    if end["num_host_kills"] > 0 and _first_ended(end)[1] == -signal.SIGKILL:
        return Status.OOM
    in_log = classify("\n".join(end["log_tail"]))
    is_told = _signal_of(end["status"]) is not None or (_told_by(end) is not None and in_log is not Status.OOM)
    return Status.CANCELLED if is_told else in_log


def _signal_of(status: int | None) -> signal.Signals | None:
    """Return the one of `ENDING_SIGNALS` that an exit status stands for, as -N or as 128 + N; None for none."""
    return next((number for number in ENDING_SIGNALS if status in (-number, 128 + number)), None)


def _told_by(end: Mapping[str, Any]) -> signal.Signals | None:
    """Return the signal that told a process to end, by its watcher or its exit status; None for none."""
    return signal.Signals(end["told_by"]) if end.get("told_by") else _signal_of(end["status"])


def _message(status: Status, end: Mapping[str, Any]) -> str:
    """Return one line on the end of a process: the line of its log with the cause, else its exit status."""
    told_by = _told_by(end)
    if status is Status.CANCELLED and told_by is not None:
        return _TOLD[told_by]
    rank, exit_status = _first_ended(end)
    exited = f"{rank}{describe_exit(exit_status)}"
    if status is Status.OOM and exit_status == -signal.SIGKILL:
        return f"{HOST_MEMORY}: the kernel ended it; {exited}"
    of_status = [line.strip() for line in end["log_tail"] if status is not Status.CRASHED and classify(line) is status]
    errors = [line.strip() for line in end["log_tail"] if _ERROR.search(line)]
    causes = [line for line in errors if not _OF_LAUNCHER.search(line)]
    first_causes = [line for line in causes if not is_aftershock(line)]
    if not of_status and (exit_status in _WORDLESS or (rank and exit_status != 1 and not first_causes)):
        return exited
    if not rank and exit_status > 0 and end["log_tail"]:
        exited = f"exited with status {exit_status}; its last line is: {end['log_tail'][-1].strip()}"
    return str((of_status or first_causes[-1:] or causes[-1:] or errors[-1:] or [exited])[0][:1000])


def _first_ended(end: Mapping[str, Any]) -> tuple[str, int]:
    """Return the rank that ended first and its exit status, that of a signal negative.

    The rank is that of the launcher's log, else the one seen by the watcher. If neither names one, the status is that
    of the process, and the rank is empty.
    """
    for line in end["log_tail"]:
        if match := next(filter(None, (pattern.search(line) for pattern in _RANK_ENDED)), None):
            groups = match.groupdict()
            status = -int(groups["signal"]) if groups.get("signal") else _BY_SIGNAL.get(groups.get("words"))
            status = int(groups["status"]) if status is None and groups.get("status") else status
            if status not in (None, -signal.SIGTERM):
                return f"{'local ' if 'local_rank' in match.re.pattern else ''}rank {groups['rank']} ", status
    if end.get("first_failed"):
        rank, status = end["first_failed"]
        return f"rank {rank} ", status
    status = end["status"]
    return "", 128 - status if 128 < status <= 128 + signal.SIGRTMAX else status


def next_common_step(folder: Path) -> int:
    """Return a step that all ranks will hear of before they reach it: one second ahead, three steps at least.

    Raises:
        UserError: If no rank marks its steps.
    """
    rows = [row for path in folder.glob("steps/*.jsonl") for row in list(_lines(path))[-20:]]
    if not rows:
        raise UserError(
            f"{folder}: no rank has marked a step yet, and the profiled window starts at a step; try again later, or "
            "see docs/own_job.md"
        )
    shortest_ns = max(1, min(row["t_end_ns"] - row["t_start_ns"] for row in rows))
    last = max(int(row["step"]) for row in rows)
    return last + max(3, -(-NS_PER_S // int(shortest_ns)))
