"""Jobs that are forked from a server which has imported what they need."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from triplepoint.processes import has_ended, start_ticks

SERVE = """
import os, signal, sys, time
from pathlib import Path
from triplepoint.forks import serve

def do(words):
    if words[0] == "tell":
        print(f"{Path.cwd()} {os.environ['WORD']} {sys.stdin.read()}")
        print("trouble", file=sys.stderr)
        return 3
    if words[0] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if words[0] == "exit":
        sys.exit(2)
    print(os.getpid(), flush=True)
    time.sleep(60)

serve(Path(sys.argv[1]), lambda command, folder: True, do)
"""
ASK = """
import sys
from triplepoint.ask_forks import ask
status = ask(sys.argv[1], "lean", sys.argv[2:])
sys.exit(99 if status is None else status)
"""
NOBODY = 99


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serve jobs in a folder; gives the address."""
    folder.mkdir()
    path = folder / "lean"
    with subprocess.Popen([sys.executable, "-c", SERVE, path], stdin=subprocess.PIPE) as server:
        deadline = time.monotonic() + 60
        while not path.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        yield f"{os.getpgrp()}:{folder}"
        server.communicate(timeout=60)
    assert server.returncode == 0


def ask(address: str, *words: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", ASK, address, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **options)  # type: ignore[call-overload]


def test_job_has_streams_folder_and_environment_of_its_client_and_gives_its_status(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with serving(tmp_path / "s") as address:
        for word in ("one", "two"):
            done = ask(address, "tell", cwd=elsewhere, input="input", env=os.environ | {"WORD": word})
            assert (done.returncode, done.stdout, done.stderr) == (3, f"{elsewhere} {word} input\n", "trouble\n")
        assert ask(address, "exit").returncode == 2
    assert not (tmp_path / "s").exists(), "nothing is left of a server that ended"


def test_job_that_is_killed_has_failed_with_one_line(tmp_path: Path) -> None:
    with serving(tmp_path / "s") as address:
        done = ask(address, "die")
        assert done.returncode == 137
        assert done.stderr == "triplepoint: the process of this job was killed, perhaps for lack of memory\n"
        assert ask(address, "exit").returncode == 2, "the next one is served"


def test_job_ends_with_its_client(tmp_path: Path) -> None:
    with serving(tmp_path / "s") as address:
        command = [sys.executable, "-c", ASK, address, "wait"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
            assert client.stdout is not None
            job = int(client.stdout.readline())
            ticks = start_ticks(job)
            assert ticks is not None
            client.send_signal(signal.SIGKILL)
        deadline = time.monotonic() + 60
        while not has_ended(job, ticks) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert has_ended(job, ticks)


def test_jobs_of_another_group_without_server_or_with_one_that_fails_do_their_work_themselves(tmp_path: Path) -> None:
    with serving(tmp_path / "s") as address:
        assert ask(address, "exit", start_new_session=True).returncode == NOBODY
        assert ask(f"{os.getpgrp()}:{tmp_path}/nowhere", "exit").returncode == NOBODY


def test_servers_of_snakemake_do_jobs_until_it_ends() -> None:
    status, folder, messages = _served("")
    assert status == "2" and "no such run" in messages
    assert not folder.exists()


def test_servers_of_snakemake_refuse_jobs_of_another_folder() -> None:
    elsewhere = "os.chdir('/'); status = ask(os.environ[SERVER], 'lean', ['telemetry', 'no-such-run'])"
    status, _, messages = _served(f"{elsewhere}; print(f'elsewhere: {{status}}', file=sys.stderr)")
    assert status == "2"
    assert "elsewhere: None" in messages


def test_snakemake_that_is_killed_takes_its_servers_with_it() -> None:
    status, folder, _ = _served("import signal; sys.stdout.flush(); os.kill(os.getpid(), signal.SIGKILL)")
    assert status == "2"
    deadline = time.monotonic() + 60
    while folder.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not folder.exists()


def _served(end: str) -> tuple[str, Path, str]:
    """Have the servers of Snakemake do a job, then end as told; return its status, their folder, and what it said."""
    code = (
        "import os, sys, time; from triplepoint.workflow_site import SERVED, SERVER, start_fork_servers;"
        "start_fork_servers(SERVED);"
        "from triplepoint.ask_forks import ask; from pathlib import Path;"
        "folder = Path(os.environ[SERVER].partition(':')[2]);"
        "\nwhile len(list(folder.iterdir())) < 2: time.sleep(0.02)\n"
        f"print(ask(os.environ[SERVER], 'lean', ['telemetry', 'no-such-run']), folder); {end}"
    )
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PATH": path}, timeout=120)
    status, folder = done.stdout.split()
    return status, Path(folder), done.stderr
