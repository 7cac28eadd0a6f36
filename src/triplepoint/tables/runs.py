"""Tables of one run: its steps."""

from triplepoint.tables.schema import Column, Table, count, duration, text

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
        count("num_tokens", "Tokens of the global batch; in inference, tokens made."),
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
)
