"""Operations from traces: passes if the traces mark them, else the work of each rank between collectives.

Work is all time in which a rank does not wait in communication: kernels, launches, other programs, sleep. So a rank
that is late for a collective is found without annotations of the framework.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median_high
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from triplepoint.errors import UserError
from triplepoint.tables import COLLECTIVES, INTERVALS, TIMELINE
from triplepoint.why.operations import WORK, Operations, Worker
from triplepoint.why.run_operations import INSIDE, clock_offset_ns, comm_rows, operations_of_rows, operations_of_traces

Place = Callable[[int], tuple[int, int]]
Key = tuple[Any, ...]
"""A collective, equal for all its members and in all steps: the transfer of `comm_rows`, with its number among those
of the step in place of its sequence number."""
_LEAST_WAITED = 0.05
"""Share of the step from which waits inside passes are too long to count as computation. Our choice."""
_AT_ONCE_NS = 100_000
"""Longest time between two collectives in which a rank does no work. Our choice. Unit: ns."""


def traced_operations(run: Path, place: Place, gpus_per_node: int) -> Operations:
    """Return the operations of traces: passes if `has_passes`, else work between collectives.

    Args:
        run: Folder with the tables of joined traces.
        place: Returns replica and stage of a rank.
        gpus_per_node: Ranks per node; transfers inside a node are not compared with transfers between nodes.

    Raises:
        UserError: If a table is missing or damaged, or there are neither passes nor collectives of several ranks.
    """
    if has_passes(run):
        return operations_of_traces(run, place, gpus_per_node)
    return operations_between_collectives(run, place, gpus_per_node)


def has_passes(run: Path) -> bool:
    """Return whether all traces mark forward and backward passes, and passes hold no long waits for other replicas."""
    timeline = TIMELINE.read(run / "timeline.parquet")
    labels: dict[int, set[str]] = {rank: set() for rank in pc.unique(timeline["rank"]).to_pylist()}
    phases = timeline.filter(pc.equal(timeline["lane"], "phase"))
    for rank, label in zip(phases["rank"].to_pylist(), phases["label"].to_pylist(), strict=True):
        labels[rank].add(label)
    is_marked = bool(labels) and all({"forward", "backward"} <= found for found in labels.values())
    return is_marked and _share_waited(run) < _LEAST_WAITED


def _share_waited(run: Path) -> float:
    """Return the share of its step that a rank waits for other replicas inside passes: that of the worst rank."""
    if not (run / "intervals.parquet").is_file():
        return 0.0
    step_ns: Counter[int] = Counter()
    waited_ns: Counter[int] = Counter()
    columns = ("rank", "phase", "category", "group", "exposed_ns")
    table = INTERVALS.read(run / "intervals.parquet")
    for rank, phase, category, group, exposed_ns in zip(*(table[name].to_pylist() for name in columns), strict=True):
        step_ns[rank] += exposed_ns
        if category == "comm" and phase in ("forward", "backward") and group not in (*INSIDE, "pp"):
            waited_ns[rank] += exposed_ns
    return max((waited_ns[rank] / step_ns[rank] for rank in step_ns if step_ns[rank]), default=0.0)


@dataclass
class _Rank:
    """Communication of one rank.

    Attributes:
        rows: Operations of the collectives that it shares with other traced ranks, by collective and step; times in ns.
        exposed_ns: End and exposed time of every collective, by step. Unit: ns.
    """

    rows: dict[Key, dict[int, Mapping[str, Any]]] = field(default_factory=lambda: defaultdict(dict))
    exposed_ns: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))

    def end_ns(self, key: Key, step: int) -> int:
        """Return the end of a collective on this rank. Unit: ns."""
        row = self.rows[key][step]
        return int(row["start"] + row["duration"])

    def waited_ns(self, step: int, low_ns: int, high_ns: int) -> int:
        """Return the exposed time of collectives that ended in (low_ns, high_ns]. Unit: ns."""
        return sum(exposed_ns for end_ns, exposed_ns in self.exposed_ns[step] if low_ns < end_ns <= high_ns)


def operations_between_collectives(run: Path, place: Place, gpus_per_node: int) -> Operations:
    """Return communication, and the work of each rank between waits, of the profiled steps with the same collectives.

    A step lasts from the last collective of the previous step to its own last collective, since work after the last
    collective makes a rank late for the next one. A single step lasts from its start to the end of the last rank.

    Args:
        run: Folder with the tables of joined traces.
        place: Returns replica and stage of a rank.
        gpus_per_node: Ranks per node; transfers inside a node are not compared with transfers between nodes.

    Raises:
        UserError: If a table is missing or damaged, or ranks have no collectives in common.
    """
    table = COLLECTIVES.read(run / "collectives.parquet")
    table = table.filter(pc.is_valid(table["step"]))
    ranks, steps = _by_rank(table, gpus_per_node), sorted(pc.unique(table["step"]).to_pylist())
    usual_steps = _steps_with_usual_collectives(ranks, steps)
    if not usual_steps:
        raise UserError(
            f"{run / 'collectives.parquet'}: no collective that two ranks have in a step, and no forward and backward "
            "passes; trace two ranks or more, with the step() of torch.profiler"
        )
    waits = _waits(ranks, usual_steps)
    previous = {step: before for before, step in pairwise(steps) if before in usual_steps and step in usual_steps}
    if previous:
        starts_ns = {
            step: {rank: _common_end_ns(ranks, waits[rank][-1], before) for rank in ranks}
            for step, before in previous.items()
        }
        rows = _rows(ranks, waits, starts_ns, {}, place)
    else:
        timeline = TIMELINE.read(run / "timeline.parquet")
        start_ns = clock_offset_ns(timeline, table.filter(pc.equal(table["step"], steps[0])))
        starts_ns = {usual_steps[0]: dict.fromkeys(ranks, start_ns)}
        rows = _rows(ranks, waits, starts_ns, _ends_ns(timeline, start_ns), place)
    workers = [Worker(rank, *place(rank)) for rank in sorted(ranks)]
    return operations_of_rows(rows, workers, sorted(previous) or usual_steps[:1])


def _by_rank(table: pa.Table, gpus_per_node: int) -> dict[int, _Rank]:
    """Return the communication of each rank that shares collectives with another traced rank."""
    ranks: dict[int, _Rank] = defaultdict(_Rank)
    pairs = list(zip(table.to_pylist(), comm_rows(table, 0, gpus_per_node), strict=True))
    shared = [(row, comm) for row, comm in pairs if (row["num_seen"] or 0) > 1 and comm["transfer"][0] != "alone"]
    # A rank that marked the end of a step late may have a collective in the previous step; most ranks decide.
    steps_of: dict[Key, list[int]] = defaultdict(list)
    for row, comm in shared:
        steps_of[comm["transfer"]].append(row["step"])
    step_of = {transfer: median_high(steps) for transfer, steps in steps_of.items()}
    number_in_step: dict[Key, int] = {}
    counts: Counter[tuple[Key, int]] = Counter()
    for transfer in sorted(step_of, key=lambda transfer: transfer[-1]):
        number_in_step[transfer] = counts[transfer[:-1], step_of[transfer]]
        counts[transfer[:-1], step_of[transfer]] += 1
    for row, comm in shared:
        key, exposed_ns = (*comm["transfer"][:-1], number_in_step[comm["transfer"]]), row["exposed_ns"] or 0
        operation = comm | {"transfer": key, "exposed_ns": exposed_ns}
        ranks[row["rank"]].rows[key][step_of[comm["transfer"]]] = operation
    for row, comm in pairs:
        if row["rank"] in ranks:
            step = step_of.get(comm["transfer"], row["step"])
            end_ns = row["t_start_ns"] + row["duration_ns"]
            ranks[row["rank"]].exposed_ns[step].append((end_ns, row["exposed_ns"] or 0))
    return dict(ranks)


def _steps_with_usual_collectives(ranks: Mapping[int, _Rank], steps: Sequence[int]) -> list[int]:
    """Return the steps that have the most common set of collectives in which all ranks take part."""
    collectives = {
        step: frozenset((n, key) for n, rank in ranks.items() for key, by_step in rank.rows.items() if step in by_step)
        for step in steps
    }
    counts = Counter(keys for keys in collectives.values() if keys and len({n for n, _ in keys}) == len(ranks))
    return [step for step in steps if counts and collectives[step] == counts.most_common(1)[0][0]]


def _waits(ranks: Mapping[int, _Rank], steps: Sequence[int]) -> dict[int, list[Key]]:
    """Return the collectives that end a wait, by rank and in order: work follows them on most of their ranks.

    If another exposed collective follows at once, both are one wait. The last collective of a rank always ends one.
    """
    num_followed_by_work: Counter[Key] = Counter()
    num_seen: Counter[Key] = Counter()
    orders: dict[int, list[Key]] = {}
    for number, rank in ranks.items():
        keys = [key for key, by_step in rank.rows.items() if set(steps) <= set(by_step)]
        position: Counter[Key] = Counter()
        for step in steps:
            order = sorted(keys, key=lambda key: rank.end_ns(key, step))
            for index, (key, following) in enumerate(pairwise(order)):
                blocks_from_ns = rank.end_ns(following, step) - rank.rows[following][step]["exposed_ns"]
                is_wait = rank.rows[key][step]["exposed_ns"] > 0
                num_followed_by_work[key] += is_wait and blocks_from_ns - rank.end_ns(key, step) > _AT_ONCE_NS
                num_seen[key] += 1
                position[key] += index
            position[order[-1]] += len(order) - 1
        orders[number] = sorted(keys, key=lambda key: position[key])
    return {
        number: [*(key for key in order[:-1] if 2 * num_followed_by_work[key] > num_seen[key]), order[-1]]
        for number, order in orders.items()
    }


def _common_end_ns(ranks: Mapping[int, _Rank], key: Key, step: int) -> int:
    """Return the first end of a collective among its ranks. Unit: ns."""
    return min(rank.end_ns(key, step) for rank in ranks.values() if step in rank.rows.get(key, {}))


def _ends_ns(timeline: pa.Table, offset_ns: int) -> dict[int, int]:
    """Return the end of the timeline of each rank, on the clock of `collectives`. Unit: ns."""
    ends = pc.add(pc.add(timeline["t_start_ns"], timeline["duration_ns"]), offset_ns)
    last = pa.table({"rank": timeline["rank"], "end": ends}).group_by("rank").aggregate([("end", "max")])
    return dict(zip(last["rank"].to_pylist(), last["end_max"].to_pylist(), strict=True))


def _rows(
    ranks: Mapping[int, _Rank], waits: Mapping[int, Sequence[Key]], starts_ns: Mapping[int, Mapping[int, int]],
    ends_ns: Mapping[int, int], place: Place,
) -> list[dict[str, Any]]:  # fmt: skip
    """Return the operations of communication and work, as `operations_of_rows` takes them.

    Args:
        ranks: Communication of each rank.
        waits: Collectives that end the waits of each rank, in order.
        starts_ns: Start of the step, by step and rank. Unit: ns.
        ends_ns: End of the work after the last collective, by rank; empty if that belongs to the next step. Unit: ns.
        place: Returns replica and stage of a rank.
    """
    steps = sorted(starts_ns)
    origin_ns = {step: min(starts_ns[step].values()) for step in steps}
    rows: list[dict[str, Any]] = []
    for number, rank in ranks.items():
        for key, by_step in rank.rows.items():
            if set(steps) <= set(by_step):
                starts = [by_step[step]["start"] - origin_ns[step] for step in steps]
                durations = [by_step[step]["duration"] for step in steps]
                if key == waits[number][-1]:  # a later end on one rank is its work of the next step
                    until_common_end = [_common_end_ns(ranks, key, step) - by_step[step]["start"] for step in steps]
                    durations = [max(min(pair), 0) for pair in zip(durations, until_common_end, strict=True)]
                rows.append(dict(by_step[steps[0]]) | {"rank": number, "start": starts, "duration": durations})
        ends = {step: [starts_ns[step][number], *(rank.end_ns(key, step) for key in waits[number])] for step in steps}
        if number in ends_ns:
            ends[steps[0]].append(ends_ns[number])
        for index in range(len(ends[steps[0]]) - 1):
            spans = {step: (ends[step][index], ends[step][index + 1]) for step in steps}
            work_ns = [max(high - low - rank.waited_ns(step, low, high), 0) for step, (low, high) in spans.items()]
            rows.append({
                "rank": number,
                "kind": WORK,
                "is_comm": False,
                "transfer": (WORK, number, index),
                "duration_class": (WORK, place(number)[1], len(waits[number]), index),
                "start": [low - origin_ns[step] for step, (low, _) in spans.items()],
                "duration": work_ns,
            })  # fmt: skip
    return rows
