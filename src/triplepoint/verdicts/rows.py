"""Parts of a row of table `claims`, which the judges of claims put together."""

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
"""One row of table `claims`, or some of its columns."""

NO_NUMBER = "the run has no such number"
"""Reason for a verdict without our number."""
_LABEL = (("tp", "TP{}"), ("pp", "PP{}"), ("dp", "DP{}"), ("ep", "EP{}"), ("micro_batch_size", "micro-batch {}"))
_USUAL = {"ep": 1}


@dataclass(frozen=True)
class Context:
    """Inputs to the judgement of claims.

    Attributes:
        published: Published claims and figures.
        runs: Results.
        slots: Order of the slots of a node in the air flow.
    """

    published: Published
    runs: Runs
    slots: Ordering


def claim_columns(claim: Claim, kind: str, source: str | None, quantity: str | None) -> ClaimRow:
    """Return the columns of a row that describe the claim.

    Args:
        claim: The claim.
        kind: Kind of the row.
        source: Source of the figure, for claims without their own.
        quantity: Quantity that is compared; None for claims without numbers.
    """
    return {
        "claim": claim.id,
        "figure": claim.source or source or "",
        "kind": kind,
        "says": claim.says,
        "quantity": quantity,
        "unit": unit_of(quantity) if quantity else "1",
        "runs": [],
    }


def number_columns(published: Number | None, ours: Number | None) -> ClaimRow:
    """Return the columns of a row with both numbers and their difference."""
    row: ClaimRow = {}
    for name, number in (("published", published), ("ours", ours)):
        if number:
            row |= {name: number.value, f"{name}_lo": number.low, f"{name}_hi": number.high}
    if published and ours:
        row["difference"] = ours.value - published.value
    return row


def verdict_columns(verdict: tuple[Verdict, str]) -> ClaimRow:
    """Return the columns of a row with a verdict and its reason."""
    return {"verdict": verdict[0], "reason": verdict[1] or None}


def cannot_tell(reason: str) -> ClaimRow:
    """Return the columns of a row with the verdict that the results cannot tell."""
    return verdict_columns((Verdict.CANNOT_TELL, reason))


def run_columns(group: Group) -> ClaimRow:
    """Return the columns of a row with the runs behind our number."""
    return {"runs": group.runs, "origin": group.origin}


def direction_columns(direction: Direction) -> ClaimRow:
    """Return the columns of a row with a published direction, 1 for rises and -1 for falls."""
    return {"published": 1.0 if direction == "rises" else -1.0}


def missing_reason(group: Group) -> str:
    """Return the reason that a group has no numbers; empty where it has a finished run."""
    if group.why or group.has_run:
        return group.why
    row = group.rows[0]
    words = {Status.OOM: "out of memory in the results", Status.INVALID: "cannot run"}
    return f"{words.get(row['status'], row['status'])}: {row['run']}"


def no_run_reason(settings: Mapping[str, Any]) -> str:
    """Return the reason that the results have no finished run with given settings."""
    return f"no finished run in the results with {', '.join(spell(settings))}"


def label(row: Row, without: Collection[str]) -> str:
    """Return a name of a point for readers.

    Args:
        row: Row of table `points`.
        without: Settings to leave out, as they are given next to the name.
    """
    words = [row[name] for name in ("model", "cluster") if name not in without]
    layout = [
        pattern.format(row[name]) for name, pattern in _LABEL if name not in without and row[name] != _USUAL.get(name)
    ]
    if row["data_parallel_sharding"] == "optim_grads_params" and "data_parallel_sharding" not in without:
        layout.insert(3, "FSDP")
    if "recompute" not in without:
        layout.append({"none": "no recomputation"}.get(row["recompute"], f"{row['recompute']} recomputation"))
    if row["overlap"] and "overlap" not in without:
        layout.append(f"overlap {' '.join(row['overlap'])}")
    return ", ".join([*words, *layout])
