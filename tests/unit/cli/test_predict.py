"""The summary of `triplepoint predict` and the order of its words."""

import csv
from pathlib import Path

import pytest

from triplepoint.cli import main

LAYOUTS = """\
- {id: wide, model: llama3-70b, cluster: h200x32, tp: 8, pp: 4, global_batch_size: 128}
- {id: deep, model: llama3-70b, cluster: h200x32, tp: 4, pp: 8, global_batch_size: 128}
- {id: too large, model: llama3-70b, cluster: h200x32, tp: 2, pp: 2, global_batch_size: 128}
"""


@pytest.fixture
def layouts(tmp_path: Path) -> str:
    path = tmp_path / "layouts.yaml"
    path.write_text(LAYOUTS)
    return str(path)


def test_ranked_summary_is_in_order_under_the_ids_of_the_file(layouts: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", layouts, "--rank", "--time-only"]) == 0
    first, _, heading, *lines = capsys.readouterr().out.splitlines()
    assert first == "3 configurations: 2 ok, 1 oom. Fastest: deep"
    assert heading.split()[:2] == ["rank", "slower"]
    assert [line.split()[:3] for line in lines[:2]] == [["deep", "1", "0"], ["wide", "2", lines[1].split()[2]]]
    assert lines[2].split()[:3] == ["too", "large", "oom"]


@pytest.mark.parametrize("order", ["{0} {1} --rank --time-only", "{0} --rank {1} --time-only", "--rank {0} -- {1}"])
def test_options_stand_before_between_or_after_names(
    layouts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    config = Path("config").resolve()
    monkeypatch.chdir(tmp_path)
    out = "--out.csv" if "--" in order.split() else "out.csv"
    assert main(["predict", "--config", str(config), *order.format(layouts, out).split()]) == 0
    with Path(out).open() as file:
        assert [row["rank"] for row in csv.DictReader(file)] == ["2", "1", ""]
