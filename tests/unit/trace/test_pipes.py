"""Traces that come through pipes."""

import gzip
import io
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.launchers import wait_until
from triplepoint.cli import main
from triplepoint.errors import UserError
from triplepoint.trace.pipes import STDIN, spool_pipes

DATA = Path(__file__).parents[2] / "data" / "traces"
TRACE = DATA / "dlrm_v100_rank0.json.gz"


def feed(pipe: Path, content: bytes) -> threading.Thread:
    thread = threading.Thread(target=pipe.write_bytes, args=(content,))
    thread.start()
    return thread


def test_files_and_folders_are_left_as_they_are(tmp_path: Path) -> None:
    arguments = [TRACE, tmp_path, tmp_path / "missing.json"]
    assert spool_pipes(arguments, tmp_path / "scratch", lambda line: None) == arguments
    assert not (tmp_path / "scratch").exists()


def test_pipes_are_files_of_their_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipes = [tmp_path / "rank0.json", tmp_path / "rank1.json"]
    threads = []
    for pipe in reversed(pipes):  # written in the other order than they are named in
        os.mkfifo(pipe)
        threads.append(feed(pipe, pipe.name.encode()))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"[]")))
    said: list[str] = []
    found = spool_pipes([pipes[0], STDIN, pipes[1]], tmp_path / "scratch", said.append)
    assert [path.read_bytes() for path in found] == [b"rank0.json", b"[]", b"rank1.json"]
    assert [path.name for path in found] == ["rank0.json", "stdin", "rank1.json"]
    assert said == [f"reading what comes through {pipes[0]}, -, {pipes[1]}"]
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("content", [TRACE.read_bytes(), gzip.decompress(TRACE.read_bytes())], ids=["gz", "plain"])
def test_trace_on_standard_input_gives_the_tables_of_the_file(tmp_path: Path, content: bytes) -> None:
    command = [sys.executable, "-m", "triplepoint", "trace", "-", "--csv", "--out", str(tmp_path / "piped")]
    subprocess.run(command, input=content, check=True, capture_output=True)
    assert main(["trace", str(TRACE), "--csv", "--out", str(tmp_path / "file")]) == 0
    for name in ("kernels.csv", "breakdown.csv"):
        assert (tmp_path / "piped" / name).read_text() == (tmp_path / "file" / name).read_text()
    assert not list((tmp_path / "piped").glob(".ranks-*"))


def test_recording_of_another_profiler_comes_through_a_pipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipe = tmp_path / "rank3.rpd"
    os.mkfifo(pipe)
    thread = feed(pipe, gzip.decompress((DATA / "mi200_matmul.rpd.gz").read_bytes()))
    assert main(["trace", str(pipe), "--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.startswith("rank 3: 2964.071 ms with 85 GPU events\n")
    thread.join()


@pytest.mark.parametrize("word", ["/dev/zero", "/dev/null", "-"])
def test_device_is_refused(tmp_path: Path, word: str) -> None:
    command = [sys.executable, "-m", "triplepoint", "trace", word, "--out", str(tmp_path / "out")]
    with Path("/dev/zero").open("rb") as zeros:
        done = subprocess.run(command, stdin=zeros, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (
        2, f"triplepoint: {word}: is a device, which may have no end; expected a trace file, a folder or a pipe\n"
    )  # fmt: skip
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("content", [bytes(1 << 20), b" " * (1 << 20)], ids=["zeros", "blanks"])
def test_pipe_that_does_not_start_as_a_trace_is_read_no_further(tmp_path: Path, content: bytes) -> None:
    pipe = tmp_path / "rank0.json"
    os.mkfifo(pipe)
    thread = feed(pipe, content)
    with pytest.raises(
        UserError,
        match=r"rank0.json: starts with '.*', expected text, SQLite, or gzip or zstd of it; unpack an archive",
    ):
        spool_pipes([pipe], tmp_path / "scratch", lambda line: None)
    thread.join()


def test_pipe_leaves_a_reserve_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = tmp_path / "rank0.json"
    os.mkfifo(pipe)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(total=10**12, free=10**9))
    thread = feed(pipe, b"[]")
    with pytest.raises(UserError, match=r"^rank0.json: after 0.0 GB from this pipe, only 1.0 GB of the disk"):
        spool_pipes([pipe], tmp_path / "scratch", lambda line: None)
    thread.join()


def test_copy_of_a_pipe_is_removed_on_sigterm(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "triplepoint", "trace", "-", "--out", str(tmp_path / "out")]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(b"[" + b"{}," * (1 << 20))
        process.stdin.flush()
        wait_until(lambda: bool(list(tmp_path.glob("out/.ranks-*/pipes/0/stdin"))), "the copy of the pipe")
        process.terminate()
        assert process.wait() == -signal.SIGTERM
    assert not list(tmp_path.glob("out/.ranks-*"))


@pytest.mark.parametrize(
    ("content", "message"), [(b"", "the file is empty"), (b"<html>", "this is an HTML or XML page")]
)
def test_nothing_useful_on_a_pipe_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, message: str
) -> None:
    pipe = tmp_path / "rank0.json"
    os.mkfifo(pipe)
    thread = feed(pipe, content)
    assert main(["trace", str(pipe), "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.startswith(f"triplepoint: rank0.json: {message}")
    assert not (tmp_path / "out").exists()
    thread.join()
