"""A real Slurm cluster on one machine: six slurmd with fake GPUs, a controller, and accounting in MariaDB.

Each slurmd has a host name of its own in a UTS namespace. Ranks see the name of their node, and the namespace
identifies all processes of a node. /etc/slurm links to the configuration, because Snakemake's executor removes
SLURM_CONF from the environment of its jobs.
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
"""Folder of the cluster. The path is short, because paths of sockets are limited."""
TOOLS = ("munged", "slurmctld", "slurmd", "slurmdbd", "mariadbd", "mariadb-install-db", "sbatch", "sacct", "unshare")
START_S = 60.0


class Refused(Exception):  # noqa: N818  (what happened, not a class of error)
    """The cluster cannot or must not be started on this machine. The message is one line."""


class Cluster:
    """The test cluster. It can be started, stopped, and damaged on purpose.

    Attributes:
        nodes: Names of the nodes.
        root: Folder of its files.
    """

    nodes = tuple(node.name for node in settings.NODES)

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root

    def up(self) -> None:
        """Start all daemons that do not run, and wait until every node is ready."""
        self._start()
        _wait_for(self._all_ready, "nodes ready")

    def _start(self) -> None:
        self._check_machine()
        self._write_files()
        self.start_munge()
        self.start_accounting()
        self.start_controller()
        for node in self.nodes:
            self.start_node(node)

    def down(self) -> None:
        """End all jobs and daemons of this cluster and remove its files, if there are any."""
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

    def is_up(self) -> bool:
        """Return whether the controller of this cluster runs."""
        return self._pid("slurmctld") is not None

    def start_controller(self) -> None:
        """Start slurmctld unless it runs."""
        if self._pid("slurmctld") is None:
            _run("slurmctld")
        _wait_for(lambda: _succeeds("scontrol", "ping"), "slurmctld")

    def kill_controller(self) -> None:
        """Kill slurmctld with SIGKILL, so that it does not save its state."""
        if pid := self._pid("slurmctld"):
            os.kill(pid, signal.SIGKILL)
            _wait_for(lambda: self._pid("slurmctld") is None, "end of slurmctld")

    def start_node(self, node: str) -> None:
        """Start the slurmd of a node unless it runs."""
        if self._pid(f"slurmd.{node}") is None:
            _run("unshare", "-u", "sh", "-c", f"hostname {node} && exec slurmd -N {node}")
            _wait_for(lambda: self._pid(f"slurmd.{node}") is not None, f"slurmd of {node}")

    def kill_node(self, node: str) -> None:
        """Kill slurmd, step daemons and all tasks of a node with SIGKILL, like a power failure."""
        pid = self._pid(f"slurmd.{node}")
        namespace = _uts_namespace(pid) if pid else None
        while namespace and (processes := [p for p in _processes() if _uts_namespace(p) == namespace]):
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            time.sleep(0.05)

    def revive(self) -> None:
        """Restart all killed daemons, and return every node to service."""
        self._start()
        _wait_for(self._resume_nodes, "nodes ready")

    def mend(self) -> None:
        """Restart all killed daemons, end every job, and wait until every node is idle."""
        self._start()
        _run("sh", "-c", "squeue -h -o %A | xargs -r scancel")
        self.revive()
        _wait_for(self._all_idle, "idle nodes", 120)

    def _resume_nodes(self) -> bool:
        """Return nodes that are down or drained to service; return whether all nodes are ready."""
        # A killed controller assigns job numbers twice. A node that notices this is drained.
        for line in _output_of("sinfo", "-hN", "-o", "%N %T").splitlines():
            node, state = line.split()
            if state.startswith(("down", "drain")):
                _succeeds("scontrol", "update", f"NodeName={node}", "State=RESUME")
        return self._all_ready()

    def _check_machine(self) -> None:
        if os.geteuid() != 0:
            raise Refused("the test cluster needs root: it writes /etc/slurm and /etc/hosts")
        missing = [tool for tool in TOOLS if shutil.which(tool) is None]
        if missing:
            raise Refused(f"{', '.join(missing)} not found; .ci/run installs the packages")
        present = [ETC / name for name in settings.FILES if (ETC / name).exists()]
        foreign = [path for path in present if not _is_below(path, self.root)]
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
        hosts = HOSTS.read_text()
        lines = [f"127.0.0.1 {node} {HOSTS_MARK}\n" for node in self.nodes if f" {node} {HOSTS_MARK}" not in hosts]
        HOSTS.write_text(hosts + "".join(lines))

    def stop_munge(self) -> None:
        """Stop munged. Without it, no command of Slurm can authenticate."""
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
        _run("munged", "--force", *(f"--{name}={value}" for name, value in options.items()))
        _wait_for(lambda: _succeeds("munge", "-S", str(run / "munge.sock"), "-n"), "munged")

    def kill_accounting(self) -> None:
        """Kill slurmdbd with SIGKILL. slurmctld keeps what it would have stored."""
        if pid := self._pid("slurmdbd"):
            os.kill(pid, signal.SIGKILL)
            _wait_for(lambda: self._pid("slurmdbd") is None, "end of slurmdbd")

    def start_accounting(self) -> None:
        """Start the database and slurmdbd unless they run."""
        if self._pid("mariadb") is None:
            self._start_database()
        if self._pid("slurmdbd") is None:
            _run("slurmdbd")
        _wait_for(lambda: _succeeds("sacctmgr", "-n", "list", "cluster"), "slurmdbd")
        if not _output_of("sacctmgr", "-nP", "list", "cluster", "triplepoint", "format=cluster"):
            _run("sacctmgr", "-i", "add", "cluster", "triplepoint")

    def _start_database(self) -> None:
        data, run = self.root / "mysql", self.root / "run"
        if not (data / "mysql").is_dir():
            options = ("--no-defaults", "--user=root", "--auth-root-authentication-method=socket", "--skip-test-db")
            _run("mariadb-install-db", *options, f"--datadir={data}")
        command = ["mariadbd", "--no-defaults", "--user=root", f"--datadir={data}", f"--socket={run}/mysql.sock"]
        command += [f"--pid-file={run}/mariadb.pid", f"--port={settings.DATABASE_PORT}", "--bind-address=127.0.0.1"]
        # A small cache, and no flush at commits: nobody needs the contents after the tests.
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
        _wait_for(lambda: _succeeds(*client, "select 1"), "mariadbd")
        user = "slurm@'127.0.0.1'"
        _run(
            *client,
            f"create database if not exists slurm_acct_db; create user if not exists {user} identified by 'slurm';"
            f" grant all on slurm_acct_db.* to {user};",
        )

    def _pid(self, daemon: str) -> int | None:
        """Return the process ID of a daemon of this cluster, None if it does not run."""
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
        state_of = dict(line.split() for line in _output_of("sinfo", "-hN", "-o", "%N %T").splitlines())
        return all(state_of.get(node) in ("idle", "allocated", "mixed", "completing") for node in self.nodes)

    def _all_idle(self) -> bool:
        return set(_output_of("sinfo", "-hN", "-o", "%T").split()) == {"idle"} and not _output_of("squeue", "-h")


def _wait_for(condition: Callable[[], bool], what: str, timeout_s: float = START_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise Refused(f"no {what} within {timeout_s:.0f} s")
        time.sleep(0.1)


def _run(*command: str) -> None:
    """Run a command that has to succeed."""
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise Refused(f"{command[0]}: {(done.stderr or done.stdout).strip()[-300:]}")


def _succeeds(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL).returncode == 0


def _output_of(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout.strip()


def _is_below(path: Path, root: Path) -> bool:
    return path.is_symlink() and root in path.readlink().parents


def _processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").glob("[0-9]*")]


def _name(pid: int) -> str | None:
    """Return the name of a process, None if it has ended or is a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    name, _, rest = text.partition("(")[2].rpartition(")")
    return None if rest.split()[0] == "Z" else name


def _uts_namespace(pid: int) -> str | None:
    """Return the UTS namespace of a process, None if it has ended."""
    try:
        return str(Path(f"/proc/{pid}/ns/uts").readlink())
    except OSError:
        return None
