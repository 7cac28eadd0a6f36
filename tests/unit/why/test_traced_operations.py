"""`why` of traces whose passes are not told apart: made-up ranks that come late to collectives by a known time."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from triplepoint.errors import UserError
from triplepoint.tables import COLLECTIVES, INTERVALS, KERNELS, TIMELINE
from triplepoint.why.answer import Answer
from triplepoint.why.sources import why_traces
from triplepoint.why.traced_operations import has_passes, traced_operations

MS = 1_000_000
T0_NS = 1_790_000_000_000_000_000
WORK_MS, TRANSFER_MS, LATE_MS = 20.0, 5.0, 100.0
"""Of every rank between two collectives, of a collective once all have come, and of the straggler beyond its work."""

Late = Callable[[int, int], float]
"""Returns how much longer than the others a rank works before a collective of the step, in ms."""


def write_traces(
    folder: Path, num_ranks: int, late: Late, *, num_steps: int = 6, num_collectives: int = 1, hidden_ms: float = 0.0,
    phases: Sequence[str] = ("forward", "optimizer"), host_share: float = 1.0,
) -> Path:  # fmt: skip
    """Write the tables of traces in which every rank works, then waits in a collective until the last has come.

    Args:
        folder: Where to.
        num_ranks: Ranks of one process group.
        late: Lateness of ranks.
        num_steps: Profiled steps.
        num_collectives: Collectives of a step.
        hidden_ms: Work that goes on beside each collective once it has begun.
        phases: Phases that the first step's timeline has of each rank.
        host_share: Share of the lateness in which the host launches nothing; of the rest kernels run.
    """
    rows, intervals, drawn = [], [], []
    free = [0.0] * num_ranks
    for step in range(num_steps):
        idle, busy = [0.0] * num_ranks, [0.0] * num_ranks
        for index in range(num_collectives):
            starts = []
            for rank in range(num_ranks):
                late_ms = late(rank, index)
                starts.append(free[rank] + WORK_MS + late_ms)
                idle[rank] += host_share * late_ms
                busy[rank] += WORK_MS + hidden_ms + (1 - host_share) * late_ms
            end = max(starts) + TRANSFER_MS
            for rank, start in enumerate(starts):
                free[rank] = max(end, start + hidden_ms)
                rows.append(
                    {"rank": rank, "step": step, "kind": "all_reduce", "group_name": "default", "num_ranks": num_ranks}
                    | {"sequence": step * num_collectives + index, "num_seen": num_ranks, "size_bytes": 1e6}
                    | {"t_start_ns": T0_NS + round(start * MS), "duration_ns": round((end - start) * MS)}
                    | {"exposed_ns": round(max(end - start - hidden_ms, 0) * MS)}
                )
                if step == 0:
                    times = {"t_start_ns": round(start * MS), "duration_ns": round((end - start) * MS)}
                    drawn.append({"rank": rank, "lane": "comm", "label": "all_reduce"} | times)
        for rank in range(num_ranks):
            waited = sum(row["exposed_ns"] for row in rows if row["rank"] == rank and row["step"] == step)
            parts = [
                ("idle", "host", idle[rank] * MS),
                ("compute", "gemm", busy[rank] * MS),
                ("comm", "all_reduce", waited),
            ]
            for category, kind, time_ns in parts:
                times = {name: round(time_ns) for name in ("busy_ns", "exposed_ns")} | {"overlapped_ns": 0}
                phase = "backward" if category == "comm" else "forward"
                intervals.append(
                    {"rank": rank, "step": step, "phase": phase, "category": category, "kind": kind} | times
                )
    for rank in range(num_ranks):
        for index, phase in enumerate(phases):
            times = {"t_start_ns": index * MS, "duration_ns": MS}
            drawn.append({"rank": rank, "lane": "phase", "label": phase} | times)
    for table, found in ((COLLECTIVES, rows), (INTERVALS, intervals), (TIMELINE, drawn)):
        blank = dict.fromkeys(column.name for column in table.columns)
        table.write(folder / f"{table.name}.parquet", table.from_rows([blank | row for row in found]))
    return folder


def one_late(rank: int, index: int) -> float:
    return LATE_MS if (rank, index) == (1, 0) else 0.0


def causes(answer: Answer) -> list[tuple[int, str]]:
    return [(one.rank, one.cause) for one in answer.findings]


@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("num_collectives", [1, 3])
@pytest.mark.parametrize("num_steps", [1, 6])
def test_rank_that_sleeps_costs_all_it_is_late(
    num_ranks: int, num_collectives: int, num_steps: int, tmp_path: Path
) -> None:
    folder = write_traces(tmp_path, num_ranks, one_late, num_collectives=num_collectives, num_steps=num_steps)
    answer = why_traces(folder)
    assert causes(answer) == [(1, "launch")]
    assert answer.findings[0].lost_s == pytest.approx(LATE_MS / 1e3, rel=0.01)
    assert answer.num_gpus == num_ranks
    assert answer.step_s == pytest.approx((num_collectives * (WORK_MS + TRANSFER_MS) + LATE_MS) / 1e3)


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_rank_that_computes_more_is_told_from_one_that_sleeps(num_ranks: int, tmp_path: Path) -> None:
    answer = why_traces(write_traces(tmp_path, num_ranks, one_late, host_share=0.0))
    assert causes(answer) == [(1, "computation")]
    assert answer.findings[0].lost_s == pytest.approx(LATE_MS / 1e3, rel=0.01)


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_collectives_beside_work_hide_what_they_hide(num_ranks: int, tmp_path: Path) -> None:
    """Other ranks work on for 50 ms beside the collective, so 55 of the 100 ms are waited for, the transfer's too."""
    answer = why_traces(write_traces(tmp_path, num_ranks, one_late, hidden_ms=50.0))
    ((rank, _),) = causes(answer)
    assert rank == 1
    sound_s = (WORK_MS + 50.0) / 1e3
    assert answer.findings[0].lost_s == pytest.approx(answer.step_s - sound_s, rel=0.15)


