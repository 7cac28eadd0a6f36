"""Operations of traces: passes where the traces mark them, else the work of every rank between collectives.

Work is all the time in which a rank does not wait in communication, whatever it does then: kernels, launches, other
programs, sleep. So a rank that comes late to a collective is seen without any annotation of the framework.
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
from triplepoint.why.run_operations import INSIDE, comm_rows, offset_ns, operations_of_rows, operations_of_traces

Place = Callable[[int], tuple[int, int]]
Key = tuple[Any, ...]
"""A collective of a step: how its members name it, and its number among those of this name in the step."""
_LEAST_WAITED = 0.05
"""Share of the step from which waits inside passes would be taken for computation. Our choice."""
_AT_ONCE_NS = 100_000
"""Between collectives so near to one another a rank is not said to work. Our choice. Unit: ns."""


def traced_operations(run: Path, place: Place, gpus_per_node: int) -> Operations:
    """Return the operations of traces.

    Args:
        run: Folder with the tables of joined traces.
        place: Replica and stage of a rank.
        gpus_per_node: Ranks of a node: transfers inside of one are not compared with those out of it.

    Raises:
        UserError: If a table is missing or damaged, or there are neither passes nor collectives of several ranks.
    """
    if has_passes(run):
        return operations_of_traces(run, place, gpus_per_node)
    return operations_between_collectives(run, place, gpus_per_node)


def has_passes(run: Path) -> bool:
    """Return whether every rank's traces mark forward and backward passes, and those hold no waits for other ranks."""
    timeline = TIMELINE.read(run / "timeline.parquet")
    labels: dict[int, set[str]] = {rank: set() for rank in pc.unique(timeline["rank"]).to_pylist()}
    phases = timeline.filter(pc.equal(timeline["lane"], "phase"))
    for rank, label in zip(phases["rank"].to_pylist(), phases["label"].to_pylist(), strict=True):
        labels[rank].add(label)
    is_marked = bool(labels) and all({"forward", "backward"} <= found for found in labels.values())
    return is_marked and _share_waited(run) < _LEAST_WAITED


