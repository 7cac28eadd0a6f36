"""The native engine: training with torch alone, the same code on CPU, CUDA and ROCm.

This module stays light: torch is imported only when a rank starts to train.
"""

from typing import Any

from triplepoint.config.point import Point
from triplepoint.config.rules import Rule
from triplepoint.launch.engines import RankContext, StepRecorder, check_expert_biases, check_features, check_vocabulary


def train(point: Point, context: RankContext, recorder: StepRecorder) -> dict[str, Any]:
    """Train `point` in this rank.

    Args:
        point: What is trained; allowed by the rule book and `LIMITS`.
        context: This rank's place in the gang; RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are in the environment.
        recorder: Told of every step.

    Returns:
        Facts for the manifest, each a plain value.
    """
    # The module is not called train: importing it would hide this function.
    from triplepoint.launch.engines.native.trainer import run

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
    layout = point.layout
    if layout.pp == 1:
        return None
    if point.model.tie_embeddings:
        return "tied embeddings would lie on two pipeline stages; set tie_embeddings: false or pp: 1"
    # In inference there is one way through a pipeline, and one stage on each rank.
    return None if point.task == "inference" else _schedule(point)


def _schedule(point: Point) -> str | None:
    layout = point.layout
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
    if layout.schedule == "zero_bubble":
        rounds = max(1, count // layout.pp)
        if count % rounds:
            return f"zero_bubble cannot spread {count} micro-batches over {rounds} rounds; use a multiple of pp"
    return None


def _experts(point: Point) -> str | None:
    layout = point.layout
    if point.model.moe is None:
        return None
    if layout.expert_tp not in (1, layout.tp) or layout.dp % layout.ep:
        degrees = f"etp: {layout.expert_tp}, ep: {layout.ep}"
        return (
            f"the native engine splits experts over all of tp or none, and spreads them over dp ({degrees}); set etp: "
            f"1 or {layout.tp}, and an ep that divides dp: {layout.dp}"
        )
    return None


LIMITS: tuple[Rule, ...] = (check_features, _numbers, check_vocabulary, _pipeline, _task, check_expert_biases, _experts)
"""What this engine cannot do."""
