"""Tables of one run: its steps, and the results of its traces."""

from triplepoint.tables.schema import Column, Table, amount, count, duration, ratio, text

RUN = text("run", "Run id, a label.")
RANK = count("rank", "Global rank.")
STEP = count("step", "Step number from 0, warm-up included.")
SHORTEST_STEP_S, LONGEST_STEP_S = 1e-6, 86_400.0
"""Shortest and longest step time that a user's file may give: less than one kernel takes, and a day. Our choice.
Unit: s."""

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
        count("num_tokens", "Tokens of the global batch; in inference, generated; null where not known.", True),
        count("peak_memory_bytes", "Peak memory of the rank so far: allocated on a GPU, resident on cpu.", True),
        Column(
            "reserved_memory_bytes",
            "int",
            "1",
            "Peak memory that torch reserved on the GPU so far; null on cpu.",
            True,
            0,
            came_later=True,
        ),
        Column(
            "t_first_token_ns",
            "int",
            "ns",
            "Time of the first token of the last sequence; null except in inference on ranks of the last stage.",
            True,
            0,
            came_later=True,
        ),
    ),
    null="Not known for this rank.",
)


GROUP = text("group", "Process group of a collective (tp, pp, dp, ep); null otherwise or where not known.", True)

GEOMETRY = (
    amount("num_blocks", "1", "Thread blocks of a launch; this and the next six are means weighted by duration."),
    amount("threads_per_block", "1", "Threads per block."),
    amount("registers_per_thread", "1", "Registers per thread."),
    amount("shared_memory_bytes", "byte", "Shared memory per block."),
    amount("blocks_per_sm", "1", "Blocks of the launch over multiprocessors of the GPU."),
    amount("warps_per_sm", "1", "Warps of the launch over multiprocessors of the GPU."),
    ratio("occupancy", "Resident warps over the maximum of a multiprocessor, as estimated by the profiler."),
)
"""Launch geometry of kernels; null where the trace has none."""

KERNELS = Table(
    "kernels",
    "one row per (rank, step, class, kind, group, name)",
    (
        RANK,
        Column("step", "int", "1", "Step in which the occurrences start; null for those between steps.", True, 0),
        text("class", "Coarse kernel class: gemm, attention, comm, ..."),
        text("kind", "Finer kind within the class: all_reduce, forward, ..."),
        GROUP,
        text("name", "Name in the trace."),
        count("count", "Occurrences."),
        duration("sum_ns", "Summed duration; concurrent kernels count twice."),
        duration("min_ns", "Shortest duration."),
        duration("max_ns", "Longest duration."),
        *GEOMETRY,
    ),
    null="Launch geometry: the trace has none.",
)

_ACCOUNT_KEYS = (
    RANK,
    STEP,
    text("phase", "forward, backward, optimizer or other."),
    text("category", "compute, comm, memory or idle."),
)

_TIMES = (
    duration("busy_ns", "Time running (union of the intervals); for idle, time in which nothing ran."),
    duration(
        "exposed_ns",
        "Busy time without an earlier category (compute, comm, memory) or an earlier started kernel of the same "
        "category running.",
    ),
    duration("overlapped_ns", "Busy time that is not exposed."),
)

INTERVALS = Table(
    "intervals",
    "one row per (rank, step, phase, category, kind, group); exposed_ns of all rows add up to the steps",
    (
        *_ACCOUNT_KEYS,
        text("kind", "Class of computation, kind of communication, direction of a copy, or the reason to idle."),
        GROUP,
        *_TIMES,
    ),
    null="As the column says.",
)

CATEGORIES = Table(
    "categories",
    "one row per (rank, step, phase, category); exposed_ns of all rows add up to the steps",
    (*_ACCOUNT_KEYS, *_TIMES),
)

