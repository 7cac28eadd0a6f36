"""Traces that come through pipes."""

import gzip
import io
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from triplepoint.cli import main
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
