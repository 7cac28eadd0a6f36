"""Telemetry as counter tracks: on the traces' clock, at the right rank, gaps kept."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.synthetic import H200, Spec, manifest_of, telemetry_of
from triplepoint.config.plan import Limits, PlannedRun
from triplepoint.manifest import Manifest
from triplepoint.tables import TELEMETRY
from triplepoint.trace.perfetto import CounterTrack, rank_title, telemetry_counters, wall_shift_ns

S = 1_000_000_000
SPEC = Spec("llama3-70b", {"tp": 8, "dp": 2}, cluster=H200)
FOREVER = (0, 2**62)


@pytest.fixture
def manifest() -> Manifest:
    """Two nodes of eight GPUs; node 0 read 1 ms on its monotonic clock at 1,700,000,000 s of wall clock."""
    limits = Limits(executor="local", time_limit_s=600, hang_timeout_s=60)
    point = SPEC.point()
    return manifest_of(SPEC, PlannedRun(run=SPEC.run, digest=point.digest(), point=point, limits=limits))


def samples(*rows: dict[str, Any]) -> pa.Table:
    given = {"node": 0, "read_latency_ns": 0, "is_gap": False}
    return TELEMETRY.from_rows([given | row for row in rows])


def found(tracks: list[CounterTrack], name: str) -> list[tuple[int, float]]:
    (track,) = (one for one in tracks if one.name == name)
    return list(zip(track.t_ns.tolist(), track.value.tolist(), strict=True))


def test_wall_shift_is_the_difference_of_the_first_nodes_clocks(manifest: Manifest) -> None:
    assert wall_shift_ns(manifest) == 1_700_000_000 * S - 1_000_000


def test_telemetry_counters_gpu_samples_on_the_wall_clock_without_what_is_missing(manifest: Manifest) -> None:
    rows = [
        {"t_ns": 1_000_000, "device": "gpu2", "gpu_power_w": 400.0, "gpu_temp_c": 50.0},
        {"t_ns": 2_000_000, "device": "gpu2", "gpu_temp_c": 51.0},
        {"t_ns": 3_000_000, "device": "gpu2", "gpu_power_w": 0.0, "gpu_temp_c": 52.0},
    ]
    tracks = telemetry_counters(samples(*rows), manifest, *FOREVER)
    wall = 1_700_000_000 * S
    assert found(tracks, "GPU power") == [(wall, 400.0), (wall + 2_000_000, 0.0)]
    assert [value for _, value in found(tracks, "GPU temperature")] == [50.0, 51.0, 52.0]
    assert {track.name for track in tracks} == {"GPU power", "GPU temperature"}, "no clock was sampled"
    assert {track.process.title for track in tracks} == {"rank 2 · node0 · gpu2"}


def test_telemetry_counters_host_power_is_energy_over_time(manifest: Manifest) -> None:
    rows = [
        {"t_ns": 0, "device": "host", "cpu_energy_j": 0.0, "dram_energy_j": 0.0},
        {"t_ns": 1 * S, "device": "host", "cpu_energy_j": 80.0, "dram_energy_j": 20.0},
        {"t_ns": 2 * S, "device": "host"},  # not read: the mean goes on to the next reading
        {"t_ns": 3 * S, "device": "host", "cpu_energy_j": 380.0, "dram_energy_j": 60.0},
    ]
    tracks = telemetry_counters(samples(*rows), manifest, *FOREVER)
    at = wall_shift_ns(manifest)
    assert found(tracks, "CPU package and DRAM power") == [(at, 100.0), (at + S, 170.0)]
    assert [track.process.title for track in tracks] == ["node 0 · node0"]


def test_telemetry_counters_are_cut_around_the_stretch(manifest: Manifest) -> None:
    rows = [{"t_ns": at * S, "device": "gpu0", "gpu_power_w": 100.0 * at} for at in range(1, 7)]
    shift = wall_shift_ns(manifest)
    window = int(2.5 * S) + shift, 5 * S + shift
    tracks = telemetry_counters(samples(*rows), manifest, *window)
    assert [(at - shift, value) for at, value in found(tracks, "GPU power")] == [
        (int(2.5 * S), 200.0), (3 * S, 300.0), (4 * S, 400.0), (5 * S, 500.0),
    ]  # fmt: skip


def test_telemetry_counters_device_without_a_rank_belongs_to_its_node(manifest: Manifest) -> None:
    rows = [{"t_ns": 1, "device": "gpu9", "gpu_power_w": 75.0}]
    (track,) = telemetry_counters(samples(*rows), manifest, *FOREVER)
    assert (track.name, track.process.title) == ("gpu9 GPU power", "node 0 · node0")


def test_telemetry_counters_of_a_synthetic_run_have_every_gpu_at_its_rank(manifest: Manifest) -> None:
    tracks = telemetry_counters(TELEMETRY.from_rows(telemetry_of(SPEC, SPEC.point())), manifest, *FOREVER)
    powered = [track.process.title for track in tracks if track.name == "GPU power"]
    assert powered == [f"rank {rank} · node{rank // 8} · gpu{rank % 8}" for rank in range(16)]
    assert all((np.diff(track.t_ns) > 0).all() for track in tracks)


def test_rank_title_of_an_unknown_rank_is_its_number(manifest: Manifest) -> None:
    assert rank_title(manifest, 9) == "rank 9 · node1 · gpu1"
    assert rank_title(manifest, 99) == "rank 99"
