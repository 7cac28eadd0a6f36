"""What is known about the telemetry: of a fake GPU in virtual time, and by hand."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.checks import CARD, TRIAL
from tests.fakes.presets import hgx_h200
from tests.fakes.scenario import Rule
from tests.fakes.wave import Wave
from tests.points import planned, tiny_point
from tests.sampling import S, record
from tests.unit.telemetry.test_align import node
from triplepoint.aggregate.checks import CHECKS, run_checks, sensor_checks
from triplepoint.aggregate.energy import Sensors, measure_energy
from triplepoint.aggregate.power import Power
from triplepoint.manifest import Clock, Manifest, Telemetry, ZeusWindow
from triplepoint.tables import TELEMETRY
from triplepoint.tables.results import TELEMETRY_CHECKS

EMPTY = TELEMETRY.schema().empty_table()


def manifest(*nodes: object, origin: str = "measured") -> Manifest:
    return Manifest.model_construct(run="run", origin=origin, nodes=nodes)


def by_check(rows: list[dict]) -> dict[str, dict]:
    checked = TELEMETRY_CHECKS.from_rows(rows).to_pylist()
    return {row["check"]: row for row in checked}


def test_run_checks_of_a_fake_gpu(tmp_path: Path) -> None:
    scenario = hgx_h200(1).set_all(load=Wave((0.0, 1.3, 3.1, 3.8), (0.2, 0.9, 0.5, 1.0), 5.03))
    scenario.latencies_us.append(Rule("nvmlDeviceGetFieldValues", 700))
    found = record(scenario, tmp_path, seconds=63, fast_hz=20, slow_hz=2)
    samples = found.recording.samples
    num = samples.num_rows
    extra = {"node": pa.array([0] * num), "step": pa.nulls(num, pa.int64()), "kind": pa.nulls(num, pa.string())}
    columns = {name: samples[name] for name in samples.column_names} | extra | {"is_gap": pa.array([False] * num)}
    table = TELEMETRY.check(pa.table(columns), "samples")
    gpu = samples.filter(np.array(samples["device"].to_pylist()) == "gpu0")
    arrays = {name: gpu[name].to_numpy(zero_copy_only=False) for name in gpu.column_names}
    windows = found.node.start_ns + np.array([[2 * S, 30 * S], [30 * S, 61 * S]])
    energy = measure_energy(arrays, windows, None)
    assert energy is not None
    point = tiny_point(telemetry_period_s=0.5)
    rows = by_check(
        run_checks(planned(point), manifest(node(0, 0, 0)), table, Power(device_energy={(0, "gpu0"): energy}))
    )
    assert set(rows) == {check for check in CHECKS if not check.startswith(("sensor", "overhead"))}
    assert rows["integral_10s"]["num"] == 6 and rows["integral_60s"]["num"] == 1
    assert rows["integral_10s"]["worst"] <= 0.02 and rows["integral_60s"]["worst"] <= 0.01
    # Every read of the fast lane takes 0.7 ms at least; the slow lane's may come in its way, and the other way round.
    assert rows["latency_fast"]["low"] >= 0.0007
    assert rows["lateness_fast"]["value"] < 0.001
    assert rows["lateness_fast"]["worst"] < 0.01
    assert rows["gaps"]["value"] == 0 and rows["gaps"]["of_total"] == num
    assert rows["clock"]["absent"] == "one node, one clock"
    assert rows["stale"]["absent"] == "the sampler left no account"


def test_run_checks_lateness_and_gaps_by_hand() -> None:
    # Deadlines each 100 ms; the third sample is 30 ms late, one deadline is missed, the last one is 5 ms late.
    late_ms = [2, 102, 232, 502, 607]
    rows = [
        {"node": 0, "t_ns": t * 1_000_000, "read_latency_ns": 4_000_000, "device": "host", "is_gap": gap}
        for t, gap in zip(late_ms, [False, False, False, True, False], strict=True)
    ]
    found = by_check(
        run_checks(
            planned(tiny_point(telemetry_period_s=0.1)),
            manifest(node(0, 0, 0)),
            TELEMETRY.from_rows(rows),
            Power(absent="x"),
        )
    )
    assert found["lateness_slow"]["worst"] == pytest.approx(0.030)
    assert found["lateness_slow"]["value"] == pytest.approx(0.0)
    assert found["lateness_slow"]["num"] == 5
    assert found["latency_slow"]["value"] == pytest.approx(0.004)
    assert (found["gaps"]["num"], found["gaps"]["value"]) == (1, pytest.approx(0.2))
    assert found["lateness_fast"]["absent"] == "no GPU was sampled"
    assert found["integral_10s"]["absent"] == "no GPU with an energy counter around the measured steps"


def test_run_checks_zeus_clock_and_stale_by_hand() -> None:
    windows = tuple(
        ZeusWindow(
            kind="measured", device=f"gpu{k}", duration_s=10.0, zeus_j=100.0, sampler_j=100.0, difference=difference,
            tolerance=0.02, agrees=abs(difference) <= 0.02,
        )
        for k, difference in enumerate((0.01, -0.005, 0.03))
    )  # fmt: skip
    account = Telemetry(period_s=0.1, num_samples=50, measured=(), absent={}, stale={"gpu_energy_j": 5})
    clock = Clock(
        reference_ns=0, offset_ns=1, drift_ppm=0.0, uncertainty_ns=200_000, least_delay_ns=1, num_bursts=1,
        num_round_trips=1, duration_s=1.0,
    )  # fmt: skip
    nodes = (
        node(0, 0, 0).model_copy(update={"zeus": windows, "telemetry": account}),
        node(1, 0, 0).model_copy(update={"clock": clock, "telemetry": account}),
    )
    found = by_check(run_checks(planned(tiny_point()), manifest(*nodes), EMPTY, Power()))
    assert (found["zeus"]["value"], found["zeus"]["worst"]) == (0.01, 0.03)
    assert (found["zeus"]["num"], found["zeus"]["of_total"]) == (3, 2)
    assert found["clock"]["value"] == pytest.approx(0.0002)
    assert (found["stale"]["num"], found["stale"]["of_total"]) == (10, 100)


def test_run_checks_of_a_simulated_run_claim_no_sampling() -> None:
    found = by_check(run_checks(planned(tiny_point()), manifest(node(0, 0, 0), origin="simulated"), EMPTY, Power()))
    reasons = {row["absent"] for check, row in found.items() if not check.startswith("integral")}
    assert reasons == {"simulated: nothing was sampled"}


def test_sensor_checks_by_hand() -> None:
    rows = TELEMETRY_CHECKS.from_rows(sensor_checks(Sensors({"h200": CARD}, {"trial": TRIAL}))).to_pylist()
    found = {(row["subject"], row["what"], row["check"]): row for row in rows}
    assert found["h200", "gpu_power_w", "sensor_window"]["value"] == 0.025
    assert found["h200", "gpu_memory_power_w", "sensor_lag"]["absent"] == "not measured here"
    trial = found["trial", "launch", "overhead"]
    assert (trial["value"], trial["low"], trial["high"], trial["num"]) == (0.0021, 0.0004, 0.0043, 30)
