"""`triplepoint compare A B`: runs of a results folder, raw runs, loose traces of two vendors, and what is refused."""

import gzip
import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.synthetic import CONFIG, H200, Spec, build
from triplepoint.cli import main
from triplepoint.compare.comparison import Comparison, compare_two
from triplepoint.compare.sides import Context
from triplepoint.compare.text import render, step_title
from triplepoint.config.catalogue import Catalogue
from triplepoint.plan import select
from triplepoint.recorded.description import Description
from triplepoint.recorded.run import Ending, RecordedGpu, RecordedNode, write_run
from triplepoint.recording import Part
from triplepoint.simulate.artefacts.simulate_run import simulate_run
from triplepoint.telemetry.align import align_run
from triplepoint.trace.run_traces import trace_run
from triplepoint.trace.taxonomy import load_scheme
from triplepoint.units import NS_PER_S

TRACES = Path(__file__).parents[2] / "data" / "traces"
A100, MI300X = TRACES / "ddp_a100_rank0.json.gz", TRACES / "ddp_mi300x_rank0.json.gz"
LAYOUT = {"tp": 8, "pp": 4, "schedule": "1f1b"}
TP8 = Spec("gpt3-175b", LAYOUT, cluster=H200, step_ms=100_000, engine="megatron")
FULL = Spec("gpt3-175b", LAYOUT, recompute="full", cluster=H200, step_ms=120_000, engine="megatron")
SIMULATED = Spec("gpt3-175b", LAYOUT, cluster=H200, step_ms=90_000, engine="simulated")
TINY = [
    Spec("tiny-llama", {"dp": 4}, size, repeat=repeat, step_ms=step_ms)
    for size, repeat, step_ms in ((1, 1, 200), (1, 2, 300), (2, 1, 210), (2, 2, 316))
]
OOM = Spec("gpt3-175b", LAYOUT, 8, status="oom", cluster=H200, engine="megatron")
INVALID = Spec("gpt3-175b", LAYOUT, 4, status="invalid", cluster=H200, engine="megatron")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    build(folder, [TP8, FULL, SIMULATED, *TINY, OOM, INVALID])
    return folder


def compare(first: object, other: object, results: Path) -> Comparison:
    return compare_two(str(first), str(other), Context(results, CONFIG, load_scheme()))


def command(*words: object) -> int:
    return main(["compare", *map(str, words), "--config", str(CONFIG)])


def refusal(capsys: pytest.CaptureFixture, *words: object) -> str:
    """Return the one line with which a comparison is refused."""
    assert command(*words) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1, err
    return str(err).removeprefix("triplepoint: ").rstrip("\n")


def parts_add_up(found: Comparison) -> bool:
    assert found.step is not None
    whole = pytest.approx(found.step.difference_s, rel=1e-9, abs=1e-12)
    parts = sum(part.effect.value for part in found.step.parts)
    return bool(parts == whole and sum(kernel.difference_s for kernel in found.kernels) == whole)


def test_two_runs_by_hand(results: Path) -> None:
    """Steps of 101 s and 121.2 s: median 1.01 times the nominal one, as the profiled one is 1.3 times it."""
    found = compare(TP8.run, FULL.run, results)
    assert [(change.area, change.name, change.first, change.other) for change in found.changes] == [
        ("settings", "recompute", "none", "full")
    ]
    assert found.step is not None and not found.step.is_profiled
    assert (found.step.first_s, found.step.other_s) == pytest.approx((101, 121.2))
    assert parts_add_up(found)
    rest = next(part for part in found.step.parts if part.part.category == "unprofiled")
    assert rest.effect.value == pytest.approx((101 - 130) * 0.2, rel=1e-3)
    quantities = {one.name: one for one in found.quantities}
    assert quantities["step_time_s"].effect.value == pytest.approx(0.2)
    assert quantities["step_time_s"].verdict == "differs"
    assert quantities["gpu_power_w"].verdict == "equal"
    assert found.sentence.startswith(
        "With recompute full instead of none, a step of B takes 20.0 % longer than one of A"
    )
    assert "mostly gemm (+" in found.sentence


