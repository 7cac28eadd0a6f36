"""Colours, hatches and markers of concepts, the same in every figure and in the report. It needs no matplotlib."""

from collections.abc import Mapping
from typing import NamedTuple

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
"""Eight colours that people with the common colour deficiencies can distinguish.

Source:
    Okabe and Ito 2008, Color Universal Design, https://jfly.uni-koeln.de/color/
"""
BROWN, TAN, NAVY = "#7f4f24", "#c09a6b", "#26326e"
GREY, MIDDLE, PALE, FAINT = "#6b6b6b", "#999999", "#c8c8c8", "#ececec"


class Mark(NamedTuple):
    """Look of a concept: its name in legends, colour, hatch of areas and marker of points."""

    name: str
    colour: str
    hatch: str = ""
    marker: str = "o"


TENSOR_PARALLEL: Mapping[int, Mark] = {
    1: Mark("TP1", ORANGE, "", "o"),
    2: Mark("TP2", SKY, "", "s"),
    4: Mark("TP4", BLUE, "", "^"),
    8: Mark("TP8", NAVY, "", "D"),
    16: Mark("TP16", PURPLE, "", "v"),
}
"""Layouts by degree of tensor parallelism."""
SHARDED_HATCH, SHARDED_MARKER = "//////", "X"
"""Hatch and marker of fully sharded layouts (FSDP); the colour is that of their degree of tensor parallelism."""

KERNEL_CLASSES: Mapping[str, Mark] = {
    "gemm": Mark("GEMM", BLUE),
    "attention": Mark("attention", SKY),
    "elementwise": Mark("element-wise", YELLOW),
    "norm": Mark("normalisation", GREEN),
    "moe": Mark("experts", PURPLE),
    "embedding": Mark("embedding", BROWN),
    "loss": Mark("loss", ORANGE),
    "optimizer": Mark("optimizer", NAVY),
    "conv": Mark("convolution", TAN),
    "memory": Mark("copies", GREY),
    "other": Mark("other computation", PALE),
}
"""Computation by class of kernel, in the order of a stack."""

COMMUNICATION: Mapping[str, Mark] = {
    "all_reduce": Mark("all-reduce", VERMILION, "//////"),
    "all_gather": Mark("all-gather", YELLOW, "//////"),
    "reduce_scatter": Mark("reduce-scatter", PURPLE, "//////"),
    "all_to_all": Mark("all-to-all", BLACK, "//////"),
    "send_recv": Mark("send, receive", TAN, "//////"),
    "send": Mark("send, receive", TAN, "//////"),
    "recv": Mark("send, receive", TAN, "//////"),
    "other": Mark("other communication", GREY, "//////"),
}
"""Communication by kind; its hatch distinguishes it from computation without colour."""

PHASES: Mapping[str, Mark] = {
    "forward": Mark("forward", SKY),
    "backward": Mark("backward", BLUE),
    "backward_weight": Mark("backward of weights", ORANGE),
    "optimizer": Mark("optimizer", GREEN),
    "grad_sync": Mark("gradient reduction", YELLOW),
    "other": Mark("other", PALE),
}
"""Phases of a step."""

STEP_PARTS: Mapping[str, Mark] = {
    "compute": Mark("computation", BLUE),
    "exposed_comm": Mark("exposed communication", VERMILION, "//////"),
    "exposed_memory": Mark("exposed copies", YELLOW),
    "idle": Mark("idle", FAINT),
}
"""Parts of a profiled step, in the order of a stack."""

OVERLAPPED = Mark("overlapped communication", MIDDLE, r"\\\\\\")
"""Communication that runs at the same time as other kernels, on top of a stack of exposed times."""

OPTIMIZATIONS: Mapping[str, Mark] = {
    "base": Mark("neither", GREY, "", "o"),
    "overlap": Mark("overlap", ORANGE, "", "s"),
    "recompute": Mark("recomputation", BLUE, "", "^"),
    "both": Mark("both", VERMILION, "", "D"),
}
"""Points by the optimisations that are on."""

