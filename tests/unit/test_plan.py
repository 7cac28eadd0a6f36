import json
from pathlib import Path

import pytest

from tests.unit.config.conftest import REPOSITORY, WriteStudy, config_dir, write_study
from triplepoint.cli import plan as cli_plan
from triplepoint.config.plan import read_plan, read_planned_run, run_label
from triplepoint.errors import UserError
from triplepoint.plan import render, select, write_plan

__all__ = ["config_dir", "write_study"]


def error(*arguments: object) -> str:
    with pytest.raises(UserError) as caught:
        select(*arguments)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_select_unknown_study_names_nearest() -> None:
    assert "unknown study 'microbach'" in error(REPOSITORY / "config", ["microbach"])
    assert "(did you mean 'microbatch'?)" in error(REPOSITORY / "config", ["microbach"])


def test_select_unknown_cluster_argument_names_nearest() -> None:
    assert "unknown cluster 'h200' in " in error(REPOSITORY / "config", None, ["h200"])


@pytest.mark.parametrize(("key", "value"), [("cluster", "h200x31"), ("model", "llama3-7b")])
def test_select_unknown_name_in_study_names_file_and_nearest(
    config_dir: Path, write_study: WriteStudy, key: str, value: str
) -> None:
    path = write_study(f"  - set: {{{key}: {value}}}")
    found = error(config_dir, ["test"])
    assert found.startswith(f"{path}: unknown {key} '{value}' in ")
    assert "did you mean" in found


def test_select_gpu_of_cluster_missing_names_cluster_file(config_dir: Path, write_study: WriteStudy) -> None:
    (config_dir / "gpus" / "h200.yaml").unlink()
    write_study("  - set: {cluster: h200x32, num_gpus: 8}")
    said = error(config_dir)
    assert said.startswith(f"{config_dir / 'clusters' / 'h200x32.yaml'}: ") and "unknown gpu 'h200'" in said


def test_select_name_unlike_file_is_refused(config_dir: Path, write_study: WriteStudy) -> None:
    path = config_dir / "models" / "tiny-llama.yaml"
    path.write_text(path.read_text().replace("name: tiny-llama", "name: tiny"))
    write_study("  - {}")
    assert error(config_dir) == f"{path}: name is 'tiny', the file is called 'tiny-llama'; they must be the same"


def test_select_empty_folder_is_refused(tmp_path: Path) -> None:
    assert "no study has a point" in error(tmp_path)


def test_select_study_without_valid_point_names_first_reason(config_dir: Path, write_study: WriteStudy) -> None:
    path = write_study("  - axes: {tp: [16, 3]}")
    assert error(config_dir) == (
        f"{path}: none of its 2 points can run; tiny-llama_cpu-local_tp16-pp1-dp1_mbs1_gbs8_simulated_r1_4d037d: "
        "tp*pp*cp*dp = 16*1*1*1 = 16, num_gpus is 4; choose tp, pp and cp whose product divides 4"
    )


def test_select_keeps_invalid_points_with_reason(config_dir: Path, write_study: WriteStudy) -> None:
    write_study("  - axes: {micro_batch_size: [2, 4]}")
    entries = select(config_dir).entries
    assert [entry.invalid_because for entry in entries] == [
        None,
        "global_batch_size 8 is not divisible by micro_batch_size*dp = 4*4 = 16; set micro_batch_size: 2",
    ]


def test_select_folds_and_counts(config_dir: Path, write_study: WriteStudy) -> None:
    write_study("  - axes: {layout: [{tp: 4}, {dp: 4}], sequence_parallel: [true, false], overlap: [[], [tp]]}")
    plan = select(config_dir)
    # tp 4 with sequence parallelism: with and without overlap; without it, and dp 4: overlap does nothing.
    assert len(plan.entries) == 4
    assert plan.num_folded == 4


