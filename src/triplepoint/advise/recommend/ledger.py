"""Ledger of advice: what was promised against what runs found, one JSON line each, `results/recommendations.jsonl`."""

from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pyarrow.compute as pc
from pydantic import ValidationError

from triplepoint.aggregate.steps import step_times_s
from triplepoint.config.base import Strict
from triplepoint.effects.samples import paired
from triplepoint.errors import UserError
from triplepoint.files import write_text
from triplepoint.tables import TELEMETRY
from triplepoint.text import paragraph, percent
from triplepoint.units import counted

_FILE = "recommendations.jsonl"


class Promise(Strict):
    """What an advice promised, and the runs that verify it."""

    name: str
    """Run or cluster that it was given for."""
    kind: Literal["placement", "move", "save"]
    """What gains: time by a placement or by power limits that were moved, or energy by lower ones."""
    gain: float
    """Promised share of a step's time, or of its energy."""
    gain_lo: float
    """Lower end of its 90 % interval."""
    gain_hi: float
    """Upper end."""
    first: tuple[str, ...] = ()
    """Runs as it was, A, by pair."""
    other: tuple[str, ...] = ()
    """Runs as advised, B, by pair."""
    is_simulated: bool = False
    """Whether it was given for a simulated job: runs that verify it are simulated too."""


class Found(NamedTuple):
    """What runs found.

    Attributes:
        num_pairs: Pairs both runs of which are there.
        gain: Mean share that is saved; None without a pair.
        lo: Lower end of its 90 % interval; None with fewer than two pairs.
        hi: Upper end, likewise.
    """

    num_pairs: int
    gain: float | None
    lo: float | None
    hi: float | None


def promises_in(results: Path) -> list[Promise]:
    """Return what was promised so far, oldest first.

    Raises:
        UserError: If the file is damaged.
    """
    path, found = results / _FILE, list[Promise]()
    for number, line in enumerate(path.read_text().splitlines() if path.is_file() else (), 1):
        try:
            found.append(Promise.model_validate_json(line))
        except ValidationError:
            raise UserError(f"{path}: line {number} is no promise; remove that line") from None
    return found


def promise(results: Path, given: Promise) -> Path:
    """Write down a promise, in place of the one for the same run and kind; return the file.

    Runs that verify the one before are kept where it promised the same.

    Raises:
        UserError: If its runs verify another promise.
    """
    others, pairs = [], {*zip(given.first, given.other, strict=True)}
    for one in promises_in(results):
        if (one.name, one.kind) != (given.name, given.kind):
            _refuse_shared(one, pairs, "--study")
            others.append(one)
        elif not given.first and one.gain == given.gain:
            given = given.model_copy(update={"first": one.first, "other": one.other})
    return _write(results, [*others, given])


def add_pair(results: Path, name: str | None, first: str, other: str) -> Promise:
    """Add a pair of runs to the last promise, of a run or cluster if one is named.

    Raises:
        UserError: If there is no promise, a run or its steps are missing, or the pair verifies another promise.
    """
    promises = promises_in(results)
    at = max((place for place, one in enumerate(promises) if name in (None, one.name)), default=None)
    if at is None:
        of = f" for {name}" if name else ""
        raise UserError(f"recommend: --found: {results / _FILE} has no promise{of}; 'triplepoint recommend RUN' first")
    if first == other:
        raise UserError(f"recommend: --found {first} {other}: one run twice; name A as it was, then B as advised")
    for place, one in enumerate(promises):
        if place != at:
            _refuse_shared(one, {(first, other)}, f"--found {first} {other}")
    _value(results, promises[at].kind, first), _value(results, promises[at].kind, other)
    pairs = dict.fromkeys([*zip(promises[at].first, promises[at].other, strict=True), (first, other)])
    update = {"first": tuple(one for one, _ in pairs), "other": tuple(two for _, two in pairs)}
    promises[at] = promises[at].model_copy(update=update)
    _write(results, promises)
    return promises[at]


def _refuse_shared(one: Promise, pairs: Set[tuple[str, str]], option: str) -> None:
    """Refuse pairs that verify a promise already: one pair is evidence once."""
    if pairs & {*zip(one.first, one.other, strict=True)}:
        raise UserError(
            f"recommend: {option}: these runs verify what was promised for {one.name} ({one.kind}); measure others, or "
            f"remove that line of {_FILE}"
        )


