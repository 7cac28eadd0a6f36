"""Ledger of advice: promised and measured gains, a JSON line for each promise, `results/recommendations.jsonl`."""

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
from triplepoint.text import paragraph, percent, percent_within
from triplepoint.units import counted

_FILE = "recommendations.jsonl"


class Promise(Strict):
    """A promised gain, and the runs that verify it."""

    name: str
    """Run or cluster that the advice is for."""
    kind: Literal["placement", "move", "save"]
    """Source of the gain: `placement` and `move` save time, by a placement or by moved power limits; `save` saves
    energy, by lower power limits."""
    gain: float
    """Promised share of the time or energy of a step."""
    gain_lo: float
    """Lower end of the 90 % interval of the gain."""
    gain_hi: float
    """Upper end of the interval."""
    first: tuple[str, ...] = ()
    """Runs before the change, A, one of each pair."""
    other: tuple[str, ...] = ()
    """Runs after the change, B, one of each pair."""
    spare_w: float = 0.0
    """For `move`, the power to spare in each node by which its limits may rise. Unit: W."""
    is_simulated: bool = False
    """Whether the advice is for a simulated job, so that the runs that verify it are simulated too."""

    @property
    def promised_of(self) -> tuple[str, str, float]:
        """What one promise is kept of: run or cluster, kind, and power to spare."""
        return self.name, self.kind, self.spare_w


class MeasuredGain(NamedTuple):
    """The gain that runs show.

    Attributes:
        num_pairs: Pairs of which both runs are finished.
        gain: Mean share that is saved; None without a pair.
        lo: Lower end of the 90 % interval of the gain; None with fewer than two pairs.
        hi: Upper end of the interval; None with fewer than two pairs.
    """

    num_pairs: int
    gain: float | None
    lo: float | None
    hi: float | None


def promises_in(results: Path) -> list[Promise]:
    """Return all promises, oldest first.

    Raises:
        UserError: If the file is damaged.
    """
    path, promises = results / _FILE, list[Promise]()
    for number, line in enumerate(path.read_text().splitlines() if path.is_file() else (), 1):
        try:
            promises.append(Promise.model_validate_json(line))
        except ValidationError:
            raise UserError(f"{path}: line {number} is no promise; remove that line") from None
    return promises


def promise(results: Path, given: Promise) -> Path:
    """Add a promise, replacing the one for the same run, kind and power to spare; return the file.

    It inherits the runs of the replaced promise if it has none and promises the same gain.

    Raises:
        UserError: If its runs verify another promise.
    """
    others, pairs = [], {*zip(given.first, given.other, strict=True)}
    for earlier in promises_in(results):
        if earlier.promised_of != given.promised_of:
            _refuse_shared(earlier, pairs, "--study")
            others.append(earlier)
        elif not given.first and earlier.gain == given.gain:
            given = given.model_copy(update={"first": earlier.first, "other": earlier.other})
    return _write(results, [*others, given])


def add_pair(results: Path, name: str | None, first: str, other: str) -> Promise:
    """Add a pair of runs to the last promise, and return it.

    Args:
        results: Folder of results.
        name: Run or cluster of the promise. None: any.
        first: Run before the change.
        other: Run after it.

    Raises:
        UserError: If there is no promise, a run or its steps are missing, or the pair verifies another promise.
    """
    promises = promises_in(results)
    last = max((index for index, each in enumerate(promises) if name in (None, each.name)), default=None)
    if last is None:
        whose = f" for {name}" if name else ""
        raise UserError(
            f"recommend: --found: {results / _FILE} has no promise{whose}; 'triplepoint recommend RUN' first"
        )
    if first == other:
        raise UserError(f"recommend: --found {first} {other}: one run twice; name A as it was, then B as advised")
    for index, each in enumerate(promises):
        if index != last:
            _refuse_shared(each, {(first, other)}, f"--found {first} {other}")
    for run in (first, other):
        _value(results, promises[last].kind, run)  # refuses a run that is not finished
    pairs = dict.fromkeys([*zip(promises[last].first, promises[last].other, strict=True), (first, other)])
    update = {"first": tuple(before for before, _ in pairs), "other": tuple(after for _, after in pairs)}
    promises[last] = promises[last].model_copy(update=update)
    _write(results, promises)
    return promises[last]


def _refuse_shared(earlier: Promise, pairs: Set[tuple[str, str]], option: str) -> None:
    """Raise `UserError` if pairs verify another promise already: a pair is evidence for one."""
    if pairs & {*zip(earlier.first, earlier.other, strict=True)}:
        raise UserError(
            f"recommend: {option}: these runs verify what was promised for {earlier.name} ({earlier.kind}); measure "
            f"others, or remove that line of {_FILE}"
        )