def test_select_shared_point_is_one_entry_of_both_studies(config_dir: Path, write_study: WriteStudy) -> None:
    write_study("  - axes: {tp: [1, 2]}", name="first")
    write_study("  - axes: {tp: [2, 4]}", name="second")
    studies = {entry.planned.point.layout.tp: entry.studies for entry in select(config_dir).entries}
    assert studies == {1: ("first",), 2: ("first", "second"), 4: ("second",)}


def test_select_different_points_of_one_label_are_two_runs(config_dir: Path, write_study: WriteStudy) -> None:
    write_study("  - set: {steps: {measured: 10}}", name="first")
    write_study("  - set: {steps: {measured: 20}}\n  - set: {corpus: stdlib}", name="second")
    entries = select(config_dir).entries
    assert len({entry.run for entry in entries}) == 3
    assert {run_label(entry.planned.point) for entry in entries} == {
        "tiny-llama_cpu-local_tp1-pp1-dp4_mbs1_gbs8_simulated_r1"
    }


def test_select_clusters_leaves_out_the_others(config_dir: Path, write_study: WriteStudy) -> None:
    write_study("  - axes: {cluster: [cpu-local, h200x32]}")
    entries = select(config_dir, None, ["h200x32"]).entries
    assert [entry.planned.point.cluster.name for entry in entries] == ["h200x32"]


def test_select_named_study_not_on_cluster_is_refused(config_dir: Path, write_study: WriteStudy) -> None:
    path = write_study("  - {}")
    assert (
        error(config_dir, ["test"], ["h200x32"])
        == f"{path}: no point on h200x32, but on cpu-local; name that with --cluster, or in config.yaml"
    )


def test_select_all_skips_studies_on_other_clusters() -> None:
    plan = select(REPOSITORY / "config", None, ["cpu-local"])
    assert {entry.studies for entry in plan.entries} == {("smoke",)}


def test_plan_of_a_cluster_that_is_also_simulated_is_simulated(
    config_dir: Path, write_study: WriteStudy, tmp_path: Path
) -> None:
    write_study("  - axes: {cluster: [cpu-local, h200x32], engine: [native]}")
    for simulated, engine in (([], "native"), (["--simulated", "h200x32"], "simulated")):
        asked = ["--cluster", "h200x32", *simulated, "--config", str(config_dir), "--write", "--results", str(tmp_path)]
        cli_plan.run(cli_plan.parser().parse_args(["test", *asked]))
        points = [entry.planned.point for entry in read_plan(tmp_path / "plan.json").entries]
        assert [(point.cluster.name, point.engine) for point in points] == [("h200x32", engine)]


def test_select_asks_the_engine(config_dir: Path, write_study: WriteStudy) -> None:
    write_study("  - axes: {precision: [fp32, fp16]}\n    set: {engine: native}")
    reasons = [entry.invalid_because for entry in select(config_dir).entries]
    assert reasons[0] is None
    assert reasons[1] is not None
    assert "native engine" in reasons[1]


def test_select_run_is_the_same_whatever_else_is_selected() -> None:
    alone = {entry.run: entry.planned.digest for entry in select(REPOSITORY / "config", ["microbatch"]).entries}
    together = {entry.run: entry.planned.digest for entry in select(REPOSITORY / "config").entries}
    assert alone.items() <= together.items()


def test_smoke_is_small_and_has_every_outcome_of_a_plan() -> None:
    plan = select(REPOSITORY / "config", ["smoke"])
    assert 10 <= len(plan.valid) <= 16
    assert len(plan.entries) > len(plan.valid)
    assert all(entry.planned.point.num_gpus == 4 for entry in plan.entries)


def test_digest_of_plan_changes_with_studies_and_contents(config_dir: Path, write_study: WriteStudy) -> None:
    write_study("  - axes: {tp: [1, 2]}")
    first = select(config_dir).digest()
    assert select(config_dir).digest() == first
    write_study("  - axes: {tp: [2, 1]}", name="other")
    assert select(config_dir).digest() != first


