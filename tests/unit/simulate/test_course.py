"""When steps of simulated runs begin: jitter of their software, and heat of nodes that were at rest."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from tests.unit.simulate.test_heated import CONFIG
from triplepoint.config.plan import PlannedRun
from triplepoint.plan import select
from triplepoint.recording import read_recording
from triplepoint.simulate.artefacts.simulate_run import simulate_run
from triplepoint.units import NS_PER_S

JITTER = {"value": 0.01, "unit": "1", "source": "a number made up for a test"}
KINDS = ["warmup"] * 5 + ["measured"] * 10 + ["profiled"]


def changed(folder: Path, jitter: dict[str, Any] | None = None, **conditions: Any) -> Path:
    """Return a configuration whose published software has a jitter, and whose cluster has conditions."""
    config = shutil.copytree(CONFIG, folder / "config")
    path = config / "calibration" / "stacks.yaml"
    stacks = yaml.safe_load(path.read_text())
    if jitter is not None:
        next(one for one in stacks["stacks"] if one["name"] == "nemo-published")["step_jitter"] = jitter
    path.write_text(yaml.safe_dump(stacks))
    path = config / "clusters" / "h200x32.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"conditions": conditions}))
    return config


def run_of(config: Path, text: str = "llama3-70b_h200x32_tp4-pp4-dp2-sp-zero1_mbs1_act_sim") -> PlannedRun:
    plan = select(config, None, ["cpu-local"], ["h200x32"])
    run = next(entry.planned for entry in plan.valid if text in entry.run)
    steps = run.point.steps.model_copy(update={kind: KINDS.count(kind) for kind in ("warmup", "measured", "profiled")})
    return run.model_copy(update={"point": run.point.model_copy(update={"steps": steps, "trace_ranks": (0,)})})


def steps_s(raw: Path) -> np.ndarray:
    """Return from when to when each step ran, of the rank that ends last; shape (num_steps, 2). Unit: s."""
    table = pq.read_table(raw / "steps.parquet")
    shape = -1, len(KINDS)
    starts, ends = (table[name].to_numpy().reshape(shape) for name in ("t_start_ns", "t_end_ns"))
    return (np.stack([starts.min(axis=0), ends.max(axis=0)], axis=1) - starts.min()) / NS_PER_S


def sampled(raw: Path, device: str, *columns: str) -> list[np.ndarray]:
    """Return columns of a device's samples on node 0, and when they were taken. Unit of time: s."""
    table = read_recording(raw / "telemetry" / "node0.arrow").samples
    rows = np.array(table["device"].to_pylist()) == device
    t_ns = table["t_ns"].to_numpy()[rows]
    values = [table[name].to_numpy(zero_copy_only=False)[rows].astype(float) for name in columns]
    return [(t_ns - t_ns[0]) / NS_PER_S, *values]


def test_steps_without_jitter_are_alike_and_follow_one_another(tmp_path: Path) -> None:
    config = changed(tmp_path)
    manifest = simulate_run(run_of(config), tmp_path / "raw", config)
    found = steps_s(tmp_path / "raw")
    np.testing.assert_allclose(np.diff(found, axis=1)[:, 0], manifest.facts["step_time_s"], rtol=1e-7)
    np.testing.assert_allclose(found[1:, 0], found[:-1, 1], atol=2e-9)
    assert str(manifest.facts["spread"]).startswith("none")


