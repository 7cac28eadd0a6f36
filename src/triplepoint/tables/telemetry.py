"""Telemetry tables: the samples of a node's sampler, and the aligned telemetry of a run."""

from triplepoint.tables.schema import Column, Kind, Table, amount, count, duration, ratio, text

MOST_GPU_W, MOST_NODE_W = 5e3, 1e6
"""Highest power of a GPU and of a node that can be true. Higher values are errors of a driver or a file and count as
not read, and so do those above the limits below. All are several times what products have. Our choice. Unit: W."""
_MOST_MODULE_W = 2e4
_MOST_CORE_MHZ, _MOST_MEMORY_MHZ = 1e4, 5e4
_MOST_GPU_BYTES, _MOST_HOST_BYTES = 1e13, 1e15


def _temperature(name: str, about: str) -> Column:
    return Column(name, "float", "degC", about, True, -60.0, 150.0, kind=Kind.GAUGE)


def _gauge(name: str, unit: str, about: str, maximum: float) -> Column:
    return amount(name, unit, about, kind=Kind.GAUGE, maximum=maximum)


def _counter(name: str, unit: str, about: str) -> Column:
    return amount(name, unit, about, kind=Kind.COUNTER)


_HOST = (
    ratio("cpu_utilisation", "Share of all cores busy since the previous sample."),
    _gauge("cpu_freq_mhz", "MHz", "Mean current clock of the cores.", _MOST_CORE_MHZ),
    _temperature("cpu_temp_c", "Hottest CPU sensor."),
    _temperature("inlet_temp_c", "Inlet air of the node, or its board where only that is measured."),
    _gauge("node_power_w", "W", "Power of the whole node at the plug, where it has a meter.", MOST_NODE_W),
    _gauge("memory_used_bytes", "byte", "Host memory in use.", _MOST_HOST_BYTES),
    _counter("cpu_energy_j", "J", "CPU package energy since the first sample (RAPL)."),
    _counter("dram_energy_j", "J", "DRAM energy since the first sample (RAPL)."),
    _counter("network_rx_bytes", "byte", "Received by all network interfaces since the first sample."),
    _counter("network_tx_bytes", "byte", "Sent by all network interfaces since the first sample."),
)

_GPU_FAST = (
    _gauge("gpu_power_w", "W", "GPU power, instantaneous where the driver has it.", MOST_GPU_W),
    _gauge("gpu_power_average_w", "W", "GPU power averaged by the driver over about a second.", MOST_GPU_W),
    _gauge("gpu_memory_power_w", "W", "Power of the GPU's memory, averaged by the driver.", MOST_GPU_W),
    _gauge("gpu_module_power_w", "W", "Power of the whole module where GPU and CPU share one.", _MOST_MODULE_W),
    _counter("gpu_energy_j", "J", "GPU energy counter since the first sample."),
    _temperature("gpu_temp_c", "GPU die temperature; the hotspot on AMD."),
    _temperature("gpu_edge_temp_c", "GPU temperature at the die's edge (AMD)."),
    _temperature("gpu_memory_temp_c", "GPU memory temperature."),
    _gauge("sm_clock_mhz", "MHz", "Clock of the compute units.", _MOST_CORE_MHZ),
    _gauge("memory_clock_mhz", "MHz", "Clock of the GPU memory.", _MOST_MEMORY_MHZ),
    count("gpu_throttle_reasons", "Throttle reasons of the driver at this instant, a bit mask.", True, Kind.STATE),
    _counter("gpu_power_cap_s", "s", "Time the power limit throttled the clocks, since the first sample."),
    _counter("gpu_sync_boost_s", "s", "Time the clocks were throttled to match other GPUs, since the first sample."),
    _counter("gpu_sw_thermal_s", "s", "Time the driver's thermal limit throttled the clocks, since the first sample."),
    _counter("gpu_hw_thermal_s", "s", "Time the hardware throttled the clocks for heat, since the first sample."),
    _counter("gpu_power_brake_s", "s", "Time an external power brake throttled the clocks, since the first sample."),
)

