"""The true energy of phases, against what the stages infer from recordings and traces of the same simulated run."""

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from triplepoint.aggregate import aggregate
from triplepoint.plan import select
from triplepoint.simulate.artefacts.simulate_run import simulate_run
from triplepoint.tables.truth import TRUE_TIMES
from triplepoint.telemetry.align import align_run
from triplepoint.trace.run_traces import trace_run
from triplepoint.trace.taxonomy import load_scheme

CONFIG = Path("config")
RANKS = (0, 8, 16, 24)

Cells = dict[int, dict[str, tuple[float, float]]]
"""Energy (J) and time (s) by rank, of the computation of each phase and of the rest."""


def cells_of(rows: list[dict[str, Any]], time: str, per_s: float) -> Cells:
    energy_j: dict[int, Counter[str]] = {rank: Counter() for rank in RANKS}
    time_s: dict[int, Counter[str]] = {rank: Counter() for rank in RANKS}
    for row in rows:
        if row["rank"] in RANKS:
            name = row["phase"] if row["category"] == "compute" else "rest"
            energy_j[row["rank"]][name] += row["gpu_energy_j"] or 0.0
            time_s[row["rank"]][name] += row[time] / per_s
    return {rank: {name: (energy_j[rank][name], time_s[rank][name]) for name in time_s[rank]} for rank in RANKS}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Cells, Cells, list[dict[str, Any]]]:
    """Return what is true, what is inferred, and the rows of table `phases`: Llama-3 70B, TP4 PP4 DP2 on 32 H200."""
    results, plan = tmp_path_factory.mktemp("results"), select(CONFIG, ["parallelism"], ["cpu-local"], ["h200x32"])
    entry = next(one for one in plan.valid if "llama3-70b_h200x32_tp4-pp4-dp2" in one.run)
    folder = results / "runs" / entry.run
    folder.mkdir(parents=True)
    (folder / "point.json").write_text(entry.planned.model_dump_json())
    simulate_run(entry.planned, folder / "raw", CONFIG)
    align_run(folder / "raw", folder / "telemetry.parquet")
    trace_run(folder, load_scheme(), lambda line: None, 1)
    aggregate(plan.model_copy(update={"entries": (entry,)}), results, CONFIG)
    phases = pq.read_table(results / "tables" / "parallelism" / "phases.parquet").to_pylist()
    truth = TRUE_TIMES.read(folder / "raw/truth/times.parquet").to_pylist()
    return cells_of(truth, "time_ns", 1e9), cells_of(phases, "exposed_s", 1.0), phases


def test_times_of_phases_are_inferred(run: tuple[Cells, Cells, list[dict[str, Any]]]) -> None:
    true, inferred, _ = run
    for rank in RANKS:
        for name, (_, time_s) in true[rank].items():
            assert inferred[rank][name][1] == pytest.approx(time_s, abs=1e-6), (rank, name)


def test_energy_of_phases_is_inferred_to_what_a_slow_counter_tells(
    run: tuple[Cells, Cells, list[dict[str, Any]]],
) -> None:
    """The counter moves ten times a second, passes take a tenth: backward comes out to 3.3 %, forward to 14 %."""
    true, inferred, phases = run
    for rank in RANKS:
        sums = [sum(energy for energy, _ in cells[rank].values()) for cells in (true, inferred)]
        assert sums[1] == pytest.approx(sums[0], rel=1e-3)
        assert inferred[rank]["backward"][0] == pytest.approx(true[rank]["backward"][0], rel=0.04)
        assert inferred[rank]["forward"][0] == pytest.approx(true[rank]["forward"][0], rel=0.2)
    # What it says of its own error holds: nine in ten powers are within two of it.
    errors = []
    for row in phases:
        if row["rank"] in RANKS and row["category"] == "compute" and row["gpu_power_w"]:
            energy_j, time_s = true[row["rank"]][row["phase"]]
            errors.append(abs(row["gpu_power_w"] - energy_j / time_s) / row["gpu_power_sigma_w"])
    assert len(errors) == 3 * len(RANKS) and sum(error < 2.0 for error in errors) >= 0.9 * len(errors)
