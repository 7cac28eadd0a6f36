"""Columns of `triplepoint predict --published`: what is misspelt is refused, what is not read is named."""

import csv
from pathlib import Path

import pytest

from tests.unit.published.cells import NEMOTRON
from triplepoint.cli import main
from triplepoint.published.table import read_table

DATA = Path(__file__).parents[2] / "data"


def predict(folder: Path, row: dict[str, str], header: list[str] | None = None) -> int:
    with (folder / "in.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([header or list(row), list(row.values())])
    return main(["predict", "--published", str(folder / "in.csv"), str(folder / "out.csv")])


@pytest.mark.parametrize(
    ("column", "misspelt"),
    [
        ("recompute", "recomput"),
        ("precision", "Precison"),
        ("gpu", "gpus"),
        ("gpu", "GPU"),
        ("n_gpus", "ngpus"),
        ("kv_heads", "kv heads"),
        ("mbs", "micro_batch_size"),
        ("gbs", "global_batch_size"),
        ("seq", "sequence_length"),
        ("params_B", "params_b"),
    ],
)
def test_misspelt_column_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], column: str, misspelt: str
) -> None:
    header = [misspelt if name == column else name for name in NEMOTRON]
    assert predict(tmp_path, NEMOTRON, header) == 2
    said = capsys.readouterr().err
    assert f"in.csv: unknown column '{misspelt}' (did you mean '{column}'?)" in said
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize(
    ("name", "meant"), [("dtype", "precision"), ("network", "interconnect"), ("stack", "framework")]
)
def test_column_that_others_call_so_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, meant: str
) -> None:
    assert predict(tmp_path, NEMOTRON, [name if column == meant else column for column in NEMOTRON]) == 2
    assert f"unknown column '{name}' (did you mean '{meant}'?)" in capsys.readouterr().err


def test_misspelt_column_beside_the_right_one_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert predict(tmp_path, NEMOTRON | {"precison": "FP8"}) == 2
    assert "unknown column 'precison' (did you mean 'precision'?)" in capsys.readouterr().err


def test_columns_of_the_output_are_passed_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert predict(tmp_path, NEMOTRON | {"status": "ok", "mfu": "0.5", "memory_gib": "60"}) == 0
    assert "columns left unread: 'status', 'mfu', 'memory_gib'" in capsys.readouterr().err


def test_column_that_stands_twice_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert predict(tmp_path, NEMOTRON | {"": "8"}, [*NEMOTRON, "tp"]) == 2
    assert "column 'tp' is there 2 times; keep one" in capsys.readouterr().err


def test_columns_that_are_not_read_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    others = {"step_time_s": "1.5", "kind": "measured", "nodes": "2", "gpus": "16"} | {f"x{n}": "" for n in range(9)}
    assert predict(tmp_path, NEMOTRON | others) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("predict: columns left unread: 'step_time_s', 'kind', 'nodes', 'gpus', 'x0'")
    assert line.endswith("'x5' and 3 more")


def test_only_known_columns_say_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert predict(tmp_path, NEMOTRON) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "name",
    [
        "throughput/training_throughput",
        "throughput/vtrain_single_node",
        "throughput/public_training",
        "throughput/public_megatron_bridge",
        "node_power/training",
    ],
)
def test_published_tables_are_still_read(name: str) -> None:
    assert len(read_table(DATA / f"{name}.csv")) >= 6
