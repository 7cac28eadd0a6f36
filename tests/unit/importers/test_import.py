"""`triplepoint import` from a folder to tables, and what of traces and steps does not belong together."""

import gzip
import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.synthetic import CONFIG
from triplepoint.aggregate import aggregate
from triplepoint.cli import main
from triplepoint.manifest import read_manifest
from triplepoint.recorded.studies import read_recorded
from triplepoint.tables.results import RESULT_TABLES
from triplepoint.tables.traces import STEPS
from triplepoint.telemetry.align import align_run
from triplepoint.units import NS_PER_S

ROOT = Path(__file__).parents[3]
TRACES = ROOT / "tests" / "data" / "traces"
T0_S = round(datetime(2026, 5, 1, 10, tzinfo=UTC).timestamp())
STEP_S = 4
PRODUCT = "NVIDIA H100 80GB HBM3"


def stamp(second: float) -> str:
    return f"{datetime.fromtimestamp(T0_S + second, UTC):%Y/%m/%d %H:%M:%S}.{round(second % 1 * 1000):03d}"


def power_w(host: int, gpu: int, second: int) -> float:
    """Return idle power in the first and last ten seconds, else that of training."""
    return 100.0 if second < 10 or second >= 110 else 600.0 + 10 * host + gpu


def job(folder: Path, num_gpus: int = 2) -> Path:
    """Write two hosts' nvidia-smi logs of two minutes and a CSV of 25 steps."""
    for host in range(2):
        rows = [
            f"{stamp(second + 0.01 * gpu)}, {gpu}, {PRODUCT}, {power_w(host, gpu, second):.2f} W, {50 + gpu}, 1980 MHz"
            for second in range(120)
            for gpu in range(num_gpus)
        ]
        header = "timestamp, index, name, power.draw [W], temperature.gpu, clocks.current.sm [MHz]"
        path = folder / f"n{host}" / "smi.csv"
        path.parent.mkdir(parents=True)
        path.write_text("\n".join([header, *rows]) + "\n")
    steps = [
        f"{n},{T0_S + 10 + n * STEP_S},{T0_S + 10 + (n + 1) * STEP_S},{'measured' if n else 'warmup'}"
        for n in range(25)
    ]
    (folder / "steps.csv").write_text("\n".join(["step,start,end,kind", *steps]) + "\n")
    return folder


def do(*words: object) -> int:
    return main([str(word) for word in ("import", *words, "--config", CONFIG)])


def point(results: Path) -> dict[str, object]:
    """Return the row of `points` of the only run."""
    (run,) = (results / "runs").iterdir()
    align_run(run / "raw", run / "telemetry.parquet")
    aggregate(read_recorded(results), results, CONFIG)
    (row,) = RESULT_TABLES["points"].read(results / "tables" / "recorded" / "points.parquet").to_pylist()
    return row


def test_note_on_power_is_of_the_column_that_was_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = job(tmp_path / "logs")
    for path in folder.glob("*/smi.csv"):
        path.write_text(path.read_text().replace("power.draw [W]", "power.draw.instant [W]"))
    assert do(folder, "--timezone", "UTC", "--results", tmp_path / "r") == 0
    out = capsys.readouterr().out
    assert "shows: nvidia-smi CSV: An instantaneous reading sees 25 of every 100 ms" in out
    assert "a mean of about 1 s" not in out


