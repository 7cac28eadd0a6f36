"""Metric names of exporters: NVIDIA's DCGM, AMD's device metrics exporter, Omnistat and node_exporter.

Source: NVIDIA/dcgm-exporter etc/default-counters.csv; ROCm/device-metrics-exporter docs/configuration/metricslist.md;
ROCm/omnistat docs/metrics.md; prometheus/node_exporter collectors `infiniband` and `rapl`.
"""

from collections.abc import Mapping

import numpy as np

from triplepoint.importers.cells import without_blanks
from triplepoint.importers.declaration import Found, Source
from triplepoint.importers.rows import HOST, name_devices

_DCGM = {
    "power_usage_instant": Source("gpu_power_w", "W"),
    "power_usage": Source("gpu_power_average_w", "W", is_draw=True),
    "total_energy_consumption": Source("gpu_energy_j", "mJ"),
    "enforced_power_limit": Source("gpu_power_limit_w", "W"),
    "power_mgmt_limit": Source("gpu_power_limit_w", "W"),
    "gpu_temp": Source("gpu_temp_c", "C"),
    "memory_temp": Source("gpu_memory_temp_c", "C"),
    "sm_clock": Source("sm_clock_mhz", "MHz"),
    "mem_clock": Source("memory_clock_mhz", "MHz"),
    "clock_throttle_reasons": Source("gpu_throttle_reasons", "1"),
    "clocks_event_reasons": Source("gpu_throttle_reasons", "1"),
    "gpu_util": Source("gpu_utilisation", "%"),
    "mem_copy_util": Source("gpu_memory_utilisation", "%"),
    "fb_used": Source("gpu_memory_used_bytes", "MiB"),
    "power_violation": Source("gpu_power_cap_s", "ns"),
    "thermal_violation": Source("gpu_sw_thermal_s", "ns"),
    "sync_boost_violation": Source("gpu_sync_boost_s", "ns"),
    "pcie_replay_counter": Source("pcie_replays", "1"),
    "xid_errors": Source("gpu_xid", "1"),
    "ecc_sbe_vol_total": Source("gpu_ecc_corrected", "1"),
    "ecc_dbe_vol_total": Source("gpu_ecc_uncorrected", "1"),
}
_DCGM_PROFILING = {
    "sm_active": Source("gpu_sm_activity", "1"),
    "pipe_tensor_active": Source("gpu_tensor_activity", "1"),
    "dram_active": Source("gpu_dram_activity", "1"),
    "pcie_tx_bytes": Source("pcie_tx_bytes", "byte/s"),
    "pcie_rx_bytes": Source("pcie_rx_bytes", "byte/s"),
    "nvlink_tx_bytes": Source("nvlink_tx_bytes", "byte/s"),
    "nvlink_rx_bytes": Source("nvlink_rx_bytes", "byte/s"),
}
_AMD = {
    "gpu_package_power": Source("gpu_power_w", "W"),
    "gpu_average_package_power": Source("gpu_power_average_w", "W"),
    "gpu_energy_consumed": Source("gpu_energy_j", "uJ"),
    "gpu_junction_temperature": Source("gpu_temp_c", "C"),
    "gpu_edge_temperature": Source("gpu_edge_temp_c", "C"),
    "gpu_memory_temperature": Source("gpu_memory_temp_c", "C"),
    "gpu_gfx_activity": Source("gpu_utilisation", "%"),
    "gpu_umc_activity": Source("gpu_memory_utilisation", "%"),
    "gpu_clock system": Source("sm_clock_mhz", "MHz"),
    "gpu_clock memory": Source("memory_clock_mhz", "MHz"),
    "gpu_used_vram": Source("gpu_memory_used_bytes", "MiB"),
}
OMNISTAT = {
    "rocm_average_socket_power_watts": Source("gpu_power_w", "W"),
    "rocm_energy_joules": Source("gpu_energy_j", "J"),
    "rocm_temperature_celsius hotspot": Source("gpu_temp_c", "C"),
    "rocm_temperature_celsius junction": Source("gpu_temp_c", "C"),
    "rocm_temperature_celsius edge": Source("gpu_edge_temp_c", "C"),
    "rocm_temperature_celsius": Source("gpu_edge_temp_c", "C"),
    "rocm_temperature_edge_celsius": Source("gpu_edge_temp_c", "C"),
    "rocm_temperature_memory_celsius hbm_0": Source("gpu_memory_temp_c", "C"),
    "rocm_temperature_memory_celsius": Source("gpu_memory_temp_c", "C"),
    "rocm_sclk_clock_mhz": Source("sm_clock_mhz", "MHz"),
    "rocm_mclk_clock_mhz": Source("memory_clock_mhz", "MHz"),
    "rocm_utilization_percentage": Source("gpu_utilisation", "%"),
    "rocm_vram_busy_percentage": Source("gpu_memory_utilisation", "%"),
}
_NODE = {
    "node_infiniband_port_data_received_bytes_total": Source("infiniband_rx_bytes", "byte"),
    "node_infiniband_port_data_transmitted_bytes_total": Source("infiniband_tx_bytes", "byte"),
    "node_rapl_package_joules_total": Source("cpu_energy_j", "J"),
    "node_rapl_dram_joules_total": Source("dram_energy_j", "J"),
}
"""Counters of ports and packages, which are summed."""
COLUMNS = {
    **{f"dcgm_fi_dev_{name}": source for name, source in _DCGM.items()},
    **{f"dcgm_fi_prof_{name}": source for name, source in _DCGM_PROFILING.items()},
    **_AMD,
    **{f"amd_{name}": source for name, source in _AMD.items()},
    **OMNISTAT,
    **_NODE,
}
_OF_AMD = {*_AMD, *(f"amd_{name}" for name in _AMD), *OMNISTAT}
LEFT_OUT = {
    "dcgm_fi_dev_nvlink_bandwidth_total": "both directions together",
    "dcgm_fi_dev_fb_free": "follows from the memory in use",
    "rocm_vram_used_percentage": "a share of a size it does not say",
}
HOSTS = ("Hostname", "hostname", "node", "nodename", "host", "kubernetes_node", "exported_instance", "instance")
DEVICES = ("gpu", "gpu_id", "card", "device", "UUID")
_PARTS = ("device", "port", "index", "path")
_VARIANTS = ("location", "clock_type")
_FACTS = {"modelName": "product", "card_model": "product", "card_series": "product", "UUID": "uuid"}
_INSTANCE = ("GPU_I_ID",)
"""Labels of MIG instances: their series are parts of a GPU."""

