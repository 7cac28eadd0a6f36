"""Parts of a row of table `claims`."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from triplepoint.status import Status
from triplepoint.verdicts.file import Claim, spell
from triplepoint.verdicts.number import Direction, Number, Verdict
from triplepoint.verdicts.quantities import Ordering, Row, unit_of
from triplepoint.verdicts.read import Published
from triplepoint.verdicts.runs import Group, Runs

ClaimRow = dict[str, Any]
"""One row of table `claims`, or a part of it."""

NO_NUMBER = "the run has no such number"
_LABEL = (("tp", "TP{}"), ("pp", "PP{}"), ("dp", "DP{}"), ("ep", "EP{}"), ("micro_batch_size", "micro-batch {}"))
_USUAL = {"ep": 1}


@dataclass(frozen=True)
class Context:
    """What claims are judged with: claims and figures, results, and which slots of a node stand behind others."""

    published: Published
    runs: Runs
    slots: Ordering


def begin(claim: Claim, kind: str, source: str | None, quantity: str | None) -> ClaimRow:
    """Return the part of a row that says what is claimed, and where."""
    return {
        "claim": claim.id,
        "figure": claim.source or source or "",
        "kind": kind,
        "says": claim.says,
        "quantity": quantity,
        "unit": unit_of(quantity) if quantity else "1",
        "runs": [],
    }


def numbers(published: Number | None, ours: Number | None) -> ClaimRow:
    """Return the part of a row that holds both numbers and their difference."""
    row: ClaimRow = {}
    for name, number in (("published", published), ("ours", ours)):
        if number:
            row |= {name: number.value, f"{name}_lo": number.low, f"{name}_hi": number.high}
    if published and ours:
        row["difference"] = ours.value - published.value
    return row


def verdict(found: tuple[Verdict, str]) -> ClaimRow:
    """Return the part of a row that holds a verdict, and why."""
    return {"verdict": found[0], "reason": found[1] or None}


def cannot_tell(reason: str) -> ClaimRow:
    """Return the part of a row of which nothing can be said."""
    return verdict((Verdict.CANNOT_TELL, reason))


def of_group(group: Group) -> ClaimRow:
    """Return the part of a row that says which runs are behind our number."""
    return {"runs": group.runs, "origin": group.origin}


def said(direction: Direction) -> ClaimRow:
    """Return the part of a row that holds a direction without a size."""
    return {"published": 1.0 if direction == "rises" else -1.0}


def why_not(group: Group) -> str:
    """Return why a group has no numbers; nothing where it has a run that finished."""
    if group.why or group.has_run:
        return group.why
    row = group.rows[0]
    words = {Status.OOM: "out of memory in the results", Status.INVALID: "cannot run"}
    return f"{words.get(row['status'], row['status'])}: {row['run']}"


def no_run(settings: Mapping[str, Any]) -> str:
    """Return that results have no finished run with some settings."""
    return f"no finished run in the results with {', '.join(spell(settings))}"


def label(row: Row, but: Collection[str]) -> str:
    """Return what a point is called, without settings that are said beside it."""
    words = [row[name] for name in ("model", "cluster") if name not in but]
    layout = [
        pattern.format(row[name]) for name, pattern in _LABEL if name not in but and row[name] != _USUAL.get(name)
    ]
    if row["data_parallel_sharding"] == "optim_grads_params" and "data_parallel_sharding" not in but:
        layout.insert(3, "FSDP")
    if "recompute" not in but:
        layout.append({"none": "no recomputation"}.get(row["recompute"], f"{row['recompute']} recomputation"))
    if row["overlap"] and "overlap" not in but:
        layout.append(f"overlap {' '.join(row['overlap'])}")
    return ", ".join([*words, *layout])
