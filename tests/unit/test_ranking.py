"""Ranking of layouts: places, differences to the fastest with their intervals, ties."""

import csv
import math
from pathlib import Path

import pandas as pd
import pytest

import triplepoint
from triplepoint.cli import main
from triplepoint.errors import UserError
from triplepoint.predictions import predict_file
from triplepoint.ranking import rank
from triplepoint.simulate.predict.prediction import Prediction, read_calibrations
from triplepoint.status import PredictionStatus

CONFIG = Path("config")
ROWS = """id,model,cluster,global_batch_size,tp,pp,micro_batch_size,recompute
a,gpt3-175b,h200x32,128,8,4,1,full
b,gpt3-175b,h200x32,128,4,8,1,full
c,gpt3-175b,h200x32,128,2,16,1,full
other,gpt3-30b,h200x32,128,4,2,1,none
big,gpt3-175b,h200x32,128,1,1,1,none
wrong,gpt3-175b,h200x32,128,3,8,1,none
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rank") / "in.csv"
    path.write_text(ROWS)
    return path


@pytest.fixture(scope="module")
def found(source: Path) -> dict[str, tuple[Prediction, dict[str, object]]]:
    rows = predict_file(source, CONFIG, print)
    ranked = rank([prediction for _, _, prediction in rows], CONFIG)
    return {id_: (prediction, columns) for (id_, _, prediction), columns in zip(rows, ranked, strict=True)}


def test_layouts_of_one_training_are_ranked_by_time(found: dict[str, tuple[Prediction, dict[str, object]]]) -> None:
    layouts = sorted("abc", key=lambda id_: found[id_][0].step_time_s)
    assert [found[id_][1]["rank"] for id_ in layouts] == [1, 2, 3]
    assert {found[id_][1]["num_ranked"] for id_ in "abc"} == {3}
    assert (found["other"][1]["rank"], found["other"][1]["num_ranked"]) == (1, 1)


def test_the_interval_of_a_difference_is_that_of_layouts(
    found: dict[str, tuple[Prediction, dict[str, object]]],
) -> None:
    layouts = sorted("abc", key=lambda id_: found[id_][0].step_time_s)
    first, last = found[layouts[0]], found[layouts[-1]]
    ratio = last[0].step_time_s / first[0].step_time_s
    assert first[0].laid is not None and last[0].laid is not None
    width = read_calibrations(CONFIG)[0].layout_width(first[0].laid, last[0].laid)
    assert float(str(last[1]["slower_fraction"])) == pytest.approx(ratio - 1, abs=1e-5)
    assert float(str(last[1]["slower_lo_fraction"])) == pytest.approx(ratio * math.exp(-width) - 1, abs=1e-5)
    assert (last[1]["tied_with_first"] == "yes") == read_calibrations(CONFIG)[0].is_tied(
        first[0].laid, last[0].laid, math.log(ratio)
    )
    assert first[1]["tied_with_first"] == "yes" and first[1]["slower_fraction"] == "0"
    # Less is unknown of a difference than of either time: what both share cancels.
    assert math.exp(width) < (last[0].step_time_hi_s / last[0].step_time_lo_s)


@pytest.mark.parametrize(("id_", "status"), [("big", PredictionStatus.OOM), ("wrong", PredictionStatus.INVALID)])
def test_what_does_not_run_has_no_place(
    found: dict[str, tuple[Prediction, dict[str, object]]], id_: str, status: PredictionStatus
) -> None:
    assert found[id_][0].status == status and set(found[id_][1].values()) == {""}


def test_command_ranks(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    assert main(["predict", str(source), str(out), "--rank"]) == 0
    rows = {row["id"]: row for row in csv.DictReader(out.open())}
    assert sorted(rows[id_]["rank"] for id_ in "abc") == ["1", "2", "3"] and rows["big"]["rank"] == ""


def test_library_predicts_what_the_command_does(source: Path, tmp_path: Path) -> None:
    points = [{name: cell for name, cell in row.items() if cell} for row in csv.DictReader(source.open())]
    settings = [{name: int(cell) if cell.isdigit() else cell for name, cell in point.items()} for point in points]
    table = triplepoint.predict(settings, with_rank=True, with_power=False)
    out = tmp_path / "out.csv"
    assert main(["predict", str(source), str(out), "--rank", "--time-only"]) == 0
    for row, (_, ours) in zip(csv.DictReader(out.open()), table.iterrows(), strict=True):
        for name, cell in row.items():
            value = ours[name]
            if isinstance(value, bool):
                assert value == (cell == "yes")
            elif isinstance(value, str):
                assert value == cell
            else:
                assert math.isnan(value) if cell == "" else value == float(cell)


def test_time_only_leaves_power_out(source: Path) -> None:
    rows = predict_file(source, CONFIG, print, with_power=False)
    assert all(math.isnan(one.power.gpu_power_w) for _, _, one in rows)
    assert rows[0][2].step_time_s > 0


def test_library_takes_a_table_and_refuses_what_is_none(source: Path) -> None:
    rows = [{"model": "gpt3-175b", "cluster": "h200x32", "global_batch_size": 128, "tp": tp, "pp": 4} for tp in (8, 4)]
    table = triplepoint.predict(pd.DataFrame(rows), with_power=False)
    assert table["step_time_s"].tolist() == triplepoint.predict(rows, with_power=False)["step_time_s"].tolist()
    for wrong in (rows[0], str(source), None, 3):
        with pytest.raises(UserError, match="expected a list of mappings or a pandas table"):
            triplepoint.predict(wrong)
    with pytest.raises(UserError, match="point 1: expected a mapping of settings, found one int"):
        triplepoint.predict([3])