SHOWS = (
    "One value each scrape interval, of whenever the exporter read it: 15 to 60 s is usual, so steps cannot be told "
    "and a mean of power is that of few samples. DCGM_FI_DEV_POWER_USAGE is a mean of about 1 s after GA100; energy "
    "counters are exact between scrapes."
)


def find_source(name: str, labels: Mapping[str, str]) -> Source | None:
    """Return what a metric with these labels is, None if it is not known."""
    variant = next((labels[label] for label in _VARIANTS if label in labels), "")
    variant = variant.lower().removeprefix("gpu_clock_type_")
    return COLUMNS.get(f"{name.lower()} {variant}".strip())


def add_series(found: Found, name: str, labels: Mapping[str, str], t_ns: np.ndarray, values: np.ndarray) -> None:
    """Add the values of one metric with its labels to what was found, or the reason why not."""
    source = find_source(name, labels)
    if source is None or any(label in labels for label in _INSTANCE):
        found.left_out.setdefault(name, "of MIG instances" if source else LEFT_OUT.get(name.lower(), "not known"))
        return
    host = next((labels[label] for label in HOSTS if labels.get(label)), "").rsplit(":", 1)[0]
    if name.lower() in _NODE:
        device, part = HOST, " ".join(labels[label] for label in _PARTS if label in labels)
    else:
        key = next((labels[label] for label in DEVICES if labels.get(label)), "0")
        device, part = name_devices([key])[key], labels.get("clock_index", "")
    factor = source.factor()
    assert factor is not None
    numbers = without_blanks(values) if name.startswith("DCGM") else values
    made = source.series(host, device, t_ns, numbers * factor, part)
    is_again = any(
        (each.host, each.device, each.metric, each.part) == (host, device, source.metric, part)
        and np.array_equal(each.t_ns, t_ns)
        for each in found.series
    )
    if is_again:  # one clock of several in a GPU, one temperature of several
        found.left_out.setdefault(name, "further sensors of the same device; the first is taken")
        return
    found.series.append(made)
    found.is_amd |= name.lower() in _OF_AMD
    if facts := {fact: labels[label] for label, fact in _FACTS.items() if labels.get(label)}:
        found.facts[host, device] = facts
