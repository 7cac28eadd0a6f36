"""Quantities of runs that claims name: columns of table `points`, and quantities derived from other tables."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from triplepoint.tables.results import POINTS
from triplepoint.tables.schema import column_of
from triplepoint.verdicts.number import Number

Row = Mapping[str, Any]
"""Row of a table, by column."""
Slot = tuple[int, int]
"""Node and device, both from 0."""

CAUSES = ("power_cap", "sync_boost", "sw_thermal", "hw_thermal", "power_brake")
"""Causes of throttling."""
_OVER_SAMPLES = ("gpu_temp_c", "sm_clock_mhz", "cpu_utilisation", "gpu_utilisation")
"""Columns whose percentiles are over samples and GPUs, and do not give the uncertainty of the mean."""


class RunTables(NamedTuple):
    """Rows of one run in tables `gpus` and `kernels`."""

    gpus: Sequence[Row]
    kernels: Sequence[Row]


class Ordering(NamedTuple):
    """Order of the slots of a node in the air flow.

    Attributes:
        rear: Slots behind others.
        front: Slots at the inlet.
    """

    rear: Sequence[int]
    front: Sequence[int]


def by_slot(gpus: Iterable[Row], quantity: str) -> dict[Slot, float]:
    """Return a quantity of all GPUs that have it, by node and device."""
    return {
        (row["node"], int(row["device"].removeprefix("gpu"))): value
        for row in gpus
        if row["device"].startswith("gpu") and (value := _of_gpu(row, quantity)) is not None
    }


def _of_gpu(row: Row, quantity: str) -> float | None:
    if quantity != "throttle_fraction":
        return row[quantity]  # type: ignore[no-any-return]
    shares = [row[f"{cause}_share"] for cause in CAUSES if row[f"{cause}_share"] is not None]
    return min(1.0, sum(shares)) if shares else None


def rear_excess(values: Mapping[Slot, float], slots: Ordering) -> float | None:
    """Return the mean of rear slots less that of front slots; None where either has none."""
    rear, front = (_mean([value for (_, slot), value in values.items() if slot in part]) for part in slots)
    return None if rear is None or front is None else rear - front


def largest_ratio(values: Mapping[Slot, float], slots: Ordering) -> float | None:
    """Return the highest rear slot over the lowest front slot of the same node, less 1, in the node with the most."""
    ratios = []
    for node in {node for node, _ in values}:
        rear, front = ([values[node, slot] for slot in part if (node, slot) in values] for part in slots)
        ratios += [max(rear) / min(front) - 1] if rear and front else []
    return max(ratios, default=None)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _die_gap(run: RunTables, slots: Ordering) -> float | None:
    """Return the mean over nodes of the largest gap between the two dies of a package, dies 2n and 2n+1. Unit: K."""
    values = by_slot(run.gpus, "gpu_temp_c")
    gaps: dict[int, float] = {}
    for (node, die), value in values.items():
        if die % 2 == 0 and (node, die + 1) in values:
            gaps[node] = max(gaps.get(node, 0.0), abs(values[node, die + 1] - value))
    return _mean(list(gaps.values()))


def _kernels(*kinds: str) -> Callable[[RunTables, Ordering], float | None]:
    """Return a function for the time of communication kernels of some kinds, or of all other kernels. Unit: s."""

    def seconds(run: RunTables, slots: Ordering) -> float | None:
        if not run.kernels:
            return None
        selected = (row for row in run.kernels if (row["kind"] in kinds if kinds else row["class"] != "comm"))
        return float(sum(row["sum_s"] for row in selected))

    return seconds


class Derived(NamedTuple):
    """A quantity that is derived from other tables.

    Attributes:
        unit: Unit of the quantity.
        about: Meaning of the quantity.
        of: Returns the quantity of a run; None where the run does not have it.
    """

    unit: str
    about: str
    of: Callable[[RunTables, Ordering], float | None]


DERIVED: Mapping[str, Derived] = {
    "computation_kernels_s": Derived("s", "Kernels other than communication, per step and traced rank.", _kernels()),
    "send_recv_kernels_s": Derived(
        "s", "Sends and receives, per step and traced rank.", _kernels("send", "recv", "send_recv")
    ),
    "all_gather_kernels_s": Derived("s", "All-gathers, per step and traced rank.", _kernels("all_gather")),
    "reduce_scatter_kernels_s": Derived("s", "Reduce-scatters, per step and traced rank.", _kernels("reduce_scatter")),
    "all_reduce_kernels_s": Derived("s", "All-reduces, per step and traced rank.", _kernels("all_reduce")),
    "rear_temp_excess_c": Derived(
        "degC",
        "Mean temperature of rear slots less that of front slots.",
        lambda run, slots: rear_excess(by_slot(run.gpus, "gpu_temp_c"), slots),
    ),
    "rear_temp_largest_ratio": Derived(
        "1",
        "Hottest rear over coolest front slot of a node by mean temperature, less 1, in the node with the most.",
        lambda run, slots: largest_ratio(by_slot(run.gpus, "gpu_temp_c"), slots),
    ),
    "rear_clock_excess_mhz": Derived(
        "MHz",
        "Mean clock of rear slots less that of front slots.",
        lambda run, slots: rear_excess(by_slot(run.gpus, "sm_clock_mhz"), slots),
    ),
    "die_gap_c": Derived("degC", "Largest gap between dies of a package in a node, mean over nodes.", _die_gap),
}
"""Quantities derived from tables `gpus` and `kernels`, by name."""

_SAME_WIDTH: Mapping[str, str] = {
    **dict.fromkeys(("kernel_sum_s", "kernel_sum_min_s", "kernel_sum_max_s", "job_power_line_hz"), "step_time_s"),
    "node_power_w": "gpu_power_w",
}
"""Columns of `points` without an interval of the model, and the column whose relative width they take: kernels and the
period of power scale with the step, and most power of a node is that of its GPUs."""

UNITS = {column.name: column.unit for column in POINTS.columns if column.type in ("int", "float")}
"""Unit of every number in table `points`."""


def unit_of(quantity: str) -> str:
    """Return the unit of a quantity. Raises `KeyError` if its name is unknown."""
    return DERIVED[quantity].unit if quantity in DERIVED else UNITS[quantity]


def derived_in(row: Row, quantity: str, value: float) -> Number:
    """Return a derived quantity with its interval: simulated times have the relative width of the step time.

    Args:
        row: Row of table `points` of the run.
        quantity: Name of the quantity.
        value: Value of the quantity.
    """
    step = number_in(row, "step_time_s")
    if DERIVED[quantity].unit != "s" or row["origin"] != "simulated" or step is None:
        return Number(value, value, value)
    return _with_relative_width(value, step)


def _with_relative_width(value: float, other: Number) -> Number:
    """Return a value with the relative interval of another number."""
    return Number(value, value * other.low / other.value, value * other.high / other.value)


def number_in(row: Row, quantity: str) -> Number | None:
    """Return a number of table `points` with its interval; None where the run has none.

    The interval of a simulated run is that of the model. That of a measured run is from the 10th to the 90th percentile
    over measured steps.

    Args:
        row: Row of table `points`.
        quantity: Column of the number.
    """
    value = row.get(quantity)
    if value is None:
        return None
    if row["origin"] == "simulated" and quantity in _SAME_WIDTH:
        other = number_in(row, _SAME_WIDTH[quantity])
        return Number(value, value, value) if other is None else _with_relative_width(value, other)
    ends = ("lo", "hi") if row["origin"] == "simulated" else ("p10", "p90")
    low, high = (row.get(column_of(quantity, end)) for end in ends)
    if low is None or high is None or (row["origin"] != "simulated" and quantity in _OVER_SAMPLES):
        return Number(value, value, value)
    return Number(value, low, high)
