"""Quantities of runs that claims speak of: columns of table `points`, and those worked out from other tables."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from triplepoint.tables.results import POINTS
from triplepoint.tables.schema import column_of
from triplepoint.verdicts.number import Number

Row = Mapping[str, Any]
Slot = tuple[int, int]
"""Node and device, both from 0."""

CAUSES = ("power_cap", "sync_boost", "sw_thermal", "hw_thermal", "power_brake")
_OVER_SAMPLES = ("gpu_temp_c", "sm_clock_mhz", "cpu_utilisation", "gpu_utilisation")
"""Columns whose percentiles are over samples and GPUs, which says nothing of how well the mean is known."""


class RunTables(NamedTuple):
    """Rows of one run in tables `gpus` and `kernels`."""

    gpus: Sequence[Row]
    kernels: Sequence[Row]


class Ordering(NamedTuple):
    """Slots of a node: those behind others in the air, and those at its inlet."""

    rear: Sequence[int]
    front: Sequence[int]


def by_slot(gpus: Iterable[Row], quantity: str) -> dict[Slot, float]:
    """Return a quantity of every GPU that has it, by node and device."""
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
    means = [_mean([value for (_, slot), value in values.items() if slot in of]) for of in slots]
    return None if None in means else means[0] - means[1]  # type: ignore[operator]


def largest_ratio(values: Mapping[Slot, float], slots: Ordering) -> float | None:
    """Return the highest of a node's rear slots over the lowest of its front slots, less 1: of the node with most."""
    ratios = []
    for node in {node for node, _ in values}:
        rear, front = ([values[node, slot] for slot in of if (node, slot) in values] for of in slots)
        ratios += [max(rear) / min(front) - 1] if rear and front else []
    return max(ratios, default=None)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _die_gap(run: RunTables, slots: Ordering) -> float | None:
    """Return the largest gap between dies of a package of each node, mean over nodes; dies 2n and 2n+1 are one."""
    values = by_slot(run.gpus, "gpu_temp_c")
    gaps: dict[int, float] = {}
    for (node, die), value in values.items():
        if die % 2 == 0 and (node, die + 1) in values:
            gaps[node] = max(gaps.get(node, 0.0), abs(values[node, die + 1] - value))
    return _mean(list(gaps.values()))


def _kernels(*kinds: str) -> Callable[[RunTables, Ordering], float | None]:
    """Return the function for seconds of kernels of some kinds of communication; of computation where none is named."""

    def seconds(run: RunTables, slots: Ordering) -> float | None:
        if not run.kernels:
            return None
        meant = (row for row in run.kernels if (row["kind"] in kinds if kinds else row["class"] != "comm"))
        return float(sum(row["sum_s"] for row in meant))

    return seconds


class Derived(NamedTuple):
    """A quantity that is no column: unit, meaning, and how it is worked out of a run."""

    unit: str
    about: str
    of: Callable[[RunTables, Ordering], float | None]


DERIVED: Mapping[str, Derived] = {
    "computation_kernels_s": Derived("s", "Kernels other than communication, per step and traced rank.", _kernels()),
    "send_recv_kernels_s": Derived("s", "Sends and receives, the same.", _kernels("send", "recv", "send_recv")),
    "all_gather_kernels_s": Derived("s", "All-gathers, the same.", _kernels("all_gather")),
    "reduce_scatter_kernels_s": Derived("s", "Reduce-scatters, the same.", _kernels("reduce_scatter")),
    "all_reduce_kernels_s": Derived("s", "All-reduces, the same.", _kernels("all_reduce")),
    "rear_temp_excess_c": Derived(
        "degC",
        "Mean temperature of rear slots less that of front slots.",
        lambda run, slots: rear_excess(by_slot(run.gpus, "gpu_temp_c"), slots),
    ),
    "rear_temp_largest_ratio": Derived(
        "1",
        "Hottest rear over coolest front slot of a node by mean temperature, less 1: of the node with most.",
        lambda run, slots: largest_ratio(by_slot(run.gpus, "gpu_temp_c"), slots),
    ),
    "rear_clock_excess_mhz": Derived(
        "MHz",
        "Mean clock of rear slots less that of front slots.",
        lambda run, slots: rear_excess(by_slot(run.gpus, "sm_clock_mhz"), slots),
    ),
    "die_gap_c": Derived("degC", "Largest gap between dies of a package in a node, mean over nodes.", _die_gap),
}
"""Quantities worked out from tables `gpus` and `kernels`, by name."""

_AS_KNOWN_AS: Mapping[str, str] = {
    **dict.fromkeys(("kernel_sum_s", "kernel_sum_min_s", "kernel_sum_max_s", "job_power_line_hz"), "step_time_s"),
    "node_power_w": "gpu_power_w",
}
"""Columns of `points` without an interval of the model, and the one whose relative width they have: kernels and the
period of power are the step's, most of a node's power is its GPUs'."""

UNITS = {column.name: column.unit for column in POINTS.columns if column.type in ("int", "float")}
"""Unit of every number in table `points`."""


def unit_of(quantity: str) -> str:
    """Return the unit of a quantity. Raises KeyError if there is none of the name."""
    return DERIVED[quantity].unit if quantity in DERIVED else UNITS[quantity]


def derived_in(row: Row, quantity: str, value: float) -> Number:
    """Return a derived number with what it is known to: simulated seconds to the relative width of the step's time.

    Args:
        row: Row of table `points` of its run.
        quantity: Name of it.
        value: The number.
    """
    step = number_in(row, "step_time_s")
    if DERIVED[quantity].unit != "s" or row["origin"] != "simulated" or step is None:
        return Number(value, value, value)
    return _as_wide(value, step)


def _as_wide(value: float, other: Number) -> Number:
    """Return a value with the relative interval of another number."""
    return Number(value, value * other.low / other.value, value * other.high / other.value)


def number_in(row: Row, quantity: str) -> Number | None:
    """Return a number of table `points` with what it is known to; None where the run has none.

    Args:
        row: Row of table `points`. Of a simulated run the ends are those of the model's interval, of a measured one the
            10th and 90th percentile over measured steps.
        quantity: Column.
    """
    value = row.get(quantity)
    if value is None:
        return None
    if row["origin"] == "simulated" and quantity in _AS_KNOWN_AS:
        other = number_in(row, _AS_KNOWN_AS[quantity])
        return Number(value, value, value) if other is None else _as_wide(value, other)
    ends = ("lo", "hi") if row["origin"] == "simulated" else ("p10", "p90")
    low, high = (row.get(column_of(quantity, end)) for end in ends)
    if low is None or high is None or (row["origin"] != "simulated" and quantity in _OVER_SAMPLES):
        return Number(value, value, value)
    return Number(value, low, high)
