"""Table `claims` of a selection: judged by its runs, and cannot tell where none is of the study."""

import shutil
from pathlib import Path

from tests.synthetic import CONFIG, H200, Spec, build, read_tables
from triplepoint.aggregate import aggregate
from triplepoint.tables.claims import CLAIMS
from triplepoint.verdicts.judge import write_claims


def claims_of(folder: Path, *specs: Spec, config: Path = CONFIG) -> list[dict]:
    aggregate(build(folder, specs), folder, config)
    assert write_claims(folder, ["synthetic"], config) == len(CLAIMS.read(folder / "tables" / "claims.parquet"))
    return CLAIMS.read(folder / "tables" / "claims.parquet").to_pylist()


def test_runs_of_the_study_are_judged(tmp_path: Path) -> None:
    layout = {"tp": 8, "pp": 4, "schedule": "1f1b"}
    rows = claims_of(
        tmp_path, Spec("gpt3-175b", layout, recompute="full", cluster=H200, step_ms=1e5, engine="megatron")
    )
    told = {(row["claim"], row["kind"]): row for row in rows if row["point"] == "GPT3-175B TP8-PP4, micro-batch 1"}
    power = told["microbatch-power", "value"]
    # Figure 13: 458 W; made-up GPUs draw 512 to 480 W in nodes of eight.
    assert (power["published"], power["origin"]) == (458, "measured")
    assert power["ours"] == read_tables(tmp_path)["points"]["gpu_power_w"][0].as_py()
    assert (power["verdict"], told["microbatch-fits", "fits"]["verdict"]) == ("differs", "agrees")
    assert power["runs"] and (tmp_path / "tables" / "claims.csv").is_file()


def test_a_study_of_ones_own_cannot_tell_and_says_why(tmp_path: Path) -> None:
    rows = claims_of(tmp_path, Spec("tiny-llama", {"dp": 2}))
    assert {row["verdict"] for row in rows} == {"cannot tell", "finding"}
    assert all(row["reason"] and not row["runs"] for row in rows)


def test_a_configuration_without_claims_has_an_empty_table(tmp_path: Path) -> None:
    shutil.copytree(CONFIG, tmp_path / "config")
    (tmp_path / "config" / "published" / "claims.yaml").unlink()
    assert claims_of(tmp_path, Spec("tiny-llama", {"dp": 2}), config=tmp_path / "config") == []
