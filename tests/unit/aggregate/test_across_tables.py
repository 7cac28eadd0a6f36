"""Result tables of one run agree with each other, and with what a simulated run knows of itself."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.across_tables import Tables, check_phase_energy, check_power, check_times, check_traffic, of_run, sums
from tests.synthetic import CONFIG, H200, Spec, build, read_tables
from triplepoint.aggregate import aggregate
from triplepoint.plan import select
from triplepoint.simulate.artefacts.simulate_run import simulate_run
from triplepoint.tables.truth import TRUE_TRAFFIC
from triplepoint.telemetry.align import align_run
from triplepoint.trace.run_traces import trace_run
from triplepoint.trace.taxonomy import load_scheme

degrees = st.sampled_from([1, 2, 4])


def rows_of(results: Path, study: str) -> Tables:
    return {name: table.to_pylist() for name, table in read_tables(results, study).items()}


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    tp=degrees,
    pp=degrees,
    dp=degrees,
    step_ms=st.integers(90_000, 300_000),
    engine=st.sampled_from(["native", "simulated"]),
)
def test_tables_of_made_up_runs_agree(tmp_path: Path, tp: int, pp: int, dp: int, step_ms: int, engine: str) -> None:
    layout = {"tp": tp, "pp": pp, "dp": dp} | ({"schedule": "1f1b"} if pp > 1 else {})
    step_ms = round(step_ms * 32 / (tp * pp * dp))
    plan = build(tmp_path, [Spec("llama3-70b", layout, cluster=H200, step_ms=step_ms, engine=engine)])
    aggregate(plan, tmp_path, CONFIG)
    tables = rows_of(tmp_path, "synthetic")
    (point,) = tables["points"]
    check_times(tables, point)
    check_power(tables, point)
    check_traffic(tables, point)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return results with one simulated run: Llama-3 70B, TP4 PP4 DP2 on 32 H200."""
    folder, plan = tmp_path_factory.mktemp("results"), select(CONFIG, ["parallelism"], ["cpu-local"], ["h200x32"])
    entry = next(one for one in plan.valid if "llama3-70b_h200x32_tp4-pp4-dp2" in one.run)
    run = folder / "runs" / entry.run
    run.mkdir(parents=True)
    (run / "point.json").write_text(entry.planned.model_dump_json())
    simulate_run(entry.planned, run / "raw", CONFIG)
    align_run(run / "raw", run / "telemetry.parquet")
    trace_run(run, load_scheme(), lambda line: None, 1)
    aggregate(plan.model_copy(update={"entries": (entry,)}), folder, CONFIG)
    return folder


def test_tables_of_a_simulated_run_agree(results: Path) -> None:
    tables = rows_of(results, "parallelism")
    (point,) = tables["points"]
    check_times(tables, point)
    check_power(tables, point)
    check_traffic(tables, point)
    check_phase_energy(tables, point)
    # Simulated steps are alike, so the profiled one takes what measured ones do.
    steps_s = sums(tables["breakdown"], lambda row: row["rank"], "exposed_s")
    np.testing.assert_allclose(list(steps_s.values()), point["step_time_s"], rtol=1e-6)


def test_traffic_of_a_simulated_run_is_what_it_moved(results: Path) -> None:
    tables = rows_of(results, "parallelism")
    (point,) = tables["points"]
    rows = of_run(tables, "traffic", point["run"])
    truth = TRUE_TRAFFIC.read(results / "runs" / point["run"] / "raw/truth/traffic.parquet").to_pylist()
    true_bytes = {(row["node"], row["rank"], row["link"]): (row["tx_bytes"], row["rx_bytes"]) for row in truth}
    for row in rows:
        moved = [row[f"{way}_bytes_per_s"] * point["step_time_s"] for way in ("tx", "rx")]
        key = row["node"], row["rank"], row["link"]
        np.testing.assert_allclose(moved, true_bytes.get(key, (0.0, 0.0)), rtol=1e-4, atol=1e3)


def test_what_leaves_simulated_nodes_crosses_the_pcie_of_gpus(results: Path) -> None:
    rows = rows_of(results, "parallelism")["traffic"]
    for way in ("tx_bytes_per_s", "rx_bytes_per_s"):
        by_link = {
            link: sums([r for r in rows if r["link"] == link], lambda row: row["node"], way)
            for link in ("pcie", "infiniband")
        }
        assert by_link["pcie"] == pytest.approx(by_link["infiniband"])
    for link in ("nvlink", "infiniband"):
        sent, received = (sum(row[f"{way}_bytes_per_s"] for row in rows if row["link"] == link) for way in ("tx", "rx"))
        assert sent == pytest.approx(received, rel=1e-4) and sent > 0
