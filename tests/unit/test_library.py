"""The library: lazy tables with units, traces and simulated runs, and the notebook that shows them."""

import re
import shutil
from pathlib import Path

import nbformat
import pandas as pd
import pyarrow.parquet as pq
import pytest

import triplepoint as tp
from tests.notebooks import execute
from tests.synthetic import build
from tests.synthetic_studies import cpu_smoke, paper_h200
from triplepoint.aggregate import aggregate_study
from triplepoint.cli import main
from triplepoint.tables.results import RESULT_TABLES
from triplepoint.tables.studies import read_joined

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "config"
TRACE = ROOT / "tests" / "data" / "traces" / "dlrm_v100_rank0.json.gz"
JOB = {"model": "llama3-8b", "cluster": "h200x32", "num_gpus": 8, "tp": 4, "global_batch_size": 64}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    plan = build(folder, cpu_smoke(), ("smoke",))
    aggregate_study(plan, "smoke", folder, CONFIG)
    return folder


def test_load_gives_the_tables_with_the_units_of_their_schemas(results: Path) -> None:
    loaded = tp.load(results)
    assert loaded.studies == ("smoke",) and "points" in loaded and "claims" in loaded
    pd.testing.assert_frame_equal(loaded["gpus"], read_joined(results, ("smoke",), "gpus").to_pandas())
    units = loaded.points.attrs["units"]
    assert units == {column.name: column.unit for column in RESULT_TABLES["points"].columns}
    assert units["step_time_s"] == "s" and units["run"] == "" and loaded.units("points") == units
    assert loaded.describe("points").loc["step_time_s", "unit"] == "s"
    assert loaded.points[loaded.points["status"] == "ok"].attrs["units"] == units


def test_load_reads_a_table_when_it_is_asked_for_and_once(results: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(results, tmp_path / "results"))
    loaded = tp.load(str(copy), ["smoke"])
    points = loaded.points
    for path in (copy / "tables" / "smoke").glob("*.parquet"):
        path.unlink()
    assert loaded["points"] is points
    with pytest.raises(tp.UserError, match="gpus.parquet: no such file"):
        loaded["gpus"]


def test_load_of_tables_of_another_version_says_what_remakes_them(results: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(results, tmp_path / "results"))
    path = copy / "tables" / "smoke" / "gpus.parquet"
    table = pq.read_table(path)
    assert table.schema.metadata[b"triplepoint"].decode() == tp.__version__
    pq.write_table(table.drop_columns(["slot"]).replace_schema_metadata({"triplepoint": "0.0.9"}), path)
    with pytest.raises(tp.UserError) as refused:
        tp.load(copy)["gpus"]
    assert str(refused.value) == (
        f"{path}: table gpus of another version (written: 0.0.9, this is {tp.__version__}): without slot; make it "
        f"again with 'triplepoint aggregate smoke --results {copy}'"
    )
    at = table.schema.get_field_index("gpu_power_w")
    field = table.schema.field(at).with_metadata({"unit": "kW"})
    pq.write_table(table.set_column(at, field, table.column(at)), path)
    with pytest.raises(tp.UserError, match=r"in another unit gpu_power_w; make it again"):
        tp.load(copy)["gpus"]
    run = next(path for path in copy.glob("runs/*") if (path / "telemetry.parquet").is_file())
    telemetry = pq.read_table(run / "telemetry.parquet")
    pq.write_table(telemetry.append_column("old", telemetry["t_ns"]), run / "telemetry.parquet")
    with pytest.raises(tp.UserError, match=f"with unknown old; make it again with 'triplepoint telemetry {run.name} "):
        tp.load(copy).run(run.name)["telemetry"]


def test_load_run_has_the_tables_of_its_folder(results: Path) -> None:
    loaded = tp.load(results)
    ok = loaded.points[loaded.points["status"] == "ok"]["run"].iloc[0]
    run = loaded.run(ok)
    assert run.status == "ok" and run.evidence is None
    assert set(run.steps["kind"]) == {"warmup", "measured", "profiled"}
    assert run.telemetry.attrs["units"]["gpu_power_w"] == "W"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda folder: tp.load(folder / "nowhere"), "no tables of any study; make them with 'snakemake'"),
        (lambda folder: tp.load(folder, "smok"), r"no tables of a study 'smok' \(did you mean 'smoke'\?\)"),
        (lambda folder: tp.load(folder)["pionts"], r"no table 'pionts' \(did you mean 'points'\?\)"),
        (lambda folder: tp.load(folder).run("tiny"), "no run 'tiny'"),
        (lambda folder: tp.trace([]), "no traces; name files"),
        (lambda folder: tp.trace(folder / "rank0.json"), "rank0.json: no such trace file"),
        (lambda folder: tp.simulate(JOB | {"precison": "fp8"}, CONFIG), r"did you mean 'precision'\?"),
        (lambda folder: tp.simulate(JOB | {"engine": "native"}, CONFIG), "'stack' and 'engine' are of predictions"),
    ],
)
def test_library_errors_are_one_line_of_the_user(results: Path, call, message: str) -> None:
    with pytest.raises(tp.UserError, match=message) as raised:
        call(results)
    assert "\n" not in str(raised.value)


