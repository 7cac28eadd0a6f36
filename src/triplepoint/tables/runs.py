"""Tables of one run: steps and samples as recorded, and what the telemetry stage makes of them."""

from triplepoint.tables.schema import Column, Table, amount, count, duration, ratio, text

RUN = text("run", "Run id, a label.")
RANK = count("rank", "Global rank.")
STEP = count("step", "Step number from 0, warm-up included.")

STEPS = Table(
    "steps",
    "one row per (rank, step)",
    (
        RANK,
        STEP,
        text("kind", "warmup, measured or profiled; times come from measured steps only."),
        duration("t_start_ns", "Start on the node's monotonic clock."),
        duration("t_end_ns", "End on the node's monotonic clock, device work finished."),
        Column("loss", "float", "nat", "Mean loss of the global batch; null on ranks without the last stage.", True),
        count("num_tokens", "Tokens of the global batch."),
        count("peak_memory_bytes", "Highest memory of the rank so far: allocated on a GPU, resident on cpu.", True),
    ),
)

_SAMPLE = (
    duration("t_ns", "Time of the sample on the node's monotonic clock."),
    duration("read_latency_ns", "Time the reads of this sample took."),
    text("device", "`host`, or `gpu0`, `gpu1`, ... in the driver's order."),
    ratio("cpu_utilisation", "Share of all cores busy since the previous sample."),
    amount("cpu_freq_mhz", "MHz", "Mean current clock of the cores."),
    Column("cpu_temp_c", "float", "degC", "Hottest CPU sensor.", True, -60.0, 150.0),
    amount("memory_used_bytes", "byte", "Host memory in use."),
    amount("cpu_energy_j", "J", "CPU package energy since the first sample (RAPL)."),
    amount("dram_energy_j", "J", "DRAM energy since the first sample (RAPL)."),
    amount("network_rx_bytes", "byte", "Received by all network interfaces since the first sample."),
    amount("network_tx_bytes", "byte", "Sent by all network interfaces since the first sample."),
    amount("gpu_power_w", "W", "GPU power, instantaneous where the driver has it."),
    amount("gpu_energy_j", "J", "GPU energy counter since the first sample."),
    Column("gpu_temp_c", "float", "degC", "GPU die temperature.", True, -60.0, 150.0),
    Column("gpu_memory_temp_c", "float", "degC", "GPU memory temperature.", True, -60.0, 150.0),
    amount("sm_clock_mhz", "MHz", "Clock of the compute units."),
    ratio("gpu_utilisation", "Share of the driver's window with a kernel running."),
    amount("gpu_memory_used_bytes", "byte", "Device memory in use."),
)

SAMPLES = Table("samples", "one row per (t_ns, device) of one node, as recorded", _SAMPLE)

TELEMETRY = Table(
    "telemetry",
    "one row per (node, t_ns, device)",
    (
        count("node", "Node index within the run."),
        *_SAMPLE,
        Column("step", "int", "1", "Step the sample falls in; null between steps.", True, 0),
        text("kind", "Kind of that step: warmup, measured or profiled.", True),
        Column("is_gap", "bool", "1", "Whether more than two periods passed since the device's previous sample."),
    ),
)
