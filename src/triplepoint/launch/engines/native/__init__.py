"""The native engine: training with torch alone, the same code on CPU, CUDA and ROCm.

This module stays light: torch is imported only when a rank starts to train.
"""

from typing import Any

from triplepoint.config.point import Point
from triplepoint.launch.context import RankContext, StepRecorder
from triplepoint.launch.engines.vocabulary import padded_vocab_size

STAGES_PER_RANK_SCHEDULES = ("interleaved_1f1b", "zero_bubble")
"""Schedules that take more than one stage per rank."""


def unsupported(point: Point) -> str | None:
    """Return why this engine cannot run `point`, in one sentence with the remedy, or None."""
    for check in (_features, _numbers, _tensor_parallel, _pipeline, _experts):
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


def _features(point: Point) -> str | None:
    sections = [section for section in (point.model, point.model.moe) if section]
    for section in sections:
        for key in sorted(section.features):
            if getattr(section, key) != type(section).model_fields[key].default:
                return f"the native engine has no {key} ({point.model.name}); choose another model or engine: simulated"
    return None


def _numbers(point: Point) -> str | None:
    if point.layout.cp > 1:
        return f"the native engine has no context parallelism (cp: {point.layout.cp}); set cp: 1"
    if point.precision in ("fp8", "fp16"):
        return f"the native engine trains in bf16 or fp32, not {point.precision}; set precision: bf16"
    if "tp" in point.overlap:
        return "torch does not overlap tensor parallel collectives outside the compiler; remove tp from overlap"
    return None


def _tensor_parallel(point: Point) -> str | None:
    model, tp = point.model, point.layout.tp
    for name, size in (
        ("num_attention_heads", model.num_attention_heads),
        ("num_query_groups", model.num_query_groups),
        ("ffn_hidden_size", model.ffn_hidden_size),
        ("padded vocab_size", padded_vocab_size(model.vocab_size)),
    ):
        if size % tp:
            return f"{name} {size} of {model.name} does not split over tp: {tp}; choose a tp that divides it"
    if point.layout.sequence_parallel and point.sequence_length % tp:
        return f"sequence_length {point.sequence_length} does not split over tp: {tp} with sequence_parallel"
    return None


def _pipeline(point: Point) -> str | None:
    layout, stages = point.layout, point.layout.pp * point.layout.vp
    if layout.pp == 1:
        return None if layout.vp == 1 else f"vp: {layout.vp} needs a pipeline; set vp: 1 or pp above 1"
    if layout.schedule is None:
        return f"pp: {layout.pp} needs a schedule; set schedule: 1f1b"
    if layout.vp > 1 and layout.schedule not in STAGES_PER_RANK_SCHEDULES:
        return f"schedule {layout.schedule} has one stage per rank; set vp: 1 or schedule: interleaved_1f1b"
    if stages > point.model.num_layers:
        return f"{point.model.num_layers} layers do not fill {stages} stages (pp*vp); lower pp or vp"
    if point.model.tie_embeddings:
        return "tied embeddings would lie on two pipeline stages; set tie_embeddings: false or pp: 1"
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
    model, layout = point.model, point.layout
    if model.moe is None:
        return None if layout.ep == 1 else f"{model.name} has no experts; set ep: 1"
    if layout.dp % layout.ep:
        return f"expert parallel ranks are taken from the dp: {layout.dp}, which ep: {layout.ep} does not divide"
    if model.moe.num_experts % layout.ep:
        return f"num_experts {model.moe.num_experts} does not split over ep: {layout.ep}"
    if layout.ep > 1 and layout.tp > 1 and not layout.sequence_parallel:
        return "with ep and tp every rank sends its own part of the sequence; set sequence_parallel: true"
    if layout.tp > 1 and layout.ep == 1 and model.add_bias:
        return "experts with biases are not split over tp; set add_bias: false, or ep above 1"
    return None
