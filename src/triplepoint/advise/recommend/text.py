"""Advice as text: the answer first, then hardware, placement, power limits, and what was learned."""

from collections.abc import Mapping, Sequence
from typing import Any

from triplepoint.advise.recommend.advice import Advice, Limits
from triplepoint.advise.recommend.hot_spots import Outlook, payback_h
from triplepoint.advise.recommend.kept_passports import Drift
from triplepoint.advise.recommend.passport import Passport
from triplepoint.advise.recommend.placement import Placement
from triplepoint.advise.recommend.placement_gain import Gain
from triplepoint.advise.recommend.power_limits import Caps
from triplepoint.units import KILO

_LISTED = 8
_SHARED = {
    "inlet_temp_c": "air at the inlet of nodes",
    "die_resistance": "resistance from die to heat sink",
    "sink_resistance": "resistance from heat sink to air, fans at full flow",
    "preheat": "warming of the air of the next row by a watt of the one before",
    "full_power": "mean power of a node's GPUs from which its fans run at full flow",
    "least_flow": "flow that its fans never go below",
}
"""What passports have of all nodes, in words."""
_GOALS = {"save": "energy of a step", "move": "step time"}
_DONE = {"save": "the same step with less power", "move": "a shorter step with the same power"}


def render(advice: Advice, drift: Sequence[Drift], restart_minutes: float) -> str:
    """Return the advice in lines for a person.

    Args:
        advice: The advice.
        drift: Slots that changed since the passport before.
        restart_minutes: What an interruption costs. Unit: min.
    """
    lines = [
        *_answer(advice, restart_minutes), *_hardware(advice), *_drift(drift), *_placement(advice),
        *_limits(advice), *_outlook(advice.outlook, restart_minutes),
    ]  # fmt: skip
    return "\n".join([*lines, *(_shared(advice.passport) if advice.passport else ())])


def content(advice: Advice, drift: Sequence[Drift], restart_minutes: float) -> dict[str, Any]:
    """Return the advice as keys of a JSON object. Arguments as of `render`."""
    return {
        "answer": headline(advice),
        "passport": advice.passport and advice.passport.model_dump(),
        "outliers": [one.__dict__ for one in advice.outliers],
        "drift": [
            {"slot": one.slot.name, "host": one.slot.host}
            | {"change": one.change, "change_lo": one.lo, "change_hi": one.hi}
            | {"since": one.since, "is_other_gpu": one.is_other_gpu}
            for one in drift
        ],
        "step_time_s": measured_s(advice),
        "predicted_step_time_s": advice.before.step_time_s,
        "proposed_step_time_s": advice.after.step_time_s if advice.after else None,
        "is_accepted": advice.is_accepted,
        **_ends("gain", advice.gain),
        "payback_h": None if advice.gain is None else payback_h(advice.gain.share, restart_minutes),
        "hosts": None if advice.proposed is None else hosts_in_order(advice, advice.proposed),
        "micro_batch_size": None if advice.proposed is None else _micro_batch(advice, advice.proposed),
        "pipeline_layers": None if advice.proposed is None else list(advice.proposed.layers),
        "megatron_layout": None if advice.proposed is None else megatron_layout(advice.proposed.layers),
        "reasons": advice.reasons,
        "limits": [_limits_content(advice, one) for one in advice.limits],
        "outlook": advice.outlook and _outlook_content(advice.outlook, restart_minutes),
    }


def _ends(name: str, gain: Gain | None) -> dict[str, float | None]:
    names = (name, f"{name}_lo", f"{name}_hi")
    return dict(zip(names, (gain.share, gain.lo, gain.hi) if gain else (None,) * 3, strict=True))


def _limits_content(advice: Advice, one: Limits) -> dict[str, Any]:
    return {
        "goal": one.caps.goal,
        "is_accepted": one.gain.is_accepted,
        **_ends("gain", one.gain),
        "step_time_s": one.caps.after.step_time_s,
        "gpu_power_w": one.caps.after.power_w,
        "gpu_power_before_w": one.caps.before.power_w,
        "limits_w": [
            {"host": advice.hosts[node], "device": device, "limit_w": limit_w}
            for (node, device), limit_w in sorted(one.caps.limits_w.items())
        ],
    }


def _outlook_content(outlook: Outlook, restart_minutes: float) -> dict[str, Any]:
    return {
        "seen_h": outlook.seen_h,
        "moving": [{"slot": one.name, "contact_per_h": one.log_per_h} for one in outlook.moving],
        "ahead": [
            {"hours": one.hours, **_ends("gain", one.gain)}
            | {"payback_h": payback_h(one.gain.share, restart_minutes) if one.gain else None}
            for one in outlook.ahead
        ],
    }