def _write(results: Path, promises: Sequence[Promise]) -> Path:
    path = results / _FILE
    write_text(path, "".join(each.model_dump_json() + "\n" for each in promises))
    return path


def measured_gain(results: Path, given: Promise) -> MeasuredGain:
    """Return the gain that the finished pairs of runs of a promise show."""
    pairs = [
        pair for pair in zip(given.first, given.other, strict=True) if all(_is_finished(results, run) for run in pair)
    ]
    if not pairs:
        return MeasuredGain(0, None, None, None)
    before, after = ([_value(results, given.kind, pair[side]) for pair in pairs] for side in (0, 1))
    shares = [1.0 - changed / present for present, changed in zip(before, after, strict=True)]
    effect = paired([0.0] * len(shares), shares, "repeats")
    ends = (effect.low, effect.high) if len(pairs) > 1 else (None, None)
    return MeasuredGain(len(pairs), effect.value, *ends)


def _is_finished(results: Path, run: str) -> bool:
    folder = results / "runs" / run
    return (folder / "raw" / "steps.parquet").is_file() and (folder / "telemetry.parquet").is_file()


def _value(results: Path, kind: str, run: str) -> float:
    """Return what a promise is about: mean step time in s; for `save`, energy of all GPUs in a step in J.

    Raises:
        UserError: If the run is not finished.
    """
    folder = results / "runs" / run
    if not _is_finished(results, run):
        raise UserError(f"recommend: --found {run}: no finished run in {results / 'runs'}; name runs after telemetry")
    step_s = float(step_times_s(folder).mean())
    return step_s if kind != "save" else step_s * _power_w(folder)


def _power_w(folder: Path) -> float:
    """Return the sum over GPUs of their mean power in steps. Unit: W."""
    table = TELEMETRY.read(folder / "telemetry.parquet").select(["node", "device", "step", "gpu_power_w"])
    table = table.filter(pc.and_(pc.is_valid(table["gpu_power_w"]), pc.is_valid(table["step"])))
    return float(
        pc.sum(table.group_by(["node", "device"]).aggregate([("gpu_power_w", "mean")])["gpu_power_w_mean"]).as_py()
    )


def content(results: Path) -> list[dict[str, Any]]:
    """Return promised and measured gains for the JSON, oldest first."""
    rows = []
    for given in promises_in(results):
        measured = measured_gain(results, given)
        ends = {"found": measured.gain, "found_lo": measured.lo, "found_hi": measured.hi}
        rows.append(given.model_dump(mode="json") | {"num_pairs": measured.num_pairs} | ends)
    return rows


_KINDS = {
    "placement": ("placement", "time"),
    "move": ("power limits moved between GPUs", "time"),
    "save": ("power limits lowered", "energy"),
}
"""Words for each kind of promise, and the saved quantity."""


def render(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return promised and measured gains as text."""
    if not rows:
        return "No gain was promised yet; 'triplepoint recommend RUN' keeps what it promises."
    measured = [row for row in rows if row["found"] is not None]
    inside = sum(row["gain_lo"] <= row["found"] <= row["gain_hi"] for row in measured)
    simulated = sum(row["is_simulated"] for row in rows)
    of_simulated = f", {simulated} for simulated jobs" if simulated else ""
    lines = [
        f"{counted(len(rows), 'gain')} promised{of_simulated}; {len(measured)} measured, {inside} of them within the "
        "promised interval."
    ]
    for row in rows:
        what, quantity = _KINDS[row["kind"]]
        if row["spare_w"]:
            what = f"power limits with {row['spare_w']:g} W to spare a node"
        origin = ", simulated" if row["is_simulated"] else ""
        outcome = "no finished pair of runs yet"
        if row["found"] is not None:
            outcome = f"measured {_ends(row, 'found')} in {counted(row['num_pairs'], 'pair')} of runs"
        lines += paragraph(
            f"{row['name']}{origin}, {what}: promised {_ends(row, 'gain')} less {quantity}; {outcome}", indent=2
        )
    return "\n".join(lines)


def _ends(row: Mapping[str, Any], name: str) -> str:
    """Return a gain as text, with its interval if it is known."""
    low, high = row[f"{name}_lo"], row[f"{name}_hi"]
    return percent(row[name]) if low is None else percent_within(row[name], low, high)