def test_turned_around_all_differences_change_sign(results: Path) -> None:
    one, other = compare(TP8.run, FULL.run, results), compare(FULL.run, TP8.run, results)
    assert one.step is not None and other.step is not None
    assert other.step.difference_s == pytest.approx(-one.step.difference_s)
    contributions = [{part.part: part.effect.value for part in found.parts} for found in (one.step, other.step)]
    assert contributions[1] == pytest.approx({part: -value for part, value in contributions[0].items()})


def test_repeats_of_a_studys_point_are_paired(results: Path) -> None:
    """Micro-batch 2 takes 5 % and 5.33 % longer in either repeat, though repeats differ by half."""
    point = "synthetic:model=tiny-llama,micro_batch_size={}"
    found = compare(point.format(1), point.format(2), results)
    effect = next(one.effect for one in found.quantities if one.name == "step_time_s")
    assert (effect.basis, effect.num) == ("repeats", 2)
    assert effect.value == pytest.approx((1.05 * 316 / 300) ** 0.5 - 1)
    assert 0.04 < effect.low < effect.value < effect.high < 0.065
    assert found.step is not None and {part.effect.basis for part in found.step.parts} >= {"repeats"}
    assert parts_add_up(found)


def test_measured_and_simulated_runs_are_marked(results: Path) -> None:
    found = compare(TP8.run, SIMULATED.run, results)
    assert "(A measured, B simulated)" in found.sentence
    assert "measured steps of A and simulated ones of B" in step_title(found)
    assert any("include the model's error" in note for note in found.notes)
    assert {one.effect.basis for one in found.quantities if one.name == "gpu_temp_c"} <= {"mixed", "none"}
    assert [side["origin"] for side in (found.content()["first"], found.content()["other"])] == [
        "measured", "simulated",
    ]  # fmt: skip


def test_mfu_changes_as_tokens_per_second_do(tmp_path: Path) -> None:
    """Model, GPU and precision are equal: MFU is tokens per second times a constant, with the same interval."""
    slow = replace(SIMULATED, recompute="full", step_ms=120_000)
    build(tmp_path, [SIMULATED, slow])
    effects = {one.name: one.effect for one in compare(SIMULATED.run, slow.run, tmp_path).quantities}
    mfu, rate = effects["mfu"], effects["tokens_per_s_per_gpu"]
    assert (mfu.is_relative, mfu.basis) == (True, rate.basis)
    assert [mfu.value, mfu.low, mfu.high] == pytest.approx([rate.value, rate.low, rate.high], nan_ok=True)
    assert mfu.value == pytest.approx(90 / 120 - 1)


def test_equal_work_is_compared_where_tokens_per_gpu_differ(results: Path) -> None:
    """TP8 PP4 on 32 GPUs against 4 processes with 16 sequences of 128: times of B are scaled, and the note says so."""
    found = compare(TP8.run, TINY[0].run, results)
    assert found.step is not None
    scale = (128 * 2048 / 32) / (16 * 128 / 4)
    assert found.step.scale == pytest.approx(scale)
    assert found.step.other_s == pytest.approx(0.202 * scale)
    assert any("times the tokens of a GPU of A" in note for note in found.notes) and parts_add_up(found)
    assert any("the models differ" in note for note in found.notes)


def test_traces_of_two_vendors(tmp_path: Path) -> None:
    found = compare(A100, MI300X, tmp_path)
    assert parts_add_up(found)
    device = next(change for change in found.changes if change.name == "device")
    assert (device.first, device.other) == ("NVIDIA A100-PG509-200", "AMD Instinct MI300X")
    assert ("nccl", "2.17.1", "2.22.3") in [change[1:] for change in found.changes]
    matched = {one.title: one for one in found.kernels if one.match in ("kind", "operation")}
    transpose = matched["elementwise transpose"]
    assert any("nchwToNhwc" in name for name in transpose.names[0])
    assert any("transpose" in name for name in transpose.names[1])
    both = [one for one in found.kernels if all(one.names)]
    time = sum(sum(one.sums_s) for one in both)
    assert time > 0.85 * sum(sum(one.sums_s) for one in found.kernels)


