"""A recording: what it is told before its job starts, and while it is under way its folder, processes and nodes."""

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

import psutil

from triplepoint.config.catalogue import Catalogue
from triplepoint.config.yaml_file import read_yaml
from triplepoint.errors import UserError
from triplepoint.files import write_json
from triplepoint.launch.slurm import placement
from triplepoint.processes import has_ended, start_ticks
from triplepoint.provenance import COLLECTIVE_SETTINGS, OTHER_SETTINGS, git_state
from triplepoint.recorded.description import read_description
from triplepoint.recorded.marks import REQUEST, SETUP, rank_of
from triplepoint.recorded.studies import RECORDED, check_study

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What tells a job to end: Ctrl-C, a scheduler or `kill`, a terminal that was closed."""
_JOB_VARIABLES = (
    ("SLURM_JOB_ID", "SLURM_STEP_ID"),
    ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"),
    ("PMIX_NAMESPACE",),
    ("OMPI_MCA_ess_base_jobid",),
    ("MASTER_ADDR", "MASTER_PORT"),
)
"""Variables that all ranks of a job have alike, and other jobs not: of Slurm, torchrun, Open MPI and what sets torch's
own, such as DeepSpeed's launcher; the first line of which all are there counts."""
_GATHER_S = 30.0
"""How long the process that samples waits for others on its node once its own has ended. Our choice: ranks of a job end
within seconds of each other."""


