"""Texts on the cost of a plan: columns for its table, and what lies ahead of each cluster."""

from collections import Counter
from collections.abc import Sequence
from math import isnan

from triplepoint.advise.cost import START_S, STATES, RunCost, typical_duration_s
from triplepoint.status import Status
from triplepoint.units import S_PER_HOUR

HEADINGS = ("have", "step s", "GiB", "GPU h", "kWh")

LEGEND = f"""\
expected: step time and memory are simulated, of each engine's software, in brackets with every run at
    the upper end of its 90 % interval; {START_S:.0f} s of start-up a launch are assumed
kWh: GPU boards at their power limit for the expected time, an upper bound of theirs; hosts and cooling are not in it"""


def cells(cost: RunCost) -> tuple[str, ...]:
    """Return what stands under `HEADINGS` for one run."""
    prediction, state = cost.prediction, cost.existing.state
    have = cost.existing.status if state == "done" else state
    numbers = (prediction.step_time_s, prediction.memory_gib, cost.gpu_hours, cost.board_energy_kwh)
    shown = ["-" if isnan(number) else f"{number:.3g}" if number < 100 else f"{number:.0f}" for number in numbers]
    return (f"{have} (done)" if state == "done" else have, *shown)


def note(cost: RunCost) -> str | None:
    """Return what is to be said of one run: that it will not fit, or not end; None if nothing."""
    if cost.prediction.status == Status.OOM:
        return f"predicted out of memory: {cost.prediction.reason}"
    if cost.is_cut_short:
        limit_s = cost.entry.planned.limits.time_limit_s
        steps_s = len(cost.entry.planned.point.steps.kinds) * cost.prediction.step_time_s
        return (
            f"predicted to time out: {steps_s:.0f} s of steps and {START_S:.0f} s of start-up, the limit is "
            f"{limit_s:.0f} s; raise time_limit_s of the cluster"
        )
    return None


def summarise(costs: Sequence[RunCost]) -> str:
    """Return what exists and what lies ahead, a block for each cluster and engine, and in all."""
    blocks: dict[str, list[RunCost]] = {}
    for cost in costs:
        point = cost.entry.planned.point
        blocks.setdefault(f"{point.cluster.name}, {point.engine}", []).append(cost)
    lines = [line for title, block in blocks.items() for line in _block(title, block)]
    launches = [cost for cost in costs if cost.is_ahead and not cost.is_simulated]
    if any(not isnan(cost.wall_s) for cost in launches):
        lines.append(f"in all: {_num(launches, 'launch', 'launches')} ahead, {_amounts(launches)}")
    if any(not isnan(cost.wall_s) for cost in costs if cost.is_ahead):
        lines.append(LEGEND)
    return "\n".join(lines)


def _block(title: str, costs: Sequence[RunCost]) -> list[str]:
    states = Counter(cost.existing.state for cost in costs)
    have = ", ".join(f"{states[state]} {state}" for state in STATES if states[state])
    lines = [f"{title}: {_num(costs, 'run')}: {have}"]
    ahead = [cost for cost in costs if cost.is_ahead]
    priced = [cost for cost in ahead if not isnan(cost.wall_s)]
    if ahead and costs[0].is_simulated:
        lines.append(f"  ahead: {_num(ahead, 'simulation')}, no GPU hours")
        if priced:
            lines.append(f"  launched they would take {_wall(priced)}, {_amounts(priced)}")
    elif ahead:
        lines.append(f"  ahead: {_num(ahead, 'launch', 'launches')}, {_job_sizes(ahead)}")
        if priced:
            lines.append(f"  expected: {_wall(priced)}, {_amounts(priced)}")
        lines += _unpriced([cost for cost in ahead if isnan(cost.wall_s)], costs)
    for word, chosen in _warnings(ahead):
        lines.append(f"  {word}: {len(chosen)}: {', '.join(cost.entry.run for cost in chosen[:3])}{_more(chosen)}")
    return lines


def _warnings(ahead: Sequence[RunCost]) -> list[tuple[str, list[RunCost]]]:
    found = [
        ("predicted out of memory", [cost for cost in ahead if cost.prediction.status == Status.OOM]),
        ("predicted to time out", [it for it in ahead if it.is_cut_short and it.prediction.status == Status.OK]),
    ]
    return [(word, chosen) for word, chosen in found if chosen]


def _more(chosen: Sequence[RunCost]) -> str:
    return f" and {len(chosen) - 3} more" if len(chosen) > 3 else ""


def _job_sizes(costs: Sequence[RunCost]) -> str:
    """Return how many jobs of how many nodes they are, such as `40 jobs of 4 nodes, 2 of 1`."""
    sizes = Counter(cost.entry.planned.point.num_nodes for cost in costs)
    return "jobs of " + ", ".join(
        f"{size} {'node' if size == 1 else 'nodes'}: {number}" for size, number in sorted(sizes.items())
    )


def _unpriced(costs: Sequence[RunCost], others: Sequence[RunCost]) -> list[str]:
    """Return a line on runs without a prediction: what they took here before, or at most."""
    if not costs:
        return []
    why = costs[0].prediction.reason
    typical_s = typical_duration_s(cost.existing for cost in others)
    if typical_s is not None:
        each = f"about {_time(typical_s * len(costs))} if each takes {_time(typical_s)} as those launched before"
    else:
        each = f"at most {_time(sum(cost.entry.planned.limits.time_limit_s for cost in costs))} by their time limits"
    return [f"  not predicted: {len(costs)} ({why}); {each}"]


def _wall(costs: Sequence[RunCost]) -> str:
    """Return the wall time of some runs when they have the cluster to themselves, as many at once as it holds."""
    expected = [max(_shared(costs, "wall_s"), max(cost.wall_s for cost in costs))]
    expected.append(max(_shared(costs, "wall_hi_s"), max(cost.wall_hi_s for cost in costs)))
    return f"{_time(expected[0])} wall with the cluster to itself (to {_time(expected[1])})"


def _shared(costs: Sequence[RunCost], name: str) -> float:
    return sum(float(getattr(cost, name)) / cost.num_at_once for cost in costs)


def _amounts(costs: Sequence[RunCost]) -> str:
    """Return GPU hours and energy of those runs that are predicted and have GPUs."""
    priced = [cost for cost in costs if not isnan(cost.wall_s)]
    hours = sum(cost.gpu_hours for cost in priced)
    most = sum(cost.wall_hi_s * cost.num_gpus for cost in priced) / S_PER_HOUR
    energy_kwh = sum(cost.board_energy_kwh for cost in priced)
    return f"{hours:.1f} GPU h (to {most:.1f}), at most {energy_kwh:.1f} kWh of GPU boards"


def _time(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < S_PER_HOUR else f"{seconds / S_PER_HOUR:.1f} h"


def _num(items: Sequence[object], one: str, many: str | None = None) -> str:
    return f"{len(items)} {one if len(items) == 1 else many or one + 's'}"