def test_one_model_on_two_vendors_has_the_same_kernels(tmp_path: Path) -> None:
    """BERT on H100 and MI300X: nearly all time has a counterpart, called as often on either side."""
    found = compare(TRACES / "bert_h100.json.gz", TRACES / "bert_mi300x.json.gz", tmp_path)
    assert parts_add_up(found)
    for which in (0, 1):
        whole = sum(one.sums_s[which] for one in found.kernels)
        matched = [one for one in found.kernels if all(one.names)]
        assert sum(one.sums_s[which] for one in matched) > 0.99 * whole
        alike = [one for one in matched if one.counts[0] == pytest.approx(one.counts[1])]
        assert sum(one.sums_s[which] for one in alike) > 0.5 * whole
    assert "On AMD Instinct MI300X VF instead of NVIDIA H100 80GB HBM3" in found.sentence


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return simulated runs of Llama-3 70B on 32 H200: TP4 PP4 as its launch left it, TP2 PP8 parsed."""
    folder, plan = tmp_path_factory.mktemp("raw"), select(CONFIG, ["parallelism"], ["cpu-local"], ["h200x32"])
    found = []
    for layout in ("tp4-pp4-dp2", "tp2-pp8-dp2"):
        entry = next(one for one in plan.valid if f"llama3-70b_h200x32_{layout}" in one.run)
        run = folder / "runs" / entry.run
        run.mkdir(parents=True)
        (run / "point.json").write_text(entry.planned.model_dump_json())
        simulate_run(entry.planned, run / "raw", CONFIG)
        found.append(run)
    parse(found[1])
    return found


def parse(run: Path) -> None:
    align_run(run / "raw", run / "telemetry.parquet")
    trace_run(run, load_scheme(), lambda line: None, 1)


def test_a_raw_run_gives_what_a_parsed_one_gives(simulated: list[Path], tmp_path: Path) -> None:
    """Tables are made in a scratch folder; the run's own folder stays as it is."""
    before = sorted(path for run in simulated for path in run.rglob("*"))
    found = compare(simulated[0] / "raw", simulated[1], tmp_path)
    assert sorted(path for run in simulated for path in run.rglob("*")) == before
    assert parts_add_up(found)
    # Of simulated runs the profiled step is the measured one.
    assert found.step is not None and found.step.difference_s == pytest.approx(
        sum(part.effect.value for part in found.step.parts if part.part.category != "unprofiled"), rel=1e-3
    )
    assert {change.name for change in found.changes} >= {"tp", "pp"}
    assert any("hosts of simulated traces run ahead" in note for note in found.notes)
    assert "simulated steps" in step_title(found) and "measured" not in render(found)
    assert {one.effect.basis for one in found.quantities if one.name in ("step_time_s", "gpu_temp_c")} == {"model"}
    parsed = tmp_path / simulated[0].name
    shutil.copytree(simulated[0], parsed)
    parse(parsed)
    expected = found.content() | {"first": found.content()["first"] | {"word": str(parsed)}}
    # Sums of floats depend on their order in the last digits.
    assert rounded(compare(parsed, simulated[1], tmp_path).content()) == rounded(expected)


def rounded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: rounded(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(one) for one in value]
    return round(value, 9) if isinstance(value, float) else value


def test_traces_of_a_simulated_run_are_marked(simulated: list[Path], tmp_path: Path) -> None:
    found = compare(simulated[0] / "raw" / "traces", A100, tmp_path)
    assert "(A simulated, B measured)" in found.sentence and parts_add_up(found)
    assert all(part.effect.basis == "none" for part in found.step.parts) if found.step else False


@pytest.mark.parametrize("as_folder", ["", "raw"])
def test_run_folders_are_runs(results: Path, tmp_path: Path, as_folder: str) -> None:
    folder = tmp_path / "elsewhere"
    shutil.copytree(results / "runs" / TP8.run, folder)
    assert compare(folder / as_folder, FULL.run, results).first.runs[0].planned.run == TP8.run


