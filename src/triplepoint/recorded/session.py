"""A recording in progress: its setup, and its folder with processes, nodes, ranks and ends."""

import contextlib
import fcntl
import json
import os
import re
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from triplepoint.config.catalogue import Catalogue
from triplepoint.config.yaml_file import read_yaml
from triplepoint.errors import UserError
from triplepoint.files import load_json, write_json
from triplepoint.launch.slurm import placement
from triplepoint.processes import has_ended, start_ticks
from triplepoint.provenance import COLLECTIVE_SETTINGS, OTHER_SETTINGS, git_state, host_memory_bytes
from triplepoint.recorded.description import read_description
from triplepoint.recorded.marks import REQUEST, SETUP, rank_of
from triplepoint.recorded.studies import RECORDED, check_study

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that tell a job to end: from Ctrl-C, a scheduler or `kill`, a closed terminal."""
_JOB_VARIABLES = (
    ("SLURM_JOB_ID", "SLURM_STEP_ID"),
    ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"),
    ("PMIX_NAMESPACE",),
    ("OMPI_MCA_ess_base_jobid",),
    ("MASTER_ADDR", "MASTER_PORT"),
)
"""Variables that are equal for all ranks of a job and differ between jobs: of Slurm, torchrun, PMIx, Open MPI, and of
launchers that set torch's variables, such as DeepSpeed's. The first line whose variables are all set is used."""
_GATHER_S = 30.0
"""Longest time that the sampling process waits for other processes of its node after its own has ended. Our choice:
ranks of a job end within seconds of each other."""


def job_key(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the name of the recording for all ranks of a job; None for a process that no launcher started."""
    if not any(name in environment for name in ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")):
        return None
    for names in _JOB_VARIABLES:
        if all(environment.get(name) for name in names):
            return re.sub(r"[^A-Za-z0-9.-]+", "-", "-".join(environment[name] for name in names))[:100]
    return None


def open_folder(results: Path) -> Path:
    """Return the folder of the recordings in progress."""
    return results / RECORDED / "open"


class Session:
    """A recording in progress, as one process of its job sees it.

    Attributes:
        folder: Folder of the recording.
        host: Name of this host.
        problem: Error in writing the end of the recording, such as a full disk; None without an error.
    """

    def __init__(self, folder: Path) -> None:
        """Use the recording in a folder."""
        self.folder = folder
        self.host = socket.gethostname()
        self.problem: OSError | None = None
        self._lock: int | None = None

    @classmethod
    def join(cls, results: Path, setup: Mapping[str, Any], key: str | None) -> "Session":
        """Join the recording of a job, which its first process creates.

        Args:
            results: Folder of results.
            setup: Content of `session.json`; that of the first process is used.
            key: `job_key`; None for a recording of this process alone.
        """
        name = key or f"{socket.gethostname()}-{os.getpid()}-{time.time_ns() // 1_000_000_000}"
        for number in range(1, 10_000):
            session = cls(open_folder(results).resolve() / (name if number == 1 else f"{name}-{number}"))
            for folder in ("nodes", "members", "steps", "ranks", "logs", "telemetry", "traces", "ends"):
                # Until the recording is over, logs may show secrets that the job prints.
                (session.folder / folder).mkdir(0o700 if folder == "logs" else 0o777, parents=True, exist_ok=True)
            if not session.is_abandoned():
                break
        with contextlib.suppress(FileExistsError), (session.folder / SETUP).open("x") as file:
            json.dump(dict(setup), file)
        session.add_member(os.getpid())
        return session

    def is_abandoned(self) -> bool:
        """Return whether all processes of this node that joined the recording have ended: it is of an earlier job."""
        members = self.members()
        return bool(members) and not any(self._is_alive(member) for member in members)

    def setup(self) -> dict[str, Any]:
        """Return the content of `session.json`.

        Raises:
            UserError: If the folder is not that of a recording.
        """
        for _ in range(50):  # another process may be about to write it
            with contextlib.suppress(OSError, ValueError):
                setup: dict[str, Any] = load_json((self.folder / SETUP).read_text(encoding="utf-8"))
                return setup
            time.sleep(0.02)
        raise UserError(f"{self.folder}: not a recording; expected a folder that 'triplepoint record' wrote")

    def add_member(self, pid: int) -> None:
        """Add a process of this node to the processes of the job."""
        member = {"host": self.host, "pid": pid, "ticks": start_ticks(pid)}
        write_json(self.folder / "members" / f"{self.host}-{pid}.json", member)

    def remove_member(self, pid: int) -> None:
        """Remove a process of this node that continues after the recording."""
        (self.folder / "members" / f"{self.host}-{pid}.json").unlink(missing_ok=True)

    def members(self) -> list[dict[str, Any]]:
        """Return the processes of this node that belong to the job."""
        return self._read_all(f"members/{self.host}-*.json")

    def note_end(
        self,
        status: int | None,
        command: Sequence[str],
        log_tail: Sequence[str],
        num_host_kills: int = 0,
        told_by: int | None = None,
        first_failed: tuple[int, int] | None = None,
    ) -> None:
        """Write how this process, or the command it watched, ended.

        Args:
            status: Exit status; of a signal its negative number; None if not known.
            command: The command.
            log_tail: Last lines of its log.
            num_host_kills: Number of processes that the kernel killed for lack of memory during the recording.
            told_by: First of `ENDING_SIGNALS` that was received; None for none.
            first_failed: First rank that failed, with its exit status; None if not seen.
        """
        end = {"rank": rank_of(), "host": self.host, "status": status, "num_host_kills": num_host_kills}
        end |= {"told_by": told_by, "first_failed": first_failed}
        end |= {"command": list(command), "log_tail": list(log_tail)}
        self._write(self.folder / "ends" / f"{self.host}-{os.getpid()}.json", end)

    def claim_node(self) -> bool:
        """Return whether this process samples its node: the first process that asks does."""
        self._lock = os.open(self.folder / "nodes" / f"{self.host}.lock", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            self._lock = None
        return self._lock is not None

    def begin_node(self, device: str) -> None:
        """Write the report of this node, with both of its clocks at one instant."""
        report = {
            "host": self.host,
            "monotonic_ns": time.monotonic_ns(),
            "wall_ns": time.time_ns(),
            "num_cores": os.cpu_count(),
            "memory_bytes": host_memory_bytes(),
            "device": device,
            "visible": placement()["devices"],
            "rank": int(os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or 0),
        }
        write_json(self.folder / "nodes" / f"{self.host}.json", report)

    def has_begun(self) -> bool:
        """Return whether the sampling of this node has started."""
        return (self.folder / "nodes" / f"{self.host}.json").is_file()

    def end_node(self, sampler_ends: list[dict[str, Any]]) -> None:
        """Mark the recording of this node as complete."""
        path = self.folder / "nodes" / f"{self.host}.json"
        self._write(path, load_json(path.read_text()) | {"ended": True, "sampler_ends": sampler_ends})

    def _write(self, path: Path, content: dict[str, Any]) -> None:
        """Write a file, or keep the error in `problem`: a full disk must not change the job's exit status."""
        try:
            write_json(path, content)
        except OSError as error:
            self.problem = error

    def nodes(self) -> list[dict[str, Any]]:
        """Return the reports of all nodes, in the order of ranks."""
        reports = self._read_all("nodes/*.json")
        first_rank = {rank["host"]: rank["rank"] for rank in reversed(self.ranks())}
        return sorted(reports, key=lambda node: (first_rank.get(node["host"], node["rank"]), node["host"]))

    def ranks(self) -> list[dict[str, Any]]:
        """Return the reports of the ranks that marked steps, in the order of ranks."""
        return sorted(self._read_all("ranks/*.json"), key=lambda rank: int(rank["rank"]))

    def ends(self) -> list[dict[str, Any]]:
        """Return the ends of processes, in the order of ranks."""
        return sorted(self._read_all("ends/*.json"), key=lambda end: int(end["rank"]))

    def _read_all(self, pattern: str) -> list[dict[str, Any]]:
        """Return the content of JSON files; one that is damaged, as after a loss of power, is left out."""
        contents = []
        for path in self.folder.glob(pattern):
            with contextlib.suppress(ValueError):
                contents.append(load_json(path.read_text(encoding="utf-8")))
        return contents

    def wait_for_others(self) -> None:
        """Wait until the other processes of this node have ended, `_GATHER_S` at most."""
        deadline = time.monotonic() + _GATHER_S
        while time.monotonic() < deadline:
            others = [member for member in self.members() if member["pid"] != os.getpid()]
            if not any(self._is_alive(member) for member in others):
                return
            time.sleep(0.05)

    def is_over(self) -> bool:
        """Return whether all nodes that began have ended."""
        nodes = self.nodes()
        return bool(nodes) and all(node.get("ended") for node in nodes)

    def claim_finish(self) -> bool:
        """Return whether this process writes the run: the first process that asks does."""
        try:
            (self.folder / "finish").mkdir()
        except OSError:
            return False
        return True

    def _is_alive(self, member: Mapping[str, Any]) -> bool:
        return member["ticks"] is not None and has_ended(member["pid"], member["ticks"]) is not True


def make_setup(
    command: Sequence[str],
    config: Path,
    *,
    study: str,
    describe: Path | None,
    settings: Mapping[str, Any],
    name: str | None,
    warmup: int,
    folder: Path | None = None,
) -> dict[str, Any]:
    """Return the content of `session.json`.

    Args:
        command: Command of the job.
        config: Folder of the configuration, for named models and clusters.
        study: Study of recorded runs that the run is added to.
        describe: YAML file with a description of the job; None without one.
        settings: Settings of the job, which override those of the file.
        name: Name of the job; None for the name of its script.
        warmup: Number of first marked steps that are not measured.
        folder: Folder that the job runs in, for its commit; None if not known.

    Raises:
        UserError: If an argument is wrong.
    """
    check_study(study)
    if warmup < 0:
        raise UserError(f"record: --warmup {warmup}: expected 0 or more steps")
    content = (read_yaml(describe) if describe else {}) | dict(settings)
    content["name"] = name or content.get("name") or name_of(command)
    read_description(describe, content, Catalogue(config) if config.is_dir() else None)
    commit, has_changed = git_state(folder) if folder else (None, None)
    return {
        "study": study,
        "describe": content,
        "warmup": warmup,
        "command": list(command),
        "commit": commit and f"{commit[:12]}{' with changes' if has_changed else ''}",
        "variables": [*COLLECTIVE_SETTINGS, *OTHER_SETTINGS],
    }


def describe_again(
    setup: Mapping[str, Any], config: Path, describe: Path | None, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the content of `session.json` with additional or changed settings of the job.

    Raises:
        UserError: If a key or a value is wrong.
    """
    content = {**setup.get("describe", {}), **(read_yaml(describe) if describe else {}), **settings}
    read_description(describe, content, Catalogue(config) if config.is_dir() else None)
    return {**setup, "describe": content}


def name_of(command: Sequence[str]) -> str:
    """Return the name of the script that a command runs."""
    script = next((word for word in command if word.endswith(".py")), command[0] if command else "job")
    name = re.sub(r"[^a-z0-9.-]+", "-", Path(script).name.removesuffix(".py").lower()).strip(".-")
    return name[:40] or "job"


def read_window(text: str) -> tuple[int, int]:
    """Return the first step of a profiled window, and the step after its last, from `FIRST:LAST`.

    Raises:
        UserError: If the text is not a window.
    """
    match = re.fullmatch(r"(\d{1,7}):(\d{1,7})", text)
    if not match or int(match[1]) >= int(match[2]):
        raise UserError(f"record: --profile {text[:40]!r}: expected FIRST:LAST, such as 20:22 for steps 20 and 21")
    return int(match[1]), int(match[2])


def ask_for_window(session: Path, first: int, last: int) -> None:
    """Ask the ranks of a recording to profile the steps from `first` up to, not including, `last`."""
    write_json(session / REQUEST, {"first": first, "num": last - first, "ranks": None})