def job_key(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return what all ranks of a job call their recording; None for a process that is no rank of a launcher's."""
    if not any(name in environment for name in ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")):
        return None
    for names in _JOB_VARIABLES:
        if all(environment.get(name) for name in names):
            return re.sub(r"[^A-Za-z0-9.-]+", "-", "-".join(environment[name] for name in names))[:100]
    return None


def open_folder(results: Path) -> Path:
    """Return the folder of the recordings that are under way."""
    return results / RECORDED / "open"


class Session:
    """One recording under way."""

    def __init__(self, folder: Path) -> None:
        """Use the recording in `folder`."""
        self.folder = folder
        self.host = socket.gethostname()
        self.problem: OSError | None = None
        """Why its end could not be noted, such as a full disk."""
        self._lock: int | None = None

    @classmethod
    def join(cls, results: Path, setup: Mapping[str, Any], key: str | None) -> "Session":
        """Return the recording of a job, begun by whichever of its processes comes first.

        Args:
            results: Folder of results.
            setup: What the command line says; that of the first process counts.
            key: `job_key`; None for a recording of one's own.
        """
        name = key or f"{socket.gethostname()}-{os.getpid()}-{time.time_ns() // 1_000_000_000}"
        for number in range(1, 10_000):
            session = cls(open_folder(results).resolve() / (name if number == 1 else f"{name}-{number}"))
            for folder in ("nodes", "members", "steps", "ranks", "logs", "telemetry", "traces", "ends"):
                (session.folder / folder).mkdir(parents=True, exist_ok=True)
            if not session.is_left():
                break
        with contextlib.suppress(FileExistsError), (session.folder / SETUP).open("x") as file:
            json.dump(dict(setup), file)
        session.join_as(os.getpid())
        return session

    def is_left(self) -> bool:
        """Return whether this node's part of it was begun by processes that have all gone: an earlier job's."""
        members = self.members()
        return bool(members) and not any(self._is_alive(member) for member in members)

    def setup(self) -> dict[str, Any]:
        """Return what its first process was told.

        Raises:
            UserError: If the folder is none of a recording.
        """
        for _ in range(50):  # another process may be about to write it
            with contextlib.suppress(OSError, ValueError):
                found: dict[str, Any] = json.loads((self.folder / SETUP).read_text(encoding="utf-8"))
                return found
            time.sleep(0.02)
        raise UserError(f"{self.folder}: not a recording; expected a folder that 'triplepoint record' wrote")

    def join_as(self, pid: int) -> None:
        """Note a process of this node that belongs to the job."""
        member = {"host": self.host, "pid": pid, "ticks": start_ticks(pid)}
        write_json(self.folder / "members" / f"{self.host}-{pid}.json", member)

    def leave(self, pid: int) -> None:
        """Note that a process of this node no longer belongs to the job, though it goes on."""
        (self.folder / "members" / f"{self.host}-{pid}.json").unlink(missing_ok=True)

    def members(self) -> list[dict[str, Any]]:
        """Return the processes of this node that take part."""
        return self._read_all(f"members/{self.host}-*.json")

    def leave_end(
        self,
        status: int | None,
        command: Sequence[str],
        said: Sequence[str],
        num_host_kills: int = 0,
        told_by: int | None = None,
        first_failed: tuple[int, int] | None = None,
    ) -> None:
        """Note how this process, or the command it watched, ended.

        Args:
            status: Exit status, the signal as a negative number; None where it is not known.
            command: What was run.
            said: The last lines of its log.
            num_host_kills: Processes the kernel ended meanwhile for want of memory.
            told_by: First of `ENDING_SIGNALS` that came before it ended; None for none.
            first_failed: Rank of the command that was seen to fail first, with its exit status; None for none.
        """
        end = {"rank": rank_of(), "host": self.host, "status": status, "num_host_kills": num_host_kills}
        end |= {"told_by": told_by, "first_failed": first_failed}
        end |= {"command": list(command), "log_tail": list(said)}
        self._note_end(self.folder / "ends" / f"{self.host}-{os.getpid()}.json", end)

    def claim_node(self) -> bool:
        """Return whether this process is the one to sample on its node: the first that asks."""
        self._lock = os.open(self.folder / "nodes" / f"{self.host}.lock", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            self._lock = None
        return self._lock is not None

    def begin_node(self, device: str) -> None:
        """Note this node, with both of its clocks at one instant."""
        report = {
            "host": self.host,
            "monotonic_ns": time.monotonic_ns(),
            "wall_ns": time.time_ns(),
            "num_cores": os.cpu_count(),
            "memory_bytes": psutil.virtual_memory().total,
            "device": device,
            "visible": placement()["devices"],
            "rank": int(os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or 0),
        }
        write_json(self.folder / "nodes" / f"{self.host}.json", report)

    def has_begun(self) -> bool:
        """Return whether this node is sampled."""
        return (self.folder / "nodes" / f"{self.host}.json").is_file()

    def end_node(self, sampler_ends: list[dict[str, Any]]) -> None:
        """Note that nothing more comes from this node."""
        path = self.folder / "nodes" / f"{self.host}.json"
        self._note_end(path, json.loads(path.read_text()) | {"ended": True, "sampler_ends": sampler_ends})

    def _note_end(self, path: Path, content: dict[str, Any]) -> None:
        """Write a file about the end; a full disk must not take the job's exit status with it."""
        try:
            write_json(path, content)
        except OSError as error:
            self.problem = error

    def nodes(self) -> list[dict[str, Any]]:
        """Return what is known of each node, in the order of ranks."""
        found = self._read_all("nodes/*.json")
        first = {rank["host"]: rank["rank"] for rank in reversed(self.ranks())}
        return sorted(found, key=lambda node: (first.get(node["host"], node["rank"]), node["host"]))

    def ranks(self) -> list[dict[str, Any]]:
        """Return what ranks that marked steps say of themselves, by rank."""
        return sorted(self._read_all("ranks/*.json"), key=lambda rank: int(rank["rank"]))

    def ends(self) -> list[dict[str, Any]]:
        """Return how its processes ended, by rank."""
        return sorted(self._read_all("ends/*.json"), key=lambda end: int(end["rank"]))

    def _read_all(self, pattern: str) -> list[dict[str, Any]]:
        """Return what stands in files of the recording; one that its node lost power over is left out."""
        found = []
        for path in self.folder.glob(pattern):
            with contextlib.suppress(ValueError):
                found.append(json.loads(path.read_text(encoding="utf-8")))
        return found

    def wait_for_others(self) -> None:
        """Wait until the other processes of this node have ended, for a while."""
        deadline = time.monotonic() + _GATHER_S
        while time.monotonic() < deadline:
            others = [member for member in self.members() if member["pid"] != os.getpid()]
            if not any(self._is_alive(member) for member in others):
                return
            time.sleep(0.05)

    def is_over(self) -> bool:
        """Return whether every node that began has ended."""
        nodes = self.nodes()
        return bool(nodes) and all(node.get("ended") for node in nodes)

    def claim_finish(self) -> bool:
        """Return whether this process is the one to make a run of it."""
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
    """Return what stands in `session.json`.

    Args:
        command: The job, for its name and the record.
        config: Folder of the configuration, for models and clusters that are named.
        study: Study of recorded runs it belongs to.
        describe: YAML file of what is known of the job; None for none.
        settings: The same as single settings, which go before the file's.
        name: What the job is called; None: as its script.
        warmup: First marked steps that are not measured.
        folder: Folder the job runs in, of which the commit is noted; None where it is not known.

    Raises:
        UserError: If one of them is wrong.
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
    """Return what stands in `session.json` with more known of the job, or other than was said before.

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
    """Return the first step of a window and the one after its last.

    Raises:
        UserError: If the text is no window.
    """
    found = re.fullmatch(r"(\d{1,7}):(\d{1,7})", text)
    if not found or int(found[1]) >= int(found[2]):
        raise UserError(f"record: --profile {text[:40]!r}: expected FIRST:LAST, such as 20:22 for steps 20 and 21")
    return int(found[1]), int(found[2])


def ask_for_window(session: Path, first: int, last: int) -> None:
    """Ask the ranks of a recording to profile the steps from `first` up to, not including, `last`."""
    write_json(session / REQUEST, {"first": first, "num": last - first, "ranks": None})
