"""Published claims on the page: counts of verdicts, what the study contradicts itself in, and every row by figure."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from triplepoint.figures import FIGURES
from triplepoint.units import counted
from triplepoint.verdicts.number import Verdict

Row = dict[str, Any]

ORDER = (Verdict.DIFFERS, Verdict.AGREES, Verdict.CANNOT_TELL)
"""Verdicts as they are shown: what differs first."""
_UNITS = {"1": "", "degC": "°C"}
_IS_FIT = {1.0: "fits", 0.0: "out of memory"}
_SIGNS = {1.0: "rises", -1.0: "falls"}
_LAST = 1000
"""Number of what is no figure."""
_QUESTIONS = {
    int(number): spec.question
    for spec in reversed(tuple(FIGURES.values()))
    for number in re.findall(r"\d+", spec.paper or "")
}
"""What figures of the study are about, as the first one here asks that stands for it."""


class Group(NamedTuple):
    """One claim with its rows as texts, those that differ first."""

    name: str
    says: str
    source: str
    quantity: str
    counts: str
    rows: list[dict[str, str]]


class Figure(NamedTuple):
    """All claims of one figure of the study, or of its text."""

    name: str
    question: str
    counts: list[int]
    fitted: str
    groups: list[Group]

    @property
    def said(self) -> str:
        """How many rows have which verdict, in words."""
        return _in_words(self.counts)


class Section(NamedTuple):
    """What the page shows of claims.

    Attributes:
        sentence: How many rows have which verdict.
        figures: Figures and the text with their claims; none where no run of the results is of the study.
        findings: Sentence and numbers of each contradiction.
    """

    sentence: str
    figures: list[Figure]
    findings: list[tuple[str, list[str]]]


def sum_up_claims(rows: Sequence[Row]) -> Section | None:
    """Return what the page shows of table `claims`; None where it is empty.

    Args:
        rows: Rows of the table, in its order.
    """
    if not rows:
        return None
    judged = [row for row in rows if row["verdict"] != Verdict.FINDING]
    totals = _count(judged)
    words = ", ".join(f"{count} {_plural(verdict, count)}" for verdict, count in zip(ORDER, totals, strict=True))
    is_told = any(row["verdict"] != Verdict.CANNOT_TELL for row in judged)
    places: dict[tuple[int, str], list[Row]] = {}
    for row in judged if is_told else ():
        places.setdefault(_place(row["figure"]), []).append(row)
    figures = [
        Figure(
            name, _QUESTIONS.get(number, ""), _count(rows), _fitted(rows), sorted(_groups(rows), key=_most_differing)
        )
        for (number, name), rows in sorted(places.items())
    ]
    findings = [
        (of_claim[0]["says"], [row["reason"] for row in of_claim])
        for of_claim in _by((row for row in rows if row["verdict"] == Verdict.FINDING), "claim").values()
    ]
    return Section(
        f"{counted(len(judged), 'comparison')}: {words}.",
        figures,
        findings,
    )


def _fitted(rows: Iterable[Row]) -> str:
    """Return what of the simulator was set by the figure of some rows."""
    return "; ".join(dict.fromkeys(row["fitted"] for row in rows if row["fitted"]))


def _plural(verdict: Verdict, count: int) -> str:
    words = {Verdict.DIFFERS: ("differs", "differ"), Verdict.AGREES: ("agrees", "agree")}
    one, many = words.get(verdict, ("cannot be told",) * 2)
    return one if count == 1 else many


def _in_words(counts: Sequence[int]) -> str:
    """Return counts by verdict, such as '2 differ, 5 agree'."""
    return ", ".join(
        f"{count} {_plural(verdict, count)}" for verdict, count in zip(ORDER, counts, strict=True) if count
    )


def _place(source: str) -> tuple[int, str]:
    """Return the number and name of the figure a claim is listed under: the first that its source names.

    What names none is of the text of the study, or of another source.
    """
    number = re.search(r"figures? (\d+)", source)
    if number:
        return int(number[1]), f"Figure {number[1]}"
    is_study = source.startswith(("section", "the text"))
    return (_LAST, "Text") if is_study else (_LAST + 1, source[0].upper() + source[1:])


def _most_differing(group: Group) -> int:
    return -sum(row["verdict"] == Verdict.DIFFERS for row in group.rows)


def _by(rows: Iterable[Row], key: str) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row[key], []).append(row)
    return found


def _count(rows: Iterable[Row]) -> list[int]:
    found = Counter(row["verdict"] for row in rows)
    return [found[verdict] for verdict in ORDER]


def _groups(rows: Sequence[Row]) -> list[Group]:
    groups = []
    for name, of_claim in _by(rows, "claim").items():
        words = _in_words(_count(of_claim))
        ordered = sorted(of_claim, key=lambda row: ORDER.index(row["verdict"]))
        first = of_claim[0]
        quantity = (first["quantity"] or "").replace("_", " ")
        groups.append(Group(name, first["says"], first["figure"], quantity, words, [_texts(row) for row in ordered]))
    return groups


def _texts(row: Row) -> dict[str, str]:
    """Return the cells of one row."""
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
    unit = _UNITS.get(row["unit"], row["unit"])
    return f" {unit}" if unit else ""


def _published(row: Row) -> str:
    value, low, high = (row[name] for name in ("published", "published_lo", "published_hi"))
    if value is None:
        return ""
    if row["kind"] == "fits":
        return _IS_FIT[value]
    if low is None:
        return _SIGNS[value] if row["kind"] == "sign" else write_number(value)
    return f"{write_number(value)} ± {(high - low) / 2:.2g}{_unit(row)}"


def _ours(row: Row) -> str:
    value, low, high = (row[name] for name in ("ours", "ours_lo", "ours_hi"))
    if value is None:
        return ""
    if row["kind"] == "fits":
        return _IS_FIT[value]
    signed = f"{'+' if row['kind'] in ('sign', 'trend') and value > 0 else ''}{write_number(value)}{_unit(row)}"
    return signed if low is None or low == high else f"{signed} ({write_number(low)} to {write_number(high)})"


def _difference(row: Row) -> str:
    if row["difference"] is None or row["kind"] == "fits":
        return ""
    return f"{'+' if row['difference'] > 0 else ''}{write_number(row['difference'])}{_unit(row)}"


def write_number(value: float) -> str:
    """Return four significant digits, or all of a whole number, without an exponent where one is not needed."""
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"