def test_attribute_that_is_no_table_is_an_attribute_error(results: Path) -> None:
    assert not hasattr(tp.load(results), "pionts")


def test_trace_gives_the_tables_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tp.trace(TRACE, tmp_path / "one")
    assert main(["trace", str(TRACE), "--out", str(tmp_path / "two"), "--jobs", "1"]) == 0
    assert trace.summary.strip() == capsys.readouterr().out.strip()
    other = pd.read_parquet(tmp_path / "two" / "kernels.parquet")
    pd.testing.assert_frame_equal(trace.kernels, other, check_dtype=False)
    assert trace.kernels.attrs["units"]["sum_ns"] == "ns"


def test_trace_folder_goes_with_the_result() -> None:
    trace = tp.trace([TRACE])
    folder = trace.folder
    assert len(trace.collectives) and folder.is_dir()
    del trace
    assert not folder.exists()


def test_simulate_gives_the_step_time_that_predict_gives() -> None:
    run = tp.simulate(JOB, CONFIG)
    (predicted,) = tp.predict([JOB], CONFIG)["step_time_s"]
    measured = run.steps[run.steps["kind"] == "measured"]
    times = (measured["t_end_ns"] - measured["t_start_ns"]).groupby(measured["step"]).max() / 1e9
    assert run.status == "ok" and times.median() == pytest.approx(predicted, rel=1e-5)
    assert len(run.kernels) and run.telemetry["gpu_power_w"].max() > 100


def test_simulate_what_does_not_fit_says_why_there_is_no_table() -> None:
    run = tp.simulate(JOB | {"model": "llama3-70b", "tp": 1}, CONFIG)
    assert run.status == "oom" and "GiB" in str(run.evidence)
    with pytest.raises(tp.UserError, match="no table kernels: the run ended oom: weights"):
        run["kernels"]


def test_predict_has_units() -> None:
    units = tp.predict([JOB], str(CONFIG), with_power=False).attrs["units"]
    assert [units[name] for name in ("run", "step_time_lo_s", "memory_gib", "gpu_temp_max_c", "mfu")] == [
        *("", "s", "GiB", "degC", "1"),
    ]
    assert units["gpu_energy_per_token_j"] == "J/token" and units["tokens_per_s_per_gpu"] == "token/s"


def test_packages_named_as_functions_stay_packages() -> None:
    import triplepoint.simulate.job
    import triplepoint.trace.join

    assert tp.trace is triplepoint.trace and callable(tp.trace) and triplepoint.trace.join.join_ranks
    assert tp.simulate is triplepoint.simulate and callable(tp.simulate) and triplepoint.simulate.job.Job


def test_stub_declares_what_the_library_offers() -> None:
    stub = (ROOT / "src/triplepoint/__init__.pyi").read_text()
    declared = set(re.findall(r" as (\w+)$", stub, flags=re.MULTILINE))
    assert declared == {name for name in dir(tp) if name in tp._LIBRARY} == set(tp._LIBRARY)
    for name in declared:
        assert getattr(tp, name) is not None


@pytest.fixture(scope="module")
def paper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with made-up results of the study that documents name."""
    folder = tmp_path_factory.mktemp("repository")
    plan = build(folder / "results", paper_h200("simulated"), ("parallelism",))
    aggregate_study(plan, "parallelism", folder / "results", CONFIG)
    (folder / "config").symlink_to(CONFIG)
    (folder / "tests").symlink_to(ROOT / "tests")
    (folder / "traces").mkdir()
    shutil.copy(TRACE, folder / "traces")
    return folder


def test_notebook_runs(paper: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(paper)
    notebook = nbformat.read(ROOT / "docs" / "library.ipynb", as_version=4)
    names = execute(notebook)
    assert set(names["fastest"]["model"]) == {"gpt3-175b", "llama3-70b", "mixtral-8x7b", "mixtral-8x22b"}
    (refused,) = (out["text"] for cell in notebook.cells for out in cell.get("outputs", []) if "precison" in str(out))
    assert refused == "point 1: unknown key 'precison' (did you mean 'precision'?)\n"


def test_notebook_has_the_outputs_of_all_its_cells() -> None:
    notebook = nbformat.read(ROOT / "docs" / "library.ipynb", as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert all(cell.outputs for cell in cells[1:])


def test_blocks_of_the_page_run_one_after_the_other(paper: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(paper)
    names: dict[str, object] = {}
    blocks = re.findall(r"~~~python\n(.*?)~~~", (ROOT / "docs/library.md").read_text(), flags=re.DOTALL)
    for block in blocks:
        exec(block, names)
    assert len(blocks) == 4 and len(names["predicted"]) == 2  # type: ignore[arg-type]