COLLECTIVES = Table(
    "collectives",
    "one row per collective or point-to-point transfer of a rank",
    (
        RANK,
        Column("step", "int", "1", "Step in which it starts; null between steps.", True, 0),
        text("kind", "all_reduce, all_gather, send_recv, ..."),
        GROUP,
        text("group_name", "Name of the process group in the trace; null where it has none.", True),
        Column("peer", "int", "1", "The other rank of a point-to-point transfer; null where not recorded.", True, 0),
        count("sequence", "Number, from 0, among the rank's operations of this kind, group and (if any) peer."),
        count("num_ranks", "Size of the process group.", True),
        text("ranks", "Global ranks of the process group, comma separated.", True),
        duration("t_start_ns", "Start since 1970, on the common clock of the ranks."),
        duration("duration_ns", "Duration on this rank, including the wait for others."),
        duration("exposed_ns", "Part with neither computation nor an earlier started communication running."),
        amount("size_bytes", "byte", "Size as in nccl-tests; for a gather, that of the gathered buffer."),
        amount(
            "algorithm_bandwidth_bytes_per_s", "byte/s", "Size over the time from the last rank's start to the end."
        ),
        amount(
            "bus_bandwidth_bytes_per_s",
            "byte/s",
            "Algorithm bandwidth times the bytes that each link carries per byte of the size.",
        ),
        count("num_seen", "Ranks whose trace has this collective; null if they cannot be matched.", True),
        duration("arrival_lag_ns", "Start relative to the first rank's.", True),
        duration("waited_ns", "Time from this rank's start until the last rank's.", True),
        count("last_rank", "Rank that started last.", True),
    ),
    null="The trace does not record it, or the other ranks were not traced.",
)

SEGMENTS = Table(
    "segments",
    "one row per segment of a rank's time with one label, by time; intermediate result of the trace analysis",
    (
        duration("t_start_ns", "Start since 1970, on the rank's clock."),
        duration("duration_ns", "Duration."),
        count("label", "Index of the label in the rank's summary."),
    ),
)

TIMELINE = Table(
    "timeline",
    "one row per drawn span of the first profiled step",
    (
        RANK,
        text("lane", "phase (scheduled work of the rank), compute, comm or memory."),
        text("label", "forward, backward, optimizer; class of computation, kind of communication or copy."),
        text("group", "Process group of communication; null otherwise or where not known.", True),
        Column("stage", "int", "1", "Pipeline stage of a phase.", True, 0),
        Column("microbatch", "int", "1", "Micro-batch of a phase.", True, 0),
        duration("t_start_ns", "Start since the step began on the earliest rank."),
        duration("duration_ns", "Duration."),
    ),
    null="The span is not a phase.",
)


RANKS = Table(
    "ranks",
    "one row per rank",
    (
        RANK,
        count(
            "clock_reference", "Reference rank of the clock offset; null if no collective joins it to another.", True
        ),
        Column("clock_offset_ns", "int", "ns", "Offset subtracted from its times, mid-trace; 0 if within uncertainty."),
        Column("clock_drift_ppm", "float", "ppm", "Growth of the offset; 0 if within its uncertainty."),
        Column("clock_measured_ns", "int", "ns", "Measured offset, applied or not; null without a reference.", True),
        duration(
            "clock_spread_ns",
            "Robust standard deviation of the offset in single collectives; null without a reference.",
            True,
        ),
        count("num_matched", "Collectives that the offset is from."),
        count("num_collectives", "Collectives with a known order of arrival."),
        ratio("share_last", "Share of those collectives in which it arrived last; null without any."),
        duration(
            "lateness_ns",
            "Median time after the first rank in the collectives in which it arrived last; null without any.",
            True,
        ),
        duration("waited_ns", "Time it waited for the last rank, sum over all collectives."),
        duration(
            "bubble_ns",
            "Time it only waited inside pipeline communication: a kernel ran, without computation or data transfer.",
        ),
        duration("straggler_ns", "Time it only waited inside other communication."),
        duration("compute_ns", "Computation per step, median over steps; null without steps.", True),
        Column("compute_excess", "float", "1", "Computation over its peers' median, less 1; null under 3 peers.", True),
        Column("z_score", "float", "1", "Modified z-score of the excess; null under 3 peers.", True),
        Column(
            "is_straggler", "bool", "1", "Whether z_score > 3.5, excess >= 2 %, and last more often than by chance."
        ),
    ),
    null="As the column says.",
)

CRITICAL_PATH = Table(
    "critical_path",
    "one row per (step, rank, category, kind, group); durations sum to the step, earliest start to latest end",
    (
        STEP,
        RANK,
        text("category", "compute, comm, memory or idle."),
        text("kind", "As in the rank's breakdown; `before` for the time before the rank's own start of the step."),
        text("group", "Process group of a collective (tp, pp, dp, ep); null otherwise or where not known.", True),
        duration("duration_ns", "Time of the step's critical path."),
        count("num_jumps", "Changes of rank along the step's path; the same in all rows of a step."),
    ),
    null="As the column says.",
)