def test_json_and_page(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    page = tmp_path / "why.html"
    assert command(TP8.run, FULL.run, "--results", results, "--json", "--html", page) == 0
    out, err = capsys.readouterr()
    content: dict[str, Any] = json.loads(out)
    assert (content["command"], content["first"]["runs"]) == ("compare", [TP8.run])
    assert sum(one["difference_s"] for one in content["step"]["parts"]) == pytest.approx(
        content["step"]["difference_s"]
    )
    html = page.read_text()
    assert content["sentence"] in html and str(page) in err
    assert "http" not in html.replace("http-equiv", "") and "<script" not in html


def test_page_escapes_what_names_hold(tmp_path: Path) -> None:
    """A kernel may be called anything."""
    hostile = "<script>alert('x')</script>"
    trace = json.loads(gzip.decompress(A100.read_bytes()))
    for event in trace["traceEvents"]:
        if event["cat"] == "kernel" and "nchwToNhwc" in event["name"]:
            event["name"] = hostile
    (tmp_path / "rank0.json").write_text(json.dumps(trace))
    page = tmp_path / "why.html"
    assert command(A100, tmp_path / "rank0.json", "--html", page) == 0
    assert hostile not in page.read_text() and "&lt;script&gt;" in page.read_text()


def test_text_is_a_page(results: Path, capsys: pytest.CaptureFixture) -> None:
    assert command(TP8.run, FULL.run, "--results", results) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) < 80 and lines[0].startswith("With recompute full instead of none")
    assert max(map(len, lines[:-5])) < 150


def test_words_that_mean_nothing_are_refused(results: Path, capsys: pytest.CaptureFixture) -> None:
    at = ("--results", results)
    near = TP8.run.replace("gpt3", "gtp3")
    assert refusal(capsys, near, FULL.run, *at).endswith(f"no such run, trace or folder (did you mean {TP8.run!r}?)")
    assert "3 runs begin like this" in refusal(capsys, "gpt3-175b_h200x32_tp8-pp4_mbs1", "tiny-llama", *at)
    unplanned = refusal(capsys, "sintetic:tp=8", FULL.run, *at)
    assert "did you mean 'synthetic'?" in unplanned and unplanned.endswith("'triplepoint plan STUDY --write'")
    assert "did you mean 'tp'?" in refusal(capsys, "synthetic:tpp=8", FULL.run, *at)
    assert "add recompute=none or full" in refusal(
        capsys, "synthetic:tp=8,micro_batch_size=1,engine=megatron", TINY[0].run, *at
    )
    assert "no point has these settings" in refusal(capsys, "synthetic:tp=7", FULL.run, *at)


