"""Table `why`: what slow GPUs of a job cost, and why they are slow."""

from triplepoint.tables.schema import Column, Table, amount, count, ratio, text

WHY = Table(
    "why",
    "one row per (rank, cause) of a job, most costly first",
    (
        count("rank", "Global rank; of a recorded tensor parallel group the one that its sensors show to be slow."),
        text("gpu", "The GPU in words."),
        text("cause", "power limit, heat, contact, network, launch, data, layers (their division) or computation."),
        amount("lost_s", "s", "What it costs of a step.", False),
        ratio("lost_share", "The same over the step's time."),
        amount("lost_gpu_hours_per_day", "h", "GPU hours that the whole job loses by it in a day.", False),
        amount("lost_energy_per_day_j", "J", "Energy that all its GPUs draw in that time; null without their power."),
        text("evidence", "What was measured, of it and of its peers."),
        text("advice", "What to do."),
        Column("is_bound", "bool", "1", "Whether it may cost less: only its clock is known, not how long it computes."),
    ),
    null="Not measured.",
)
