"""A real Slurm on one machine: six slurmd with GPUs that do not exist, a controller, and accounting in MariaDB.

Each slurmd has a host name of its own (a UTS namespace), so ranks see the name of their node, and all processes of a
node can be told by that namespace. The configuration is linked from /etc/slurm: Snakemake's executor removes SLURM_CONF
from the environment of its jobs.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tests.slurm import settings

ETC = Path("/etc/slurm")
HOSTS = Path("/etc/hosts")
HOSTS_MARK = "# triplepoint test cluster"
ROOT = Path("/var/tmp/triplepoint-slurm")
"""Short, since sockets lie in it."""
TOOLS = ("munged", "slurmctld", "slurmd", "slurmdbd", "mariadbd", "mariadb-install-db", "sbatch", "sacct", "unshare")
START_S = 60.0


class Refused(Exception):  # noqa: N818  (what happened, not a class of error)
    """The cluster cannot or must not be started here. The message is one line."""


class Cluster:
    """The cluster in a folder: brought up, taken down, and hurt on purpose."""

    nodes = tuple(node.name for node in settings.NODES)

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root

    def up(self) -> None:
        """Bring up whatever does not run yet, and wait until every node is ready."""
        self._start()
        _wait_for(self._all_ready, "nodes ready")

    def _start(self) -> None:
        self._check_machine()
        self._write_files()
        self.start_munge()
        self._start_accounting()
        self.start_controller()
        for node in self.nodes:
            self.start_node(node)

    def down(self) -> None:
        """End every job and daemon of this cluster and remove its files; nothing happens where there is none."""
        for node in self.nodes:
            self.kill_node(node)
        for daemon in ("slurmctld", "slurmdbd", "mariadb", "munged"):
            self._stop(daemon)
        for name in settings.FILES:
            if _is_below(ETC / name, self.root):
                (ETC / name).unlink()
        kept = [line for line in HOSTS.read_text().splitlines() if not line.endswith(HOSTS_MARK)]
        HOSTS.write_text("\n".join(kept) + "\n")
        shutil.rmtree(self.root, ignore_errors=True)

    def is_there(self) -> bool:
        """Return whether this very cluster was brought up, in whatever state it is now."""
        return self._pid("slurmctld") is not None

    def start_controller(self) -> None:
        """Start slurmctld unless it runs."""
        if self._pid("slurmctld") is None:
            _call("slurmctld")
        _wait_for(lambda: _tells("scontrol", "ping"), "slurmctld")

    def kill_controller(self) -> None:
        """Kill slurmctld with SIGKILL: it saves nothing."""
        if pid := self._pid("slurmctld"):
            os.kill(pid, signal.SIGKILL)
            _wait_for(lambda: self._pid("slurmctld") is None, "end of slurmctld")

    def start_node(self, node: str) -> None:
        """Start a node's slurmd unless it runs."""
        if self._pid(f"slurmd.{node}") is None:
            _call("unshare", "-u", "sh", "-c", f"hostname {node} && exec slurmd -N {node}")
            _wait_for(lambda: self._pid(f"slurmd.{node}") is not None, f"slurmd of {node}")

    def kill_node(self, node: str) -> None:
        """Kill a node as a power cut would: slurmd, its step daemons and all tasks, with SIGKILL."""
        pid = self._pid(f"slurmd.{node}")
        namespace = _uts(pid) if pid else None
        while namespace and (processes := [p for p in _processes() if _uts(p) == namespace]):
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            time.sleep(0.05)

    def revive(self) -> None:
        """Start again whatever has been killed, and take back every node."""
        self._start()
        _wait_for(self._all_taken_back, "nodes ready")

    def mend(self) -> None:
        """Start again whatever has been killed, end every job, and wait until every node is idle."""
        self._start()
        _call("sh", "-c", "squeue -h -o %A | xargs -r scancel")
        self.revive()
        _wait_for(self._all_idle, "idle nodes", 120)

    def _all_taken_back(self) -> bool:
        # A controller that was killed gives job ids out twice, and a node that notices is drained.
        for line in _answer("sinfo", "-hN", "-o", "%N %T").splitlines():
            node, state = line.split()
            if state.startswith(("down", "drain")):
                _tells("scontrol", "update", f"NodeName={node}", "State=RESUME")
        return self._all_ready()

    def _check_machine(self) -> None:
        if os.geteuid() != 0:
            raise Refused("the test cluster needs root: it writes /etc/slurm and /etc/hosts")
        missing = [tool for tool in TOOLS if shutil.which(tool) is None]
        if missing:
            raise Refused(f"{', '.join(missing)} not found; .ci/run installs the packages")
        written = [ETC / name for name in settings.FILES if (ETC / name).exists()]
        foreign = [path for path in written if not _is_below(path, self.root)]
        if foreign:
            raise Refused(f"{foreign[0]} is not of the test cluster; this machine has a Slurm of its own")
        if "SLURM_CONF" in os.environ:
            raise Refused("SLURM_CONF is set; this machine has a Slurm of its own")
        ours = {self._pid(name) for name in ("slurmctld", "slurmdbd", *(f"slurmd.{node}" for node in self.nodes))}
        for pid in _processes():
            if pid not in ours and _name(pid) in ("slurmctld", "slurmd", "slurmdbd"):
                raise Refused(f"process {pid} is a {_name(pid)} of another Slurm")

    def _write_files(self) -> None:
        for folder in ("etc", "state", "spool", "log", "run", "dev"):
            (self.root / folder).mkdir(parents=True, exist_ok=True)
        for i in range(settings.GPUS_PER_NODE):
            if not (device := self.root / f"dev/gpu{i}").is_symlink():
                device.symlink_to("/dev/null")
        key = self.root / "etc/munge.key"
        if not key.exists():
            key.touch(0o600)
            key.write_bytes(os.urandom(128))
        first = self.root / "etc/first_job_id"
        if not first.exists():
            first.write_text(str(int(time.time()) // 10 % 60_000_000 + 1))
        texts = {
            "slurm.conf": settings.slurm_conf(self.root, int(first.read_text())),
            "gres.conf": settings.gres_conf(self.root),
            "topology.conf": settings.TOPOLOGY_CONF,
            "cgroup.conf": settings.CGROUP_CONF,
            "slurmdbd.conf": settings.slurmdbd_conf(self.root),
        }
        ETC.mkdir(exist_ok=True)
        for name, text in texts.items():
            path = self.root / "etc" / name
            path.touch(0o600 if name == "slurmdbd.conf" else 0o644)
            path.write_text(text)
            if not (ETC / name).is_symlink():
                (ETC / name).symlink_to(path)
        known = HOSTS.read_text()
        lines = [f"127.0.0.1 {node} {HOSTS_MARK}\n" for node in self.nodes if f" {node} {HOSTS_MARK}" not in known]
        HOSTS.write_text(known + "".join(lines))

    def stop_munge(self) -> None:
        """Stop munged: no command of Slurm can prove who calls it."""
        self._stop("munged")

    def start_munge(self) -> None:
        """Start munged unless it runs."""
        if self._pid("munged") is not None:
            return
        run = self.root / "run"
        options = {
            "key-file": self.root / "etc/munge.key",
            "socket": run / "munge.sock",
            "pid-file": run / "munged.pid",
            "log-file": self.root / "log/munged.log",
            "seed-file": run / "munged.seed",
        }
        _call("munged", "--force", *(f"--{name}={value}" for name, value in options.items()))
        _wait_for(lambda: _tells("munge", "-S", str(run / "munge.sock"), "-n"), "munged")

    def _start_accounting(self) -> None:
        if self._pid("mariadb") is None:
            self._start_database()
        if self._pid("slurmdbd") is None:
            _call("slurmdbd")
        _wait_for(lambda: _tells("sacctmgr", "-n", "list", "cluster"), "slurmdbd")
        if not _answer("sacctmgr", "-nP", "list", "cluster", "triplepoint", "format=cluster"):
            _call("sacctmgr", "-i", "add", "cluster", "triplepoint")

    def _start_database(self) -> None:
        data, run = self.root / "mysql", self.root / "run"
        if not (data / "mysql").is_dir():
            options = ("--no-defaults", "--user=root", "--auth-root-authentication-method=socket", "--skip-test-db")
            _call("mariadb-install-db", *options, f"--datadir={data}")
        command = ["mariadbd", "--no-defaults", "--user=root", f"--datadir={data}", f"--socket={run}/mysql.sock"]
        command += [f"--pid-file={run}/mariadb.pid", f"--port={settings.DATABASE_PORT}", "--bind-address=127.0.0.1"]
        # Small and careless: what it holds is worth nothing after the tests.
        command += ["--innodb-buffer-pool-size=64M", "--innodb-lock-wait-timeout=900", "--performance-schema=0"]
        command += ["--innodb-flush-log-at-trx-commit=0", "--skip-name-resolve", f"--log-error={self.root}/log/mariadb"]
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        client = ("mariadb", "--no-defaults", "-uroot", "-S", f"{run}/mysql.sock", "-e")
        _wait_for(lambda: _tells(*client, "select 1"), "mariadbd")
        user = "slurm@'127.0.0.1'"
        _call(
            *client,
            f"create database if not exists slurm_acct_db; create user if not exists {user} identified by 'slurm';"
            f" grant all on slurm_acct_db.* to {user};",
        )

    def _pid(self, daemon: str) -> int | None:
        """Return the process of a daemon of this cluster, or None if it does not run."""
        try:
            pid = int((self.root / f"run/{daemon}.pid").read_text())
        except (OSError, ValueError):
            return None
        return pid if (_name(pid) or "-") in (daemon.partition(".")[0], f"{daemon}d") else None

    def _stop(self, daemon: str) -> None:
        pid = self._pid(daemon)
        if pid is None:
            return
        os.kill(pid, signal.SIGTERM)
        with contextlib.suppress(Refused):
            _wait_for(lambda: self._pid(daemon) is None, f"end of {daemon}", 10)
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def _all_ready(self) -> bool:
        found = dict(line.split() for line in _answer("sinfo", "-hN", "-o", "%N %T").splitlines())
        return all(found.get(node) in ("idle", "allocated", "mixed", "completing") for node in self.nodes)

    def _all_idle(self) -> bool:
        return set(_answer("sinfo", "-hN", "-o", "%T").split()) == {"idle"} and not _answer("squeue", "-h")


def _wait_for(holds: Callable[[], bool], what: str, timeout_s: float = START_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            raise Refused(f"no {what} within {timeout_s:.0f} s")
        time.sleep(0.1)


def _call(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise Refused(f"{command[0]}: {(done.stderr or done.stdout).strip()[-300:]}")


def _tells(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL).returncode == 0


def _answer(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout.strip()


def _is_below(path: Path, root: Path) -> bool:
    return path.is_symlink() and root in path.readlink().parents


def _processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").glob("[0-9]*")]


def _name(pid: int) -> str | None:
    """Return the name of a process; None if it has ended, also where its parent has not yet asked how."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    name, _, rest = text.partition("(")[2].rpartition(")")
    return None if rest.split()[0] == "Z" else name


def _uts(pid: int) -> str | None:
    try:
        return str(Path(f"/proc/{pid}/ns/uts").readlink())
    except OSError:
        return None
