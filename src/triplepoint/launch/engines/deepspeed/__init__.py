"""The DeepSpeed engine: ZeRO 0 to 3 with or without offload, or DeepSpeed's pipeline, on the native engine's layers.

DeepSpeed has no layers of its own for training: it wraps a torch model. The layers are those of the native engine;
data parallelism, pipeline, recomputation and offload are DeepSpeed's. On CPU the same code runs over gloo.
"""

import importlib.util
from typing import Any

from triplepoint.config.point import Point
from triplepoint.config.rules import Rule
from triplepoint.errors import UserError
from triplepoint.launch.engines import RankContext, StepRecorder, check_features
from triplepoint.launch.engines.deepspeed.settings import zero_stage


def train(point: Point, context: RankContext, recorder: StepRecorder) -> dict[str, Any]:
    """Train this rank's part of `point`; see `Engine.train`.

    Raises:
        UserError: If DeepSpeed is not installed here.
    """
    if not is_installed():
        raise UserError(
            "engine deepspeed needs deepspeed, which is not installed; pip install deepspeed, or set engine: native"
        )
    from triplepoint.launch.engines.deepspeed.trainer import run

    return run(point, context, recorder)


def is_installed() -> bool:
    """Return whether DeepSpeed can be imported here."""
    return importlib.util.find_spec("deepspeed") is not None


def _check_degrees(point: Point) -> str | None:
    layout = point.layout
    if layout.tp > 1:
        return f"the deepspeed engine splits no matrices (tp: {layout.tp}); set tp: 1, or engine: megatron or native"
    if layout.cp > 1:
        return f"the deepspeed engine has no context parallelism (cp: {layout.cp}); set cp: 1, or engine: megatron"
    if layout.ep > 1:
        return f"the deepspeed engine keeps experts whole (ep: {layout.ep}); set ep: 1, or engine: megatron or native"
    return None


def _check_basics(point: Point) -> str | None:
    if point.precision == "fp8":
        return "DeepSpeed has no fp8; set precision: bf16, or engine: megatron"
    if point.precision == "fp16" and point.cluster.device == "cpu":
        return "precision fp16 needs a GPU; set precision: bf16 or fp32"
    if point.samples == "padded":
        return "the deepspeed engine trains on packed samples; set samples: packed, or engine: native"
    if point.recompute == "selective":
        return "DeepSpeed recomputes whole layers; set recompute: full, or engine: native or megatron"
    return None


def _check_pipeline(point: Point) -> str | None:
    layout = point.layout
    if layout.pp == 1:
        return None
    if layout.vp > 1:
        return f"DeepSpeed's pipeline has one stage per rank (vp: {layout.vp}); set vp: 1, or engine: megatron"
    if layout.schedule != "1f1b":
        return f"DeepSpeed has no schedule {layout.schedule}; set schedule: 1f1b, or engine: native"
    if zero_stage(point) > 1:
        return (
            f"DeepSpeed's pipeline shards the optimizer at most, not {layout.data_parallel_sharding}; set "
            "data_parallel_sharding: optim, or engine: native"
        )
    return None


def _check_overlap(point: Point) -> str | None:
    stage, overlap = zero_stage(point), point.overlap
    if "tp" in overlap:
        return "the deepspeed engine has no tensor parallelism to overlap; remove tp from overlap, or engine: megatron"
    if "grad" in overlap and (stage == 0 or point.layout.pp > 1):
        where = "pipeline" if point.layout.pp > 1 else "plain data parallelism"
        return (
            f"DeepSpeed's {where} reduces gradients after the backward pass, not during it; remove grad from overlap, "
            "or engine: native"
        )
    if "param" in overlap and stage != 3:
        return (
            f"ZeRO-{stage} gathers parameters after the optimizer's step, overlapped with nothing; remove param from "
            "overlap, or engine: megatron"
        )
    return None


def _check_offload(point: Point) -> str | None:
    stage, offload = zero_stage(point), point.offload
    if "activations" in offload:
        return "DeepSpeed offloads no activations here; remove activations from offload, or engine: simulated"
    if offload and stage == 0:
        return "DeepSpeed offloads what ZeRO shards; set data_parallel_sharding: optim, or offload: []"
    if "params" in offload and stage != 3:
        return (
            f"DeepSpeed offloads parameters under ZeRO-3 alone, this is ZeRO-{stage}; set data_parallel_sharding: "
            "optim_grads_params, or offload: [optim]"
        )
    return None


LIMITS: tuple[Rule, ...] = (
    check_features,
    _check_degrees,
    _check_basics,
    _check_pipeline,
    _check_overlap,
    _check_offload,
)
