"""The committed claims: what they name exists, every one has rows, and a wrong file is refused in one line."""

import csv
from pathlib import Path
from typing import Any

import pytest

from tests.claims import FIGURE, configure, judge, point
from triplepoint.config.catalogue import Catalogue
from triplepoint.errors import UserError
from triplepoint.tables.claims import CLAIMS
from triplepoint.verdicts.file import FigureClaim, SlotClaim, read_number
from triplepoint.verdicts.read import read_claims

CONFIG = Path("config")
POWER = {
    "id": "power", "kind": "figure", "says": "Power of a GPU.", "figure": "one", "judged": ["value"],
    "quantity": "gpu_power_w", "published": {"columns": ["w"], "accuracy": 15},
}  # fmt: skip
CHANGE = {
    "id": "overlap", "kind": "change", "says": "Overlap is hotter.", "source": "section 5",
    "quantity": "gpu_temp_max_c",
    "direction": "rises", "points": {"model": "tiny-gpt"}, "before": {"overlap": []}, "after": {"overlap": ["tp"]},
}  # fmt: skip


def test_every_committed_claim_has_rows_and_none_is_told_without_results() -> None:
    rows = CLAIMS.from_rows(judge(CONFIG, [])).to_pylist()
    published = read_claims(CONFIG)
    assert published
    assert {row["claim"] for row in rows} == {claim.id for claim in published.content.claims}
    assert {row["verdict"] for row in rows} == {"cannot tell", "finding"}
    assert all(row["reason"] and row["figure"] for row in rows)


def test_every_number_of_the_committed_figures_is_judged_or_named() -> None:
    """A number of `config/published/figures` that no claim reads would be a claim forgotten."""
    published = read_claims(CONFIG)
    assert published
    content = published.content
    read: dict[str, set[str]] = {}
    for claim in content.claims:
        if isinstance(claim, FigureClaim | SlotClaim):
            numbers = vars(claim.published)
            found = read.setdefault(content.figures[claim.figure].file, set())
            found |= {*numbers.get("columns", []), *numbers.get("efficiency", []), numbers.get("power", "")}
    left = {
        f"{path.stem}: {column}"
        for path in (CONFIG / "published" / "figures").glob("*.csv")
        for row in csv.DictReader(path.open())
        for column, text in row.items()
        if read_number(text or "") and column not in read[path.stem] | {"mbs", "node", "local_gpu", "gpu_index"}
    }
    # The third panel shows the same efficiency as the other two, with more rows that could not be read.
    assert left == {"microbatch_h200_gpt3: norm_eff_T"}


def test_committed_figures_name_models_and_clusters_there_are() -> None:
    published, catalogue = read_claims(CONFIG), Catalogue(CONFIG)
    assert published
    for figure in published.content.figures.values():
        assert catalogue.model(figure.settings["model"]) and catalogue.cluster(figure.settings["cluster"])


def test_no_file_of_claims_is_no_claim(tmp_path: Path) -> None:
    assert judge(tmp_path, [point("a")]) == []


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        (POWER | {"quantity": "gpu_pwoer_w"}, "quantity 'gpu_pwoer_w' is not known (did you mean 'gpu_power_w'?)"),
        (POWER | {"figure": "two"}, "no figure 'two' (known: one)"),
        (POWER | {"along": "mbz"}, "column of published/figures/made_up.csv 'mbz' is not known (did you mean 'mbs'?)"),
        (POWER | {"kind": "figures"}, "kind"),
        (POWER | {"judged": ["trend"]}, "claim power: a trend needs 'along'"),
        (POWER | {"along": "layout"}, "published/figures/made_up.csv: layout 'A': expected a whole number"),
        (POWER | {"judgd": ["value"]}, "judgd"),
        (CHANGE | {"after": {"overlpa": ["tp"]}}, "setting 'overlpa' is not known (did you mean 'overlap'?)"),
        (CHANGE | {"alike": ["modle"]}, "claim overlap: setting 'modle' is not known (did you mean 'model'?)"),
        (CHANGE | {"direction": "up"}, "direction"),
    ],
)  # fmt: skip
def test_claims_that_name_what_there_is_not_are_refused(tmp_path: Path, claim: dict[str, Any], message: str) -> None:
    config = configure(tmp_path, [claim], "layout,mbs,w\nA,1,500\n")
    with pytest.raises(UserError) as caught:
        judge(config, [])
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_two_claims_of_one_id_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="two claims have the id 'power'"):
        judge(configure(tmp_path, [POWER, POWER], "layout,mbs,w\nA,1,500\n"), [])


def test_row_of_a_layout_nobody_explained_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"layout 'D': published/claims.yaml does not explain it"):
        judge(configure(tmp_path, [POWER], "layout,mbs,w\nD,1,500\n"), [])


def test_pattern_of_names_with_an_unknown_column_is_refused(tmp_path: Path) -> None:
    config = configure(tmp_path, [POWER], "layout,mbs,w\nA,1,5\n", figures={"one": FIGURE | {"name": "{layuot}"}})
    with pytest.raises(UserError, match=r"figure one: column of .*made_up.csv 'layuot' .*did you mean 'layout'"):
        judge(config, [])


def test_figure_without_a_file_is_refused(tmp_path: Path) -> None:
    config = configure(tmp_path, [POWER], figures={"one": FIGURE | {"file": "elsewhere"}})
    with pytest.raises(UserError, match="elsewhere.csv: no such file"):
        judge(config, [])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        *[("5", (5, 5)), ("-0.01", (-0.01, -0.01)), ("0-3.2", (0, 3.2)), ("~5", (5, 5)), (".", None)],
        *[("OOM", None), ("", None), ("1-", None)],
    ],
)  # fmt: skip
def test_read_number(text: str, found: tuple[float, float] | None) -> None:
    assert read_number(text) == found
