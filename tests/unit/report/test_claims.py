"""Published claims on the page: counts, what differs first, numbers as texts, and hostile texts."""

from pathlib import Path
from typing import Any

from triplepoint.report.claims import sum_up_claims
from triplepoint.report.pages import environment

CONFIG = Path("config")
NONE = dict.fromkeys(
    ("point", "quantity", "published", "published_lo", "published_hi", "ours", "ours_lo", "ours_hi", "difference",
     "reason", "origin", "fitted", "fitted")
)  # fmt: skip


def row(claim: str, verdict: str, kind: str = "value", **columns: Any) -> dict[str, Any]:
    usual = {"claim": claim, "figure": "figure 13", "kind": kind, "says": f"{claim} is so.", "unit": "W", "runs": []}
    return NONE | usual | {"verdict": verdict} | columns


def test_no_claims_have_no_section() -> None:
    assert sum_up_claims([]) is None


def test_what_differs_comes_first() -> None:
    rows = [
        row("calm", "agrees"),
        row("loud", "cannot tell"), row("loud", "agrees"), row("loud", "differs", point="x"),
        row("other", "agrees", figure="figure 3"), row("late", "differs", figure="section 5"),
        row("part", "agrees", figure="section 6, figures 17a and 19"), row("log", "agrees", figure="power log"),
    ]  # fmt: skip
    section = sum_up_claims(rows)
    assert section
    assert section.sentence == "8 comparisons: 2 differ, 5 agree, 1 cannot be told."
    assert [(figure.name, figure.counts) for figure in section.figures] == [
        ("Figure 3", [0, 1, 0]), ("Figure 13", [1, 2, 1]), ("Figure 17", [0, 1, 0]), ("Text", [1, 0, 0]),
        ("Power log", [0, 1, 0]),
    ]  # fmt: skip
    assert section.figures[1].question == "What does a larger micro-batch buy, in time, watts and degrees?"
    assert section.figures[2].groups[0].source == "section 6, figures 17a and 19"
    loud, calm = section.figures[1].groups
    assert (loud.name, loud.counts, calm.name) == ("loud", "1 differs, 1 agrees, 1 cannot be told", "calm")
    assert [one["verdict"] for one in loud.rows] == ["differs", "agrees", "cannot tell"]


def test_numbers_of_each_kind() -> None:
    known = {"published": 458.0, "published_lo": 443.0, "published_hi": 473.0}
    ours = {"ours": 602.0, "ours_lo": 504.0, "ours_hi": 700.0, "difference": 144.0}
    rows = [
        row("value", "differs", **known, **ours),
        row("trend", "agrees", "trend", **known, ours=12.5, ours_lo=12.5, ours_hi=12.5, difference=-445.5),
        row("sign", "agrees", "sign", unit="MHz", published=-1.0, ours=-12.5, ours_lo=-12.5, ours_hi=-12.5),
        row("fits", "differs", "fits", published=1.0, published_lo=1.0, published_hi=1.0, ours=0.0, difference=-1.0),
        row("order", "agrees", "order", unit="1", published=1.0, ours=0.97),
        row("gone", "cannot tell", "sign"),
    ]
    section = sum_up_claims(rows)
    assert section
    texts = {group.name: group.rows[0] for group in section.figures[0].groups}
    told = {name: (one["published"], one["ours"], one["difference"]) for name, one in texts.items()}
    assert told == {
        "value": ("458 ± 15 W", "602 W (504 to 700)", "+144 W"),
        "trend": ("458 ± 15 W", "+12.5 W", "-445.5 W"),
        "sign": ("falls", "-12.5 MHz", ""),
        "fits": ("fits", "out of memory", ""),
        "order": ("1", "0.97", ""),
        "gone": ("", "", ""),
    }


def test_page_shows_findings_apart_and_escapes_texts() -> None:
    hostile = "<script>alert(1)</script>"
    rows = [
        row(hostile, "differs", point=hostile, reason=hostile),
        row("odd", "finding", "finding", reason="5 against 6"),
    ]
    html = environment().get_template("claims.html").render(claims=sum_up_claims(rows))
    assert "<script>" not in html and "&lt;script&gt;" in html
    assert "1 comparison: 1 differs" in html and "5 against 6" in html
    assert html.count('<tr class="differs">') == 1 and "finding</td>" not in html


def test_page_without_a_run_of_the_study_says_so_in_one_line() -> None:
    html = environment().get_template("claims.html").render(claims=sum_up_claims([row("a", "cannot tell")] * 9))
    assert "No run here is of a configuration that the study published" in html
    assert "<table" not in html


def test_section_is_one_line_for_results_of_other_studies() -> None:
    rows = [row("a", "differs"), row("b", "cannot tell")]
    page = environment().get_template("claims.html")
    own = page.render(claims=sum_up_claims(rows, ["my-job"]))
    assert own.index("<details") < own.index("2 comparisons") and own.count("<details") == own.count("</details>")
    both = page.render(claims=sum_up_claims(rows, ["my-job", "parallelism"]))
    assert both.index("2 comparisons") < both.index("<details") and "no study that repeats" not in both


def test_page_says_what_was_set_by_a_figure() -> None:
    rows = [row("a", "agrees", fitted="power of H200"), row("b", "agrees", fitted="power of H200"), row("c", "agrees")]
    section = sum_up_claims(rows)
    assert section and section.figures[0].fitted == "power of H200"
    html = environment().get_template("claims.html").render(claims=section)
    assert html.count("Constants of the simulator were set by this figure") == 1
