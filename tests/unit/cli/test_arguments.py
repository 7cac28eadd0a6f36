"""Arguments that make no sense, and places that cannot be written: one line and status 2, before any work is done."""

import argparse
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from triplepoint.cli import main
from triplepoint.cli.arguments import run_folder

ROOT = Path(__file__).parents[3]
TRACE = ROOT / "tests" / "data" / "traces" / "dlrm_v100_rank0.json.gz"
TABLE = ROOT / "tests" / "data" / "throughput" / "vtrain_single_node.csv"


def refused(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    assert main([str(word) for word in words]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    return line


NUMBERS = [
    ("overhead out.json", "--pairs", ("0", "-1", "1", "5", "nan", "1.5", "1e3", "999999999999999999999")),
    ("overhead out.json", "--fast-period", ("0", "-1", "nan", "inf", "1e-9", "x")),
    ("characterise out.json", "--seconds", ("0", "-1", "nan", "inf", "1e9")),
    ("sample out.arrow", "--period", ("0", "-1", "nan", "1e-9", "1e9")),
    ("sample out.arrow", "--fast-period", ("0", "-1", "nan", "1e-9", "1e9")),
    ("aggregate", "--jobs", ("0", "-1", "99999999")),
    ("parse run 0-1", "--jobs", ("0", "-1", "99999999")),
    ("trace rank0.json --out out", "--jobs", ("0", "-1", "99999999")),
    ("calibrate in.csv", "--max-gpus", ("0", "-1", "1e99")),
    ("doctor", "--nodes", ("0", "-1", "99999999")),
    ("doctor", "--ranks", ("0", "-1", "99999999")),
    ("doctor", "--largest", ("0", "-1", "99999999")),
    ("doctor", "--measure", ("0", "-1", "nan", "inf")),
]


@pytest.mark.parametrize(
    ("command", "option", "value"),
    [(command, option, value) for command, option, values in NUMBERS for value in values],
)
def test_number_that_makes_no_sense(capsys: pytest.CaptureFixture[str], command: str, option: str, value: str) -> None:
    line = refused(capsys, *command.split(), f"{option}={value}")
    assert f"{option}: found '{value[:40]}', expected" in line


@pytest.mark.parametrize(
    "command",
    ["predict {} out.csv", "predict --published {} out.csv", "calibrate {}", "calibrate --kernels {} --gpu h200"],
)
def test_table_that_is_a_pipe(capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    line = refused(capsys, *command.format(tmp_path / "pipe").split())
    assert "is a folder, pipe or device, expected a file" in line


def test_unknown_option_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(capsys, "overhead", "out.json", "--pair")
    assert line == "triplepoint: overhead: argument --pairs: expected one argument; see 'triplepoint overhead --help'"


@pytest.mark.parametrize(
    "command",
    [
        "overhead {out} --device cpu --pairs 6",
        "characterise {out}",
        "sample {out}",
        f"predict --published {TABLE} {{out}}",
        "predict config/studies/smoke.yaml {out}",
        f"calibrate {TABLE} --out {{out}}",
        "report --out {out}",
        "figure timeline --out {out}",
        f"trace {TRACE} --out {{out}}",
    ],
)
def test_place_that_cannot_be_written(capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str) -> None:
    (tmp_path / "file").write_text("in the way")
    line = refused(capsys, *command.format(out=tmp_path / "file" / "below").split())
    assert f"{tmp_path / 'file'} is not a folder; move it away, or use another path" in line
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("command", ["overhead {out}", f"predict --published {TABLE} {{out}}", "report --out {out}"])
def test_folder_where_a_file_belongs(capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str) -> None:
    assert "is a folder, expected a file" in refused(capsys, *command.format(out=tmp_path).split())


def test_folder_without_permission(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)  # root may write anywhere
    assert "cannot be written into" in refused(capsys, "overhead", tmp_path / "out.json")


@pytest.mark.parametrize("command", ["plan", "plan --write", "doctor"])
def test_results_that_are_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str) -> None:
    (tmp_path / "results").write_text("in the way")
    line = refused(capsys, *command.split(), "--results", tmp_path / "results")
    assert "a part of this path is a file, not a folder; move the file away, or use another path" in line


@pytest.mark.parametrize("option", ["--collectives", "--kernels"])
def test_folder_that_is_no_table(capsys: pytest.CaptureFixture[str], tmp_path: Path, option: str) -> None:
    assert str(tmp_path) in refused(capsys, "calibrate", option, tmp_path)


def test_trace_into_a_folder_made_for_it(tmp_path: Path) -> None:
    trace = shutil.copy(TRACE, tmp_path)
    assert main(["trace", str(trace), "--out", str(tmp_path / "new" / "out"), "--jobs", "1"]) == 0
    assert (tmp_path / "new" / "out" / "ranks.parquet").is_file()


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"loop": ["a"], "pair": [0], "step_s": [0.1]}, "no column is_sampled"),
        ({"loop": ["a"], "pair": [0], "is_sampled": [True], "step_s": [0.1]}, "no pair of blocks"),
    ],
)
def test_overhead_of_another_recording(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, columns: dict[str, list], expected: str
) -> None:
    pq.write_table(
        pa.table({name: np.array(values) for name, values in columns.items()}), tmp_path / "overhead.parquet"
    )
    line = refused(capsys, "overhead", tmp_path / "out.json", "--from", tmp_path)
    assert f"overhead.parquet: {expected}" in line


@pytest.mark.parametrize("folder", ["results/runs/a_r1_123456", "copied/a_r1_123456"])
def test_run_is_named_by_its_folder_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / folder / "point.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    named = argparse.Namespace(run=folder, results=Path("here"))
    assert run_folder(named) == tmp_path / folder
    results = tmp_path / "results" if folder.startswith("results") else Path("here")
    assert (named.run, named.results) == ("a_r1_123456", results)
    (tmp_path / "here/runs/a_r1_123456").mkdir(parents=True)
    (tmp_path / "here/runs/a_r1_123456/point.json").write_text("{}")
    assert run_folder(named) == tmp_path / folder  # asked again, not another run of that name


def test_run_id_goes_before_a_folder_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a_r1_123456").mkdir()
    (tmp_path / "here/runs/a_r1_123456").mkdir(parents=True)
    (tmp_path / "here/runs/a_r1_123456/point.json").write_text("{}")
    named = argparse.Namespace(run="a_r1_123456", results=Path("here"))
    assert run_folder(named) == Path("here/runs/a_r1_123456")


def test_export_of_a_run_outside_of_the_results(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "a_r1_123456").mkdir()
    (tmp_path / "a_r1_123456/point.json").write_text("{}")
    line = refused(capsys, "export", tmp_path / "a_r1_123456", "--to", "chakra", "--out", tmp_path / "out")
    assert "a run outside of RESULTS/runs is in no table" in line
