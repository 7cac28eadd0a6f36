"""Errors of simulated clusters against the published figures: `python -m tests.benchmarks.published_figures`.

With `--rows` every point and GPU too. What is asked for is in the last column.
"""

import statistics
import sys
from collections.abc import Sequence

from tests.published_figures import (
    SLOTS_LEARNED,
    Row,
    Slot,
    floor_k,
    kernel_rows,
    microbatch_rows,
    rank_correlation,
    relative_steps,
    slot_rows,
    stage_rows,
)

RELATIVE = (("mean power", 3.0), ("peak power", 5.0), ("clock", 2.0))
ABSOLUTE = (("mean temperature", 1.5), ("highest temperature", 2.5))


def show(name: str, errors: Sequence[float], unit: str, goal: float) -> None:
    """Print mean absolute error and bias of some rows."""
    sizes = [abs(error) for error in errors]
    print(
        f"{name:<34}{len(errors):3} rows  mean {statistics.fmean(sizes):6.2f} {unit}  bias "
        f"{statistics.fmean(errors):+7.2f}  largest {max(sizes):6.2f}  goal {goal:g} {unit}"
    )


def show_slots(slots: Sequence[Slot]) -> None:
    """Print errors of GPUs on nodes used for fitting, and on the others."""
    for name, kept in (
        ("nodes 1 and 2", [slot for slot in slots if slot.node in SLOTS_LEARNED]),
        ("node 3", [slot for slot in slots if slot.node not in SLOTS_LEARNED]),
    ):
        show(f"slots of {name}", [slot.predicted_c - slot.published_c for slot in kept], "K", 1.2)
        print(f"  within their 90 % intervals: {statistics.fmean(slot.is_inside for slot in kept):.0%}")
    print(
        f"  node 3 with rows as warm as on nodes 1 and 2: {floor_k(slots, SLOTS_LEARNED):.2f} K; "
        f"as on itself, parts alone: {floor_k(slots, ()):.2f} K"
    )


def show_kernels(rows: Sequence[Row]) -> None:
    """Print errors of kernel times by kind of kernel."""
    for name in dict.fromkeys(name for row in rows for name in row.published):
        pairs = [(row.predicted[name], row.published[name]) for row in rows if row.published.get(name)]
        show(f"kernels, {name}", [100.0 * (one / other - 1.0) for one, other in pairs], "%", 12.0)


def main() -> None:
    """Print all errors."""
    rows = list(microbatch_rows())
    for name, goal in RELATIVE:
        errors = [100.0 * (row.predicted[name] / row.published[name] - 1.0) for row in rows]
        show(name, errors, "%", goal)
    for name, goal in ABSOLUTE:
        pairs = [(row.predicted[name], row.published[name]) for row in rows]
        show(name, [one - other for one, other in pairs if other == other], "K", goal)
    steps = relative_steps(rows)
    show("relative step time", [100.0 * (one / other - 1.0) for _, other, one in steps], "%", 4.0)
    print(f"order of layouts, Spearman {rank_correlation(steps):.3f}  goal 0.95")
    kernels = list(kernel_rows())
    show_kernels(kernels)
    stages = list(stage_rows())
    show_kernels(stages)
    slots = list(slot_rows())
    show_slots(slots)
    if "--rows" in sys.argv:
        for row in (*rows, *kernels, *stages):
            cells = "  ".join(f"{name} {row.published[name]:.5g}>{row.predicted[name]:.5g}" for name in row.published)
            print(f"{row.name:<14}{cells}")
        for slot in slots:
            print(f"{slot.layout} {slot.node}.{slot.gpu} {slot.published_c:.1f} > {slot.predicted_c:.1f}")


if __name__ == "__main__":
    main()
