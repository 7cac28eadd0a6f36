"""The native engine: training with torch alone, the same code on CPU, CUDA and ROCm.

This module stays light: torch is imported only when a rank starts to train.
"""

from typing import Any

from triplepoint.config.point import Point
from triplepoint.launch.context import RankContext, StepRecorder
from triplepoint.launch.engines.checks import check_experts, check_features, check_tensor_parallel

STAGES_PER_RANK_SCHEDULES = ("interleaved_1f1b", "zero_bubble")
"""Schedules that take more than one stage per rank."""


def unsupported(point: Point) -> str | None:
    """Return why this engine cannot run `point`, in one sentence with the remedy, or None."""
    for check in (check_features, _numbers, check_tensor_parallel, _pipeline, _task, check_experts, _experts):
        if reason := check(point):
            return reason
    return None


def train(point: Point, context: RankContext, recorder: StepRecorder) -> dict[str, Any]:
    """Train `point` in this rank.

    Args:
        point: What is trained; `unsupported(point)` is None.
        context: This rank's place in the gang; RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are in the environment.
        recorder: Told of every step.

    Returns:
        Facts for the manifest, each a plain value.
    """
    # The module is not called train: importing it would hide this function.
    from triplepoint.launch.engines.native.run import run

    return run(point, context, recorder)


def _numbers(point: Point) -> str | None:
    if point.layout.cp > 1:
        return f"the native engine has no context parallelism (cp: {point.layout.cp}); set cp: 1"
    if point.precision in ("fp8", "fp16"):
        return f"the native engine trains in bf16 or fp32, not {point.precision}; set precision: bf16"
    if "tp" in point.overlap:
        return "torch does not overlap tensor parallel collectives outside the compiler; remove tp from overlap"
    return None


def _pipeline(point: Point) -> str | None:
    layout, stages = point.layout, point.layout.pp * point.layout.vp
    if layout.pp == 1:
        return None if layout.vp == 1 else f"vp: {layout.vp} needs a pipeline; set vp: 1 or pp above 1"
    if stages > point.model.num_layers:
        return f"{point.model.num_layers} layers do not fill {stages} stages (pp*vp); lower pp or vp"
    if point.model.tie_embeddings:
        return "tied embeddings would lie on two pipeline stages; set tie_embeddings: false or pp: 1"
    # In inference there is one way through a pipeline, and one stage on each rank.
    return None if point.task == "inference" else _schedule(point)


def _schedule(point: Point) -> str | None:
    layout = point.layout
    if layout.schedule is None:
        return f"pp: {layout.pp} needs a schedule; set schedule: 1f1b"
    if layout.vp > 1 and layout.schedule not in STAGES_PER_RANK_SCHEDULES:
        return f"schedule {layout.schedule} has one stage per rank; set vp: 1 or schedule: interleaved_1f1b"
    if layout.schedule == "zero_bubble" and point.recompute != "none":
        return (
            "zero_bubble walks the graph twice, once for inputs and once for weights, which torch's activation "
            "recomputation does not survive; set recompute: none or schedule: interleaved_1f1b"
        )
    if layout.schedule == "zero_bubble" and layout.dp > 1 and layout.data_parallel_sharding == "optim_grads_params":
        return (
            "zero_bubble computes weight gradients when FSDP has put the gathered parameters away again, and torch "
            "then loses some without a word; set data_parallel_sharding: optim_grads or schedule: interleaved_1f1b"
        )
    return _microbatches(point)


def _task(point: Point) -> str | None:
    if point.task == "lora" and point.layout.schedule == "zero_bubble":
        return "zero_bubble takes weight gradients apart, and a frozen model has none; set schedule: interleaved_1f1b"
    return None


def _microbatches(point: Point) -> str | None:
    layout, count = point.layout, point.num_microbatches
    if layout.schedule == "1f1b" and count < layout.pp:
        return f"1f1b needs as many micro-batches as stages, {layout.pp}, and has {count}; raise global_batch_size"
    if layout.schedule in STAGES_PER_RANK_SCHEDULES:
        rounds = max(1, count // layout.pp)
        if count % rounds:
            return f"{layout.schedule} cannot spread {count} micro-batches over {rounds} rounds; use a multiple of pp"
    return None


def _experts(point: Point) -> str | None:
    layout = point.layout
    if point.model.moe is None:
        return None
    is_inference = point.task == "inference"
    if layout.ep > 1 and layout.tp > 1 and not layout.sequence_parallel and not is_inference:
        return "with ep and tp every rank sends its own part of the sequence; set sequence_parallel: true"
    if layout.tp > 1 and (layout.ep == 1 or is_inference) and point.model.add_bias:
        instead = "tp: 1" if is_inference else "ep above 1"
        return f"experts with biases are not split over tp; set add_bias: false, or {instead}"
    return None
