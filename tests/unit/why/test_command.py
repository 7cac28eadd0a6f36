"""`triplepoint why`: text, JSON, tables, and what users get wrong."""

import json
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.synthetic import H200, Spec, build
from tests.unit.why.test_recorded import COLUMNS, SOUND, T0_NS, S
from triplepoint.cli import main
from triplepoint.errors import USER_ERROR
from triplepoint.recorded.description import Description
from triplepoint.recorded.run import RecordedGpu, RecordedNode, write_run
from triplepoint.recording import Part
from triplepoint.tables.why import WHY
from triplepoint.telemetry.align import align_run

DATA = Path(__file__).parents[2] / "data" / "stragglers"


def test_text_of_a_table_of_operations(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", str(DATA / "trace-AR.parquet")]) == 0
    text = capsys.readouterr().out
    assert text.startswith(
        "trace-AR.parquet: rank 0 is slow, cause: computation; it costs 50.5 % of each step, 776 GPU hours a day\n"
    )
    assert "64 GPUs, 44 recorded steps of 46.65 s (mean), from a table of operations" in text
    assert "slowdown 1.976" in text
    assert "rank 0  computation  50.5" in text


def test_json_and_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "why.parquet"
    assert main(["why", str(DATA / "trace-ST.parquet"), "--json", "-o", str(out)]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["share_of_last_stage"] == pytest.approx(1.22, rel=0.01)
    assert [(row["gpu"], row["cause"]) for row in content["causes"]] == [("stage 3", "layers")]
    assert content["causes"][0]["lost_energy_per_day_j"] is None
    assert WHY.read(out).to_pylist() == content["causes"]


def test_gpu_hours_are_of_the_whole_job(capsys: pytest.CaptureFixture[str]) -> None:
    main(["why", str(DATA / "trace-AR.parquet"), "--json"])
    (row,) = json.loads(capsys.readouterr().out)["causes"]
    assert row["lost_gpu_hours_per_day"] == pytest.approx(row["lost_share"] * 64 * 24)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: None, "no such file"),
        (lambda path: path.write_text("dp_rank,stage"), "not a readable Parquet file"),
        (lambda path: pq.write_table(pa.table({"stage": [1]}), path), "no column dp_rank"),
        (lambda path: pq.write_table(pq.read_table(DATA / "trace-ST.parquet").slice(1), path), "6783 rows"),
        (lambda path: pq.write_table(pq.read_table(DATA / "trace-ST.parquet").slice(0, 0), path), "no rows"),
    ],
)
def test_bad_table_is_one_line(make, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "trace.parquet"
    make(path)
    assert main(["why", str(path)]) == USER_ERROR
    error = capsys.readouterr().err
    assert said in error and str(path) in error and error.count("\n") == 1


def test_folder_that_is_no_run_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", str(tmp_path)]) == USER_ERROR
    assert f"{tmp_path}: no trace files" in capsys.readouterr().err


def test_why_of_loose_traces_that_name_no_stages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    traces = sorted(str(path) for path in (DATA.parent / "traces").glob("gloo_rank?.json.gz"))
    assert main(["trace", *traces, "--out", str(tmp_path / "out")]) == 0
    capsys.readouterr()
    assert main(["why", str(tmp_path / "out")]) == 0
    text = capsys.readouterr().out
    assert "2 ranks" in text and "GPU" not in text


def test_why_takes_a_folder_of_traces_and_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(2):
        name = f"gloo_rank{rank}.json.gz"
        (tmp_path / name).symlink_to(DATA.parent / "traces" / name)
    assert main(["why", str(tmp_path), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert (content["source"], content["num_gpus"], content["name"]) == ("traces", 2, str(tmp_path))
    assert main(["why", str(tmp_path / "gloo_rank1.json.gz"), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["source"] == "one rank"
    assert any("rank 1 alone was traced" in note for note in content["notes"])


def test_ending_of_a_table_is_checked_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", "nothing", "-o", str(tmp_path / "a.txt")]) == USER_ERROR
    assert ".parquet" in capsys.readouterr().err


def test_energy_that_nobody_measured_has_no_column(capsys: pytest.CaptureFixture[str]) -> None:
    main(["why", str(DATA / "trace-AR.parquet")])
    text = capsys.readouterr().out
    assert "GPU h/day" in text and "kWh" not in text
    assert "46.43 s without late starts, and would take 23.5 s if equal operations lasted equally long" in text


def test_beginning_of_a_run_names_it_if_it_is_the_only_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    t_ns = T0_NS + np.arange(20) * S
    for name in ("alone", "twice-1", "twice-2"):
        parts = [Part("gpu0", t_ns, np.zeros(20, int), COLUMNS, np.tile(SOUND, (20, 1)))]
        host = RecordedNode("a", [RecordedGpu("gpu0", "NVIDIA H100 80GB HBM3", "GPU-a-0")], parts, period_s=1.0)
        marks = [
            {
                "rank": 0,
                "step": one,
                "kind": "measured",
                "t_start_ns": T0_NS + one * S,
                "t_end_ns": T0_NS + (one + 1) * S,
            }
            for one in range(10)
        ]
        made = write_run(tmp_path / "runs", Description(), [host], {}, marks, source="test")
        run = (tmp_path / "runs" / made).rename(tmp_path / "runs" / name)
        align_run(run / "raw", run / "telemetry.parquet")
    assert main(["why", "alo", "--results", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("alone: there is no other GPU to compare it with\n")
    assert "1 GPU, 10 measured steps of 1 s (mean), from step times" in text
    assert main(["why", "twi", "--results", str(tmp_path)]) == USER_ERROR
    error = capsys.readouterr().err
    assert "2 runs begin like this: twice-1, twice-2" in error and error.count("\n") == 1


@pytest.mark.parametrize("engine", ["simulated", "megatron"])
def test_simulated_run_is_said_to_be_simulated(
    engine: Literal["simulated", "megatron"], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = Spec("gpt3-175b", {"tp": 8, "pp": 4, "schedule": "1f1b"}, cluster=H200, engine=engine)
    build(tmp_path, [spec])
    assert main(["why", spec.run, "--results", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert text.splitlines()[0].startswith(f"{spec.run}{' (simulated)' * (engine == 'simulated')}: ")
    kinds = ("simulated", "measured") if engine == "simulated" else ("measured", "simulated")
    assert f"{kinds[0]} steps: " in text and f"{kinds[1]} step" not in text
    assert ("no GPU was measured" in text) == (engine == "simulated")
    assert main(["why", spec.run, "--results", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["origin"] == kinds[0]


def test_folder_of_runs_says_to_name_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = Spec("tiny-llama", {"dp": 4})
    build(tmp_path, [spec])
    run = tmp_path / "runs" / spec.run
    for folder in (tmp_path, tmp_path / "runs"):
        assert main(["why", str(folder)]) == USER_ERROR
        error = capsys.readouterr().err
        assert error == f"triplepoint: {folder}: a folder of runs; name one of them, such as {run}\n"
