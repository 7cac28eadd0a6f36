"""Predictions in a study's words: what a file may hold, and that plan and prediction agree on every point."""

import csv
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from triplepoint.cli import main
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.plan import run_id
from triplepoint.config.study import Settings
from triplepoint.config.task import TARGETS
from triplepoint.errors import UserError
from triplepoint.plan import points_of, refusal_of, select
from triplepoint.predictions import predict_file, read_points
from triplepoint.published.rows import Row
from triplepoint.published.table import predict_table
from triplepoint.simulate.predict.point import predict_point
from triplepoint.simulate.predict.prediction import COLUMNS, Prediction

CONFIG = Path("config")
CATALOGUE = Catalogue(CONFIG)
LLAMA = {
    "model": "llama3-70b", "cluster": "h200x32", "global_batch_size": 128, "tp": 4, "pp": 4,
    "sequence_parallel": True, "data_parallel_sharding": "optim",
}  # fmt: skip


def write(folder: Path, name: str, content: object) -> Path:
    """Return a file with some content: text as it is, rows of a CSV, or plain data."""
    path = folder / name
    if isinstance(content, list) and name.endswith(".csv"):
        text = io.StringIO()
        writer = csv.DictWriter(text, list(dict.fromkeys(key for row in content for key in row)))
        writer.writeheader()
        writer.writerows(content)
        content = text.getvalue()
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path


def refused(folder: Path, name: str, content: object) -> str:
    """Return the line a file is refused with, without its folder."""
    with pytest.raises(UserError) as caught:
        read_points(write(folder, name, content), CONFIG)
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(f"{folder}/")


@pytest.mark.parametrize("study", ["parallelism", "mi250", "lora", "inference", "smoke", "optimizations"])
def test_points_of_a_study_are_those_of_its_plan(study: str) -> None:
    points = read_points(CONFIG / "studies" / f"{study}.yaml", CONFIG)
    planned = select(CONFIG, [study]).entries
    expected = {entry.planned.point.digest(): entry.invalid_because for entry in planned}
    first = {asked.point.digest(): asked.invalid_because for asked in points}
    assert first == {digest: reason for digest, reason in expected.items() if digest in first}
    repeats = [entry for entry in planned if entry.planned.point.repeat == 1]
    assert len(points) == len(first) == len(repeats)


def test_prediction_of_a_study_is_that_of_each_point(tmp_path: Path) -> None:
    source = tmp_path / "study.yaml"
    sweeps = [{"axes": {"tp": [1, 3, 8], "micro_batch_size": [1, 2]}}]
    source.write_text(
        yaml.safe_dump({"description": "Six points.", "defaults": LLAMA | {"engine": "simulated"}, "sweeps": sweeps})
    )
    found = predict_file(source, CONFIG, print)
    asked = read_points(source, CONFIG)
    assert len(found) == 6 and {one.status for _, _, one in found} >= {"ok", "invalid"}
    for (_, _, prediction), one in zip(found, asked, strict=True):
        if one.invalid_because:
            assert prediction == Prediction("invalid", one.invalid_because)
        else:
            assert prediction.cells() == predict_point(one.point, CONFIG).cells()


DEGREE = st.sampled_from([1, 1, 2, 4, 8, 3])


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    required=st.fixed_dictionaries(
        {
            "model": st.sampled_from(["llama3-70b", "mixtral-8x7b", "gpt3-6.7b", "mpt-7b"]),
            "cluster": st.sampled_from(["h200x32", "mi250x32"]),
            "global_batch_size": st.sampled_from([32, 64, 100]),
        }
    ),
    rare=st.fixed_dictionaries(
        {},
        optional={
            **dict.fromkeys(("tp", "pp", "cp", "ep", "vp", "dp", "micro_batch_size"), DEGREE),
            "engine": st.sampled_from(["simulated", "megatron", "deepspeed", "native"]),
            "precision": st.sampled_from(["bf16", "fp8"]),
            "sequence_parallel": st.booleans(),
            "overlap": st.sampled_from([["grad"], ["grad", "param", "tp"]]),
            "data_parallel_sharding": st.sampled_from(["optim", "optim_grads_params"]),
        },
    ),
    suffix=st.sampled_from(["csv", "yaml", "json"]),
)
def test_a_row_is_the_point_that_a_study_makes_and_refused_with_the_same_line(
    tmp_path: Path, required: dict[str, Any], rare: dict[str, Any], suffix: str
) -> None:
    row = required | rare
    content = json.dumps([row], indent="\t") if suffix == "json" else [row]
    (asked,) = read_points(write(tmp_path, f"in.{suffix}", content), CONFIG)
    stated = Settings(**({"engine": "simulated"} | row))
    (point,) = points_of(stated, CATALOGUE, "a study")
    assert (asked.point, asked.invalid_because) == (point, refusal_of(point, CATALOGUE))
    predicted = asked.predict(CONFIG)
    if asked.invalid_because:
        assert predicted == Prediction("invalid", asked.invalid_because)
    else:
        assert predicted.status in ("ok", "oom", "undecided", "unsupported")


