"""The time of steps cut into phases."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from triplepoint.trace.rank.phases import PHASES, Phases, Tag, cut_windows
from triplepoint.trace.rank_results import Step
from triplepoint.trace.thin import latest_wins

TAGS = [Tag(label, 0, 0) for label in ("forward", "backward_weight", "grad_sync", "optimizer")]

spans = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 20), st.integers(0, 3)), max_size=6)


def phases_of(found: list[tuple[int, int, int]]) -> Phases:
    """Return phases of (start, length, tag); where they overlap the one that starts last counts."""
    table = np.array(found, dtype=np.int64).reshape(-1, 3)
    start, end, owner = latest_wins(table[:, 0], table[:, 0] + table[:, 1])
    return Phases(start, end, [TAGS[table[one, 2]] for one in owner])


def painted(steps: list[Step], phases: Phases) -> dict[int, tuple[int, str]]:
    """Return (index of the step, phase) of every instant."""
    windows = cut_windows(steps, phases)
    assert windows.num_accounts == len(steps) * len(PHASES)
    times = windows.times
    assert (times.end > times.start).all()
    assert (times.start[1:] >= times.end[:-1]).all()
    return {
        cell: (account // len(PHASES), PHASES[account % len(PHASES)])
        for start, end, account in zip(times.start, times.end, windows.account.tolist(), strict=True)
        for cell in range(start, end)
    }


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 20)), max_size=4), spans)
def test_cut_windows_any_steps_equals_painting(
    lengths: list[tuple[int, int]], found: list[tuple[int, int, int]]
) -> None:
    steps = [Step(number, start, start + length) for number, (start, length) in enumerate(lengths)]
    expected: dict[int, tuple[int, str]] = {}
    for index in sorted(range(len(steps)), key=lambda one: steps[one].start):
        for cell in range(steps[index].start, steps[index].end):
            covering = [(start, at) for at, (start, length, _) in enumerate(found) if start <= cell < start + length]
            phase = TAGS[found[max(covering)[1]][2]].phase if covering else "other"
            expected.setdefault(cell, (index, phase))
    assert painted(steps, phases_of(found)) == expected


def test_cut_windows_phase_across_two_steps_is_of_both() -> None:
    steps = [Step(7, 0, 10), Step(8, 10, 20), Step(9, 25, 30)]
    owners = painted(steps, phases_of([(5, 22, 0)]))
    assert [owners.get(cell) for cell in (4, 5, 9, 10, 19, 20, 24, 25, 26, 27)] == [
        (0, "other"),
        (0, "forward"),
        (0, "forward"),
        (1, "forward"),
        (1, "forward"),
        None,
        None,
        (2, "forward"),
        (2, "forward"),
        (2, "other"),
    ]
