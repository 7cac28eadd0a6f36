"""`triplepoint whatif`: what it reads and writes, and what it refuses in one line."""

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml

from tests.unit.whatif.cases import MIXTRAL
from triplepoint.cli import main
from triplepoint.errors import USER_ERROR
from triplepoint.tables.whatif import WHATIF

SMALL = {**MIXTRAL, "global_batch_size": 32}


@pytest.fixture
def points(tmp_path: Path) -> Path:
    path = tmp_path / "points.yaml"
    rows = [{"id": "h200", **SMALL}, {"id": "h100", **SMALL, "cluster": "h100x64"}]
    path.write_text(yaml.safe_dump(rows), encoding="utf-8")
    return path


def test_json_and_table_hold_the_same_rows(points: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.parquet"
    words = ["whatif", f"{points}:h200", "-f", "network", "-f", "slow_gpu=node0.gpu3:0.8", "--json", "--out", str(out)]
    assert main(words) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["factor"] for row in rows[:4]] == ["slow_gpu", "network", None, None]
    assert [row["effect"] for row in rows] == WHATIF.read(out)["effect"].to_pylist()


def test_difference_of_two_points(points: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    assert main(["whatif", f"{points}:h100", f"{points}:h200", "-f", "network", "--out", str(out)]) == 0
    assert "difference" in out.read_text()


def test_same_point_twice_is_one_line(points: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / "copy.yaml"
    copy.write_text(yaml.safe_dump([{"id": "other", **SMALL}]), encoding="utf-8")
    for other in (f"{points}:h200", str(copy)):
        assert main(["whatif", f"{points}:h200", other, "-f", "network"]) == USER_ERROR
        error = capsys.readouterr().err
        assert error == f"triplepoint: {points}:h200 and {other}: both are the same point; name two that differ\n"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["{points}:h300"], "no configuration with id 'h300' (did you mean 'h200'?)"),
        (["{points}", "{points}:h100"], "3 points, a difference is of one each; name one as FILE:ID"),
        (["{points}:h200", "-f", "adaptors=8x400"], "unknown factor 'adaptors' (did you mean 'adapters'?)"),
        (["{points}:h200", "-f", "gpu=h20O"], "'h20O' is not known"),
        (["{points}:h200", "-f", "power_limit=50"], ": power_limit is 50 W; the driver takes limits of"),
        (["{points}:h200", "-f", "slow_gpu=node7.gpu0:0.9"], "slow_gpus names node7.gpu0, the cluster has 4 nodes"),
        (["{points}:h200", "--out", "out.pdf"], "expected a name that ends in .parquet or .csv"),
        (["{points}:h200", "--price-kwh", "dear"], "found 'dear', expected a number from 0"),
        (["{points}:h200", "--price-gpu-hour", "nan"], "found 'nan', expected a number from 0"),
        (["{points}:h200", "--pue", "0.9"], "found '0.9', expected a number from 1 to 10"),
        (["{points}:h200", "--currency", "a b"], "found 'a b', expected a name such as EUR"),
        (["{points}:h200", "--currency", "EUR"], "--currency EUR: no price is given; add --price-kwh or"),
        (["{points}:h200", "--price-gpu-hour", "2", "--pue", "1.3"], "--pue 1.3: energy has no price; add --price-kwh"),
        (["{points}:h200", "--figure", "out.csv"], "found .csv, expected a name that ends in .pdf"),
        (["{points}:h200", "-f", "gpu=a100"], "gpu: power and heat of a100 are not known, those of h200 are; expected"),
        (["no-such-run"], "no such run"),
        (["{comparison}", "-f", "network"], "a comparison names its points and factors"),
    ],
)
def test_refusals_are_one_line(
    words: list[str], line: str, points: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    comparison = "config/whatif/scale_up_vs_out.yaml"
    filled = [word.format(points=points, comparison=comparison) for word in words]
    assert main(["whatif", *filled]) == 2
    said = capsys.readouterr().err.strip()
    assert line in said
    assert "\n" not in said


def test_usual_factors_that_need_power_are_left_out_where_it_is_not_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree("config", tmp_path / "config")
    cluster = "name: mine\nlike: h200x32\ngpu: a100\nchassis: null\nconditions: {}\n"
    (tmp_path / "config/clusters/mine.yaml").write_text(cluster)
    point = tmp_path / "point.yaml"
    point.write_text(yaml.safe_dump({"model": "llama3-8b", "cluster": "mine", "global_batch_size": 32, "tp": 8}))
    assert main(["whatif", str(point), "--config", str(tmp_path / "config"), "--no-shapley", "--json"]) == 0
    told = capsys.readouterr()
    assert told.err == "whatif: power and heat of a100 are not known: without cooling and power_limit\n"
    factors = {row["factor"] for row in json.loads(told.out)["rows"]}
    assert {"network", "memory"} < factors and not {"power_limit", "cooling"} & factors


def test_help_names_every_factor(capsys: pytest.CaptureFixture[str]) -> None:
    from triplepoint.whatif.factors import FACTORS

    with pytest.raises(SystemExit):
        main(["whatif", "--help"])
    said = capsys.readouterr().out
    assert all(f"  {name} " in said for name in FACTORS)


def comparison_of(**changes: object) -> dict[str, object]:
    usual = yaml.safe_load(Path("config/whatif/scale_up_vs_out.yaml").read_text(encoding="utf-8"))
    usual |= {"points": {"global_batch_size": 128, "model": "mixtral-8x7b"}, "factors": ["network", "pipeline"]}
    return usual | changes


def test_a_comparison_takes_the_fastest_points(tmp_path: Path) -> None:
    path, out = tmp_path / "own.yaml", tmp_path / "out.parquet"
    path.write_text(yaml.safe_dump(comparison_of()), encoding="utf-8")
    assert main(["whatif", str(path), "--out", str(out)]) == 0
    rows = [row for row in WHATIF.read(out).to_pylist() if row["quantity"] == "step_time_s"]
    assert {row["comparison"] for row in rows} == {"own"}
    (whole,) = [row for row in rows if row["side"] == "difference" and row["part"] == "whole"]
    # Published: 64 H100 train Mixtral 8x7B faster, so from them to 32 H200 time rises.
    assert whole["published_sign"] == 1
    assert "Mixtral 8x7B" in whole["published"]
    assert whole["case"].startswith("mixtral-8x7b_h100x64_tp1-pp4")
    assert whole["effect"] > 0


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"sides": {"from": {"cluster": "h100x64"}}}, "sides: found from, expected from and to"),
        ({"points": {"cluter": "h100x64"}}, "unknown setting 'cluter' (did you mean 'cluster'?)"),
        ({"points": {"model": "gpt3-30b"}}, "no model of study parallelism runs on both sides"),
        ({"published": {"mixtral-8x7b": "h100-ahead"}}, "claim 'h100-ahead' of config/published/claims.yaml is not"),
        ({"factors": ["netwrk"]}, "unknown factor 'netwrk'"),
        ({"study": "paralelism"}, "unknown study 'paralelism'"),
    ],
)
def test_a_wrong_comparison_is_refused_in_one_line(
    changes: dict[str, object], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump(comparison_of(**changes)), encoding="utf-8")
    assert main(["whatif", str(path)]) == 2
    assert line in capsys.readouterr().err


def test_worked_example_is_what_the_command_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = Path("docs/whatif.md").read_text(encoding="utf-8")
    point = text.partition("```yaml\n# point.yaml\n")[2].partition("```")[0]
    command, _, shown = text.partition("```\n$ triplepoint ")[2].partition("```")[0].partition("\n")
    (tmp_path / "point.yaml").write_text(point, encoding="utf-8")
    assert main(command.replace("point.yaml", str(tmp_path / "point.yaml")).split()) == 0
    said = capsys.readouterr().out
    number = r"[-+]?\d+(?:\.\d+)?(?:e[-+]\d+)?"
    assert re.sub(number, "#", said).split() == re.sub(number, "#", shown).split()
    # A new calibration moves numbers a little; what the text says of them stays true.
    found, told = (list(map(float, re.findall(number, text.split("\n", 2)[2]))) for text in (said, shown))
    assert found == pytest.approx(told, rel=0.1, abs=0.5)
