"""Tables of all ranks together: their clocks, who holds whom up, and what each step's time hangs on."""

from triplepoint.tables.runs import RANK, STEP
from triplepoint.tables.schema import Column, Table, count, duration, ratio, text

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
        duration("bubble_ns", "Time of its steps in which it but waited inside a message: idle, though a kernel ran."),
        duration("straggler_ns", "The same inside other collectives."),
        duration("compute_ns", "Computation per step, median over steps; null without steps.", True),
        Column("compute_excess", "float", "1", "Computation over its peers' median, less 1; null under 3 peers.", True),
        Column("z_score", "float", "1", "Modified z-score of the excess; null under 3 peers.", True),
        Column("is_straggler", "bool", "1", "Whether z_score > 3.5, excess >= 2 %, and last more often than by turns."),
    ),
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
)