def test_jitter_makes_steps_differ_but_not_the_profiled_one(tmp_path: Path) -> None:
    config = changed(tmp_path, JITTER)
    run = run_of(config)
    manifest = simulate_run(run, tmp_path / "raw", config)
    found = steps_s(tmp_path / "raw")
    lengths = np.diff(found, axis=1)[:, 0] / float(str(manifest.facts["step_time_s"]))
    # 15 normal deviates: their deviation lies within 0.5 and 1.6 of that asked for, 999 times of 1,000.
    assert 0.005 < lengths[:-1].std(ddof=1) < 0.016
    assert lengths[-1] == pytest.approx(1.0, abs=1e-7)
    np.testing.assert_allclose(found[1:, 0], found[:-1, 1], atol=2e-9)
    simulate_run(run, tmp_path / "again", config)
    np.testing.assert_array_equal(steps_s(tmp_path / "again"), found)
    repeat = run.model_copy(update={"point": run.point.model_copy(update={"repeat": 2})})
    simulate_run(repeat, tmp_path / "repeat", config)
    assert (np.diff(steps_s(tmp_path / "repeat"), axis=1)[:-1] != np.diff(found, axis=1)[:-1]).all()


def test_a_step_that_takes_longer_has_the_energy_of_the_others(tmp_path: Path) -> None:
    config = changed(tmp_path, JITTER)
    simulate_run(run_of(config), tmp_path / "raw", config)
    t_s, energy_j = sampled(tmp_path / "raw", "gpu0", "gpu_energy_j")
    each_j = np.diff(np.interp(steps_s(tmp_path / "raw"), t_s, energy_j), axis=1)[:, 0]
    # The counter stands still for 0.1 s between publications.
    assert each_j.std() / each_j.mean() < 0.01


def test_traces_begin_with_their_steps(tmp_path: Path) -> None:
    config = changed(tmp_path, JITTER)
    manifest = simulate_run(run_of(config), tmp_path / "raw", config)
    t_s, sent = sampled(tmp_path / "raw", "gpu0", "nvlink_tx_bytes")
    found = steps_s(tmp_path / "raw")
    each = np.diff(np.interp(found, t_s, sent), axis=1)[:, 0]
    np.testing.assert_allclose(each, each[0], rtol=1e-6)
    assert found[-1, 1] - found[-1, 0] == pytest.approx(float(str(manifest.facts["step_time_s"])), rel=1e-7)


def test_run_from_rest_warms_up_and_settles_where_a_warm_one_is(tmp_path: Path) -> None:
    warm, rest = changed(tmp_path / "warm"), changed(tmp_path / "rest", starts_at_rest=True)
    for name, config in (("warm", warm), ("rest", rest)):
        simulate_run(run_of(config), tmp_path / name / "raw", config)
    both = {name: sampled(tmp_path / name / "raw", "gpu0", "gpu_temp_c", "sm_clock_mhz") for name in ("warm", "rest")}
    mean = {
        name: [
            [np.nanmean(of[(t_s >= low) & (t_s < high)]) for low, high in steps_s(tmp_path / name / "raw")]
            for of in more
        ]
        for name, (t_s, *more) in both.items()
    }
    (temp_c, clock), (settled_c, settled) = np.array(mean["rest"]), np.array(mean["warm"])
    assert temp_c[0] < settled_c[0] - 5
    assert (np.diff(temp_c[:3]) > 2).all()
    # Of samples some 0.5 s apart a step has more or fewer that are hot.
    assert temp_c[-6:].mean() == pytest.approx(settled_c[-6:].mean(), abs=0.5)
    assert clock[0] >= settled[0] - 1
    lengths = {name: np.diff(steps_s(tmp_path / name / "raw"), axis=1)[:, 0] for name in ("warm", "rest")}
    assert lengths["rest"][0] <= lengths["warm"][0]
    assert lengths["rest"][-2] == pytest.approx(lengths["warm"][-2], rel=0.005)


def test_meters_at_the_plug_show_the_mean_of_the_manifest(tmp_path: Path) -> None:
    config = changed(tmp_path)
    manifest = simulate_run(run_of(config), tmp_path / "raw", config)
    nodes = sorted((tmp_path / "raw" / "telemetry").glob("*.arrow"))
    means = []
    for path in nodes:
        table = read_recording(path).samples
        values = table["node_power_w"].to_numpy(zero_copy_only=False).astype(float)
        means.append(values[np.isfinite(values)].mean())
    assert np.mean(means) == pytest.approx(float(str(manifest.facts["node_power_w"])), rel=0.01)