def test_csv_yaml_and_json_mean_the_same(tmp_path: Path) -> None:
    row = LLAMA | {
        "id": "a",
        "stack": "NeMo dgxc v25.04",
        "sequence_parallel": True,
        "pipeline_layers": [19, 20, 20, 21],
    }
    files = [
        write(tmp_path, "in.csv", [row]),
        write(tmp_path, "one.yaml", row),
        write(tmp_path, "list.yaml", [row]),
        write(tmp_path, "in.json", json.dumps([row], indent="\t")),
    ]
    found = [
        [(key, run, prediction.cells()) for key, run, prediction in predict_file(file, CONFIG, print)] for file in files
    ]
    assert found == [found[0]] * 4
    ((key, run, _),) = found[0]
    assert (key, run.startswith("llama3-70b_h200x32_tp4-pp4-dp2-l19.20x2.21-sp-zero1_mbs1_simulated_r1_")) == (
        "a",
        True,
    )


def test_a_stack_is_what_is_predicted(tmp_path: Path) -> None:
    rows = [LLAMA, LLAMA | {"stack": "NeMo b70681c"}, LLAMA | {"stack": "PyTorch"}]
    usual, same, other = (
        one.step_time_s for _, _, one in predict_file(write(tmp_path, "in.yaml", rows), CONFIG, print)
    )
    assert usual == same != other


