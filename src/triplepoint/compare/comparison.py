"""Comparison of two runs or traces: changes, parts of the step, kernels, power and heat, and the reason."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from triplepoint.compare.answer import answer
from triplepoint.compare.changes import Change, find_changes
from triplepoint.compare.kernels import ABOUT, KernelDifference, kernel_differences
from triplepoint.compare.parts import (
    UNPROFILED,
    RankChange,
    StepDifference,
    find_changed_rank,
    scale_of,
    step_difference,
)
from triplepoint.compare.quantities import QuantityDifference, quantity_differences
from triplepoint.compare.sides import Context, Side, check_finished, read_side
from triplepoint.compare.subjects import check_apart, find_subject
from triplepoint.effects import ABOUT_BASIS
from triplepoint.errors import UserError
from triplepoint.units import counted, signed_seconds

_FAR = 0.5
"""Excess of a profiled step over a measured one from which a note says so, as a share of the measured step. A profiler
itself costs less. Our choice."""


@dataclass(frozen=True)
class Comparison:
    """Comparison of two sides; in parts and kernels the other side is scaled, see `StepDifference.scale`.

    Attributes:
        first: First side, A in text.
        other: Other side, B in text.
        changes: Changed settings, software and hardware.
        step: Difference of the steps by part; None if they cannot be compared.
        kernels: Matched kernels, largest contribution first.
        quantities: Differences of quantities.
        notes: Remarks on the comparison.
        changed_rank: Rank that parts and kernels belong to; None if they are means over ranks.
    """

    first: Side
    other: Side
    changes: list[Change]
    step: StepDifference | None
    kernels: list[KernelDifference]
    quantities: list[QuantityDifference]
    notes: list[str]
    changed_rank: RankChange | None = None

    @property
    def sentence(self) -> str:
        """Why the other side is slower or faster, and hotter or cooler, in one sentence."""
        rank = self.changed_rank.rank if self.changed_rank else None
        return answer(self.first, self.other, self.changes, self.step, self.quantities, rank)

    def content(self) -> dict[str, Any]:
        """Return the comparison as plain data: times in seconds, other quantities in the unit of their column."""
        return {
            "sentence": self.sentence,
            "first": _side(self.first),
            "other": _side(self.other),
            "changes": [change._asdict() for change in self.changes],
            "step": _step(self.step) if self.step else None,
            "changed_rank": asdict(self.changed_rank) if self.changed_rank else None,
            "kernels": [
                one.part._asdict()
                | {"title": one.title, "matched_by": ABOUT[one.match], "first_names": one.names[0]}
                | {"other_names": one.names[1], "first_count": one.counts[0], "other_count": one.counts[1]}
                | {"first_sum_s": one.sums_s[0], "other_sum_s": one.sums_s[1]}
                | {"first_step_s": one.steps_s[0], "other_step_s": one.steps_s[1], "difference_s": one.difference_s}
                for one in self.kernels
            ],
            "quantities": [
                {"name": one.name, "first": one.first, "other": one.other, "change": one.effect.value}
                | {"lo": _none_if_nan(one.effect.low), "hi": _none_if_nan(one.effect.high)}
                | {"is_ratio": one.effect.is_relative}
                | {"interval": ABOUT_BASIS[one.effect.basis], "verdict": one.verdict}
                for one in self.quantities
            ],
            "notes": self.notes,
        }  # fmt: skip


def _step(step: StepDifference) -> dict[str, Any]:
    return {
        "first_s": step.first_s, "other_s": step.other_s, "difference_s": step.difference_s, "scale": step.scale,
        "is_profiled": step.is_profiled,
        "parts": [
            one.part._asdict() | {"first_s": one.first_s, "other_s": one.other_s}
            | {"difference_s": one.effect.value, "lo_s": _none_if_nan(one.effect.low)}
            | {"hi_s": _none_if_nan(one.effect.high), "interval": ABOUT_BASIS[one.effect.basis]}
            for one in step.parts
        ],
    }  # fmt: skip


def _none_if_nan(value: float) -> float | None:
    return None if math.isnan(value) else value


def _side(side: Side) -> dict[str, Any]:
    return {
        "word": side.word, "origin": side.origin, "runs": [run.planned.run for run in side.runs],
        "traced_ranks": side.traced.num_ranks if side.traced else 0,
        "profiled_steps": len(side.traced.steps) if side.traced and side.traced.has_steps else 0,
        "waited_s": dict(side.traced.waited_s) if side.traced else {},
    }  # fmt: skip


def compare_two(first: str, other: str, context: Context) -> Comparison:
    """Return the comparison of two runs or traces.

    Args:
        first: Word for the first side, see `find_subject`.
        other: Word for the other side; differences are other less first.
        context: Folders and rules.

    Raises:
        UserError: If a word means nothing or several points, both mean the same, a run did not finish, or the two have
            no data of one kind.
    """
    subjects = [find_subject(word, context.results) for word in (first, other)]
    check_apart(*subjects)
    for subject in subjects:
        check_finished(subject)
    a, b = (read_side(subject, context) for subject in subjects)
    for side, against in ((a, b), (b, a)):
        if side.traced is None and not against.runs:
            raise UserError(
                f"{side.word}: has no traces, and {against.word} has only traces; compare two runs, or two traces"
            )
    changed = find_changed_rank(a, b)
    notes_on_rank = list(_notes_on_rank(a, b, changed))
    if changed is not None:
        a, b = (replace(side, traced=side.traced and side.traced.of_rank(changed.rank)) for side in (a, b))
    step = step_difference(a, b)
    kernels = kernel_differences(a.traced, b.traced, step) if a.traced and b.traced and step else []
    quantities = quantity_differences(a, b)
    notes = [*_notes(a, b), *notes_on_profiled_steps(step), *_notes_on_intervals(step, quantities), *notes_on_rank]
    return Comparison(a, b, find_changes(a, b), step, kernels, quantities, notes, changed)


def notes_on_profiled_steps(step: StepDifference | None) -> Iterator[str]:
    """Yield a note for each side whose profiled step is far longer than its measured one."""
    rest = next((one for one in step.parts if one.part == UNPROFILED), None) if step else None
    if step is None or rest is None:
        return
    for letter, measured_s, rest_s in (("A", step.first_s, rest.first_s), ("B", step.other_s, rest.other_s)):
        if -rest_s > _FAR * measured_s:
            yield (
                f"{letter}'s profiled step takes {1 - rest_s / measured_s:.1f} times a measured one, so its parts are "
                "of steps unlike those measured"
            )


def _notes_on_rank(first: Side, other: Side, changed: RankChange | None) -> Iterator[str]:
    """Yield which rank changed, and the command that finds the cause on the side where it is slower."""
    if changed is None:
        return
    is_other = changed.change_s > 0
    word = (other if is_other else first).word
    own, others = signed_seconds(changed.change_s), signed_seconds(changed.others_s)
    yield (
        f"rank {changed.rank} changed most: its own work by {own} a step, that of the other ranks by {others}; parts "
        "and kernels are those of this rank, and other ranks wait for it in communication"
    )
    yield f"why ranks of {'B' if is_other else 'A'} differ: triplepoint why {word}"


def _notes_on_intervals(step: StepDifference | None, quantities: Sequence[QuantityDifference]) -> Iterator[str]:
    """Yield what the intervals of parts and of quantities are based on."""
    for name, differences in (("parts", step.parts if step else []), ("quantities", quantities)):
        bases = dict.fromkeys(one.effect.basis for one in differences if one.effect.basis != "none")
        if bases:
            yield f"intervals of {name}: {'; '.join(ABOUT_BASIS[basis] for basis in bases)}"


def _notes(first: Side, other: Side) -> Iterator[str]:
    """Yield notes on origin, scale, models, traces and runs of the sides."""
    if first.origin != other.origin:
        yield (
            f"A is {first.origin}, B is {other.origin}: the differences include the model's error, and software and "
            "hardware that the model does not know"
        )
    elif first.origin == "simulated":
        yield (
            "both are simulated: intervals are the model's error without what both share, as far as that is known; "
            "parts and kernels have no interval"
        )
        yield (
            "hosts of simulated traces run ahead, so a GPU's wait for launches counts as idle time for launches or "
            "dependencies, or for late ranks; 'triplepoint predict' has the share of launches"
        )
        points = [side.runs[0].planned.point for side in (first, other) if side.runs]
        if len(points) == 2 and points[0].layout == points[1].layout:
            yield (
                "both have the same layout, so more of the model's error cancels than the interval of the step leaves "
                "out: it is too wide"
            )
    if (scale := scale_of(first, other)) != 1:
        yield (
            f"a GPU of B has {1 / scale:.4g} times the tokens of a GPU of A in a step: times of B are multiplied by "
            f"{scale:.4g}"
        )
    elif not (first.tokens_per_gpu and other.tokens_per_gpu):
        yield "the work of a step is not known on both sides, so times are compared step by step as they are"
    points = [side.runs[0].planned.point for side in (first, other) if side.runs]
    is_known = len(points) == 2 and all(point.knows("model") for point in points)
    if is_known and points[0].model.name != points[1].model.name:
        yield "the models differ: a token is not the same work on both sides"
    yield from _notes_on_traces(first, other)
    yield from _notes_on_runs(first, other)


def _notes_on_traces(first: Side, other: Side) -> Iterator[str]:
    """Yield notes on missing traces, unmarked steps, single steps and different numbers of ranks."""
    for letter, side in (("A", first), ("B", other)):
        if side.traced is None:
            yield f"{letter} has no traces: its step is not split, and kernels are not matched"
        elif not side.traced.has_steps:
            yield f"the traces of {letter} mark no steps: their whole span counts as one"
    traced = [side.traced for side in (first, other) if side.traced]
    if len(traced) == 2 and not (first.runs and other.runs) and min(len(side.steps) for side in traced) == 1:
        single = " and ".join(letter for letter, side in zip("AB", traced, strict=True) if len(side.steps) == 1)
        number = "have one step each" if len(single) > 1 else "has one step"
        yield f"{single} {number}, so how much steps differ is not known"
    if len(traced) == 2 and traced[0].num_ranks != traced[1].num_ranks:
        ranks_of_a = counted(traced[0].num_ranks, "rank")
        yield f"A has traces of {ranks_of_a}, B of {traced[1].num_ranks}: parts are means over them"


def _notes_on_runs(first: Side, other: Side) -> Iterator[str]:
    """Yield the notes of the manifests, each once with the sides that have it; and a command for further analysis."""
    letters_of: dict[str, dict[str, None]] = {}
    for letter, side in (("A", first), ("B", other)):
        for run in side.runs:
            notes = [*map(str, run.manifest.suspects), *run.manifest.step_notes]
            if absent := run.row["power_absent"]:
                notes.append(f"no power: {absent}")
            for note in notes:
                letters_of.setdefault(note, {})[letter] = None
    for note, letters in letters_of.items():
        yield f"{' and '.join(letters)}: {note}"
    points = [side.runs[0].planned.point for side in (first, other) if side.runs]
    if len(points) == 2 and all(point.cluster.gpu and point.knows("model", "tp") for point in points):
        runs = " ".join(side.runs[0].planned.run for side in (first, other))
        yield f"how much of the difference each changed setting makes, by the model: triplepoint whatif {runs}"
