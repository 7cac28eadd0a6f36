"""Why a point cannot run, as far as engines agree on it; each check returns one sentence with the remedy, or None."""

from triplepoint.config.point import Point
from triplepoint.launch.engines.vocabulary import padded_vocab_size


def check_features(point: Point) -> str | None:
    """Check that the point asks only for what its engine has."""
    if point.engine != "native" and point.task == "inference":
        return f"the {point.engine} engine has no task: inference; set engine: native or simulated"
    sections = [section for section in (point.model, point.model.moe) if section]
    for section in sections:
        for key in sorted(section.features):
            if getattr(section, key) != type(section).model_fields[key].default:
                return (
                    f"the {point.engine} engine has no {key} ({point.model.name}); choose another model or "
                    "engine: simulated"
                )
    return None


def check_tensor_parallel(point: Point) -> str | None:
    """Check that the matrices and the sequence split over tp."""
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


def check_experts(point: Point) -> str | None:
    """Check that the experts split over ep."""
    model, layout = point.model, point.layout
    if model.moe is None:
        return None if layout.ep == 1 else f"{model.name} has no experts; set ep: 1"
    if layout.dp % layout.ep:
        return f"expert parallel ranks are taken from the dp: {layout.dp}, which ep: {layout.ep} does not divide"
    if model.moe.num_experts % layout.ep:
        return f"num_experts {model.moe.num_experts} does not split over ep: {layout.ep}"
    return None