def test_blank_cell_leaves_its_key_out(tmp_path: Path) -> None:
    rows = [LLAMA | {"ep": "", "recompute": "full"}, LLAMA | {"ep": "1", "recompute": ""}]
    full, none = read_points(write(tmp_path, "in.csv", rows), CONFIG)
    assert (full.id, none.id, full.point.recompute, none.point.recompute) == ("1", "2", "full", "none")


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("a.csv", [LLAMA | {"tpp": 2}], "a.csv: line 2: unknown key 'tpp' (did you mean 'tp'?)"),
        ("a.yaml", [LLAMA, LLAMA | {"stak": "x"}], "a.yaml: row 2: unknown key 'stak' (did you mean 'stack'?)"),
        ("a.yaml", LLAMA | {"tp": "two"}, "a.yaml: tp: expected a whole number, found 'two'"),
        ("a.csv", [LLAMA | {"tp": "1.5"}], "a.csv: line 2: tp: expected a whole number, found 1.5"),
        ("a.yaml", [{"cluster": "h200x32", "global_batch_size": 8}], "a.yaml: row 1: key 'model' is missing"),
        ("a.yaml", [LLAMA | {"model": "llama3-71b"}], "a.yaml: row 1: unknown model 'llama3-71b' in config/models"),
        ("a.yaml", [LLAMA | {"stack": "Foo 1"}], "a.yaml: row 1: stack: no known software in 'Foo 1'"),
        ("a.yaml", "[1]", "a.yaml: row 1: expected a mapping of keys to values, found a number"),
        ("a.yaml", "[]", "a.yaml: has no configuration"),
        ("a.csv", "", "a.csv: has no configuration"),
        ("a.csv", "model,gpu\nLlama3-8B,H100\n", "a.csv: has column 'gpu' and no 'cluster'"),
        ("a.csv", "tp,tp\n1,2\n", "a.csv: column 'tp' is there 2 times; keep one"),
        ("a.csv", "tp,pipeline_layers\n1,[3, 5]\n", "a.csv: line 2: 3 cells, the header has 2"),
        ("a.csv", "tp,pp\n1,{\n", "a.csv: line 2: pp: not readable as a value"),
        ("a.json", '{"tp": 1, "tp": 2}', "a.json: line 1, column 11: key 'tp' given twice"),
        ("a.csv", "tp,pp\n\n1,{\n", "a.csv: line 3: pp: not readable as a value"),
        ("a.yaml", LLAMA | {"overlap": "grad"}, "a.yaml: overlap: expected a list; write [grad], found 'grad'"),
        ("a.csv", [LLAMA | {"id": "x"}] * 2, "a.csv: line 3: id 'x' is also the id of "),
        ("a.yaml", [LLAMA | {"id": 2}, LLAMA], "a.yaml: row 2: id '2' is also the id of "),
        (
            "a.toml",
            "",
            "a.toml: unknown kind of file '.toml'; expected a file whose name ends in one of .csv, .tsv, .txt, .y",
        ),
        ("a", "", "a: unknown kind of file ''; expected"),
        ("a.yaml", {"sweeps": [{"set": {"tpp": 1}}]}, "a.yaml: key 'description' is missing"),
        (
            "a.csv",
            [LLAMA | {"tp": "x"}, LLAMA | {"tp": 1, "model": "llama3-71b", "cluster": "h200x3"}],
            "a.csv: line 2: tp: expected a whole number, found 'x'; "
            "line 3: unknown cluster 'h200x3' in config/clusters (did you mean 'h200x32'?); "
            "line 3: unknown model 'llama3-71b' in config/models (did you mean 'llama3-70b'?)",
        ),
    ],
)
def test_wrong_file_is_refused_in_one_line(tmp_path: Path, name: str, content: object, line: str) -> None:
    assert refused(tmp_path, name, content).startswith(line)


def test_a_folder_is_no_file_of_points(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="a folder; expected a file whose name ends in one of .csv"):
        read_points(tmp_path, CONFIG)


KEYS = st.sampled_from([*LLAMA, "dp", "id", "stack", "overlap", "steps", "trace_ranks", "tpp", "", "1", "null"])
VALUES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.lists(st.integers(), max_size=3)
)


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.binary(max_size=60)
    | st.text(max_size=60).map(str.encode)
    | st.dictionaries(KEYS, VALUES, max_size=3).map(lambda row: yaml.safe_dump(LLAMA | row).encode()),
    suffix=st.sampled_from(["csv", "yaml", "json"]),
)
@example(content=b"{1: 2}", suffix="yaml")
@example(content=b"tp,pp\n1,\x00\n", suffix="csv")
@example(content=b"sweeps:", suffix="yaml")
@example(content=yaml.safe_dump(LLAMA | {"overlap": "\r"}).encode(), suffix="yaml")
@example(content=b'"tp', suffix="csv")
def test_any_bytes_are_points_or_refused_in_one_line(tmp_path: Path, content: bytes, suffix: str) -> None:
    source = tmp_path / f"in.{suffix}"
    source.write_bytes(content)
    try:
        points = read_points(source, CONFIG)
    except UserError as error:
        assert str(error).startswith(str(source)) and len(str(error).splitlines()) == 1
    else:
        assert points


