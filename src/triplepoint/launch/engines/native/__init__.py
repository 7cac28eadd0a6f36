"""The native engine: training and inference with torch alone, the same code on CPU, CUDA and ROCm."""

from typing import Any

from triplepoint.config.point import Point
from triplepoint.config.rules import Rule
from triplepoint.launch.engines import RankContext, StepRecorder, check_expert_biases, check_features, check_vocabulary


def train(point: Point, context: RankContext, recorder: StepRecorder) -> dict[str, Any]:
    """Train this rank's part of `point`; see `Engine.train`."""
    from triplepoint.launch.engines.native.trainer import run

    return run(point, context, recorder)


def _check_basics(point: Point) -> str | None:
    if point.layout.cp > 1:
        return f"the native engine has no context parallelism (cp: {point.layout.cp}); set cp: 1"
    if point.precision in ("fp8", "fp16"):
        return f"the native engine trains in bf16 or fp32, not {point.precision}; set precision: bf16"
    if "tp" in point.overlap:
        return "torch does not overlap tensor parallel collectives outside the compiler; remove tp from overlap"
    return None


def _check_pipeline(point: Point) -> str | None:
    if point.layout.pp == 1:
        return None
    if point.model.tie_embeddings:
        return "tied embeddings would lie on two pipeline stages; set tie_embeddings: false or pp: 1"
    # Inference uses no schedule: every rank has one stage and only forward passes.
    return None if point.task == "inference" else _check_schedule(point)


def _check_schedule(point: Point) -> str | None:
    layout, num_microbatches = point.layout, point.num_microbatches
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
    if layout.schedule == "1f1b" and num_microbatches < layout.pp:
        return (
            f"1f1b needs as many micro-batches as stages, {layout.pp}, and has {num_microbatches}; raise "
            "global_batch_size"
        )
    if layout.schedule == "zero_bubble":
        rounds = max(1, num_microbatches // layout.pp)
        if num_microbatches % rounds:
            return (
                f"zero_bubble cannot spread {num_microbatches} micro-batches over {rounds} rounds; use a multiple of pp"
            )
    return None


def _check_task(point: Point) -> str | None:
    if point.task == "lora" and point.layout.schedule == "zero_bubble":
        return "zero_bubble takes weight gradients apart, and a frozen model has none; set schedule: interleaved_1f1b"
    return None


def _check_experts(point: Point) -> str | None:
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


LIMITS: tuple[Rule, ...] = (
    check_features,
    _check_basics,
    check_vocabulary,
    _check_pipeline,
    _check_task,
    check_expert_biases,
    _check_experts,
)
