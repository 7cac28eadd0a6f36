"""Tables `step_samples` and `job_power`: samples by the time within their step, and power of a job at even times."""

from pathlib import Path

import numpy as np
import pytest

from tests.synthetic import CONFIG, H200, JITTER, Spec, build, read_tables
from triplepoint.aggregate import aggregate
from triplepoint.aggregate.nodes import Readings, job_power
from triplepoint.tables.studies import tables_folder

STEP_S = 20.0
SPEC = Spec("llama3-70b", {"tp": 8, "pp": 2, "dp": 2}, cluster=H200, step_ms=1e3 * STEP_S)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    aggregate(build(folder, [SPEC, Spec("tiny-llama", {"dp": 2})]), folder, CONFIG)
    return folder


def test_samples_are_placed_within_their_step(results: Path) -> None:
    found = read_tables(results)["step_samples"].to_pandas()
    points = read_tables(results)["points"].to_pandas()
    # Made-up samplers read at 0.3 and 0.7 of every step.
    own = found[(found["rank"] == 5)]
    num_measured = int(points.loc[points["gpu"].notna(), "num_measured_steps"].iloc[0])
    assert len(own) == 2 * num_measured
    expected = [STEP_S * length * share for length in JITTER for share in (0.3, 0.7)]
    assert all(min(abs(t_s - time_s) for time_s in expected) < 1e-3 for t_s in own["t_s"])
    assert found["rank"].nunique() == 32
    assert own["gpu_temp_c"].eq(62.0).all() and own["sm_clock_mhz"].eq(1890.0).all()


def test_runs_without_gpus_have_no_samples_and_no_power(results: Path) -> None:
    tables = read_tables(results)
    assert not any(run.startswith("tiny") for run in tables["step_samples"]["run"].to_pylist())
    assert tables["job_power"].num_rows == 0
    assert not (tables_folder(results, "synthetic") / "step_samples.csv").exists()


def test_power_of_a_job_is_the_sum_at_even_times() -> None:
    t_s = np.arange(0.0, 200.0)
    rising = Readings((t_s * 1e9).astype(np.int64), 100.0 + t_s)
    falling = Readings(((t_s + 0.5) * 1e9).astype(np.int64), 300.0 - (t_s + 0.5))
    course = job_power([rising, falling])
    assert course is not None
    power_w, period_s = course
    assert period_s == 1.0 and power_w == pytest.approx(np.full(len(power_w), 400.0))
    assert job_power([rising, Readings(np.array([]), np.array([]))]) is None