def test_without_gpu_types_the_option_that_names_them_is_said(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    words = ["compare", TP8.run, FULL.run, "--results", str(results), "--config", str(tmp_path / "config")]
    assert main(words) == 2
    assert capsys.readouterr().err.endswith(
        "gpus: no such folder, and the run is on GPUs of type h200; name Triplepoint's configuration with --config "
        "CLONE/config\n"
    )


def test_the_same_twice_is_refused(results: Path, capsys: pytest.CaptureFixture) -> None:
    line = refusal(capsys, TP8.run, results / "runs" / TP8.run, "--results", results)
    assert line.endswith(f"both name {TP8.run}; name two different runs")
    assert "both name" in refusal(
        capsys, "synthetic:model=tiny-llama,micro_batch_size=1", TINY[1].run, "--results", results
    )
    assert "both name ddp_a100_rank0.json.gz" in refusal(capsys, A100, A100)


def test_runs_that_did_not_finish_are_refused(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    at = ("--results", results)
    assert "CUDA out of memory" in refusal(capsys, TP8.run, OOM.run, *at)
    assert "cannot run: 80 layers" in refusal(capsys, TP8.run, "synthetic:micro_batch_size=4", *at)
    shutil.copytree(results / "runs" / TP8.run, tmp_path / "planned")
    shutil.rmtree(tmp_path / "planned" / "raw")
    assert "has not run" in refusal(capsys, tmp_path / "planned", FULL.run, *at)
    (tmp_path / "planned" / "point.json").unlink()
    (tmp_path / "planned" / "raw").mkdir()
    (tmp_path / "planned" / "raw" / "manifest.json").write_text("{}")
    assert "point.json: no such file" in refusal(capsys, tmp_path / "planned", FULL.run, *at)


def test_sides_without_anything_in_common_are_refused(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    untraced = Spec("tiny-llama", {"dp": 4}, step_ms=200)
    shutil.copytree(results / "runs" / untraced.run, tmp_path / "run")
    path = tmp_path / "run" / "point.json"
    content = json.loads(path.read_text())
    planned = untraced.point()
    point = planned.model_copy(update={"steps": planned.steps.model_copy(update={"profiled": 0})})
    path.write_text(json.dumps(content | {"point": point.model_dump(mode="json"), "digest": point.digest()}))
    manifest = tmp_path / "run" / "raw" / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"digest": point.digest()}))
    line = refusal(capsys, tmp_path / "run", A100, "--results", results)
    assert "has no traces" in line or "profiled" in line
    (tmp_path / "empty").mkdir()
    assert "no trace files" in refusal(capsys, tmp_path / "empty", A100)
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "intervals.parquet").touch()
    assert "holds tables of 'triplepoint trace'" in refusal(capsys, tmp_path / "tables", A100)
    (tmp_path / "rank0.json").write_text('{"traceEvents": []}')
    assert "no work in the traces" in refusal(capsys, tmp_path / "rank0.json", A100)
    half = tmp_path / "rank1.json.gz"
    half.write_bytes(MI300X.read_bytes()[: MI300X.stat().st_size // 2])
    assert f"{half}: truncated, after" in refusal(capsys, A100, half)
    assert main(["why", str(half)]) == 2 and "truncated, after" in capsys.readouterr().err


def test_damaged_run_is_named_as_the_user_named_it(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    shutil.copytree(results / "runs" / TP8.run, tmp_path / "run")
    for name in ("telemetry", "timeline"):
        (tmp_path / "run" / f"{name}.parquet").unlink(missing_ok=True)
    (tmp_path / "run" / "point.json").write_text("{")
    assert main(["why", str(tmp_path / "run")]) == 2
    line = capsys.readouterr().err
    assert str(tmp_path / "run") in line and "triplepoint-run-" not in line


def test_options_that_do_not_belong_are_refused(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert "alone; name what it is compared with" in refusal(capsys, TP8.run)
    assert "alone; name what it is compared with" in refusal(capsys, A100)
    assert "--html needs two" in refusal(capsys, "own.csv", "--html", tmp_path / "x.html")
    assert "--out is of a table" in refusal(capsys, A100, MI300X, "-o", tmp_path / "x.csv")
    assert "ends in .html" in refusal(capsys, A100, MI300X, "--html", tmp_path / "x.pdf")
    table = tmp_path / "own.csv"
    table.write_text("model\n")
    assert "a table is compared alone" in refusal(capsys, TP8.run, table, "--results", results)


def record(
    results: Path, host: str, power_w: float, step_s: float | None, name: str = "recorded", ending: Ending | None = None
) -> str:
    """Write a recorded run of eight GPUs sampled for 120 s, of which nothing but its steps is known."""
    t_ns = 1_790_000_000_000_000_000 + np.arange(120) * NS_PER_S
    values = np.column_stack([np.full(120, power_w), np.full(120, 40 + power_w / 20)])
    parts = [Part(f"gpu{i}", t_ns, np.zeros(120, int), ("gpu_power_w", "gpu_temp_c"), values) for i in range(8)]
    gpus = [RecordedGpu(f"gpu{i}", "NVIDIA H100 80GB HBM3", f"GPU-{host}-{i}") for i in range(8)]
    starts = t_ns[0] + (10 + np.arange(21) * (step_s or 0)) * NS_PER_S
    rows = [
        {"rank": rank, "step": step, "kind": "measured", "t_start_ns": int(start)}
        | {"t_end_ns": int(start + (step_s or 0) * NS_PER_S)}
        for rank in range(8)
        for step, start in enumerate(starts)
    ]
    node = RecordedNode(host, gpus, parts, period_s=1.0)
    marks = rows if step_s else []
    described = Description(name=name)
    return write_run(
        results / "runs", described, [node], {}, marks, source="test", catalogue=Catalogue(CONFIG), ending=ending
    )


def test_recorded_runs_have_what_is_known_of_them(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """B takes 2.5 s a step instead of 2 s and draws 600 W instead of 500 W, at 70 degC instead of 65."""
    runs = [record(tmp_path, "a", 500.0, 2.0), record(tmp_path, "b", 600.0, 2.5)]
    found = compare(runs[0], f"recorded:{runs[1]}", tmp_path)
    assert found.step is not None and found.step.difference_s == pytest.approx(0.5) and not found.step.parts
    assert found.step.scale == 1
    quantities = {one.name: one for one in found.quantities}
    assert quantities["gpu_power_w"].effect.value == pytest.approx(0.2)
    assert quantities["gpu_temp_max_c"].effect.value == pytest.approx(5)
    assert "tokens_per_s_per_gpu" not in quantities
    assert (
        "25.0 % longer" in found.sentence
        and "its hottest GPU is 5.0 K hotter as a GPU draws 20.0 % more" in found.sentence
    )
    assert {change.area for change in found.changes} == {"hardware"}
    assert command(*runs, "--results", tmp_path) == 0
    assert "A has no traces" in capsys.readouterr().out


def test_recorded_jobs_differ_in_command_script_software_and_variables(tmp_path: Path) -> None:
    defaults = "none: defaults of the library"
    endings = [
        Ending(
            facts={"command": "torchrun train.py --lr 1 --wd 1", "script": "train.py 0a04", "job_commit": None}
            | {"environment": "DS_ACCELERATOR=cpu OMP_NUM_THREADS=1", "collective_settings": defaults, "nccl": None},
            versions={"torch": "2.13.0", "transformers": "5.23.0"},
        ),
        Ending(
            facts={"command": "torchrun train.py --lr 2 --wd 1 -v", "script": "train.py 77ff", "job_commit": "abc"}
            | {"environment": "DS_ACCELERATOR=cpu", "collective_settings": defaults, "nccl": "2.28.3"},
            versions={"torch": "2.13.0", "lightning": "2.6.6"},
        ),
    ]
    runs = [record(tmp_path, "a", 500.0 + i, 2.0, ending=ending) for i, ending in enumerate(endings)]
    assert [tuple(change) for change in compare(*runs, tmp_path).changes] == [
        ("job", "command", "--lr 1", "--lr 2 -v"),
        ("job", "script", "train.py 0a04", "train.py 77ff"),
        ("job", "environment", "OMP_NUM_THREADS=1", "none"),
        ("software", "transformers", "5.23.0", "not imported"),
        ("software", "NCCL", "none", "2.28.3"),
        ("software", "lightning", "not imported", "2.6.6"),
    ]
    # Of a recording whose ranks said nothing of their software nothing is said to have changed.
    assert not compare(runs[0], record(tmp_path, "a", 510.0, 2.0), tmp_path).changes


def test_models_that_nobody_knows_do_not_differ(tmp_path: Path) -> None:
    runs = [record(tmp_path, host, 500.0, 2.0, name=f"job-{host}") for host in ("a", "b")]
    assert "models differ" not in " ".join(compare(*runs, tmp_path).notes)


def test_recordings_without_steps_have_power_and_heat(tmp_path: Path) -> None:
    found = compare(record(tmp_path, "a", 500.0, None), record(tmp_path, "b", 600.0, None), tmp_path)
    assert found.step is None and not found.kernels
    assert found.sentence.startswith("The two sides have no step times to compare; its hottest GPU is 5.0 K hotter")
    assert found.content()["step"] is None
