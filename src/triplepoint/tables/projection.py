"""Table `projection`: what a training job would be on more GPUs, by network."""

from triplepoint.tables.schema import Column, Table, amount, count, text


def _with_ends(name: str, unit: str, about: str) -> tuple[Column, ...]:
    """Return the columns of a quantity and of the ends of its 90 % interval."""
    ends = amount(f"{name}_lo", unit, "Lower end of its 90 % interval."), amount(f"{name}_hi", unit, "Upper end.")
    return (amount(name, unit, about), *ends)


PROJECTION = Table(
    "projection",
    "one row per (model, network, num_gpus)",
    (
        text("model", "Model of the job."),
        text("run", "Run id of the point that is scaled."),
        text("cluster", "Cluster whose nodes there are more of."),
        text("network", "Adapters of a node, their speed, and the switches."),
        text("topology", "fat_tree, rail_optimised or dragonfly; null where the cluster names none.", True),
        amount("oversubscription", "1", "Bandwidth into a leaf switch, or a group, over that out of it."),
        count("num_gpus", "GPUs; the first of a network are those of the point."),
        count("start_gpus", "GPUs of the point."),
        count("global_batch_size", "Sequences of a step."),
        *_with_ends("step_time_s", "s", "Time of a step, parts differing as they do: the median over draws."),
        *_with_ends("efficiency", "1", "Tokens per second and GPU over those of the point on the same network."),
        *_with_ends("tokens_per_s", "token/s", "Of all GPUs, without failures."),
        *_with_ends("power_w", "W", "Of all nodes at the plug, which is also their heat."),
        *_with_ends("node_energy_per_token_j", "J/token", "Of all nodes at the plug."),
        *_with_ends("gpu_temp_max_c", "degC", "Hottest GPU."),
        *_with_ends("slowest_gpu_fraction", "1", "Computing time of the slowest GPU over the middle one's, less 1."),
        *_with_ends("mttf_s", "s", "Mean time to failure of the job."),
        *_with_ends("checkpoint_every_s", "s", "Work between two checkpoints at the highest goodput."),
        *_with_ends("goodput", "1", "Share of the time that goes into work that is kept."),
        *_with_ends("kept_tokens_per_s", "token/s", "Tokens per second times goodput."),
        *_with_ends("step_time_over_first", "1", "Step time over that of the same size on the first network."),
        amount("exposed_comm_s", "s", "Communication of a step that no computation hides."),
        text("bottleneck", "Largest part of a step.", True),
        text("note", "What is not known or undecided of the prediction; null where nothing.", True),
        text("stack", "Software that is simulated."),
        text("git_commit", "Commit of the project that simulated; null if unknown.", True),
        text("origin", "simulated."),
    ),
    null="Power and heat of the GPU type are not known, or see the column.",
)
