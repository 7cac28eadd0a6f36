"""Tables of one run: its steps, and what its traces say."""

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
        count("num_tokens", "Tokens of the global batch; in inference, tokens made; null where not known.", True),
        count("peak_memory_bytes", "Highest memory of the rank so far: allocated on a GPU, resident on cpu.", True),
        Column(
            "reserved_memory_bytes",
            "int",
            "1",
            "Highest memory torch held of the GPU so far; null on cpu.",
            True,
            0,
            came_later=True,
        ),
        Column(
            "t_first_token_ns",
            "int",
            "ns",
            "When the last sequence had its first token; null but in inference on ranks of the last stage.",
            True,
            0,
            came_later=True,
        ),
    ),
    null="Not known of this rank.",
)


GROUP = text("group", "Process group of a collective (tp, pp, dp, ep); null otherwise or where not known.", True)

GEOMETRY = (
    amount("num_blocks", "1", "Thread blocks of a launch: like the next six, mean weighted by duration."),
    amount("threads_per_block", "1", "Threads of a block."),
    amount("registers_per_thread", "1", "Registers."),
    amount("shared_memory_bytes", "byte", "Shared memory of a block."),
    amount("blocks_per_sm", "1", "Blocks of the launch over multiprocessors of the GPU."),
    amount("warps_per_sm", "1", "Warps of the launch over multiprocessors of the GPU."),
    ratio("occupancy", "Resident warps over the most a multiprocessor holds, as the profiler estimates it."),
)
"""Launch geometry of kernels; null where the trace has none."""

KERNELS = Table(
    "kernels",
    "one row per (rank, step, class, kind, group, name)",
    (
        RANK,
        Column("step", "int", "1", "Step the occurrences start in; null for those between steps.", True, 0),
        text("class", "Coarse kernel class: gemm, attention, comm, ..."),
        text("kind", "Finer kind within the class: all_reduce, forward, ..."),
        GROUP,
        text("name", "Name in the trace."),
        count("count", "Occurrences."),
        duration("sum_ns", "Summed duration; concurrent kernels count twice."),
        duration("min_ns", "Shortest."),
        duration("max_ns", "Longest."),
        *GEOMETRY,
    ),
    null="Of launch geometry: the trace has none.",
)

_ACCOUNT = (
    RANK,
    STEP,
    text("phase", "forward, backward, optimizer or other."),
    text("category", "compute, comm, memory or idle."),
)

_TIMES = (
    duration("busy_ns", "Time it was running (union of its intervals); for idle, nothing was."),
    duration("exposed_ns", "Part that counts: no earlier category ran, nor an earlier begun of its own."),
    duration("overlapped_ns", "The rest: busy - exposed."),
)

INTERVALS = Table(
    "intervals",
    "one row per (rank, step, phase, category, kind, group); exposed_ns of all rows add up to the steps",
    (
        *_ACCOUNT,
        text("kind", "Class of computation, kind of communication, direction of a copy, or the reason to idle."),
        GROUP,
        *_TIMES,
    ),
    null="As the column says.",
)

CATEGORIES = Table(
    "categories",
    "one row per (rank, step, phase, category); exposed_ns of all rows add up to the steps",
    (*_ACCOUNT, *_TIMES),
)

COLLECTIVES = Table(
    "collectives",
    "one row per collective or point-to-point transfer of a rank",
    (
        RANK,
        Column("step", "int", "1", "Step it starts in; null between steps.", True, 0),
        text("kind", "all_reduce, all_gather, send_recv, ..."),
        GROUP,
        text("group_name", "Name of the process group in the trace; null where it has none.", True),
        Column("peer", "int", "1", "The other rank of a point-to-point transfer; null where not told.", True, 0),
        count("sequence", "How many of this kind, of a transfer with this peer, the rank had in this group before."),
        count("num_ranks", "Size of the process group.", True),
        text("ranks", "Global ranks of the process group, comma separated.", True),
        duration("t_start_ns", "Start since 1970, on the common clock of the ranks."),
        duration("duration_ns", "Duration on this rank, waiting for others included."),
        duration("exposed_ns", "Part of it with neither computation nor an earlier begun communication running."),
        amount("size_bytes", "byte", "Size as nccl-tests counts it: of a gather the gathered buffer."),
        amount("algorithm_bandwidth_bytes_per_s", "byte/s", "Size over the time from the last start to the end."),
        amount("bus_bandwidth_bytes_per_s", "byte/s", "The same times what each link carries for a byte of the size."),
        count("num_seen", "Ranks whose trace has this collective; null where they cannot be told.", True),
        duration("arrival_lag_ns", "Start after the first rank's.", True),
        duration("waited_ns", "Time from its start until the last rank started.", True),
        count("last_rank", "Rank that started last.", True),
    ),
    null="The trace does not tell, or the other ranks were not traced.",
)

SEGMENTS = Table(
    "segments",
    "one row per stretch of a rank's time that counts as one label, by time; between the ranks' and the joint analysis",
    (
        duration("t_start_ns", "Start since 1970, on the rank's clock."),
        duration("duration_ns", "Duration."),
        count("label", "Number of the label in the rank's summary."),
    ),
)

TIMELINE = Table(
    "timeline",
    "one row per drawn span of the first profiled step",
    (
        RANK,
        text("lane", "phase (what the rank was told to do), compute, comm or memory."),
        text("label", "forward, backward, optimizer; class of computation, kind of communication or copy."),
        text("group", "Process group of communication; null otherwise or where not known.", True),
        Column("stage", "int", "1", "Pipeline stage of a phase.", True, 0),
        Column("microbatch", "int", "1", "Micro-batch of a phase.", True, 0),
        duration("t_start_ns", "Start since the step began on the earliest rank."),
        duration("duration_ns", "Duration."),
    ),
    null="The span is no phase.",
)


RANKS = Table(
    "ranks",
    "one row per rank",
    (
        RANK,
        count(
            "clock_reference", "Rank its clock is measured against; null where no collective ties it to another.", True
        ),
        Column("clock_offset_ns", "int", "ns", "Taken off its times, mid-trace; 0 unless beyond its uncertainty."),
        Column("clock_drift_ppm", "float", "ppm", "What the offset grows by; 0 unless beyond its uncertainty."),
        Column("clock_measured_ns", "int", "ns", "Offset as measured, applied or not; null as above.", True),
        duration(
            "clock_spread_ns", "Robust standard deviation of the offset in single collectives; null as above.", True
        ),
        count("num_matched", "Collectives behind the offset."),
        count("num_collectives", "Collectives with a known order of arrival."),
        ratio("share_last", "Share of them it came to last; null without any."),
        duration("lateness_ns", "Median time after the first rank in those it came to last; null without any.", True),
        duration("waited_ns", "Time it waited for the last rank, all collectives together."),
        duration(
            "bubble_ns",
            "Time it only waited inside communication of the pipeline: no computation, no data, though a kernel ran.",
        ),
        duration("straggler_ns", "The same inside other communication."),
        duration("compute_ns", "Computation per step, median over steps; null without steps.", True),
        Column("compute_excess", "float", "1", "Computation over its peers' median, less 1; null under 3 peers.", True),
        Column("z_score", "float", "1", "Modified z-score of the excess; null under 3 peers.", True),
        Column("is_straggler", "bool", "1", "Whether z_score > 3.5, excess >= 2 %, and last more often than by turns."),
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
        count("num_jumps", "Times the step's path goes from one rank to another; the same in all rows of a step."),
    ),
    null="As the column says.",
)
