"""Run ids: a readable label and the beginning of the digest, made from a point alone."""

import itertools

from triplepoint.config.point import Layout, Point
from triplepoint.config.settings import Settings, usual_schedule
from triplepoint.config.task import TARGETS

USUAL_GLOBAL_BATCH_SIZE = 128
"""Left out of labels: the published study trains nearly everything with it."""

DIGEST_DIGITS = 6
"""Of the digest in a run id: enough for the points of one label. Stages compare whole digests."""
_MOST_LABEL = 180
"""Longest label. File systems take names of 255 bytes, and logs and scratch files add to them. Unit: character."""

_SHARDING = {"optim": "zero1", "optim_grads": "zero2", "optim_grads_params": "fsdp"}
_RECOMPUTE = {"full": "act", "selective": "sel"}
_USUAL_ENGINE = {"cpu": "native", "cuda": "megatron", "rocm": "megatron"}


def run_id(point: Point) -> str:
    """Return the name of a run, such as `llama3-70b_h200x32_tp4-pp4-dp2_mbs1_act_r1_3f9a01`: label and digest.

    The digest makes the name that of one point only. A changed point is another run beside the first, whose results
    are kept, and found again when the change is taken back.
    """
    return f"{run_label(point)[:_MOST_LABEL]}_{point.digest()[:DIGEST_DIGITS]}"


def run_label(point: Point) -> str:
    """Return the label of a point, such as `llama3-70b_h200x32_tp4-pp4-dp2-sp-zero1_mbs1_act_r1`.

    Model, cluster, layout, micro-batch size and repeat are always there. What is as usual is left out: global batch
    size 128, the model's sequence length, pretraining, packed samples, an even split of the layers, no recomputation,
    no overlap, no offload, bf16, the default seed, and the usual engine of the device (native on cpu, megatron on
    GPUs). A label is not parsed: facts are in `point.json`.
    """
    batch, length = point.global_batch_size, point.sequence_length
    parts = [
        point.model.name,
        point.cluster.name,
        layout_label(point.layout),
        _schedule(point.layout),
        f"mbs{point.micro_batch_size}",
        f"gbs{batch}" if batch != USUAL_GLOBAL_BATCH_SIZE else "",
        f"seq{length}" if length != point.model.sequence_length and point.inference is None else "",
        _task(point),
        "padded" if point.samples == "padded" else "",
        f"{_RECOMPUTE.get(point.recompute, '')}{point.recompute_layers or ''}",
        "-".join(["cc", *point.overlap]) if point.overlap else "",
        "-".join(["off", *point.offload]) if point.offload else "",
        point.precision if point.precision != "bf16" else "",
        f"seed{point.seed}" if point.seed != Settings.model_fields["seed"].default else "",
        point.engine if point.engine != _USUAL_ENGINE[point.cluster.device] else "",
        f"r{point.repeat}",
    ]
    return "_".join(part for part in parts if part)


def layout_label(layout: Layout) -> str:
    """Return the degrees and switches of a layout, such as `tp2-pp2-dp8-ep8-sp-zero1`."""
    parts = [f"tp{layout.tp}", f"pp{layout.pp}", f"dp{layout.dp}"]
    parts += [f"{name}{degree}" for name in ("cp", "ep", "vp") if (degree := getattr(layout, name)) > 1]
    if layout.pipeline_layers:
        parts.append("l" + layers_label(layout.pipeline_layers))
    if layout.sequence_parallel:
        parts.append("sp")
    if layout.data_parallel_sharding in _SHARDING:
        parts.append(_SHARDING[layout.data_parallel_sharding])
    return "-".join(parts)


def layers_label(layers: tuple[int, ...]) -> str:
    """Return the layers of stages, a run of equal ones once with its length: `3.5`, `9.10x6.11`."""
    runs = [(count, len(list(found))) for count, found in itertools.groupby(layers)]
    return ".".join(f"{count}x{length}" if length > 1 else str(count) for count, length in runs)


def _task(point: Point) -> str:
    if point.lora is not None:
        targets = "" if point.lora.targets == TARGETS else "-".join(["", *point.lora.targets]).replace("linear_", "")
        return f"lora{point.lora.rank}{targets}"
    if point.inference is not None:
        return f"in{point.inference.prompt_tokens}-out{point.inference.output_tokens}"
    return ""


def _schedule(layout: Layout) -> str:
    if layout.schedule is None or layout.schedule == usual_schedule(layout.pp, layout.vp):
        return ""
    return layout.schedule.replace("_", "-")
