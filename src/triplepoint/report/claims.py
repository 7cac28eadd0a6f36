"""Published claims on the front page: counts of verdicts, contradictions of the study, and all rows by figure."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from triplepoint.figures import FIGURES
from triplepoint.units import counted
from triplepoint.verdicts.number import Verdict

Row = dict[str, Any]

ORDER = (Verdict.DIFFERS, Verdict.AGREES, Verdict.CANNOT_TELL)
"""Verdicts in the order in which the page shows them."""
_UNITS = {"1": "", "degC": "°C"}
_IS_FIT = {1.0: "fits", 0.0: "out of memory"}
_SIGNS = {1.0: "rises", -1.0: "falls"}
_NO_FIGURE = 1000
"""Number of sources that are no figure, so that they are sorted last."""
_QUESTIONS = {
    int(number): spec.question
    for spec in reversed(tuple(FIGURES.values()))
    for number in re.findall(r"\d+", spec.paper or "")
}
"""Question of each figure of the published study: that of the first figure of the catalogue that matches it."""

_REPEATING = {study for spec in FIGURES.values() if spec.paper for study in spec.studies}
"""Studies that repeat runs of the published study."""


class Group(NamedTuple):
    """One claim.

    Attributes:
        name: Id of the claim.
        says: Statement of the claim.
        source: Figure or text of the published study.
        quantity: Name of the quantity.
        counts: Number of rows by verdict in words.
        rows: Cells of each row as texts, in the order of `ORDER`.
    """

    name: str
    says: str
    source: str
    quantity: str
    counts: str
    rows: list[dict[str, str]]


class Figure(NamedTuple):
    """All claims of one figure of the published study, or of its text.

    Attributes:
        name: Name of the figure.
        question: Question of the figure; '' if unknown.
        counts: Number of rows by verdict, in the order of `ORDER`.
        fitted: Constants of the simulator that were fitted to the figure; '' for none.
        groups: Claims, those with most differences first.
    """

    name: str
    question: str
    counts: list[int]
    fitted: str
    groups: list[Group]


class Section(NamedTuple):
    """Section of the page on claims.

    Attributes:
        sentence: Number of rows by verdict in words.
        figures: Claims by figure of the published study; empty if the results have no run to judge them by.
        findings: Contradictions within the published study: sentence and numbers of each.
        is_folded: Whether the section is folded to one line, since no study of the results repeats the published one.
    """

    sentence: str
    figures: list[Figure]
    findings: list[tuple[str, list[str]]]
    is_folded: bool = False


def sum_up_claims(rows: Sequence[Row], studies: Collection[str] | None = None) -> Section | None:
    """Return the section of the page on claims; None if there are none.

    Args:
        rows: Rows of table `claims` in their order.
        studies: Studies of the results. The section is folded unless one of them is drawn beside a figure of the
            published study. None: it is not folded.
    """
    if not rows:
        return None
    judged = [row for row in rows if row["verdict"] != Verdict.FINDING]
    totals = _count(judged)
    words = ", ".join(f"{count} {_plural(verdict, count)}" for verdict, count in zip(ORDER, totals, strict=True))
    has_verdicts = any(row["verdict"] != Verdict.CANNOT_TELL for row in judged)
    by_figure: dict[tuple[int, str], list[Row]] = {}
    for row in judged if has_verdicts else ():
        by_figure.setdefault(_figure_of(row["figure"]), []).append(row)
    figures = [
        Figure(name, _QUESTIONS.get(number, ""), _count(of_figure), _fitted(of_figure), _groups(of_figure))
        for (number, name), of_figure in sorted(by_figure.items())
    ]
    findings = [
        (of_claim[0]["says"], [row["reason"] for row in of_claim])
        for of_claim in _by_claim(row for row in rows if row["verdict"] == Verdict.FINDING).values()
    ]
    return Section(
        f"{counted(len(judged), 'comparison')}: {words}.",
        figures,
        findings,
        studies is not None and not _REPEATING & set(studies),
    )


def _fitted(rows: Iterable[Row]) -> str:
    """Return the constants of the simulator that were fitted to rows."""
    return "; ".join(dict.fromkeys(row["fitted"] for row in rows if row["fitted"]))


def _plural(verdict: Verdict, count: int) -> str:
    """Return the verb for a number of rows with a verdict."""
    words = {Verdict.DIFFERS: ("differs", "differ"), Verdict.AGREES: ("agrees", "agree")}
    singular, plural = words.get(verdict, ("cannot be told",) * 2)
    return singular if count == 1 else plural


def _in_words(counts: Sequence[int]) -> str:
    """Return counts by verdict, such as '2 differ, 5 agree'."""
    return ", ".join(
        f"{count} {_plural(verdict, count)}" for verdict, count in zip(ORDER, counts, strict=True) if count
    )


def _figure_of(source: str) -> tuple[int, str]:
    """Return number and name of the figure of a claim: the first that its source names.

    Other sources are the text of the study, or sources besides the study. Their numbers follow those of figures.
    """
    number = re.search(r"figures? (\d+)", source)
    if number:
        return int(number[1]), f"Figure {number[1]}"
    is_study = source.startswith(("section", "the text"))
    return (_NO_FIGURE, "Text") if is_study else (_NO_FIGURE + 1, source[0].upper() + source[1:])


def _by_claim(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Return rows by claim."""
    by_claim: dict[str, list[Row]] = {}
    for row in rows:
        by_claim.setdefault(row["claim"], []).append(row)
    return by_claim


