"""The Megatron engine: Megatron-Core's layers, schedules, gradient buffers and optimizer.

With a GPU and Transformer Engine its kernels are used; without, Megatron's own modules. On a CPU, over gloo, the same
code runs behind a few stand-ins for CUDA calls (`cpu.py`). This module stays light: Megatron is imported in the ranks.
"""

import importlib.util
from typing import Any

from triplepoint.config.point import Point
from triplepoint.errors import UserError
from triplepoint.launch.context import RankContext, StepRecorder
from triplepoint.launch.engines.checks import check_experts, check_features, check_tensor_parallel


def unsupported(point: Point) -> str | None:
    """Return why this engine cannot run `point`, in one sentence with the remedy, or None."""
    checks = (check_features, _numbers, check_tensor_parallel, _pipeline, check_experts, _experts, _lora, _without_gpu)
    for check in checks:
        if reason := check(point):
            return reason
    return None


def train(point: Point, context: RankContext, recorder: StepRecorder) -> dict[str, Any]:
    """Train `point` in this rank; see `native.train`.

    Raises:
        UserError: If Megatron-Core is not installed here.
    """
    if not is_installed():
        raise UserError(
            "engine megatron needs megatron-core, which is not installed; pip install triplepoint[megatron], "
            "or set engine: native"
        )
    from triplepoint.launch.engines.megatron.run import run

    return run(point, context, recorder)


def is_installed() -> bool:
    """Return whether Megatron-Core can be imported here."""
    try:
        return importlib.util.find_spec("megatron.core") is not None
    except ModuleNotFoundError:
        return False


def _numbers(point: Point) -> str | None:
    if "param" in point.overlap and (point.layout.data_parallel_sharding == "no_shard" or point.layout.dp == 1):
        return "overlap param gathers what the distributed optimizer has shared out; set data_parallel_sharding: optim"
    return None


def _pipeline(point: Point) -> str | None:
    layout = point.layout
    if layout.pp == 1:
        return None if layout.vp == 1 else f"vp: {layout.vp} needs a pipeline; set vp: 1 or pp above 1"
    if layout.schedule not in ("1f1b", "interleaved_1f1b"):
        return f"Megatron-Core has no schedule {layout.schedule}; set schedule: 1f1b, or engine: native"
    if not layout.pipeline_layers and point.model.num_layers % (layout.pp * layout.vp):
        return (
            f"{point.model.num_layers} layers do not split over {layout.pp * layout.vp} stages (pp*vp); "
            "choose degrees that divide them, or give pipeline_layers"
        )
    if layout.vp > 1 and point.num_microbatches % layout.pp:
        return (
            f"interleaved_1f1b takes micro-batches in rounds of pp: {layout.pp}, and {point.num_microbatches} are no "
            "whole number of rounds; change global_batch_size or micro_batch_size"
        )
    return None


def _experts(point: Point) -> str | None:
    if point.model.moe is not None and point.layout.tp > 1 and not point.layout.sequence_parallel:
        return "Megatron-Core trains experts with tensor parallelism only if sequences are split; set sequence_parallel"
    return None


def _lora(point: Point) -> str | None:
    if point.lora is None:
        return None
    if point.layout.dp > 1 and point.layout.data_parallel_sharding in ("optim_grads", "optim_grads_params"):
        return (
            "Megatron-FSDP keeps no frozen parameters apart from trained ones here; set data_parallel_sharding: optim, "
            "or engine: native or deepspeed"
        )
    if "tp" in point.overlap:
        return "overlap tp is not set up for frozen weights; remove tp from overlap"
    return None


def _without_gpu(point: Point) -> str | None:
    if point.cluster.device != "cpu":
        return None
    if point.precision in ("fp8", "fp16"):
        return f"precision {point.precision} needs a GPU; set precision: bf16 or fp32"
    if point.layout.cp > 1:
        return f"context parallelism needs Transformer Engine and so a GPU (cp: {point.layout.cp}); set cp: 1"
    if point.layout.dp > 1 and point.layout.data_parallel_sharding in ("optim_grads", "optim_grads_params"):
        return (
            f"data_parallel_sharding {point.layout.data_parallel_sharding} is Megatron-FSDP's, which needs a GPU; set "
            "data_parallel_sharding: optim, or engine: native"
        )
    if "tp" in point.overlap:
        return "overlap tp needs Transformer Engine's user buffers and so a GPU; remove tp from overlap"
    return None
