"""Advice as text: hardware first, then placement, with what to type."""

from collections.abc import Mapping, Sequence
from typing import Any

from triplepoint.advise.passport import Passport
from triplepoint.advise.passport_file import Drift
from triplepoint.advise.placement import Placement
from triplepoint.advise.recommend import Advice

_LISTED = 8


def render(advice: Advice, drift: Sequence[Drift]) -> str:
    """Return the advice in lines for a person."""
    return "\n".join([*_shared(advice.passport), *_hardware(advice), *_drift(drift), *_placement(advice)])


def content(advice: Advice, drift: Sequence[Drift]) -> dict[str, Any]:
    """Return the advice as keys of a JSON object."""
    return {
        "passport": advice.passport.model_dump(),
        "outliers": [one.__dict__ for one in advice.outliers],
        "drift": [
            {"slot": one.slot.name, "host": one.slot.host}
            | {"change": one.change, "change_lo": one.lo, "change_hi": one.hi}
            | {"since": one.since, "is_other_gpu": one.is_other_gpu}
            for one in drift
        ],
        "step_time_s": advice.measured_s,
        "predicted_step_time_s": advice.before.step_time_s,
        "proposed_step_time_s": advice.after.step_time_s if advice.after else None,
        "is_accepted": advice.is_accepted,
        "gain": None if advice.gain is None else advice.gain.share,
        "gain_lo": None if advice.gain is None else advice.gain.lo,
        "gain_hi": None if advice.gain is None else advice.gain.hi,
        "hosts": None if advice.proposed is None else hosts_in_order(advice, advice.proposed),
        "pipeline_layers": None if advice.proposed is None else list(advice.proposed.layers),
        "megatron_layout": None if advice.proposed is None else megatron_layout(advice.proposed.layers),
        "reasons": advice.reasons,
    }


def hosts_in_order(advice: Advice, placement: Placement) -> list[str]:
    """Return hosts in the order in which ranks fill them."""
    return [advice.hosts[node] for node in placement.nodes]


def megatron_layout(layers: Sequence[int]) -> str | None:
    """Return stages as Megatron-LM's `--pipeline-model-parallel-layout` has them: E embedding, t a layer, L loss.

    None where layers of stages are left as they are.

    Source:
        NVIDIA/Megatron-LM, megatron/core/transformer/pipeline_parallel_layer_layout.py.
    """
    if not layers:
        return None
    stages = [f"t*{number}" if number else "" for number in layers]
    return "|".join(["E" + stages[0], *stages[1:]]) + "L"


def _shared(passport: Passport) -> list[str]:
    lines = [f"{passport.cluster}, by run {passport.run}: {len(passport.slots)} GPUs"]
    for name, one in passport.shared.items():
        unit = "of full flow" if name == "least_flow" else one.unit
        lines.append(f"  {name}: {one.value:.3g} {unit}, 90 % {one.lo:.3g} to {one.hi:.3g}")
    own = [slot.resistance.value for slot in passport.slots]
    lines.append(f"  resistance of slots, die over air: {min(own):.3f} to {max(own):.3f} K/W")
    return lines


def _hardware(advice: Advice) -> list[str]:
    if not advice.outliers:
        return ["hardware: no GPU or node stands out"]
    lines = ["hardware first:"]
    for one in advice.outliers[:_LISTED]:
        cost = "" if one.cost_s is None else f"; costs {one.cost_s:.2f} s of a step ({_share(one.cost_s, advice):.1%})"
        lines.append(f"  {one.name} of {one.host}, {one.kind}: {one.evidence}{cost}; {one.action}")
    if len(advice.outliers) > _LISTED:
        lines.append(f"  and {len(advice.outliers) - _LISTED} more; --json lists all")
    return lines


def _share(cost_s: float, advice: Advice) -> float:
    return cost_s / advice.before.step_time_s


def _drift(drift: Sequence[Drift]) -> list[str]:
    lines = []
    for one in drift[:_LISTED]:
        other = ", with another GPU in it" if one.is_other_gpu else ""
        lines.append(
            f"drift: {one.slot.name} of {one.slot.host}: resistance {one.change:+.1%} ({one.lo:+.1%} to {one.hi:+.1%}) "
            f"against its peers since {one.since}{other}"
        )
    return lines


def _placement(advice: Advice) -> list[str]:
    lines = [f"step: measured {advice.measured_s:.2f} s, predicted {advice.before.step_time_s:.2f} s"]
    lines += [f"  {line}" for line in advice.reasons]
    if advice.gain is None or advice.proposed is None:
        return [*lines, "placement: leave it as it is"]
    gain = f"{advice.gain.share:+.1%}, 90 % {advice.gain.lo:+.1%} to {advice.gain.hi:+.1%}"
    if not advice.is_accepted:
        return [*lines, f"placement: leave it as it is; {_words(advice.proposed.layers)}: {gain}"]
    lines.append(f"placement: change it, a step saves {gain}")
    lines += [f"  {key}: {value}" for key, value in _to_type(advice, advice.proposed).items()]
    return lines


def _to_type(advice: Advice, placement: Placement) -> Mapping[str, str]:
    found = {"hosts in rank order": " ".join(hosts_in_order(advice, placement))}
    if placement.layers and placement.layers != advice.present.layers:
        found["pipeline_layers"] = str(list(placement.layers))
        found["Megatron-LM"] = f"--pipeline-model-parallel-layout '{megatron_layout(placement.layers)}'"
    return found


def _words(layers: Sequence[int]) -> str:
    return f"{', '.join(map(str, layers))} layers" if layers else "other hosts"