def _count(rows: Iterable[Row]) -> list[int]:
    """Return the number of rows by verdict, in the order of `ORDER`."""
    counts = Counter(row["verdict"] for row in rows)
    return [counts[verdict] for verdict in ORDER]


def _groups(rows: Sequence[Row]) -> list[Group]:
    """Return the claims of rows, those with most differences first."""
    groups = []
    for name, of_claim in _by_claim(rows).items():
        words = _in_words(_count(of_claim))
        ordered = sorted(of_claim, key=lambda row: ORDER.index(row["verdict"]))
        first = of_claim[0]
        quantity = (first["quantity"] or "").replace("_", " ")
        groups.append(Group(name, first["says"], first["figure"], quantity, words, [_texts(row) for row in ordered]))
    return sorted(groups, key=lambda group: -sum(row["verdict"] == Verdict.DIFFERS for row in group.rows))


def _texts(row: Row) -> dict[str, str]:
    """Return the cells of one row as texts."""
    return {
        "verdict": row["verdict"],
        "kind": row["kind"],
        "point": row["point"] or "",
        "published": _published(row),
        "ours": _ours(row),
        "difference": _difference(row),
        "reason": row["reason"] or "",
        "origin": row["origin"] or "",
    }


def _unit(row: Row) -> str:
    """Return the unit of a row with a leading space; '' without a unit."""
    unit = _UNITS.get(row["unit"], row["unit"])
    return f" {unit}" if unit else ""


def _published(row: Row) -> str:
    """Return the published value with its reading error; for other kinds of claims a word."""
    value, low, high = (row[name] for name in ("published", "published_lo", "published_hi"))
    if value is None:
        return ""
    if row["kind"] == "fits":
        return _IS_FIT[value]
    if low is None:
        return _SIGNS[value] if row["kind"] == "sign" else write_number(value)
    return f"{write_number(value)} ± {(high - low) / 2:.2g}{_unit(row)}"


def _ours(row: Row) -> str:
    """Return our value with its interval; a word for a claim on memory."""
    value, low, high = (row[name] for name in ("ours", "ours_lo", "ours_hi"))
    if value is None:
        return ""
    if row["kind"] == "fits":
        return _IS_FIT[value]
    signed = f"{'+' if row['kind'] in ('sign', 'trend') and value > 0 else ''}{write_number(value)}{_unit(row)}"
    return signed if low is None or low == high else f"{signed} ({write_number(low)} to {write_number(high)})"


def _difference(row: Row) -> str:
    """Return the signed difference between ours and published; '' if there is none."""
    if row["difference"] is None or row["kind"] == "fits":
        return ""
    return f"{'+' if row['difference'] > 0 else ''}{write_number(row['difference'])}{_unit(row)}"


def write_number(value: float) -> str:
    """Return a number with four significant digits; integers and numbers from 1000 on without decimals."""
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"