def test_equal_ranks_have_no_straggler(tmp_path: Path) -> None:
    assert why_traces(write_traces(tmp_path, 2, lambda rank, index: 1.0 * rank)).findings == []


def test_passes_that_hold_waits_for_others_are_not_taken_for_computation(tmp_path: Path) -> None:
    folder = write_traces(tmp_path, 2, one_late, phases=("forward", "backward", "optimizer"))
    assert not has_passes(folder)
    answer = why_traces(folder)
    assert causes(answer) == [(1, "launch")]
    assert answer.findings[0].lost_s == pytest.approx(LATE_MS / 1e3, rel=0.01)


def test_collective_that_a_rank_had_in_the_step_before_is_still_of_one_step(tmp_path: Path) -> None:
    folder = write_traces(tmp_path, 2, one_late)
    path = folder / "collectives.parquet"
    rows = COLLECTIVES.read(path).to_pylist()
    rows[4]["step"] -= 1
    COLLECTIVES.write(path, COLLECTIVES.from_rows(rows))
    assert len(traced_operations(folder, lambda rank: (rank, 0), 8).steps) == 5


def test_traces_without_a_shared_collective_are_refused_in_a_line(tmp_path: Path) -> None:
    folder = write_traces(tmp_path, 1, one_late)
    with pytest.raises(UserError, match="no collective that two ranks have in a step"):
        traced_operations(folder, lambda rank: (rank, 0), 8)


def test_trace_of_one_rank_says_where_its_step_goes(tmp_path: Path) -> None:
    """Six steps of 100 ms work, launched late by half, and 10 ms of an all-reduce."""
    folder = write_traces(tmp_path, 1, lambda rank, index: 0.0)
    KERNELS.write(folder / "kernels.parquet", KERNELS.from_rows([]))
    answer = why_traces(folder)
    assert (answer.source, answer.num_steps, answer.findings) == ("one rank", 6, [])
    total_ms = WORK_MS + TRANSFER_MS
    assert answer.step_s == pytest.approx(total_ms / 1e3)
    assert f"exposed all_reduce {100 * TRANSFER_MS / total_ms:.0f} %" in answer.sentence
    assert "rank 0 alone was traced" in answer.notes[0]