CAUSES: Mapping[str, Mark] = {
    "power_cap": Mark("power limit", VERMILION),
    "sw_thermal": Mark("heat (driver)", NAVY),
    "hw_thermal": Mark("heat (hardware)", TAN, "xxxxxx"),
    "power_brake": Mark("power brake", SKY, "//////"),
    "sync_boost": Mark("other GPUs", YELLOW),
}
"""Causes of throttling."""

GPU_TYPES: Mapping[str, Mark] = {
    "h200": Mark("H200", BLUE, "", "o"),
    "h100": Mark("H100", ORANGE, "", "s"),
    "mi250": Mark("MI250", BROWN, "//////", "^"),
    "cpu": Mark("CPU", MIDDLE, "", "D"),
}
"""Clusters by type of their GPUs."""

MODEL_SIZES: Mapping[str, Mark] = {
    "whole": Mark("whole model", BLUE),
    "30b": Mark("scaled down to 30B", ORANGE, "//////", "s"),
}
"""Full models and their scaled-down versions."""

TASKS: Mapping[str, Mark] = {"pretrain": Mark("all weights", BLUE), "lora": Mark("LoRA", ORANGE, "//////", "s")}
"""Tasks of training."""

ORIGINS: Mapping[str, Mark] = {
    "measured": Mark("measured", BLACK, "", "o"),
    "simulated": Mark("simulated", VERMILION, "//////", "o"),
    "published": Mark("published", BLACK, "", "D"),
}
"""Origins of numbers; published ones are hollow diamonds."""

VERDICTS: Mapping[str, Mark] = {
    "agrees": Mark("agrees", BLUE, "", "o"),
    "cannot tell": Mark("cannot tell", PALE, "", "s"),
    "differs": Mark("differs", VERMILION, "xxxxxx", "X"),
    "finding": Mark("finding", YELLOW, "//////", "D"),
}
"""Verdicts on published claims."""

LIMIT = Mark("limit", BLACK)
"""Limits: power, the temperature from which clocks are throttled, and memory."""

QUANTITIES: Mapping[str, str] = {
    "time": BLUE,
    "power": VERMILION,
    "temperature": PURPLE,
    "clock": GREEN,
    "energy": ORANGE,
    "memory": NAVY,
    "utilisation": BLUE,
}
"""Colours of quantities, for panels that show one quantity and no other concept."""

DEVICES = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY)
"""Colours of the lines of single devices, which stand for no concept."""

FAMILIES: Mapping[str, tuple[Mark, ...]] = {
    "tensor parallelism": tuple(TENSOR_PARALLEL.values()),
    "kernel classes": tuple(KERNEL_CLASSES.values()),
    "communication": tuple(mark for kind, mark in COMMUNICATION.items() if kind not in ("send", "recv")),
    "phases": tuple(PHASES.values()),
    "parts of a step": tuple(STEP_PARTS.values()),
    "optimisations": tuple(OPTIMIZATIONS.values()),
    "causes": tuple(CAUSES.values()),
    "GPU types": tuple(GPU_TYPES.values()),
    "verdicts": tuple(VERDICTS.values()),
    "sizes of a model": tuple(MODEL_SIZES.values()),
    "tasks": tuple(TASKS.values()),
}
"""Marks that occur next to each other, in that order; a test checks that neighbours can be distinguished."""

DARK: Mapping[str, str] = {BLACK: "#f2f2f2", BROWN: "#b5824f", BLUE: "#2b8fcc", NAVY: "#8f9ce6", FAINT: "#3a3a3a"}
"""Replacements on a dark background of colours that are hard to see there."""


def on_grounds(colour: str) -> tuple[str, str]:
    """Return a colour for a light background and its counterpart for a dark one."""
    return colour, DARK.get(colour, colour)


def of_layout(tp: int, is_sharded: bool) -> Mark:
    """Return the mark of a layout.

    Args:
        tp: Degree of tensor parallelism.
        is_sharded: Whether parameters are sharded over data-parallel ranks (FSDP).
    """
    mark = TENSOR_PARALLEL.get(tp, Mark(f"TP{tp}", GREY, "", "P"))
    return mark._replace(hatch=SHARDED_HATCH, marker=SHARDED_MARKER) if is_sharded else mark