def test_import_of_logs_and_steps_gives_time_power_and_heat(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = job(tmp_path / "logs")
    assert do(folder, "--steps", folder / "steps.csv", "--timezone", "UTC", "--results", tmp_path / "r") == 0
    out = capsys.readouterr().out
    assert out.startswith(f"imported as {tmp_path / 'r/runs/job_own-h100x4_r1_'}")
    assert (
        "24 measured steps on 4 GPUs, 4 s in the median, 606 W a GPU in the mean, at most 51 degC"
        in out.splitlines()[0]
    )
    assert "n0: 2 GPUs, 240 samples, each device every 1 s" in out and "steps: 1 warmup, 24 measured" in out
    assert "shows: nvidia-smi CSV: power.draw is a mean of about 1 s" in out
    assert "instantaneous reading" not in out
    row = point(tmp_path / "r")
    assert (row["gpu"], row["num_gpus"], row["origin"], row["tp"]) == ("h100", 4, "measured", None)
    assert row["step_time_s"] == pytest.approx(STEP_S)
    # The first sample of the first measured step may still hold the mean of the second before.
    assert row["job_gpu_power_w"] == pytest.approx(4 * 600 + 2 * 10 + 2 * 1, rel=0.01)
    assert row["gpu_power_peak_w"] is None, "a mean of a second has no peak"
    assert row["gpu_temp_max_c"] == 51 and row["sm_clock_mhz"] == 1980


def test_import_says_in_json_what_came_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = job(tmp_path / "logs")
    assert do(folder, "--timezone", "UTC", "--results", tmp_path / "r", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [host["host"] for host in found["hosts"]] == ["n0", "n1"] and found["steps"] == {}
    assert found["formats"] == {"nvidia-smi CSV": 2} and found["others"] == [str(folder / "steps.csv")]
    assert (tmp_path / "r" / "runs" / found["run"] / "point.json").is_file()


def test_import_says_notes_of_a_kind_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = job(tmp_path / "logs")
    for path in folder.glob("*/smi.csv"):  # a minute copied twice, and a line that a full disk cut off
        lines = path.read_text().splitlines()
        path.write_text("\n".join([*lines, *lines[1:61], "2026/05/01 10:0"]))
    assert do(folder, "--timezone", "UTC", "--results", tmp_path / "r", "--name", "my-job") == 0
    out = capsys.readouterr().out
    notes = [line for line in out.splitlines() if line.startswith("note: ")]
    assert notes == [
        "note: smi.csv: line 302, the last, has no line end and is left out: it may be half of one (in all 2 files)",
        "note: n0: gpu0: 30 times come twice for gpu_power_average_w; once is taken "
        "(in all 3 columns of 4 GPUs of 2 hosts)",
    ]
    assert "runs/my-job_own-h100x4_r1_" in out.splitlines()[0]


def test_import_of_some_gpus_and_hosts(tmp_path: Path) -> None:
    folder = job(tmp_path / "logs")
    assert do(folder, "--gpus", "1", "--hosts", "n1,n0", "--timezone", "UTC", "--results", tmp_path / "r") == 0
    (run,) = (tmp_path / "r" / "runs").iterdir()
    nodes = read_manifest(run / "raw" / "manifest.json").nodes
    assert [(node.host, [device.device for device in node.devices]) for node in nodes] == [
        ("n1", ["gpu1"]),
        ("n0", ["gpu1"]),
    ]


def test_import_names_gpus_that_did_no_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sample = ROOT / "tests" / "data" / "importers" / "amd_smi_metric.csv"
    assert do(sample, "--results", tmp_path / "r") == 0
    assert "node0: gpu4 drew at most 241 W, others 956 W; if the job did not use them" in capsys.readouterr().out
    assert do(sample, "--gpus", "0-3", "--results", tmp_path / "r") == 0
    assert "drew at most" not in capsys.readouterr().out


def test_import_of_a_described_job_has_its_model(tmp_path: Path) -> None:
    folder = job(tmp_path / "logs")
    (tmp_path / "job.yaml").write_text(
        "model: llama3.2-1b\ntp: 2\nmicro_batch_size: 1\nglobal_batch_size: 8\nsequence_length: 2048\nprecision: bf16\n"
    )
    words = (folder, "--describe", tmp_path / "job.yaml", "--steps", folder / "steps.csv", "--timezone", "UTC")
    assert do(*words, "--results", tmp_path / "r") == 0
    row = point(tmp_path / "r")
    assert (row["model"], row["tp"], row["dp"]) == ("llama3.2-1b", 2, 2)
    assert row["tokens_per_s"] == pytest.approx(8 * 2048 / STEP_S)


def trace(folder: Path, rank: int, world: int = 2, base_shift_s: int = 0, name: str | None = None) -> Path:
    """Write a trace of the recorded two-rank job, moved in time or of another world size."""
    text = gzip.decompress((TRACES / f"gloo_rank{min(rank, 1)}.json.gz").read_bytes()).decode()
    text = text.replace('"world_size": 2', f'"world_size": {world}')
    base = re.search(r'"baseTimeNanoseconds": (\d+)', text)
    assert base is not None
    text = text.replace(base[0], f'"baseTimeNanoseconds": {int(base[1]) + base_shift_s * NS_PER_S}')
    folder.mkdir(exist_ok=True)
    path = folder / (name or f"rank{rank}.json")
    path.write_text(text)
    return path


def test_import_of_traces_alone_has_their_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(2):
        trace(tmp_path / "traces", rank)
    assert do(tmp_path / "traces", "--results", tmp_path / "r") == 0
    assert "traces: 2; steps: 2 profiled" in capsys.readouterr().out
    (run,) = (tmp_path / "r" / "runs").iterdir()
    rows = [row for row in STEPS.read(run / "raw" / "steps.parquet").to_pylist() if row["kind"] == "profiled"]
    assert [(row["rank"], row["step"]) for row in rows] == [(0, 2), (0, 3), (1, 2), (1, 3)]
    assert {path.name for path in (run / "raw" / "traces").iterdir()} == {"rank0.json.gz", "rank1.json.gz"}
    align_run(run / "raw", run / "telemetry.parquet")
    assert main(["trace", "--run", run.name, "--parse", "--results", str(tmp_path / "r"), "--jobs", "1"]) == 0
    assert (run / "kernels.parquet").is_file()


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """Return the one line with which an import is refused."""
    assert do(*words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_import_refuses_traces_of_several_jobs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, results = tmp_path / "t", tmp_path / "r"
    trace(folder, 0)
    trace(folder, 1, world=8)
    assert "rank1.json: belongs to a job of 8 ranks, rank0.json to one of 2; import" in refused(
        capsys, folder, "--results", results
    )
    trace(folder, 1, base_shift_s=7300)
    assert "2 h 1 min from rank0.json; import the traces of one job" in refused(capsys, folder, "--results", results)
    trace(folder, 1, name="other_rank0.json")
    (folder / "rank1.json").unlink()
    assert "rank 0 is also in" in refused(capsys, folder, "--results", results)
    assert not list(results.glob("runs/*")), "nothing is left"


def test_import_refuses_telemetry_of_another_time_or_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = job(tmp_path / "logs")
    words = (folder, "--timezone", "UTC", "--results", tmp_path / "r")
    trace(folder, 0, world=4)
    assert re.search(r"telemetry is from 2026-05-01 10:00:00 UTC .* apart; give --timezone", refused(capsys, *words))
    began = trace_start(folder / "rank0.json")
    trace(folder, 0, world=4, base_shift_s=T0_S + 50 - began)
    assert do(*words) == 0
    trace(folder, 0, world=8, base_shift_s=T0_S + 50 - began)
    assert "the traces are of 8 ranks, the telemetry is of 4 GPUs on 2 hosts; import" in refused(capsys, *words)
    trace(folder, 0, world=2, base_shift_s=T0_S + 50 - began)
    assert "name those of the job with --gpus 0-3" in refused(capsys, *words)


def trace_start(path: Path) -> int:
    text = path.read_text()
    base = re.search(r'"baseTimeNanoseconds": (\d+)', text)
    first = re.search(r'"name": "ProfilerStep#2".*?"ts": ([\d.]+)', text, re.DOTALL) or re.search(
        r'"ts": ([\d.]+)', text
    )
    assert base is not None and first is not None
    return round(int(base[1]) / NS_PER_S + float(first[1]) / 1e6)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("step,begin,end\n1,2,3\n", "unknown column 'begin'"),
        ("step,start\n1,1777629600\n", "expected columns step, start and end or duration_s"),
        ("step,start,end\n1,1777629600,1777629599\n", "steps.csv:2: the step ends before it starts"),
        ("step,start,end,kind\n1,1777629600,1777629601,mesured\n", "kind 'mesured', expected warmup, measured, "),
        ("step,start,duration_s\n1,1777629600,long\n", "steps.csv:2: column duration_s: 'long' is not a number"),
    ],
)  # fmt: skip
def test_import_refuses_steps_with_a_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    folder = job(tmp_path / "logs")
    (folder / "steps.csv").write_text(text)
    words = (folder, "--steps", folder / "steps.csv", "--timezone", "UTC", "--results", tmp_path / "r")
    assert said in refused(capsys, *words)


def test_import_joins_steps_with_the_profilers(tmp_path: Path) -> None:
    from triplepoint.importers.work import Work, join_steps

    def row(rank: int, step: int, start: int, kind: str = "measured") -> dict[str, object]:
        return {
            "rank": rank,
            "step": step,
            "kind": kind,
            "t_start_ns": start * NS_PER_S,
            "t_end_ns": (start + 4) * NS_PER_S,
        }

    traced = Work(rows=[row(rank, 7, 108, "profiled") for rank in range(2)])
    told = Work(rows=[row(0, n, 100 + 4 * n) for n in range(4)])
    rows, said = join_steps(traced, told)
    assert said == ["steps of --steps moved by 5 to the profiler's numbers"]
    assert sorted((r["rank"], r["step"], r["kind"]) for r in rows) == [
        (rank, step, "profiled" if step == 7 else "measured") for rank in range(2) for step in (5, 6, 7, 8)
    ]


def test_import_puts_steps_of_the_job_on_the_clock_of_each_host(tmp_path: Path) -> None:
    """Host n1's clock is 100 s ahead: its samples and steps lie so, and the manifest puts them right."""
    folder = job(tmp_path / "logs")
    path = folder / "n1" / "smi.csv"
    header, *lines = path.read_text().splitlines()
    later = [
        f"{stamp(second + 100)}, {line.split(', ', 1)[1]}" for line, second in zip(lines[::2], range(120), strict=True)
    ]
    path.write_text("\n".join([header, *later]) + "\n")
    words = (folder, "--steps", folder / "steps.csv", "--timezone", "UTC", "--gpus", "0", "--results", tmp_path / "r")
    assert do(*words) == 2, "n1 is 100 s ahead"
    assert do(*words, "--offset", "n1=-100") == 0
    row = point(tmp_path / "r")
    assert row["job_gpu_power_w"] == pytest.approx(2 * 600 + 10, rel=0.01)


def test_import_takes_steps_from_a_training_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = job(tmp_path / "logs")
    lines = [
        f" [{datetime.fromtimestamp(T0_S + 14 + STEP_S * n, UTC):%Y-%m-%d %H:%M:%S}] iteration {n + 1:8d}/ 25 | loss"
        for n in range(24)
    ]
    (folder / "train.log").write_text("\n".join(["building the model", *lines]) + "\n")
    words = (folder, "--log", folder / "train.log", "--timezone", "UTC", "--results", tmp_path / "r")
    assert do(*words, "--step-pattern", "megatron") == 0
    assert "steps: 2 warmup, 21 measured" in capsys.readouterr().out, "the first line ends a step that began unseen"
    assert point(tmp_path / "r")["step_time_s"] == pytest.approx(STEP_S)
    assert "no line matches --step-pattern torchtitan" in refused(capsys, *words, "--step-pattern", "torchtitan")
    (folder / "train.log").write_text("iteration 1/ 25 | loss: 9\n")
    assert "train.log:1: the line of a step has no date and time" in refused(
        capsys, *words, "--step-pattern", "megatron"
    )
    assert "--log and --step-pattern are needed together" in refused(capsys, *words)


def test_import_refuses_a_training_log_of_another_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = job(tmp_path / "logs")
    lines = [
        f" [{datetime.fromtimestamp(T0_S + 7200 + STEP_S * n, UTC):%Y-%m-%d %H:%M:%S}] iteration {n:8d}/ 25 | loss"
        for n in range(24)
    ]
    (folder / "train.log").write_text("\n".join(lines) + "\n")
    words = (folder, "--log", folder / "train.log", "--step-pattern", "megatron", "--results", tmp_path / "r")
    assert "1 h 58 min apart; give --timezone" in refused(capsys, *words)


def test_import_refuses_a_truncated_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = trace(tmp_path, 0)
    text = path.read_text()
    path.write_text(text[: len(text) // 2])
    assert "rank0.json: truncated; copy it again" in refused(capsys, tmp_path, "--results", tmp_path / "r")


def test_import_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["import", "--help"])
    assert "triplepoint import ~/runs/llama70b" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--gpus", "a"), "--gpus 'a': expected numbers such as 0-3,6"),
        (("--gpus", "3-1"), "--gpus '3-1': expected numbers such as 0-3,6"),
        (("--gpus", "7"), "n0 has no telemetry of gpu7; found gpu0, gpu1"),
        (("--offset", "n0"), "--offset n0: expected SECONDS, or HOST=SECONDS"),
        (("--hosts", "n0,n7"), "--hosts: no telemetry of n7; found n0, n1"),
        (("--set", "tp"), "--set 'tp': expected KEY=VALUE"),
        (("--set", "tpp=3"), "tpp"),
    ],
)
def test_import_refuses_options_with_a_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    folder = job(tmp_path / "logs")
    assert said in refused(capsys, folder, "--timezone", "UTC", "--results", tmp_path / "r", *words)
