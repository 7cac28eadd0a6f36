"""Limits that several engines share, asked through `config.rules.refusal` after the rules of all engines."""

from triplepoint.config.point import Point
from triplepoint.launch.engines.vocabulary import padded_vocab_size


def check_features(point: Point) -> str | None:
    """The point asks only for what the launched engines have."""
    if point.engine != "native" and point.task == "inference":
        return f"the {point.engine} engine has no task: inference; set engine: native or simulated"
    if point.model.position_embedding == "alibi":
        return f"the {point.engine} engine has no ALiBi ({point.model.name}); choose another model or engine: simulated"
    sections = [section for section in (point.model, point.model.moe) if section]
    for section in sections:
        for key in sorted(section.features):
            if getattr(section, key) != type(section).model_fields[key].default:
                return (
                    f"the {point.engine} engine has no {key} ({point.model.name}); choose another model or "
                    "engine: simulated"
                )
    return None


def check_vocabulary(point: Point) -> str | None:
    """Rows of the embedding split over tp."""
    model, tp = point.model, point.layout.tp
    rows = padded_vocab_size(model.vocab_size)
    if rows % tp:
        return f"padded vocab_size {rows} of {model.name} does not split over tp: {tp}; choose a tp that divides it"
    return None


def check_expert_biases(point: Point) -> str | None:
    """Experts that are split over tp have no biases: each part would add its own."""
    if point.model.moe is None or not point.model.add_bias or point.layout.expert_tp == 1:
        return None
    instead = "tp: 1" if point.task == "inference" else "etp: 1"
    return f"experts with biases are not split over tp; set add_bias: false, or {instead}"
