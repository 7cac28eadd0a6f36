"""Figure `scale_up_vs_out`: its title, its numbers and what it says of what is published, from rows made by hand."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from matplotlib.text import Text

from triplepoint.errors import UserError
from triplepoint.figures import scale_up_vs_out, spec_of
from triplepoint.figures.write import write_figure
from triplepoint.tables.whatif import WHATIF

FACTORS = {"network": "network between nodes", "memory": "memory"}


def row(side: str, part: str, factor: str | None, share: float, width: float, **more: Any) -> dict[str, Any]:
    clusters = {"from": "h100x64", "to": "h200x32", "difference": "h100x64 to h200x32"}
    label = FACTORS[factor] if factor else {"interaction": "interaction", "rest": "computing"}.get(part, "all together")
    return {
        "comparison": "own", "model": "gpt3-175b", "case": side, "cluster": clusters[side], "side": side, "part": part,
        "factor": factor, "value": "free" if factor else None, "label": label, "quantity": "step_time_s", "unit": "s",
        "base": 10.0, "changed": 15.0, "effect": 10 * share, "effect_lo": 10 * (share - width),
        "effect_hi": 10 * (share + width), "share": share, "share_lo": share - width, "share_hi": share + width,
        "stack": "NeMo b70681c", "git_commit": "7a8460e0", "origin": "simulated",
    } | more  # fmt: skip


def rows_of(whole: float = 0.5, width: float = 0.1, sign: float | None = -1.0) -> list[dict[str, Any]]:
    """Rows of one model: +50 % of which memory +20 % and network -5 % are due to factors."""
    sides = [row(side, "factor", name, -0.1, 0.02) for side in ("from", "to") for name in FACTORS]
    sides += [row(side, "whole", None, -0.2, 0.03) for side in ("from", "to")]
    return [
        *sides,
        row("difference", "factor", "network", -0.05, 0.02),
        row("difference", "factor", "memory", 0.2, 0.05),
        row("difference", "interaction", None, 0.05, 0.05),
        row("difference", "rest", None, whole - 0.2, 0.05),
        row("difference", "whole", None, whole, width, published_sign=sign, published="a claim (section 4.1)"),
    ]


def drawn(rows: list[dict[str, Any]]) -> tuple[list[str], pd.DataFrame]:
    table = WHATIF.from_rows(rows).to_pandas()
    figure, numbers = scale_up_vs_out.draw({"whatif": table})
    return [" ".join(text.get_text().split()) for text in figure.findobj(Text) if text.get_text()], numbers


def test_title_has_the_difference_and_the_largest_factor_of_its_sign() -> None:
    said, _ = drawn(rows_of())
    title = "A step of gpt3-175b on h200x32 is 50 % [40, 60] longer than on h100x64; largest part: GPUs (type, number)"
    assert title in said
    assert "SIMULATED" in said
    assert "+50 % [40, 60] published: shorter" in said
    assert {"+30", "+20", "-5", "+5*"} <= set(said), "parts in points, with an asterisk where they may be none"


def test_a_difference_that_may_be_none_is_a_tie() -> None:
    said, _ = drawn(rows_of(0.05, 0.1, None))
    title = "A step of gpt3-175b on h200x32 is as long as on h100x64, difference 5.0 % [-5.0, 15.0]"
    assert title in said and "+5.0 % [-5.0, 15.0]" in said
    assert not any("published:" in text for text in said)


def test_numbers_are_the_rows_of_time() -> None:
    rows = rows_of()
    _, numbers = drawn([*rows, {**rows[-1], "quantity": "cost"}])
    assert numbers["share"].tolist() == [one["share"] for one in rows]
    assert set(numbers["origin"]) == {"simulated"}


def test_text_is_at_least_seven_points_and_the_page_no_higher_than_it_may_be() -> None:
    figure, _ = scale_up_vs_out.draw({"whatif": WHATIF.from_rows(rows_of()).to_pandas()})
    assert min(text.get_fontsize() for text in figure.findobj(Text) if text.get_text()) >= 7.0
    assert (figure.get_figwidth(), figure.get_figheight() <= 8.5) == (7.0, True)


def test_figure_is_written_from_its_comparison(tmp_path: Path) -> None:
    path = tmp_path / "whatif" / "scale_up_vs_out.parquet"
    path.parent.mkdir()
    WHATIF.write(path, WHATIF.from_rows(rows_of()))
    write_figure("scale_up_vs_out", tmp_path, tmp_path)
    assert (tmp_path / "scale_up_vs_out.csv").read_text().count("\n") == len(rows_of()) + 1


def test_figure_without_its_comparison_says_what_makes_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"scale_up_vs_out.parquet; make it with 'snakemake figs/scale_up_vs_out.pdf'"):
        write_figure("scale_up_vs_out", tmp_path, tmp_path)


def test_figure_is_of_no_single_study() -> None:
    with pytest.raises(UserError, match=r"draws config/whatif/scale_up_vs_out.yaml, not one study"):
        spec_of("mine/scale_up_vs_out")
