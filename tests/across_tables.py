"""Relations between result tables that hold for any run: parts add up to totals, and energies agree."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

Row = dict[str, Any]
Tables = dict[str, list[Row]]
CAUSES = ("power_cap", "sync_boost", "sw_thermal", "hw_thermal", "power_brake")
PARTS = ("compute_s", "exposed_comm_s", "exposed_memory_s", "idle_s")
TIMES = ("busy_s", "exposed_s", "overlapped_s")


def sums(rows: Iterable[Row], key: Callable[[Row], Any], column: str) -> dict[Any, float]:
    """Return the sum of a column by key. A null makes the sum NaN."""
    totals: dict[Any, float] = defaultdict(float)
    for row in rows:
        totals[key(row)] += np.nan if row[column] is None else row[column]
    return dict(totals)


def of_run(tables: Tables, table: str, run: str) -> list[Row]:
    """Return the rows of a run in a table."""
    return [row for row in tables[table] if row["run"] == run]


def check_times(tables: Tables, point: Row) -> None:
    """Check that kinds add up to categories, categories to steps of ranks, and their mean to the parts of the point."""
    breakdown, phases = (of_run(tables, name, point["run"]) for name in ("breakdown", "phases"))
    for time in TIMES:
        by_kinds, totals = (
            sums(rows, lambda row: (row["rank"], row["phase"], row["category"]), time) for rows in (breakdown, phases)
        )
        assert by_kinds.keys() <= totals.keys()  # `phases` has rows of zero
        kinds_s, total_s = np.array([(by_kinds.get(key, 0.0), time_s) for key, time_s in totals.items()]).T
        # Concurrent kinds are both busy, so their times overlap. Exposed time is assigned to one of them.
        assert np.all(kinds_s >= total_s - 1e-9)
        if time == "exposed_s":
            np.testing.assert_allclose(kinds_s, total_s, rtol=1e-9, atol=1e-9)
    for row in breakdown:
        np.testing.assert_allclose(row["exposed_s"] + row["overlapped_s"], row["busy_s"], atol=1e-8)
    steps_s = sums(phases, lambda row: row["rank"], "exposed_s")
    np.testing.assert_allclose(sum(point[part] for part in PARTS), np.mean(list(steps_s.values())), rtol=1e-6)
    np.testing.assert_allclose(sum(point[part.replace("_s", "_share")] for part in PARTS), 1.0, rtol=1e-9)
    kernels = of_run(tables, "kernels", point["run"])
    np.testing.assert_allclose(sum(row["sum_s"] for row in kernels), point["kernel_sum_s"], rtol=1e-9)
    assert all(row["sum_min_s"] <= row["sum_s"] * (1 + 1e-9) for row in kernels)
    assert all(row["sum_s"] <= row["sum_max_s"] * (1 + 1e-9) for row in kernels)


def check_power(tables: Tables, point: Row) -> None:
    """Check that energy is power times time, GPUs add up to nodes and the point, and shares are means over GPUs."""
    gpus, nodes, steps = (of_run(tables, name, point["run"]) for name in ("gpus", "nodes", "step_energy"))
    assert len(gpus) == sum(row["num_ranks"] for row in nodes) == point["num_gpus"]
    for row in steps:
        np.testing.assert_allclose(row["gpu_energy_j"], row["gpu_power_w"] * row["step_time_s"], rtol=1e-9)
    by_node = sums([row for row in gpus if row["gpu_power_w"] is not None], lambda row: row["node"], "gpu_power_w")
    np.testing.assert_allclose([row["gpu_power_w"] for row in nodes], [by_node[row["node"]] for row in nodes])
    np.testing.assert_allclose(sum(by_node.values()), point["job_gpu_power_w"], rtol=1e-9)
    energy_j, time_s = (sums(steps, lambda row: row["rank"], name) for name in ("gpu_energy_j", "step_time_s"))
    mean_w = {row["rank"]: row["gpu_power_w"] for row in gpus if row["gpu_power_w"] is not None}
    assert energy_j.keys() == mean_w.keys()
    # Without an energy counter, power is a mean over samples, not over steps.
    is_counted = all(row["source"].startswith("energy counter") for row in steps)
    for rank, power_w in mean_w.items():
        np.testing.assert_allclose(energy_j[rank] / time_s[rank], power_w, rtol=1e-3 if is_counted else 0.05)
    for cause in CAUSES:
        known = [row[f"{cause}_share"] for row in gpus if row[f"{cause}_share"] is not None]
        if known:
            np.testing.assert_allclose(point[f"{cause}_share"], np.mean(known), rtol=1e-9)
    if point["node_power_w"] is not None:
        np.testing.assert_allclose(point["node_power_w"], np.mean([row["node_power_w"] for row in nodes]), rtol=1e-9)
        assert all(row["gpu_power_w"] < row["node_power_w"] <= row["node_power_peak_w"] for row in nodes)


def check_traffic(tables: Tables, point: Row) -> None:
    """Check that all GPUs have links, shares are rates over capacity, and links without counters state the reason."""
    rows = of_run(tables, "traffic", point["run"])
    assert {row["rank"] for row in rows if row["rank"] is not None} == set(range(point["num_gpus"]))
    for row in rows:
        assert (row["absent"] is None) == (row["tx_bytes_per_s"] is not None or row["rx_bytes_per_s"] is not None)
        for direction in ("tx", "rx"):
            if row[f"{direction}_share"] is not None:
                rate = row[f"{direction}_share"] * row["capacity_bytes_per_s"]
                np.testing.assert_allclose(rate, row[f"{direction}_bytes_per_s"], rtol=1e-9)


def check_phase_energy(tables: Tables, point: Row) -> None:
    """Check that the energies of a rank's phases add up to the mean energy of its steps by the counter.

    GPUs that share a sensor have no energy by phase.
    """
    phases, steps = (of_run(tables, name, point["run"]) for name in ("phases", "step_energy"))
    by_phase = sums([row for row in phases if row["gpu_energy_j"] is not None], lambda r: r["rank"], "gpu_energy_j")
    assert bool(by_phase) != (point["package_power_peak_w"] is not None)
    for rank, energy_j in by_phase.items():
        counted_j = [row["gpu_energy_j"] for row in steps if row["rank"] == rank]
        np.testing.assert_allclose(energy_j, np.mean(counted_j), rtol=2e-3)
