"""Table `projection`: step time, power and goodput of a training job on more GPUs, by network."""

from triplepoint.tables.schema import Column, Table, amount, count, text


def _with_interval(name: str, unit: str, about: str) -> tuple[Column, ...]:
    """Return the columns of a quantity and of the ends of its 90 % interval."""
    lo, hi = "Lower end of its 90 % interval.", "Upper end of that interval."
    return amount(name, unit, about), amount(f"{name}_lo", unit, lo), amount(f"{name}_hi", unit, hi)


PROJECTION = Table(
    "projection",
    "one row per (model, network, num_gpus)",
    (
        text("model", "Model of the job."),
        text("run", "Run id of the point that is scaled."),
        text("cluster", "Cluster with the kind of node that is scaled."),
        text("network", "Adapters of a node, their bandwidth, and the switches."),
        text("topology", "fat_tree, rail_optimised or dragonfly; null where the cluster names none.", True),
        amount("oversubscription", "1", "Bandwidth into a leaf switch, or a dragonfly group, over that out of it."),
        count("num_gpus", "GPUs; the first row of a network has those of the point."),
        count("start_gpus", "GPUs of the point."),
        count("global_batch_size", "Sequences of a step."),
        *_with_interval("step_time_s", "s", "Step time with the spread of parts: the median over draws."),
        *_with_interval("efficiency", "1", "Tokens per second and GPU over those of the point on the same network."),
        *_with_interval("tokens_per_s", "token/s", "Throughput of all GPUs, without failures."),
        *_with_interval("power_w", "W", "Power of all nodes at the plug, which is also their heat."),
        *_with_interval("node_energy_per_token_j", "J/token", "Energy of all nodes at the plug per token."),
        *_with_interval("gpu_temp_max_c", "degC", "Temperature of the hottest GPU."),
        *_with_interval("slowest_gpu_fraction", "1", "Compute time of the slowest GPU over the median one's, less 1."),
        *_with_interval("mttf_s", "s", "Mean time to failure of the job."),
        *_with_interval("checkpoint_every_s", "s", "Checkpoint interval with the highest goodput."),
        *_with_interval("goodput", "1", "Share of the time spent on work that is kept."),
        *_with_interval("kept_tokens_per_s", "token/s", "Tokens per second times goodput."),
        *_with_interval("step_time_over_first", "1", "Step time over that of the same size on the first network."),
        amount("exposed_comm_s", "s", "Communication of a step that no computation overlaps."),
        text("bottleneck", "Largest part of a step.", True),
        text("note", "Facts that are unknown or undecided in the prediction; null for none.", True),
        text("stack", "Simulated software, framework and version."),
        text("git_commit", "Commit of the project that simulated; null if unknown.", True),
        text("origin", "simulated."),
    ),
    null="Power and heat of the GPU type are not known, or see the column.",
)
