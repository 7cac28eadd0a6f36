"""Telemetry on a run's page: every sample at its time, breaks where samples are missing, steps of all ranks."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.synthetic import H200, Spec, build
from triplepoint.manifest import Clock, read_manifest
from triplepoint.report.telemetry import describe_telemetry
from triplepoint.tables import STEPS, TELEMETRY

SPEC = Spec("llama3-70b", {"tp": 8, "dp": 2}, cluster=H200, step_ms=100_000)
S = 10**9


def run_of(folder: Path) -> Path:
    return folder / "runs" / build(folder, [SPEC]).entries[0].run


def sample(t_s: float, power_w: float | None, device: str = "gpu0", node: int = 0) -> dict[str, Any]:
    row = {"node": node, "t_ns": int(t_s * S), "read_latency_ns": 0, "device": device, "is_gap": False}
    return row | {"gpu_power_w": power_w}


def lines(folder: Path, rows: list[dict], window: int = 1) -> dict[str, list[tuple[float, float]]]:
    """Return the drawn points (s, W) of each device, with a pair of NaN where its line is broken."""
    TELEMETRY.write(folder / "telemetry.parquet", TELEMETRY.from_rows(rows))
    found = describe_telemetry(folder, read_manifest(folder / "raw/manifest.json"), window)
    (panel,) = found["panels"]
    assert (panel["title"], panel["unit"], panel["column"]) == ("Power", "W", "gpu_power_w")
    drawn = {}
    for line in panel["lines"]:
        times = np.cumsum(found["times"][line["time"]]) / 1e6 + found["zero_ns"] / S
        values = np.cumsum(line["values"]) * panel["resolution"]
        drawn[line["name"]] = list(zip(times.round(6).tolist(), values.round(6).tolist(), strict=True))
        for place in line["breaks"]:
            drawn[line["name"]][place] = (np.nan, np.nan)
    return drawn


def test_describe_telemetry_keeps_every_sample(tmp_path: Path) -> None:
    rows = [sample(10 + k / 10, 500 + k / 10, device) for k in range(5) for device in ("gpu0", "gpu1")]
    found = lines(run_of(tmp_path), rows)
    assert set(found) == {"node 0 gpu0", "node 0 gpu1"}
    assert found["node 0 gpu1"] == [(10 + k / 10, 500 + k / 10) for k in range(5)]


def test_describe_telemetry_breaks_lines_where_samples_are_missing(tmp_path: Path) -> None:
    rows = [sample(k, 500.0) for k in (1, 2, 3, 4, 9, 10)] + [sample(5, None)]
    (found,) = lines(run_of(tmp_path), rows).values()
    # Five seconds without a value are more than three times the usual second: a break before the fifth.
    assert [np.isnan(value) for _, value in found] == [False] * 4 + [True, False]


def test_describe_telemetry_in_windows_are_means(tmp_path: Path) -> None:
    (found,) = lines(run_of(tmp_path), [sample(k, 100.0 * k) for k in range(1, 6)], window=2).values()
    assert found == [(1.5, 150.0), (3.5, 350.0), (5.0, 500.0)]


def test_describe_telemetry_steps_run_from_their_first_rank_to_their_last_on_one_clock(tmp_path: Path) -> None:
    folder = run_of(tmp_path)
    manifest = read_manifest(folder / "raw/manifest.json")
    clock = Clock(
        reference_ns=0, offset_ns=3 * S, drift_ppm=0.0, uncertainty_ns=10, least_delay_ns=10, num_bursts=2,
        num_round_trips=4, duration_s=1.0,
    )  # fmt: skip
    nodes = (manifest.nodes[0], manifest.nodes[1].model_copy(update={"clock": clock}))
    times = {0: (10, 20), 8: (8, 18)}
    rows = [
        {"rank": rank, "step": 0, "kind": "measured", "t_start_ns": start * S, "t_end_ns": end * S, "num_tokens": 1}
        for rank, (start, end) in times.items()
    ]
    STEPS.write(folder / "raw/steps.parquet", STEPS.from_rows(rows))
    TELEMETRY.write(folder / "telemetry.parquet", TELEMETRY.from_rows([sample(9, 500.0)]))
    found = describe_telemetry(folder, manifest.model_copy(update={"nodes": nodes}))
    # Rank 8 is on the second node, whose clock is three seconds behind: 11 to 21 s of the first.
    assert found["zero_ns"] == 9 * S
    assert found["steps"] == [[0, "measured", pytest.approx(1.0), pytest.approx(12.0)]]


def test_describe_telemetry_without_any_is_empty(tmp_path: Path) -> None:
    folder = run_of(tmp_path)
    (folder / "telemetry.parquet").unlink()
    (folder / "raw/steps.parquet").unlink()
    found = describe_telemetry(folder, read_manifest(folder / "raw/manifest.json"))
    assert (found["panels"], found["steps"]) == ([], [])
