"""Energy in the tables of made-up runs whose GPUs have an energy counter."""

import json
from pathlib import Path

import pytest

from tests.synthetic import CONFIG, H200, Spec, build, read_tables
from triplepoint.aggregate import aggregate
from triplepoint.aggregate.energy import COUNTER, read_sensors
from triplepoint.aggregate.power import CAUSES
from triplepoint.errors import UserError
from triplepoint.tables import TELEMETRY

SPEC = Spec("llama3-70b", {"tp": 8}, cluster=H200, step_ms=100_000)
STEP_TIMES_S = [100.0, 104.0, 98.0, 110.0, 101.0]


def with_counter(folder: Path) -> dict[str, list[dict]]:
    """Return the tables of a run whose GPU k draws 300 + 10 k W all the time, counted in steps of 2 s."""
    plan = build(folder, [SPEC])
    path = folder / "runs" / plan.entries[0].run / "telemetry.parquet"
    counters = {f"gpu_{cause}_s": None for cause in CAUSES}
    rows = [row | counters for row in TELEMETRY.read(path).to_pylist()]
    for gpu in range(8):
        for number in range(450):
            t_ns = 2_000_000_000 * number
            power_w = 300 + 10 * gpu
            row = dict.fromkeys(TELEMETRY.schema().names) | {"node": 0, "t_ns": t_ns, "read_latency_ns": 1}
            row |= {"device": f"gpu{gpu}", "is_gap": False, "gpu_energy_j": power_w * t_ns / 1e9}
            # Held down by heat for a quarter of the time.
            rows.append(row | {"gpu_sw_thermal_s": 0.25 * t_ns / 1e9})
    rows.sort(key=lambda row: row["t_ns"])
    TELEMETRY.write(path, TELEMETRY.from_rows(rows))
    aggregate(plan, folder, CONFIG)
    return {name: table.to_pylist() for name, table in read_tables(folder).items()}


def test_aggregate_takes_the_counter_where_there_is_one(tmp_path: Path) -> None:
    tables = with_counter(tmp_path)
    (point,) = tables["points"]
    # Samples of power say something else; the counter is what counts.
    assert point["job_gpu_power_w"] == pytest.approx(8 * 300 + 10 * sum(range(8)))
    assert point["gpu_power_source"] == COUNTER
    for k, row in enumerate(tables["gpus"]):
        assert row["gpu_power_w"] == pytest.approx(300 + 10 * k)
        assert row["sw_thermal_share"] == pytest.approx(0.25)
        assert row["power_cap_share"] is None
    steps = [row for row in tables["step_energy"] if row["rank"] == 3]
    assert [row["step"] for row in steps] == [1, 2, 3, 4, 5]
    assert [row["gpu_energy_j"] for row in steps] == pytest.approx([330 * t for t in STEP_TIMES_S], rel=1e-6)


def test_aggregate_phase_energies_add_up_to_the_step(tmp_path: Path) -> None:
    tables = with_counter(tmp_path)
    for rank in (0, 7):
        rows = [row for row in tables["phases"] if row["rank"] == rank and row["gpu_energy_j"] is not None]
        steps = [row["gpu_energy_j"] for row in tables["step_energy"] if row["rank"] == rank]
        assert sum(row["gpu_energy_j"] for row in rows) == pytest.approx(sum(steps) / 5, rel=1e-6)
        assert {"forward", "backward", "optimizer"} <= {row["phase"] for row in rows}
        assert [row["gpu_power_w"] for row in rows] == pytest.approx([300 + 10 * rank] * len(rows), rel=0.01)


def test_read_sensors_tells_cards_from_trials(tmp_path: Path) -> None:
    (tmp_path / "h200.json").write_text(json.dumps({"product": "NVIDIA H200", "uuid": "GPU-1", "sensors": {}}))
    (tmp_path / "trial.json").write_text(
        json.dumps({"training": {"num_pairs": 30, "change": 0.001, "low": -0.001, "high": 0.003}})
    )
    found = read_sensors(tmp_path)
    assert list(found.cards) == ["h200"] and list(found.overheads) == ["trial"]
    assert found.card_of("GPU-2", "NVIDIA H200") is found.cards["h200"]
    assert found.card_of(None, "NVIDIA H100") is None
    assert read_sensors(tmp_path / "nothing").cards == {}


def test_read_sensors_unknown_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "notes.json").write_text("[1, 2]")
    with pytest.raises(UserError, match=r"notes.json: expected a sensor card .* or a trial"):
        read_sensors(tmp_path)
    (tmp_path / "notes.json").write_text("{")
    with pytest.raises(UserError, match=r"notes.json: not readable as JSON"):
        read_sensors(tmp_path)