def test_digest_of_plan_is_that_of_what_is_written(config_dir: Path, write_study: WriteStudy) -> None:
    path = write_study("  - axes: {tp: [1, 2]}")
    first = select(config_dir).digest()
    path.write_text("# a remark\n" + path.read_text())
    assert select(config_dir).digest() == first
    cluster = config_dir / "clusters" / "cpu-local.yaml"
    cluster.write_text(cluster.read_text().replace("time_limit_s: 600", "time_limit_s: 700"))
    assert select(config_dir).digest() != first


def test_write_plan_writes_valid_runs_and_reads_back(config_dir: Path, write_study: WriteStudy, tmp_path: Path) -> None:
    write_study("  - axes: {micro_batch_size: [1, 4]}")
    plan = select(config_dir)
    write_plan(plan, tmp_path / "results")
    assert read_plan(tmp_path / "results" / "plan.json") == plan
    runs = list((tmp_path / "results" / "runs").iterdir())
    assert [run.name for run in runs] == [plan.valid[0].run]
    assert read_planned_run(runs[0] / "point.json") == plan.valid[0].planned


def test_write_plan_leaves_unchanged_files_alone(config_dir: Path, write_study: WriteStudy, tmp_path: Path) -> None:
    write_study("  - axes: {tp: [1, 2]}")
    write_plan(select(config_dir), tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")}
    write_study("  - axes: {tp: [1, 2, 4]}")
    write_plan(select(config_dir), tmp_path)
    changed = {path.name for path, then in before.items() if path.stat().st_mtime_ns != then}
    assert changed == {"plan.json"}
    assert len(list(tmp_path.rglob("point.json"))) == 3


def test_read_plan_missing_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"plan\.json: no such file; .*triplepoint plan"):
        read_plan(tmp_path / "plan.json")


@pytest.mark.parametrize("text", ["", '{"entries": [', "\x00"])
def test_read_planned_run_damaged_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "point.json"
    path.write_text(text)
    with pytest.raises(UserError, match=r"point\.json"):
        read_planned_run(path)


def test_read_planned_run_changed_by_hand_is_refused(config_dir: Path, write_study: WriteStudy, tmp_path: Path) -> None:
    write_study("  - {}")
    write_plan(select(config_dir), tmp_path)
    path = next(tmp_path.rglob("point.json"))
    content = json.loads(path.read_text())
    content["point"]["micro_batch_size"] = 2
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match="the digest does not match the point"):
        read_planned_run(path)


def test_render_shows_points_reasons_and_counts(config_dir: Path, write_study: WriteStudy) -> None:
    write_study("  - axes: {micro_batch_size: [1, 4]}\n    set: {recompute: full}\n  - set: {recompute: full}")
    lines = render(select(config_dir)).splitlines()
    columns = ["layout", "mbs", "gbs", "micro-batches", "recompute", "overlap", "state", "run"]
    assert lines[0].split() == columns
    assert lines[2] == "tiny-llama on cpu-local, simulated"
    assert lines[3].split()[:7] == ["tp1-pp1-dp4", "1", "8", "2", "full", "none", "valid"]
    assert lines[4].split()[:7] == ["tp1-pp1-dp4", "4", "8", "-", "full", "none", "invalid"]
    assert lines[5].startswith("    invalid: global_batch_size 8 is not divisible by")
    assert lines[-1] == (
        "2 points: 1 valid, 1 invalid; 1 folded into an equal point of their study, 0 shared by studies"
    )


def test_render_columns_are_aligned(config_dir: Path, write_study: WriteStudy) -> None:
    write_study("  - axes: {layout: [{tp: 4, sequence_parallel: true, overlap: [tp]}, {dp: 4}]}")
    lines = render(select(config_dir)).splitlines()
    starts = {line.index("tiny-llama_") for line in lines if "tiny-llama_" in line}
    assert starts == {lines[0].index("run")}
