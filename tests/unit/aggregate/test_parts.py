"""Nodes, traffic, places, breakdown, launch geometry and needed memory, worked out by hand from made-up runs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.synthetic import CONFIG, H200, Spec, build, read_tables
from triplepoint.aggregate import aggregate
from triplepoint.tables import KERNELS, TELEMETRY
from triplepoint.units import NS_PER_S

SPEC = Spec("llama3-70b", {"tp": 4, "pp": 2, "schedule": "1f1b"}, cluster=H200, step_ms=100_000)
Change = Callable[[list[dict[str, Any]]], None]


def tables_of(folder: Path, spec: Spec, telemetry: Change = lambda _: None, kernels: Change = lambda _: None) -> dict:
    plan = build(folder, [spec])
    for name, table, change in (("telemetry", TELEMETRY, telemetry), ("kernels", KERNELS, kernels)):
        path = folder / "runs" / spec.run / f"{name}.parquet"
        if path.is_file():
            rows = table.read(path).to_pylist()
            change(rows)
            table.write(path, table.from_rows(rows))
    aggregate(plan, folder, CONFIG)
    return {name: table.to_pylist() for name, table in read_tables(folder).items()}


def count_links(rows: list[dict[str, Any]]) -> None:
    """Let GPU n send n and receive n + 1 GB/s over NVLink, and the node 5 and 10 GB/s over its adapters."""
    for row in rows:
        time_s = row["t_ns"] / NS_PER_S
        if row["device"] == "host":
            row |= {"infiniband_tx_bytes": 5e9 * time_s, "infiniband_rx_bytes": 10e9 * time_s}
        else:
            number = int(row["device"].removeprefix("gpu"))
            row |= {"nvlink_tx_bytes": number * 1e9 * time_s, "nvlink_rx_bytes": (number + 1) * 1e9 * time_s}


def test_traffic_of_gpus_and_adapters_by_hand(tmp_path: Path) -> None:
    rows = tables_of(tmp_path, SPEC, count_links)["traffic"]
    assert [(row["rank"], row["link"]) for row in rows] == [
        *((rank, link) for rank in range(8) for link in ("nvlink", "pcie")),
        (None, "infiniband"),
    ]
    nvlink = next(row for row in rows if (row["rank"], row["link"]) == (3, "nvlink"))
    # config/gpus/h200.yaml: 450 GB/s in one direction.
    assert (nvlink["tx_bytes_per_s"], nvlink["rx_bytes_per_s"]) == pytest.approx((3e9, 4e9))
    assert (nvlink["tx_share"], nvlink["rx_share"]) == pytest.approx((3 / 450, 4 / 450))
    # config/clusters/h200x32.yaml: two adapters of 12.5 GB/s.
    node = rows[-1]
    assert (node["num_links"], node["capacity_bytes_per_s"]) == (2, 25e9)
    assert (node["tx_share"], node["rx_share"]) == pytest.approx((0.2, 0.4))
    assert "nics_per_node" in node["capacity_source"] and node["absent"] is None


def test_traffic_that_was_not_counted_has_a_row_that_says_so(tmp_path: Path) -> None:
    rows = tables_of(tmp_path, SPEC, count_links)["traffic"]
    pcie = next(row for row in rows if row["link"] == "pcie")
    assert pcie["absent"].startswith("no samples around the measured steps")
    assert [pcie[name] for name in ("tx_bytes_per_s", "rx_bytes_per_s", "tx_share", "rx_share")] == [None] * 4


def test_traffic_counts_bytes_of_measured_steps_alone(tmp_path: Path) -> None:
    def rush(rows: list[dict[str, Any]]) -> None:
        """Send 1 GB/s, and ten times as much from the end of the last measured step on."""
        count_links(rows)
        end_ns = max(row["t_ns"] for row in rows if row["kind"] == "measured") + 30 * NS_PER_S + 300_000_000
        for row in rows:
            if row["device"] == "gpu1":
                row["nvlink_tx_bytes"] += 9 * max(0.0, row["t_ns"] - end_ns)

    # The last measured step lasts 101 s and its last sample is at 0.7 of it, so the next one begins 30.3 s later.
    row = next(one for one in tables_of(tmp_path, SPEC, rush)["traffic"] if (one["rank"], one["link"]) == (1, "nvlink"))
    # What comes up to the first sample of the next step, 39 s later, is spread evenly over the 69.3 s before it:
    # 9 GB/s times 39 s, of which the measured step holds 30.3 of 69.3.
    measured_s = 100 + 104 + 98 + 110 + 101
    assert row["tx_bytes_per_s"] == pytest.approx(1e9 + 9e9 * 39 * 30.3 / 69.3 / measured_s, rel=1e-6)


def test_nodes_have_mean_and_peak_at_the_plug(tmp_path: Path) -> None:
    def plug(rows: list[dict[str, Any]]) -> None:
        hosts = [row for row in rows if row["device"] == "host"]
        for number, row in enumerate(hosts):
            row |= {"node_power_w": 9000.0 if number in (0, 13) else 5000.0 + 100 * number, "inlet_temp_c": 24.0}

    (node,) = tables_of(tmp_path, SPEC, plug)["nodes"]
    # Samples 2 to 11 are of measured steps; 0 and 13 of the warm-up and the profiled one.
    assert node["node_power_peak_w"] == 5000 + 100 * 11
    assert 5200 < node["node_power_w"] < 6100
    assert (node["inlet_temp_c"], node["num_ranks"], node["node_power_absent"]) == (pytest.approx(24.0), 8, None)


def test_nodes_without_a_meter_say_why_and_have_the_power_of_their_gpus(tmp_path: Path) -> None:
    tables = tables_of(tmp_path, SPEC)
    (node,), (point,) = tables["nodes"], tables["points"]
    assert (node["node_power_w"], node["node_power_peak_w"]) == (None, None)
    assert node["node_power_absent"].startswith("no samples around the measured steps")
    assert node["gpu_power_w"] == pytest.approx(point["job_gpu_power_w"])
    assert node["gpu_power_w"] == pytest.approx(sum(row["gpu_power_w"] for row in tables["gpus"]))


def test_gpus_have_their_stage_and_their_place_in_the_airflow(tmp_path: Path) -> None:
    gpus = tables_of(tmp_path, SPEC)["gpus"]
    assert [row["stage"] for row in gpus] == [0] * 4 + [1] * 4
    # config/heat/airflow/hgx-8-fans.yaml: rows [1, 2, 5, 7] and [0, 3, 4, 6] from the inlet on.
    assert [row["airflow_place"] for row in gpus] == [("front", "rear")[row["airflow_row"]] for row in gpus]
    assert [row["airflow_row"] for row in gpus] == [1, 0, 0, 1, 1, 0, 1, 0]
    assert [row["airflow_lane"] for row in gpus] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert {row["airflow"] for row in gpus} == {"hgx-8-fans"}


def test_clock_while_busy_is_weighted_by_utilisation(tmp_path: Path) -> None:
    def idle(rows: list[dict[str, Any]]) -> None:
        """Let clocks be 1000 MHz at full and 1900 MHz at a quarter of utilisation, in turn within each step."""
        for name in {row["device"] for row in rows} - {"host"}:
            for number, row in enumerate(one for one in rows if one["device"] == name):
                row |= {"sm_clock_mhz": (1000.0, 1900.0)[number % 2], "gpu_utilisation": (1.0, 0.25)[number % 2]}

    tables = tables_of(tmp_path, SPEC, idle)
    (point,) = tables["points"]
    # Were both as long: (1000 + 0.25 * 1900) / 1.25 = 1180; the plain mean is 1450.
    assert point["sm_clock_busy_mhz"] == pytest.approx(1180, abs=10)
    assert point["sm_clock_mhz"] == pytest.approx(1450, abs=20)
    assert [row["sm_clock_busy_mhz"] for row in tables["gpus"]] == pytest.approx([point["sm_clock_busy_mhz"]] * 8)


def test_throttling_of_a_run_is_the_mean_of_its_gpus_by_cause(tmp_path: Path) -> None:
    (point,) = tables_of(tmp_path, SPEC)["points"]
    # One of eight GPUs is held by heat for a tenth of the time, seven by the power limit.
    assert point["sw_thermal_share"] == pytest.approx(0.1 / 8)
    assert point["power_cap_share"] == pytest.approx(0.7 / 8)
    assert (point["hw_thermal_share"], point["sync_boost_share"]) == (0.0, None)


def test_breakdown_has_kinds_by_stage(tmp_path: Path) -> None:
    tables = tables_of(tmp_path, SPEC)
    of_rank = [row for row in tables["breakdown"] if (row["rank"], row["phase"]) == (5, "forward")]
    (comm,) = (row for row in of_rank if row["category"] == "comm")
    assert (comm["stage"], comm["kind"], comm["group"]) == (1, "all_gather", "tp")
    # tests/synthetic.py: 0.33 of 130 s are forward, of which 0.05 + 0.03 * 4 + 0.01 is communication, exposed.
    assert comm["exposed_s"] == pytest.approx(130 * 0.33 * 0.18)
    assert comm["overlapped_s"] == pytest.approx(comm["exposed_s"] / 4)


def test_launch_geometry_is_the_mean_weighted_by_duration(tmp_path: Path) -> None:
    def launched(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            if row["class"] == "gemm" and row["step"] is not None:
                is_first = row["name"] == "first"
                row |= {"occupancy": 0.2 if is_first else 0.6, "num_blocks": 100.0 if is_first else 200.0}
                row["sum_ns"] = row["sum_ns"] * 3 if is_first else row["sum_ns"]

    kernels = tables_of(tmp_path, SPEC, kernels=launched)["kernels"]
    gemm = next(row for row in kernels if row["class"] == "gemm")
    assert (gemm["occupancy"], gemm["num_blocks"]) == pytest.approx((0.3, 125.0))
    assert (gemm["warps_per_sm"], gemm["geometry_absent"]) == (None, None)
    assert {row["geometry_absent"] for row in kernels if row["class"] != "gemm"} == {"the trace has none"}


def test_kernels_of_a_simulated_run_say_why_they_have_no_geometry(tmp_path: Path) -> None:
    spec = Spec("llama3-70b", {"tp": 8}, cluster=H200, engine="simulated", step_ms=100_000)
    kernels = tables_of(tmp_path, spec)["kernels"]
    assert {row["geometry_absent"] for row in kernels} == {"simulated: kernels have times, no blocks and threads"}
    assert {row["occupancy"] for row in kernels} == {None}


@pytest.mark.parametrize("status", ["oom", "invalid", "ok"])
def test_points_that_do_not_fit_say_what_they_need(tmp_path: Path, status: str) -> None:
    spec = Spec("llama3-70b", {"tp": 8}, cluster=H200, status=status, step_ms=100_000)
    (point,) = tables_of(tmp_path, spec)["points"]
    assert point["memory_capacity_bytes"] == 150_754_820_096  # config/gpus/h200.yaml
    assert point["needed_memory_lo_bytes"] < point["needed_memory_bytes"] < point["needed_memory_hi_bytes"]
    # 70.6e9 parameters over 8 ranks, of 2 bytes and 16 for gradient and Adam, are 158e9 bytes before any activation.
    assert point["needed_memory_bytes"] > 70.6e9 / 8 * 18


def test_points_on_processors_say_why_no_memory_is_predicted(tmp_path: Path) -> None:
    (point,) = tables_of(tmp_path, Spec("tiny-llama", {"dp": 2}))["points"]
    assert (point["needed_memory_bytes"], point["memory_capacity_bytes"]) == (None, None)
    assert point["needed_memory_absent"] == "memory of processes is not modelled"
