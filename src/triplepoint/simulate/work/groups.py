"""Process groups: which ranks a message is between."""

from math import gcd

from triplepoint.simulate.fabric import Group
from triplepoint.simulate.job import Job


def group_of(job: Job, name: str) -> Group:
    """Return a process group of a job by the name messages have.

    Ranks are numbered tp fastest, then cp, dp, pp. Experts share the ranks of a stage out anew: expert tensor parallel
    fastest, then ep, then edp.

    Args:
        job: The job.
        name: tp, cp, dp, pp; dp_cp: gradients of what all ranks of a stage have; etp, ep, edp: the same of experts;
            dp_shard and dp_copy: of dp_cp, ranks that share parameters out and those that have the same ones with
            hybrid sharding; edp_shard and edp_copy: the same of experts.

    Raises:
        ValueError: If there is no such group.

    Source:
        NVIDIA/Megatron-LM megatron/core/parallel_state.py, RankGenerator.
    """
    layout = job.layout
    split = job.expert_tp or layout.tp
    ranks = layout.tp * layout.cp * layout.dp
    groups = {
        "tp": Group(layout.tp, 1),
        "cp": Group(layout.cp, layout.tp),
        "dp": Group(layout.dp, layout.tp * layout.cp),
        "dp_cp": Group(layout.dp * layout.cp, layout.tp),
        "pp": Group(layout.pp, ranks),
        "etp": Group(split, 1),
        "ep": Group(layout.ep, split),
    }
    edp = max(1, ranks // (split * layout.ep))
    groups["edp"] = Group(edp, split * layout.ep)
    for whole, size, stride in (("dp", layout.dp * layout.cp, layout.tp), ("edp", edp, split * layout.ep)):
        copies = gcd(size, job.num_copies)
        groups[f"{whole}_shard"] = Group(size // copies, stride)
        groups[f"{whole}_copy"] = Group(copies, stride * size // copies)
    if name not in groups:
        raise ValueError(f"unknown process group {name}, expected one of {', '.join(groups)}")
    return groups[name]