def measured_s(advice: Advice) -> float | None:
    """Return the median measured step; None without a run. Unit: s."""
    steps = sorted(advice.measured_s.tolist())
    return 0.5 * (steps[len(steps) // 2] + steps[~(len(steps) // 2)]) if steps else None


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


def script(advice: Advice) -> str:
    """Return a shell script that sets the recommended power limits, of which there are some; nothing runs it here.

    Where both ways are recommended it is the shorter step, else the lower power.
    """
    chosen = {one.caps.goal: one.caps for one in advice.accepted_limits}
    caps = chosen.get("move") or chosen["save"]
    lines = ["#!/bin/sh", f"# Power limits by `triplepoint recommend {advice.name}`. Run it as root on every node."]
    is_amd = advice.site.cluster.device == "rocm"
    command = "amd-smi set --gpu {} --power-cap {}" if is_amd else "nvidia-smi -i {} -pl {}"
    lines.append(f"# To take it back: {command.format('N', round(caps.present_w))} for every GPU N.")
    lines.append('case "$(hostname)" in')
    for node in sorted({node for node, _ in caps.limits_w}):
        lines.append(f"'{advice.hosts[node]}')")
        own = sorted((device, limit_w) for (of, device), limit_w in caps.limits_w.items() if of == node)
        lines += [f"    {command.format(device, limit_w)}" for device, limit_w in own]
        lines.append("    ;;")
    return "\n".join([*lines, "esac", ""])


def headline(advice: Advice) -> str:
    """Return the answer in one sentence."""
    parts = []
    if advice.outliers:
        first = advice.outliers[0]
        cost = "" if first.cost_s is None else f", which costs {_share(first.cost_s, advice):.1%} of a step"
        parts.append(f"mend {first.name} of {first.host} first ({first.kind}{cost})")
    if advice.gain is not None and advice.is_accepted:
        until = "until then " if advice.outliers else ""
        parts.append(
            f"{until}change {_changed(advice)}, a step is {advice.gain.share:.1%} shorter ({_interval(advice.gain)})"
        )
    for one in advice.accepted_limits:
        saved = f"{one.gain.share:.1%} less {_GOALS[one.caps.goal]} ({_interval(one.gain)})"
        parts.append(f"limit the power of {len(one.caps.limits_w)} GPUs, {saved}")
    if len(parts) == bool(advice.outliers):
        parts.append("leave the placement and the power limits as they are")
    return "; ".join(parts)


def _micro_batch(advice: Advice, placement: Placement) -> int:
    return placement.micro_batch_size or advice.site.point.micro_batch_size


def _changed(advice: Advice) -> str:
    """Return what of a job the advice changes, in words."""
    proposed, present = advice.proposed, advice.present
    assert proposed is not None, "something is advised"
    is_moved = proposed[:2] != present[:2]
    parts = ["the placement"] * is_moved + ["the micro-batch"] * bool(proposed.micro_batch_size)
    return " and ".join(parts)


def _interval(gain: Gain) -> str:
    return f"90 %: {gain.lo:+.1%} to {gain.hi:+.1%}"


def _answer(advice: Advice, restart_minutes: float) -> list[str]:
    lines = [f"Answer: {headline(advice)}."]
    if advice.is_accepted and advice.proposed is not None and advice.gain is not None:
        lines += [f"  {key}: {value}" for key, value in _to_type(advice, advice.proposed).items()]
        pays_h, latest_h = (payback_h(share, restart_minutes) for share in (advice.gain.share, advice.gain.lo))
        lines.append(
            f"  a restart of {restart_minutes:g} min pays after {pays_h:.1f} h of training, at the lower end after "
            f"{latest_h:.1f} h"
        )
    return lines


def _shared(passport: Passport) -> list[str]:
    made_up = ", simulated: no real GPU was seen" if passport.is_simulated else ""
    lines = [f"learned of {passport.cluster} by run {passport.run}, {len(passport.slots)} GPUs{made_up}:"]
    for name, one in passport.shared.items():
        unit = "of full flow" if name == "least_flow" else one.unit
        lines.append(f"  {_SHARED[name]} ({name}): {one.value:.3g} {unit}, 90 %: {one.lo:.3g} to {one.hi:.3g}")
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
    step = f"predicted {advice.before.step_time_s:.2f} s"
    if (measured := measured_s(advice)) is not None:
        taken = "simulated run" if advice.passport and advice.passport.is_simulated else "measured"
        step = f"{taken} {measured:.2f} s, {step}"
    elif advice.passport is None:
        step = f"{step} with all parts alike; `triplepoint predict` draws parts, and is some percent longer"
    lines = [f"step: {step}", *(f"  {line}" for line in advice.reasons)]
    if advice.gain is None or advice.proposed is None:
        return [*lines, "placement: leave it as it is"]
    gain = f"{advice.gain.share:+.1%}, {_interval(advice.gain)}"
    if not advice.is_accepted:
        return [*lines, f"placement: leave it as it is; {_words(advice, advice.proposed)}: {gain}"]
    return [*lines, f"placement: change {_changed(advice)}, a step saves {gain}"]


def _to_type(advice: Advice, placement: Placement) -> Mapping[str, str]:
    found = {"hosts in rank order": " ".join(hosts_in_order(advice, placement))}
    if placement.micro_batch_size:
        found["micro_batch_size"] = str(placement.micro_batch_size)
    if placement.layers and placement.layers != advice.present.layers:
        found["pipeline_layers"] = str(list(placement.layers))
        found["Megatron-LM"] = f"--pipeline-model-parallel-layout '{megatron_layout(placement.layers)}'"
    return found


def _words(advice: Advice, placement: Placement) -> str:
    layers = f"{', '.join(map(str, placement.layers))} layers" if placement.layers else "other hosts"
    if not placement.micro_batch_size:
        return layers
    others = f" and {layers}" if placement[:2] != advice.present[:2] else ""
    return f"micro-batch {placement.micro_batch_size}{others}"


def _limits(advice: Advice) -> list[str]:
    if not advice.limits:
        why = "none of a single GPU gains"
        if advice.outliers:
            why = "mend the hardware first, then ask again"
        elif not advice.measured_s.size:
            why = "they are found by the clocks of a run of this job"
        return [f"power limits: leave them as they are; {why}"]
    lines = []
    for one in advice.limits:
        caps, verdict = one.caps, "set them" if one.gain.is_accepted else "leave them as they are"
        lines.append(
            f"power limits for {_DONE[caps.goal]}: {verdict}; {_GOALS[caps.goal]} {-one.gain.share:+.1%}, "
            f"saved {_interval(one.gain)}"
        )
        lines.append(f"  {_seen(caps)}")
        if one.gain.is_accepted:
            lines += _listed(advice, caps)
    return lines


def _seen(caps: Caps) -> str:
    before, after = caps.before, caps.after
    return (
        "with the leakage that clocks of each GPU show (placement: equal parts): "
        f"all GPUs {before.power_w / KILO:.2f} kW, then {after.power_w / KILO:.2f} kW; "
        f"step {before.step_time_s:.2f} s, then {after.step_time_s:.2f} s; "
        f"clocks of a stage {before.clock_spread - 1:.1%} apart, then {after.clock_spread - 1:.1%}"
    )


def _listed(advice: Advice, caps: Caps) -> list[str]:
    lines = []
    for node in sorted({node for node, _ in caps.limits_w}):
        own = sorted((device, limit_w) for (of, device), limit_w in caps.limits_w.items() if of == node)
        lines.append(f"  {advice.hosts[node]}: {', '.join(f'gpu{device} {limit_w} W' for device, limit_w in own)}")
    return lines


def _outlook(outlook: Outlook | None, restart_minutes: float) -> list[str]:
    if outlook is None:
        return []
    if not outlook.moving:
        return [f"moving hot spots: none over {outlook.seen_h:.1f} h"]
    first = ", ".join(f"{one.name} {one.log_per_h:+.1%} an hour" for one in outlook.moving[:_LISTED])
    lines = [f"moving hot spots: contact over {outlook.seen_h:.1f} h: {first}"]
    for one in outlook.ahead:
        when = "at the end of the run" if not one.hours else f"{one.hours:.1f} h later, if it goes on"
        if one.gain is None:
            lines.append(f"  {when}: no other placement is shorter")
            continue
        pays = f"a restart of {restart_minutes:g} min pays after {payback_h(one.gain.share, restart_minutes):.1f} h"
        verdict = pays if one.gain.is_accepted else "left, the gain cannot be told from none"
        lines.append(f"  {when}: another placement gains {one.gain.share:+.1%} ({_interval(one.gain)}); {verdict}")
    return lines
