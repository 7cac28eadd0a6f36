"""What is typed to follow an advice: hosts in rank order, layers for Megatron-LM, and a script of power limits."""

from collections.abc import Sequence

from triplepoint.advise.recommend.advice import Advice
from triplepoint.advise.recommend.placement import Placement


def hosts_in_order(advice: Advice, placement: Placement) -> list[str]:
    """Return hosts in the order in which ranks fill them."""
    return [advice.hosts[node] for node in placement.nodes]


def megatron_layout(layers: Sequence[int]) -> str | None:
    """Return stages as Megatron-LM's `--pipeline-model-parallel-layout` has them: E embedding, t a layer, L loss.

    None where layers of stages are left as they are.

    Source:
        NVIDIA/Megatron-LM, megatron/core/transformer/pipeline_parallel_layer_layout.py.
    """
    if not layers:
        return None
    stages = [f"t*{number}" if number else "" for number in layers]
    return "|".join(["E" + stages[0], *stages[1:]]) + "L"


def script(advice: Advice) -> str:
    """Return a shell script that sets the recommended power limits, of which there are some; nothing runs it here.

    Where both ways are recommended it is the shorter step, else the lower power.
    """
    chosen = {one.caps.goal: one.caps for one in advice.accepted_limits}
    caps = chosen.get("move") or chosen["save"]
    lines = ["#!/bin/sh", f"# Power limits by `triplepoint recommend {advice.name}`. Run it as root on every node."]
    is_amd = advice.site.cluster.device == "rocm"
    command = "amd-smi set --gpu {} --power-cap {}" if is_amd else "nvidia-smi -i {} -pl {}"
    lines.append("# To take it back, set the limits of before.")
    if caps.spare_w:
        used_w = caps.spare_w - caps.left_over_w
        lines.append(f"# Limits of a node add up to {used_w:.0f} W more than before: lower those of its CPUs first.")
    lines.append('case "$(hostname)" in')
    for node in sorted({node for node, _ in caps.limits_w}):
        lines.append(f"'{advice.hosts[node]}')")
        own = sorted((device, limit_w) for (of, device), limit_w in caps.limits_w.items() if of == node)
        lines += [
            f"    {command.format(device, limit_w)}  # before: {caps.present_w[node, device]:.0f}"
            for device, limit_w in own
        ]
        lines.append("    ;;")
    return "\n".join([*lines, "esac", ""])