def test_command_writes_a_row_for_each_point(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path, "in.yaml", [LLAMA | {"id": 7}, LLAMA | {"pp": 3}])
    assert main(["predict", str(source), str(tmp_path / "out.csv")]) == 0
    assert capsys.readouterr().out == f"predict: 2 rows written to {tmp_path / 'out.csv'}: 1 invalid, 1 ok\n"
    assert main(["predict", str(source), "-"]) == 0
    assert capsys.readouterr().out == (tmp_path / "out.csv").read_text()
    assert main(["predict", str(source)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "2 configurations: 1 ok, 1 invalid" and lines[-1].endswith(
        f"predict {source} - (or OUT.csv, or --json)"
    )
    assert any(line.startswith("llama3-70b_") and " ok " in line for line in lines)
    assert any("tp*pp*cp*dp = 4*3*1*2 = 24, cluster h200x32 has 32 GPUs" in line for line in lines)
    valid, invalid = csv.DictReader((tmp_path / "out.csv").open())
    assert list(valid) == ["id", "run", *COLUMNS]
    assert (valid["id"], valid["status"], invalid["id"], invalid["status"]) == ("7", "ok", "2", "invalid")
    assert invalid["reason"].startswith("tp*pp*cp*dp = 4*3*1*2 = 24, cluster h200x32 has 32 GPUs")


def test_command_refuses_a_file_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(write(tmp_path, "in.csv", [LLAMA | {"tpp": 2}])), str(tmp_path / "out.csv")]) == 2
    assert (
        capsys.readouterr().err == f"triplepoint: {tmp_path}/in.csv: line 2: unknown key 'tpp' (did you mean 'tp'?)\n"
    )
    assert not (tmp_path / "out.csv").exists()
    assert main(["predict", str(tmp_path / "none.csv")]) == 2
    assert "none.csv: no such file" in capsys.readouterr().err


def test_the_reason_of_a_single_invalid_row_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(write(tmp_path, "in.csv", [LLAMA | {"tp": 3}])), "--config", str(CONFIG)]) == 0
    assert capsys.readouterr().out.count("has 32 GPUs") == 1


FILES = ["kernels/h200", "power/h200", "heat/h200", "heat/airflow/hgx-8", "collectives/links/nvlink4"]


def broken_config(folder: Path, file: str, content: str | None) -> Path:
    """Return a copy of the configuration in which one file is missing or of other content."""
    config = folder / "config"
    shutil.copytree(CONFIG, config)
    path = config / f"{file}.yaml"
    assert path.exists()
    path.unlink() if content is None else path.write_text(content)
    return config


@pytest.mark.parametrize("content", ["", "poison: [", "name: h200\n"])
@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("is_published", [False, True])
def test_broken_configuration_ends_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, content: str, is_published: bool
) -> None:
    if file.endswith("hgx-8") and not is_published:
        file += "-fans"  # what the cluster names in its conditions
    words = predict_words(tmp_path, broken_config(tmp_path, file, content), is_published)
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"triplepoint: {tmp_path}/config/{file}.yaml: ")
    assert not (tmp_path / "out.csv").exists()


def predict_words(folder: Path, config: Path, is_published: bool) -> list[str]:
    """Return a command that predicts one point of training on H200."""
    published = "model,gpu,n_gpus,tp,gbs,seq,mbs\nLlama3-8B,H200,8,8,8,4096,1\n"
    source = write(folder, "in.csv", published if is_published else [LLAMA])
    option = ["--published"] if is_published else []
    return ["predict", *option, str(source), str(folder / "out.csv"), "--config", str(config)]


@pytest.mark.parametrize("is_published", [False, True])
def test_gpu_without_kernels_is_refused_and_without_power_has_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], is_published: bool
) -> None:
    config = broken_config(tmp_path, "kernels/h200", None)
    assert main(predict_words(tmp_path, config, is_published)) == 2
    assert "kernels/h200.yaml: no such file" in capsys.readouterr().err
    shutil.copy(CONFIG / "kernels" / "h200.yaml", config / "kernels")
    for part in ("power", "heat"):
        (config / part / "h200.yaml").unlink()
    assert main(predict_words(tmp_path, tmp_path / "other", is_published)[:-1] + [str(config)]) == 0
    (row,) = csv.DictReader((tmp_path / "out.csv").open())
    assert (row["status"], row["gpu_power_w"]) == ("ok", "")