def _share_waited(run: Path) -> float:
    """Return the share of a step that the rank with most of it waits inside passes for replicas."""
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
        rows: Collectives that other traced ranks have too, by key and step; times in ns.
        exposed_ns: End of every collective of a step, and its time that no computation hides. Unit: ns.
    """

    rows: dict[Key, dict[int, Mapping[str, Any]]] = field(default_factory=lambda: defaultdict(dict))
    exposed_ns: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))

    def end_ns(self, key: Key, step: int) -> int:
        """Return when a collective ended."""
        row = self.rows[key][step]
        return int(row["start"] + row["duration"])

    def waited_ns(self, step: int, low_ns: int, high_ns: int) -> int:
        """Return the exposed time of collectives that ended after one time and by another."""
        return sum(exposed_ns for end_ns, exposed_ns in self.exposed_ns[step] if low_ns < end_ns <= high_ns)


def operations_between_collectives(run: Path, place: Place, gpus_per_node: int) -> Operations:
    """Return communication, and the work of every rank between waits, of all profiled steps that have the same.

    A step lasts from the last collective of the step before to its own last, since what a rank does after its last
    collective makes it late to the next one. Of a single step it lasts from its start to the end of the last rank.

    Args:
        run: Folder with the tables of joined traces.
        place: Replica and stage of a rank.
        gpus_per_node: Ranks of a node: transfers inside of one are not compared with those out of it.

    Raises:
        UserError: If a table is missing or damaged, or ranks have no collectives in common.
    """
    table = COLLECTIVES.read(run / "collectives.parquet")
    table = table.filter(pc.is_valid(table["step"]))
    ranks, steps = _by_rank(table, gpus_per_node), sorted(pc.unique(table["step"]).to_pylist())
    alike = _alike_steps(ranks, steps)
    if not alike:
        raise UserError(
            f"{run / 'collectives.parquet'}: no collective that two ranks have in a step, and no forward and backward "
            "passes; trace two ranks or more, with the step() of torch.profiler"
        )
    cuts = _cuts(ranks, alike)
    after = {two: one for one, two in pairwise(steps) if one in alike and two in alike}
    if after:
        begins = {two: {n: _common_end_ns(ranks, cuts[n][-1], one) for n in ranks} for two, one in after.items()}
        rows = _rows(ranks, cuts, begins, {}, place)
    else:
        timeline = TIMELINE.read(run / "timeline.parquet")
        zero_ns = offset_ns(timeline, table.filter(pc.equal(table["step"], steps[0])))
        rows = _rows(ranks, cuts, {alike[0]: dict.fromkeys(ranks, zero_ns)}, _last_ns(timeline, zero_ns), place)
    return operations_of_rows(rows, [Worker(n, *place(n)) for n in sorted(ranks)], sorted(after) or alike[:1])


def _by_rank(table: pa.Table, gpus_per_node: int) -> dict[int, _Rank]:
    """Return the communication of every rank that shares collectives with another one traced."""
    ranks: dict[int, _Rank] = defaultdict(_Rank)
    found = list(zip(table.to_pylist(), comm_rows(table, 0, gpus_per_node), strict=True))
    shared = [(row, comm) for row, comm in found if (row["num_seen"] or 0) > 1 and comm["key"][0] != "alone"]
    # One rank may have a collective in the step before, when it marked the end of a step late.
    steps_of: dict[Key, list[int]] = defaultdict(list)
    for row, comm in shared:
        steps_of[comm["key"]].append(row["step"])
    step_of = {key: median_high(steps) for key, steps in steps_of.items()}
    number: dict[Key, int] = {}
    counts: Counter[tuple[Key, int]] = Counter()
    for key in sorted(step_of, key=lambda key: key[-1]):
        number[key] = counts[key[:-1], step_of[key]]
        counts[key[:-1], step_of[key]] += 1
    for row, comm in shared:
        key, exposed_ns = (*comm["key"][:-1], number[comm["key"]]), row["exposed_ns"] or 0
        ranks[row["rank"]].rows[key][step_of[comm["key"]]] = comm | {"key": key, "exposed_ns": exposed_ns}
    for row, comm in found:
        if row["rank"] in ranks:
            step = step_of.get(comm["key"], row["step"])
            end_ns = row["t_start_ns"] + row["duration_ns"]
            ranks[row["rank"]].exposed_ns[step].append((end_ns, row["exposed_ns"] or 0))
    return dict(ranks)


def _alike_steps(ranks: Mapping[int, _Rank], steps: Sequence[int]) -> list[int]:
    """Return the steps that have the same collectives as most of them."""
    keys = {
        step: frozenset((n, key) for n, rank in ranks.items() for key, found in rank.rows.items() if step in found)
        for step in steps
    }
    counts = Counter(found for found in keys.values() if found and len({n for n, _ in found}) == len(ranks))
    return [step for step in steps if counts and keys[step] == counts.most_common(1)[0][0]]


def _cuts(ranks: Mapping[int, _Rank], steps: Sequence[int]) -> dict[int, list[Key]]:
    """Return the collectives that work follows on most of their ranks, by rank and in order.

    One that another exposed collective follows at once is part of the same wait. Work follows the last of a rank.
    """
    followed: Counter[Key] = Counter()
    seen: Counter[Key] = Counter()
    orders: dict[int, list[Key]] = {}
    for number, rank in ranks.items():
        own = [key for key, found in rank.rows.items() if set(steps) <= set(found)]
        place: Counter[Key] = Counter()
        for step in steps:
            order = sorted(own, key=lambda key: rank.end_ns(key, step))
            for at, (key, following) in enumerate(pairwise(order)):
                blocks_from_ns = rank.end_ns(following, step) - rank.rows[following][step]["exposed_ns"]
                is_wait = rank.rows[key][step]["exposed_ns"] > 0
                followed[key] += is_wait and blocks_from_ns - rank.end_ns(key, step) > _AT_ONCE_NS
                seen[key] += 1
                place[key] += at
            place[order[-1]] += len(order) - 1
        orders[number] = sorted(own, key=lambda key: place[key])
    return {
        number: [*(key for key in order[:-1] if 2 * followed[key] > seen[key]), order[-1]]
        for number, order in orders.items()
    }


def _common_end_ns(ranks: Mapping[int, _Rank], key: Key, step: int) -> int:
    """Return when the first of the ranks that share a collective was through with it."""
    return min(rank.end_ns(key, step) for rank in ranks.values() if step in rank.rows.get(key, {}))


def _last_ns(timeline: pa.Table, zero_ns: int) -> dict[int, int]:
    """Return when the last that the timeline has of each rank ended, on the clock of collectives."""
    ends = pc.add(pc.add(timeline["t_start_ns"], timeline["duration_ns"]), zero_ns)
    found = pa.table({"rank": timeline["rank"], "end": ends}).group_by("rank").aggregate([("end", "max")])
    return dict(zip(found["rank"].to_pylist(), found["end_max"].to_pylist(), strict=True))


def _rows(
    ranks: Mapping[int, _Rank], cuts: Mapping[int, Sequence[Key]], begins_ns: Mapping[int, Mapping[int, int]],
    last_ns: Mapping[int, int], place: Place,
) -> list[dict[str, Any]]:  # fmt: skip
    """Return rows of communication and work, with a time for each step.

    Args:
        ranks: Communication of every rank.
        cuts: Collectives that end its waits.
        begins_ns: Begin of every step, of each rank. Unit: ns.
        last_ns: Of a single step, end of what each rank does after its last collective. Unit: ns.
        place: Replica and stage of a rank.
    """
    steps = sorted(begins_ns)
    origin_ns = {step: min(begins_ns[step].values()) for step in steps}
    rows: list[dict[str, Any]] = []
    for number, rank in ranks.items():
        for key, found in rank.rows.items():
            if set(steps) <= set(found):
                starts = [found[step]["start"] - origin_ns[step] for step in steps]
                durations = [found[step]["duration"] for step in steps]
                if key == cuts[number][-1]:  # what ends later on one rank is its work of the next step
                    lasts = [_common_end_ns(ranks, key, step) - found[step]["start"] for step in steps]
                    durations = [max(min(pair), 0) for pair in zip(durations, lasts, strict=True)]
                rows.append({**found[steps[0]]} | {"rank": number, "start": starts, "duration": durations})
        ends = {step: [begins_ns[step][number], *(rank.end_ns(key, step) for key in cuts[number])] for step in steps}
        if number in last_ns:
            ends[steps[0]].append(last_ns[number])
        for index in range(len(ends[steps[0]]) - 1):
            spans = {step: (ends[step][index], ends[step][index + 1]) for step in steps}
            work_ns = [max(high - low - rank.waited_ns(step, low, high), 0) for step, (low, high) in spans.items()]
            starts = [low - origin_ns[step] for step, (low, _) in spans.items()]
            alike = (WORK, place(number)[1], len(cuts[number]), index)
            times = {"start": starts, "duration": work_ns, "key": (WORK, number, index), "alike": alike}
            rows.append({"rank": number, "kind": WORK, "is_comm": False} | times)
    return rows