def _write(results: Path, promises: Sequence[Promise]) -> Path:
    path = results / _FILE
    write_text(path, "".join(one.model_dump_json() + "\n" for one in promises))
    return path


def found_by(results: Path, given: Promise) -> Found:
    """Return what the runs of a promise found, of those pairs that are finished."""
    pairs = [
        pair for pair in zip(given.first, given.other, strict=True) if all(_is_there(results, run) for run in pair)
    ]
    if not pairs:
        return Found(0, None, None, None)
    before, after = ([_value(results, given.kind, pair[side]) for pair in pairs] for side in (0, 1))
    shares = [1.0 - two / one for one, two in zip(before, after, strict=True)]
    effect = paired([0.0] * len(shares), shares, "repeats")
    ends = (effect.low, effect.high) if len(pairs) > 1 else (None, None)
    return Found(len(pairs), effect.value, *ends)


def _is_there(results: Path, run: str) -> bool:
    folder = results / "runs" / run
    return (folder / "raw" / "steps.parquet").is_file() and (folder / "telemetry.parquet").is_file()


def _value(results: Path, kind: str, run: str) -> float:
    """Return the mean step of a run in s, or the energy of its GPUs in it in J where energy was promised."""
    folder = results / "runs" / run
    if not _is_there(results, run):
        raise UserError(f"recommend: --found {run}: no finished run in {results / 'runs'}; name runs after telemetry")
    step_s = float(step_times_s(folder).mean())
    return step_s if kind != "save" else step_s * _power_w(folder)


def _power_w(folder: Path) -> float:
    """Return the mean power of all GPUs of a run in its steps together. Unit: W."""
    table = TELEMETRY.read(folder / "telemetry.parquet").select(["node", "device", "step", "gpu_power_w"])
    table = table.filter(pc.and_(pc.is_valid(table["gpu_power_w"]), pc.is_valid(table["step"])))
    return float(
        pc.sum(table.group_by(["node", "device"]).aggregate([("gpu_power_w", "mean")])["gpu_power_w_mean"]).as_py()
    )


def content(results: Path) -> list[dict[str, Any]]:
    """Return promised against found, oldest first, as JSON has it."""
    return [
        one.model_dump(mode="json")
        | {"num_pairs": found.num_pairs, "found": found.gain, "found_lo": found.lo, "found_hi": found.hi}
        for one in promises_in(results)
        for found in [found_by(results, one)]
    ]


_KINDS = {
    "placement": ("placement", "time"),
    "move": ("power limits moved between GPUs", "time"),
    "save": ("power limits lowered", "energy"),
}
"""What was promised, in words, and what it saves."""


def render(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return promised against found gains as text."""
    if not rows:
        return "No gain was promised yet; 'triplepoint recommend RUN' keeps what it promises."
    judged = [row for row in rows if row["found"] is not None]
    inside = sum(row["gain_lo"] <= row["found"] <= row["gain_hi"] for row in judged)
    simulated = sum(row["is_simulated"] for row in rows)
    of_simulated = f", {simulated} for simulated jobs" if simulated else ""
    lines = [
        f"{counted(len(rows), 'gain')} promised{of_simulated}; {len(judged)} measured, {inside} of them within the "
        "promised interval."
    ]
    for row in rows:
        what, of = _KINDS[row["kind"]]
        made_up = ", simulated" if row["is_simulated"] else ""
        found = "no finished pair of runs yet"
        if row["found"] is not None:
            found = f"measured {_ends(row, 'found')} in {counted(row['num_pairs'], 'pair')} of runs"
        lines += paragraph(
            f"{row['name']}{made_up}, {what}: promised {_ends(row, 'gain')} less {of}; {found}", indent=2
        )
    return "\n".join(lines)


def _ends(row: Mapping[str, Any], name: str) -> str:
    """Return a gain with its interval, where that is known."""
    ends = "" if row[f"{name}_lo"] is None else f" [{100 * row[f'{name}_lo']:.1f}, {100 * row[f'{name}_hi']:.1f}]"
    return f"{percent(row[name])}{ends}"
