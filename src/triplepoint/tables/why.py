"""Table `why`: cost and cause of the slow GPUs of a job."""

from triplepoint.tables.schema import Column, Table, amount, count, ratio, text

WHY = Table(
    "why",
    "one row per (rank, cause) of a job, most costly first",
    (
        count("rank", "Global rank; in a recorded tensor parallel group, the rank whose sensors show it to be slow."),
        text("gpu", "The GPU in words."),
        text(
            "cause",
            "degraded (power brake or hardware slowdown), power limit, heat, contact, contact or air, network, launch, "
            "data, layers (uneven split) or computation.",
        ),
        amount("lost_s", "s", "Time that the cause costs per step.", False),
        ratio("lost_share", "`lost_s` over the step time."),
        amount("lost_gpu_hours_per_day", "h", "GPU hours that the whole job loses to the cause per day.", False),
        amount("lost_energy_per_day_j", "J", "Energy of all GPUs of the job in that time; null without their power."),
        text("evidence", "Measured values of the GPU and of its peers."),
        text("advice", "Recommended action."),
        Column(
            "is_bound", "bool", "1", "Whether the cost is an upper bound: the clock is known, the compute time not."
        ),
    ),
    null="Not measured.",
)
