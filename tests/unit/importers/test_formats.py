"""Every format, on a sample of its own: numbers read off the sample by hand."""

import re
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from tests.importing import SAMPLES, part, read, values
from triplepoint.errors import UserError
from triplepoint.importers import formats
from triplepoint.importers.declaration import ReadOptions
from triplepoint.importers.folder import ImportOptions
from triplepoint.tables.telemetry import METRICS

MIB = 1 << 20
ROOT = Path(__file__).parents[3]
STARTED = ImportOptions(start="2026-05-01 14:00:00", period_s=2.0)


def ns(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 10**9


@pytest.mark.parametrize("declared", formats(), ids=lambda declared: declared.name)
def test_formats_declare_our_columns_in_units_that_fit(declared: object) -> None:
    for name, source in declared.columns.items():
        assert source.metric in METRICS, name
        assert source.factor() is not None, f"{name}: {source.unit} is no unit of {source.metric}"
        assert name == name.lower()
    assert declared.shows.endswith(".")


def test_formats_are_all_in_the_docs() -> None:
    text = (ROOT / "docs" / "import.md").read_text()
    for declared in formats():
        assert re.search(rf"^\| {re.escape(declared.name)} \|", text, re.MULTILINE), (
            f"docs/import.md lacks {declared.name}"
        )


def test_samples_are_all_in_their_readme() -> None:
    text = (SAMPLES / "README.md").read_text()
    for path in SAMPLES.iterdir():
        if path.name == "README.md":
            continue
        assert f"`{path.name}" in text


def test_nvidia_smi_without_units_keeps_the_zone_of_its_times() -> None:
    found = read(SAMPLES / "nvidia_smi_8gpus.csv", ImportOptions())
    gpu = part(found, "gpu7")
    assert found.formats == {"nvidia-smi CSV": 1} and found.notes == []
    assert gpu.t_ns[0] == ns("2025-09-08 09:26:50")
    assert values(gpu, "gpu_power_average_w").tolist() == [73.43, 73.43, 73.42, 73.45, 73.43]
    assert values(part(found, "gpu2"), "gpu_memory_used_bytes")[-1] == 4 * MIB
    assert [len(part(found, f"gpu{n}").t_ns) for n in range(8)] == [6, 6, 6, 5, 5, 5, 5, 5], "it ends within a round"


def test_nvidia_smi_without_header_takes_the_columns_it_is_told() -> None:
    use, memory = ("utilization.gpu", "utilization.memory"), ("memory.used", "memory.free")
    asked = ReadOptions(query=("timestamp", *use, *memory, "temperature.gpu", "power.draw"))
    found = read(SAMPLES / "nvidia_smi_noheader.csv", ImportOptions(timezone="UTC", read_options=asked))
    assert values(part(found), "gpu_utilisation").tolist() == [0, 0, 0.02, 0, 0, 0]
    assert values(part(found), "gpu_power_average_w")[2] == 31.73
    with pytest.raises(UserError, match="without a header, 7 cells a line; name its columns with --query-gpu"):
        read(SAMPLES / "nvidia_smi_noheader.csv")


def test_nvidia_smi_units_in_header_and_cells() -> None:
    gpu = part(read(SAMPLES / "nvidia_smi_units.csv"))
    assert gpu.t_ns[0] == ns("2024-10-30 18:42:33") + 189_000_000
    assert values(gpu, "gpu_power_average_w")[0] == 22.89


def test_nvidia_smi_draw_is_instantaneous_on_ga100_only(tmp_path: Path) -> None:
    for product, column in (("NVIDIA A100-SXM4-80GB", "gpu_power_w"), ("NVIDIA H200", "gpu_power_average_w")):
        (tmp_path / "smi.csv").write_text(
            f"timestamp, name, index, power.draw [W]\n2026/05/01 10:00:00.000, {product}, 3, 300.5 W\n"
        )
        assert values(part(read(tmp_path), "gpu3"), column).tolist() == [300.5]


def test_nvidia_dmon_with_and_without_times() -> None:
    gpu = part(read(SAMPLES / "nvidia_dmon.log"))
    assert gpu.t_ns.tolist() == [ns("2026-08-07 14:41:02") + n * 10**9 for n in range(3)]
    assert values(gpu, "gpu_power_average_w").tolist() == [58, 61, 57]
    assert values(gpu, "sm_clock_mhz").tolist() == [1650] * 3 and values(gpu, "gpu_memory_temp_c")[0] == 47
    later = part(read(SAMPLES / "nvidia_dmon_notimes.log", STARTED))
    assert later.t_ns.tolist() == [ns("2026-05-01 14:00:00") + n * 2 * 10**9 for n in range(4)]
    assert "gpu_memory_temp_c" not in later.columns or np.isnan(values(later, "gpu_memory_temp_c")).all()
    with pytest.raises(UserError, match="no times in the file; give --start"):
        read(SAMPLES / "nvidia_dmon_notimes.log")


def test_dcgmi_dmon_counts_energy_and_makes_bytes_of_rates() -> None:
    gpu = part(read(SAMPLES / "dcgmi_dmon.log", STARTED))
    assert values(gpu, "gpu_energy_j") == pytest.approx([0, 412.699, 810.799])
    # A rate is the mean since the sample before: 2 s each.
    assert values(gpu, "nvlink_tx_bytes").tolist() == [0, 2 * 2147483648, 2 * (2147483648 + 1610612736)]
    other = part(read(SAMPLES / "dcgmi_dmon.log", STARTED), "gpu1")
    assert len(other.t_ns) == 2, "N/A in all of its cells is no sample"
    assert np.isnan(values(other, "nvlink_tx_bytes")[-1]), "DCGM's code for no value"


def test_dcgmi_dmon_with_times_before_its_lines(tmp_path: Path) -> None:
    (tmp_path / "dcgm.log").write_text(
        "2026-05-01T10:00:00+0000 #Entity   POWER   SMACT\n2026-05-01T10:00:00+0000 ID        W\n"
        "2026-05-01T10:00:01+0000 GPU 2     300.5   0.5\n2026-05-01T10:00:02+0000 GPU 2     310.5   0.6\n"
    )
    gpu = part(read(tmp_path, ImportOptions()), "gpu2")
    assert gpu.t_ns.tolist() == [ns("2026-05-01 10:00:01"), ns("2026-05-01 10:00:02")]
    assert values(gpu, "gpu_sm_activity").tolist() == [0.5, 0.6]


def test_dcgm_exporter_scrape_has_its_time_in_its_name() -> None:
    found = read(SAMPLES / "dcgm_exporter_1774009423.prom")
    gpu = part(found, host="i-030791dc5a37cd257")
    assert gpu.t_ns.tolist() == [1774009423 * 10**9]
    assert values(gpu, "gpu_power_average_w").tolist() == [16.365]
    assert found.facts["i-030791dc5a37cd257", "gpu0"]["product"] == "NVIDIA L4"
    assert "gpu_memory_temp_c" not in gpu.columns and "0 throughout" in found.notes[0], "an L4 has no such sensor"


def test_prometheus_text_scrapes_in_a_row(tmp_path: Path) -> None:
    line = 'DCGM_FI_DEV_POWER_USAGE{gpu="1",Hostname="n3"} '
    (tmp_path / "scrapes.txt").write_text(f"1767607200\n{line}100\n1767607201.5\n{line}200\n1767607203\n{line}NaN\n")
    gpu = part(read(tmp_path), "gpu1", "n3")
    assert gpu.t_ns.tolist() == [1767607200_000000000, 1767607201_500000000]
    assert values(gpu, "gpu_power_average_w").tolist() == [100, 200]


def test_prometheus_json_of_dcgm_and_node_exporter() -> None:
    found = read(SAMPLES / "prometheus_dcgm.json")
    assert list(found.hosts) == ["gpu-9", "gpu-10"], "in the order of their numbers"
    gpu = part(found, "gpu1", "gpu-10")
    assert values(gpu, "gpu_energy_j") == pytest.approx([0, 9603, 19441.5, 29191.5])
    assert np.isnan(values(gpu, "gpu_power_average_w")[-1])
    assert values(gpu, "nvlink_tx_bytes").tolist() == [0, 30e9, 90e9, 150e9]
    host = part(found, "host", "gpu-9")
    assert values(host, "infiniband_rx_bytes").tolist() == [0, 2e9, 4e9, 8e9], (
        "both ports together, since the first sample"
    )
    assert found.left_out["DCGM_FI_DEV_FB_FREE"] == "follows from the memory in use"


def test_prometheus_json_of_amd() -> None:
    gpu = part(read(SAMPLES / "prometheus_amd.json"), host="node-a")
    assert values(gpu, "gpu_power_w").tolist() == [748, 751]
    assert values(gpu, "sm_clock_mhz").tolist() == [1532, 1525], "the mean of its dies"
    assert values(gpu, "gpu_memory_used_bytes")[0] == 183265 * MIB


def test_omnistat_export_and_scrape() -> None:
    found = read(SAMPLES / "omnistat-rocm.gpu.csv")
    assert values(part(found, "gpu0", "node01"), "gpu_power_w").tolist() == [35, 310, 420.5]
    assert values(part(found, "gpu0", "node01"), "gpu_energy_j") == pytest.approx([0, 310.244644, 730.994644])
    assert len(part(found, "gpu0", "node02").t_ns) == 2, "an empty cell is no sample"
    assert [each.device for each in found.hosts["node01"].parts] == ["gpu0"], "a secondary die reads 0 W"
    assert values(part(read(SAMPLES / "omnistat.prom"), "gpu2"), "gpu_edge_temp_c").tolist() == [43]


def test_amd_smi_metric_and_monitor() -> None:
    found = read(SAMPLES / "amd_smi_metric.csv")
    gpu = part(found, "gpu1")
    assert gpu.t_ns.tolist() == [1786554632 * 10**9, 1786554633 * 10**9]
    assert values(gpu, "gpu_power_w").tolist() == [893, 935] and values(gpu, "gpu_temp_c").tolist() == [49, 49]
    assert values(gpu, "sm_clock_mhz")[0] == pytest.approx((2357 + 2323 + 2356 + 2323 + 2354 + 2324 + 2348 + 2324) / 8)
    assert values(gpu, "gpu_memory_temp_c").tolist() == [42, 41], "mem is a temperature in amd-smi metric"
    watched = part(read(SAMPLES / "amd_smi_monitor.csv"), "gpu1")
    assert values(watched, "gpu_memory_utilisation").tolist() == [0.31], "and an activity in amd-smi monitor"
    assert values(watched, "gpu_memory_used_bytes").tolist() == [1235 * MIB], "its MB are MiB"
    assert values(part(read(SAMPLES / "amd_smi_metric.json", STARTED)), "gpu_power_w").tolist() == [10]


def test_amd_smi_watched_begins_with_a_hint_and_repeats_its_header() -> None:
    found = read(SAMPLES / "amd_smi_energy.csv")
    assert found.is_amd and found.notes == []
    assert values(part(found, "gpu1"), "gpu_energy_j") == pytest.approx([0, 42.3, 84.556, 126.854])
    table = read(SAMPLES / "amd_smi_monitor.txt")
    gpu = part(table, "gpu0")
    assert gpu.t_ns.tolist() == [1753969973 * 10**9]
    expected = {"gpu_power_w": 750, "gpu_temp_c": 69, "gpu_memory_temp_c": 50, "sm_clock_mhz": 1278}
    expected |= {"gpu_utilisation": 1, "gpu_memory_utilisation": 0.01}
    assert {name: values(gpu, name)[0] for name in expected} == expected
    assert values(part(table, "gpu2"), "gpu_power_w").tolist() == [178]


def test_amd_smi_table_of_four_digits_and_json_below_a_hint(tmp_path: Path) -> None:
    """Columns are set to the right: 1000 W leaves one blank before it."""
    hint, header = "'CTRL' + 'C' to stop watching output:\n", " TIMESTAMP  GPU  XCP  POWER   GPU_T      VRAM_USAGE\n"
    rounds = [f"{header}178655463{n}    0    0 1178 W   69 °C    2.9/ 15.9 GB\n\n\n" for n in range(2)]
    (tmp_path / "watch.txt").write_text(hint + "".join(rounds))
    assert values(part(read(tmp_path)), "gpu_power_w").tolist() == [1178] * 2
    one = '[{"timestamp": 178655463%d, "gpu": 0, "power_usage": {"value": 35, "unit": "W"}}]\n'
    (tmp_path / "watch.txt").write_text(hint + "".join(one % n for n in range(2)))
    assert values(part(read(tmp_path)), "gpu_power_w").tolist() == [35] * 2


def test_nvidia_dmon_as_csv_is_that_of_text(tmp_path: Path) -> None:
    text = (SAMPLES / "nvidia_dmon.log").read_text()
    lines = [", ".join(line.split()) for line in text.splitlines()]
    (tmp_path / "dmon.csv").write_text("\n".join(lines).replace("#, ", "#") + "\n")
    one, other = part(read(SAMPLES / "nvidia_dmon.log")), part(read(tmp_path))
    assert one.columns == other.columns and np.array_equal(one.values, other.values, equal_nan=True)


def test_rocm_smi_csv_and_json() -> None:
    found = read(SAMPLES / "rocm_smi.csv", STARTED)
    assert values(part(found, "gpu1"), "gpu_power_average_w").tolist() == [18]
    assert values(part(found, "gpu1"), "gpu_memory_temp_c").tolist() == [58]
    found = read(SAMPLES / "rocm_smi.json", STARTED)
    assert [values(part(found, f"gpu{n}"), "gpu_temp_c")[0] for n in range(4)] == [55, 58, 57, 53]
    assert values(part(found, "gpu0"), "sm_clock_mhz").tolist() == [300], "printed as (300Mhz)"


def test_rocm_smi_looped_with_times_and_secondary_dies(tmp_path: Path) -> None:
    header = "timestamp,device,Average Graphics Package Power (W),Temperature (Sensor junction) (C)"
    rows = [f"{1767607200 + n},card0,237.0,60\n{1767607200 + n},card1,N/A (Secondary die),61" for n in range(3)]
    (tmp_path / "rocm.csv").write_text("".join(f"{header}\n{row}\n\n" for row in rows))
    found = read(tmp_path)
    assert values(part(found), "gpu_power_average_w").tolist() == [237] * 3
    assert "gpu_power_average_w" not in part(found, "gpu1").columns
    assert values(part(found, "gpu1"), "gpu_temp_c").tolist() == [61] * 3


def test_wattameter_gpus_and_processors_are_one_host(tmp_path: Path) -> None:
    for name in ("wattameter_nvml.log", "wattameter_rapl.log"):
        (tmp_path / name).write_bytes((SAMPLES / name).read_bytes())
    found = read(tmp_path)
    assert list(found.hosts) == ["node0"]
    assert values(part(found, "gpu3"), "gpu_power_average_w")[0] == 73.544
    energy_j = values(part(found, "host"), "cpu_energy_j")
    first = [23803563318, 18146807011]
    second = [23811878287, 18155149933]
    assert energy_j[:2] == pytest.approx([0, (second[0] - first[0] + second[1] - first[1]) * 1e-6])


def test_zeus_one_gpu_and_all(tmp_path: Path) -> None:
    gpu = part(read(SAMPLES / "zeus_gpu0.csv"))
    assert gpu.t_ns[0] == ns("2022-07-13 02:07:36") + 708783111
    assert values(gpu, "gpu_power_average_w")[0] == 32.402
    (tmp_path / "power.csv").write_text("1746100000.25,100.5,200.5\n1746100000.35,101.5,201.5\n")
    assert values(part(read(tmp_path), "gpu1"), "gpu_power_average_w").tolist() == [200.5, 201.5]
    (tmp_path / "power.csv").write_text("start_time,window_name,elapsed_time,gpu0_energy\n1746100000.25,step,1.5,600\n")
    with pytest.raises(UserError, match="holds energies, no samples"):
        read(tmp_path)


def test_charllm_ranks_become_gpus_of_nodes() -> None:
    found = read(SAMPLES / "charllm")
    assert list(found.hosts) == ["node0", "node1"]
    gpu = part(found, "gpu1", "node1")
    power_w = values(gpu, "gpu_power_w")
    assert power_w[[0, 1, 3]].tolist() == [412.5, 655.1, 640.0] and np.isnan(power_w[2]), "-1 is a failed read"
    assert values(gpu, "pcie_tx_bytes").tolist() == [0, 2**32 - 4294000000 + 966704, 3000000000 + 967296, 3400967296]
    assert not {"nvlink_tx_bytes", "infiniband_rx_bytes"} & set(gpu.columns)
    assert "link 0" in found.left_out["nvlink_tx_throughput"] and "RDMA" in found.left_out["system_ib_rx_bytes"]
    fewer = read(SAMPLES / "charllm", ImportOptions(read_options=ReadOptions(gpus_per_node=4)))
    assert list(fewer.hosts) == ["node0", "node2"]