def test_nodes_larger_than_their_chassis_are_refused_as_simulate_refuses_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = broken_config(tmp_path, "clusters/h200x32", (CONFIG / "clusters/h200x32.yaml").read_text())
    airflow = yaml.safe_load((config / "heat/airflow/hgx-8.yaml").read_text())
    airflow |= {"name": "pair", "rows": [[0], [1]], "packages": [[0], [1]]}
    (config / "heat/airflow/pair.yaml").write_text(yaml.safe_dump(airflow))
    cluster = config / "clusters/h200x32.yaml"
    text = cluster.read_text().replace("  airflow: hgx-8-fans\n", "")
    cluster.write_text(text + "\nchassis: pair\n")
    words, line = predict_words(tmp_path, config, False), "triplepoint: airflow pair has 2 devices, nodes of the"
    asked = {"task": "inference", "prompt_tokens": 512, "output_tokens": 16}
    for row in (LLAMA, LLAMA | asked | {"sequence_parallel": False}):
        write(tmp_path, "in.csv", [row])
        assert main(words) == 2
        assert capsys.readouterr().err.startswith(line)


def test_ids_of_a_csv_are_text_as_they_stand(tmp_path: Path) -> None:
    ids = ["007", "yes", "1.5", "2024-01-02", "null", "[x"]
    asked = read_points(write(tmp_path, "in.csv", [LLAMA | {"id": name} for name in ids]), CONFIG)
    assert [one.id for one in asked] == ids


@pytest.mark.parametrize("name", ["A.CSV", "a.tsv", "a.txt"])
@pytest.mark.parametrize("delimiter", [",", "\t", ";"])
def test_tables_are_known_by_their_suffix_and_delimiter_by_content(tmp_path: Path, name: str, delimiter: str) -> None:
    header, cells = delimiter.join(LLAMA), delimiter.join(map(str, LLAMA.values()))
    (one,) = read_points(write(tmp_path, name, f"{header}\n{cells}\n"), CONFIG)
    (same,) = read_points(write(tmp_path, "in.yaml", LLAMA), CONFIG)
    assert one.point == same.point


def test_upper_case_yaml_and_json_are_read(tmp_path: Path) -> None:
    found = [read_points(write(tmp_path, name, LLAMA), CONFIG)[0].point for name in ("A.YML", "A.YAML")]
    found.append(read_points(write(tmp_path, "A.JSON", json.dumps(LLAMA)), CONFIG)[0].point)
    assert found == [found[0]] * 3


def test_file_of_more_than_a_mebibyte_is_read(tmp_path: Path) -> None:
    source = write(tmp_path, "in.json", json.dumps([LLAMA | {"id": f"{n:01000}"} for n in range(1100)]))
    assert source.stat().st_size > 1 << 20
    assert len(read_points(source, CONFIG)) == 1100


@pytest.mark.parametrize("engine", [None, "megatron"])
def test_run_ids_are_those_of_the_plan(tmp_path: Path, engine: str | None) -> None:
    config = tmp_path / "config"
    shutil.copytree(CONFIG, config)
    asked = {key: value for key, value in LLAMA.items() if key != "data_parallel_sharding"}
    stated = asked | ({"engine": engine} if engine else {})
    study = {"description": "One point.", "sweeps": [{"set": {"engine": "simulated"} | stated | {"repeats": 1}}]}
    source = config / "studies" / "one.yaml"
    source.write_text(yaml.safe_dump(study))
    launched, simulated = (
        [entry.run for entry in select(config, ["one"], simulated=names).entries] for names in ((), ("h200x32",))
    )
    assert (launched != simulated) == bool(engine)

    def runs(content: Path, names: tuple[str, ...] = ()) -> list[str]:
        return [run_id(one.point) for one in read_points(content, config, names)]

    row = write(tmp_path, "in.yaml", stated)
    assert runs(row) == (launched if engine else simulated)
    assert runs(source) == launched
    assert runs(source, ("h200x32",)) == runs(row, ("h200x32",)) == simulated


@pytest.mark.parametrize("option", [[], ["--published"]])
@pytest.mark.parametrize("spelling", ["in.csv", "../{}/in.csv", "link.csv", "hard.csv"])
def test_the_file_that_is_read_is_not_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: list[str], spelling: str
) -> None:
    source = write(tmp_path, "in.csv", [LLAMA])
    (tmp_path / "link.csv").symlink_to(source)
    (tmp_path / "hard.csv").hardlink_to(source)
    before = source.read_bytes()
    target = f"{tmp_path}/{spelling.format(tmp_path.name)}"
    assert main(["predict", *option, str(source), target]) == 2
    assert capsys.readouterr().err.startswith(f"triplepoint: {target}: is the file that is read, ")
    assert source.read_bytes() == before and (tmp_path / "link.csv").is_symlink()