_GPU_SLOW = (
    Column(
        "gpu_temp_margin_c",
        "float",
        "degC",
        "Distance to the temperature at which the hardware slows down.",
        True,
        -150.0,
        200.0,
        kind=Kind.GAUGE,
    ),  # fmt: skip
    _gauge("gpu_power_limit_w", "W", "Enforced power limit.", MOST_GPU_W),
    ratio("gpu_utilisation", "Share of the driver's window with a kernel running."),
    ratio("gpu_memory_utilisation", "Share of the driver's window with memory being read or written."),
    _gauge("gpu_memory_used_bytes", "byte", "Device memory in use.", _MOST_GPU_BYTES),
    ratio("gpu_sm_activity", "Share of compute units busy since the previous sample, where the GPU counts it."),
    ratio("gpu_tensor_activity", "Share of time tensor units were busy since the previous sample."),
    ratio("gpu_dram_activity", "Share of the peak memory bandwidth used since the previous sample."),
    _counter("pcie_rx_bytes", "byte", "Received by the GPU over PCIe since the first sample."),
    _counter("pcie_tx_bytes", "byte", "Sent by the GPU over PCIe since the first sample."),
    _counter("nvlink_rx_bytes", "byte", "Data received over all NVLinks since the first sample."),
    _counter("nvlink_tx_bytes", "byte", "Data sent over all NVLinks since the first sample."),
    _counter("xgmi_rx_bytes", "byte", "Data read over all xGMI links since the first sample."),
    _counter("xgmi_tx_bytes", "byte", "Data written over all xGMI links since the first sample."),
    count("gpu_ecc_corrected", "Memory errors corrected since the driver was loaded.", True, Kind.LIFETIME),
    count("gpu_ecc_uncorrected", "Memory errors not corrected since the driver was loaded.", True, Kind.LIFETIME),
    count("pcie_replays", "PCIe packets sent again since the driver was loaded.", True, Kind.LIFETIME),
    count("gpu_xid", "Last critical error (XID) that the driver reported; null while none.", True, Kind.STATE),
)

_FABRIC = (
    _counter(
        "infiniband_rx_bytes",
        "byte",
        "Received by all InfiniBand or RoCE ports, RDMA included, since the first sample.",
    ),
    _counter(
        "infiniband_tx_bytes", "byte", "Sent by all InfiniBand or RoCE ports, RDMA included, since the first sample."
    ),
    _counter(
        "infiniband_wait_ticks", "1", "Ticks in which a port had data but could not send, since the first sample."
    ),
    _counter("rdma_congestion_marks", "1", "Congestion notifications sent (RoCE), since the first sample."),
    _counter("rdma_out_of_sequence", "1", "RDMA packets out of sequence, since the first sample."),
    _counter("rdma_retries", "1", "Retries of RDMA for an unready receiver, since the first sample."),
)

_SAMPLE = (
    duration("t_ns", "Time of the sample on the node's monotonic clock.", kind=Kind.KEY),
    duration("read_latency_ns", "Duration of the reads of this sample.", kind=Kind.GAUGE),
    text("device", "`host`, or `gpu0`, `gpu1`, ... in the driver's order."),
    *_HOST,
    *_GPU_FAST,
    *_GPU_SLOW,
    *_FABRIC,
)

CUMULATIVE = frozenset(column.name for column in _SAMPLE if column.kind is Kind.COUNTER)
"""Columns that only grow within a recording."""

_NOT_READ = (
    "Not read in this sample: the device has no such sensor (the manifest says why), the read failed, or the sensor "
    "has a longer period."
)

SAMPLES = Table("samples", "one row per (t_ns, device) of one node, as recorded", _SAMPLE, _NOT_READ)

METRICS = tuple(column.name for column in _SAMPLE[3:])
"""Columns of `SAMPLES` with values of sensors."""

GPU_METRICS = tuple(column.name for column in (*_GPU_FAST, *_GPU_SLOW))
"""Columns of GPU sensors."""

FABRIC_METRICS = tuple(column.name for column in _FABRIC)
"""Columns of network adapter sensors."""

TELEMETRY = Table(
    "telemetry",
    "one row per (node, t_ns, device)",
    (
        count("node", "Node index within the run.", kind=Kind.KEY),
        *_SAMPLE,
        Column("step", "int", "1", "Step that contains the sample; null between steps.", True, 0, kind=Kind.KEY),
        text("kind", "Kind of that step: warmup, measured or profiled.", True),
        Column("is_gap", "bool", "1", "Whether more than two periods passed since the device's previous sample."),
    ),
    null=_NOT_READ,
)
