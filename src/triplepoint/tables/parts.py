"""Result tables below the run: nodes, links, steps, phases and kernels."""

from triplepoint.tables.schema import Column, Table, amount, count, text
from triplepoint.tables.traces import GEOMETRY, GROUP, RANK, RUN, STEP

SHARED = " (if GPUs share a sensor, that of the package, on its first GPU)"
"""Note in descriptions of power columns."""
_STAGE = count("stage", "Pipeline stage of the rank, from 0; null where the layout is not known.", True)
_PHASE = text("phase", "forward, backward, optimizer or other.")
_CATEGORY = text("category", "compute, comm, memory or idle.")

NODES = Table(
    "nodes",
    "one row per (run, node) of runs that finished",
    (
        RUN,
        count("node", "Node index within the run."),
        text("host", "Host name."),
        count("num_ranks", "Ranks of the run on the node."),
        amount("node_power_w", "W", "Mean power at the plug from the first measured step to the last."),
        amount("node_power_peak_w", "W", "Highest sample of power at the plug in that time."),
        text("node_power_absent", "Why there is no power at the plug; null where there is.", True),
        amount("gpu_power_w", "W", "Mean power of all GPUs of the node over measured steps."),
        amount("host_power_w", "W", "Mean CPU package and DRAM power (RAPL) over measured steps."),
        Column("inlet_temp_c", "float", "degC", "Mean inlet temperature over measured steps.", True),
    ),
    null="Not measured.",
)

TRAFFIC = Table(
    "traffic",
    "one row per (run, node, rank, link) of runs on GPUs that finished, also without link counters",
    (
        RUN,
        count("node", "Node index within the run."),
        count("rank", "Rank of the GPU; null for all adapters of the node together.", True),
        text("link", "Link: nvlink, xgmi or pcie of a GPU; infiniband of a node, RoCE included."),
        count("num_links", "Adapters summed in the row; null if the cluster does not state them, and for GPUs.", True),
        amount("tx_bytes_per_s", "byte/s", "Sent, mean over measured steps."),
        amount("rx_bytes_per_s", "byte/s", "Received, mean over measured steps."),
        amount("capacity_bytes_per_s", "byte/s", "Capacity of all links of the row in one direction."),
        amount("tx_share", "1", "Sent over capacity; counted packet headers can take it above 1."),
        amount("rx_share", "1", "Received over capacity; counted packet headers can take it above 1."),
        text("capacity_source", "Source of the capacity, or why it is not known."),
        text("absent", "Why there is no counter; null where there is one.", True),
    ),
    null="Not counted, or the capacity is not known; `absent` and `capacity_source` say why.",
)

BREAKDOWN = Table(
    "breakdown",
    "one row per (run, rank, phase, category, kind, group): mean over profiled steps; exposed_s adds up to the step",
    (
        RUN,
        RANK,
        _STAGE,
        _PHASE,
        _CATEGORY,
        text("kind", "Class of computation, kind of communication, direction of a copy, or the reason to idle."),
        GROUP,
        amount("busy_s", "s", "Time running; kinds that run at once are both busy.", False),
        amount(
            "exposed_s",
            "s",
            "Busy time without an earlier category (compute, comm, memory) or an earlier started kernel of the same "
            "category running.",
            False,
        ),
        amount("overlapped_s", "s", "Busy time that is not exposed.", False),
    ),
    null="Column `group`: not a collective, or its group is not known.",
)

STEP_SAMPLES = Table(
    "step_samples",
    "one row per (run, rank, sample) of measured steps, by time within the step; at most 2,048 rows of a run",
    (
        RUN,
        count("node", "Node index within the run."),
        RANK,
        STEP,
        amount("t_s", "s", "Time since the node's start of the step.", False),
        amount("gpu_power_w", "W", f"Power as the driver reports it{SHARED}."),
        amount("gpu_temp_c", "degC", "Temperature."),
        amount("sm_clock_mhz", "MHz", "Clock of the multiprocessors."),
    ),
    null="The sample has no such reading.",
)

JOB_POWER = Table(
    "job_power",
    "one row per (run, moment) of runs whose nodes all have a meter, with 100 readings or more; the first 2,000",
    (
        RUN,
        amount("t_s", "s", "Time since the first reading of measured steps; evenly spaced.", False),
        amount("job_power_w", "W", "Power of all nodes at the plug.", False),
    ),
)

STEP_ENERGY = Table(
    "step_energy",
    "one row per (run, rank, measured step) of GPUs that report their own power",
    (
        RUN,
        RANK,
        STEP,
        amount("step_time_s", "s", "From the first start to the last end among the ranks of the node.", False),
        amount("gpu_power_w", "W", f"Mean power in the step{SHARED}.", False),
        amount("gpu_energy_j", "J", f"Energy of the step{SHARED}.", False),
        text("source", "Sensor that power and energy are from."),
    ),
)

PHASES = Table(
    "phases",
    "one row per (run, rank, phase, category): mean over profiled steps",
    (
        RUN,
        RANK,
        _PHASE,
        _CATEGORY,
        amount("busy_s", "s", "Time running.", False),
        amount("exposed_s", "s", "Busy time with no earlier category (compute, comm, memory) running.", False),
        amount("overlapped_s", "s", "Busy time that is not exposed.", False),
        amount("gpu_energy_j", "J", "Energy of a measured step in the exposed time; null without an energy counter."),
        amount("gpu_power_w", "W", "Power in the exposed time over measured steps; null without an energy counter."),
        amount("gpu_power_sigma_w", "W", "Standard error of that power; half the step's mean if it is not known."),
    ),
    null="Without an energy counter of the GPU.",
)

KERNEL_TOTALS = Table(
    "kernels",
    "one row per (run, class, kind, group): per profiled step, over the traced ranks of the run",
    (
        RUN,
        text("class", "Coarse kernel class."),
        text("kind", "Finer kind."),
        GROUP,
        count("num_ranks", "Traced ranks."),
        amount("count_per_rank", "1", "Occurrences per rank and step.", False),
        amount("sum_s", "s", "Mean over ranks of the summed duration of one step.", False),
        amount("sum_min_s", "s", "Summed duration on the rank with the lowest.", False),
        amount("sum_max_s", "s", "Summed duration on the rank with the highest.", False),
        *GEOMETRY,
        text("geometry_absent", "Why there is no launch geometry; null where there is.", True),
    ),
    null="Launch geometry: the trace has none. Column `group`: not a collective, or its group is not known.",
)