def test_progress_is_told_before_each_row(tmp_path: Path) -> None:
    lines: list[str] = []
    predict_file(write(tmp_path, "in.yaml", [LLAMA, LLAMA | {"pp": 3}]), CONFIG, lines.append)
    assert lines == ["predicted 0 of 2 rows", "predicted 1 of 2 rows"]


def test_rows_are_all_checked_before_one_is_predicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "in.csv"
    source.write_text("model,gpu,n_gpus,tp,gbs,seq\nLlama3-8B,H200,8,8,8,4096\nMixtral-8x7B,H200,8,8,8,4096\n")
    config = broken_config(tmp_path, "models/mixtral-8x7b", "poison: [")
    monkeypatch.setattr(Row, "predict", lambda *_: pytest.fail("predicted a row before the last was checked"))
    with pytest.raises(UserError, match="mixtral-8x7b.yaml: not readable as YAML"):
        predict_table(source, config, print)


@pytest.mark.parametrize("option", [[], ["--published"]])
def test_simulated_names_a_cluster_of_the_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: list[str]
) -> None:
    source = write(tmp_path, "in.yaml", LLAMA)
    assert main(["predict", *option, str(source), "--simulated", "h200x33"]) == 2
    assert ("--published table has none" if option else "unknown cluster 'h200x33'") in capsys.readouterr().err


@pytest.mark.parametrize("factor", [4.5, 4.8, 5.0, 6.0])
def test_short_steps_that_heat_holds_stay_as_hot_as_it_lets_them(tmp_path: Path, factor: float) -> None:
    """A step of 9 ms, where hardware halves a clock for a second and lets go again."""
    config = Path(shutil.copytree(CONFIG, tmp_path / "config"))
    path = config / "clusters" / "h200x1.yaml"
    path.write_text(path.read_text() + f"\nconditions:\n  bad_contact: {{node0.gpu0: {factor}}}\n")
    source = write(tmp_path, "in.csv", [{"model": "gpt2-small", "cluster": "h200x1", "global_batch_size": 1,
                                         "sequence_length": 256}])  # fmt: skip
    assert main(["predict", str(source), str(tmp_path / "out.csv"), "--config", str(config)]) == 0
    (row,) = csv.DictReader((tmp_path / "out.csv").open())
    assert 80.0 < float(row["gpu_temp_c"]) < 90.0


def test_stack_of_a_row_says_how_context_parallel_ranks_meet_keys(tmp_path: Path) -> None:
    table = tmp_path / "rows.csv"
    table.write_text(
        "id,model,cluster,cp,global_batch_size,stack,context_exchange\n"
        "usual,llama3-8b,h200x32,4,32,,\n"
        "ulysses,llama3-8b,h200x32,4,32,DeepSpeed,\n"
        "said,llama3-8b,h200x32,4,32,DeepSpeed,all_gather\n"
        "none,llama3-8b,h200x32,1,32,DeepSpeed,\n"
    )
    found = {one.id: one.point.layout.context_exchange for one in read_points(table, Path("config"))}
    assert found == {"usual": "ring", "ulysses": "all_to_all", "said": "all_gather", "none": "ring"}


def test_stack_of_a_row_says_which_layers_have_adapters(tmp_path: Path) -> None:
    table = tmp_path / "rows.csv"
    table.write_text(
        "id,model,cluster,num_gpus,global_batch_size,task,stack,lora_targets\n"
        "usual,llama3-8b,h200x32,8,32,lora,,\n"
        "nemo,llama3-8b,h200x32,8,32,lora,NeMo dgxc v25.04,\n"
        'said,llama3-8b,h200x32,8,32,lora,NeMo dgxc v25.04,"[linear_proj]"\n'
    )
    targets = {one.id: one.point.lora.targets for one in read_points(table, Path("config")) if one.point.lora}
    assert targets == {"usual": TARGETS, "nemo": ("linear_qkv",), "said": ("linear_proj",)}
