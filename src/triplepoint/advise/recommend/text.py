"""Advice as text: the answer first, then hardware, placement, power limits, and what was learned."""

from collections.abc import Mapping, Sequence

import numpy as np

from triplepoint.advise.recommend.advice import Advice
from triplepoint.advise.recommend.hardware import LEAST_COST, Outlier
from triplepoint.advise.recommend.hot_spots import Outlook, payback_h
from triplepoint.advise.recommend.kept_passports import Drift
from triplepoint.advise.recommend.passport import Passport
from triplepoint.advise.recommend.placement import Placement
from triplepoint.advise.recommend.placement_gain import LEAST_GAIN, Gain
from triplepoint.advise.recommend.power_limits import Caps
from triplepoint.advise.recommend.step_check import median_step_s
from triplepoint.advise.recommend.to_type import hosts_in_order, megatron_layout
from triplepoint.text import page, paragraph, percent, percent_lost, percent_within, signed_percent, table
from triplepoint.units import KILO, counted, show_step

_LISTED = 8
_SHARED = {
    "inlet_temp_c": "air at the inlet",
    "die_resistance": "resistance, die to heat sink",
    "sink_resistance": "resistance, heat sink to air at full fan speed",
    "preheat": "preheat of the next row of GPUs",
    "full_power": "GPU power at which fans reach full speed",
    "least_flow": "lowest air flow over full flow",
}
"""What passports have of all nodes, in words."""
_SAVED = {"save": "energy", "move": "time"}
_DONE = {"save": "less energy at the same step time", "move": "a shorter step at the same power"}


def render(advice: Advice, drift: Sequence[Drift], restart_minutes: float) -> str:
    """Return the advice as text: the answer, then each thing that can be changed, then what the run showed.

    Args:
        advice: The advice.
        drift: Slots that changed since the passport before.
        restart_minutes: What an interruption costs. Unit: min.
    """
    return page([
        [*paragraph(headline(advice)), *paragraph(_job(advice)), *paragraph(advice.unexplained)],
        _hardware(advice), _drift(advice, drift), _placement(advice, restart_minutes), _limits(advice),
        _hot_spots(advice.outlook, restart_minutes), _shared(advice.passport) if advice.passport else [],
        [line for note in advice.notes for line in paragraph(note)],
    ])  # fmt: skip


def headline(advice: Advice) -> str:
    """Return the answer in a few sentences."""
    said = []
    if advice.costly:
        first = advice.costly[0]
        cost = "" if first.cost_s is None else f", it costs {_cost_share(first, advice)} of a step"
        said.append(f"Repair {_named(first, advice)} first: {_KINDS[first.kind]}{cost}.")
    if advice.withheld:
        return " ".join([*said, advice.unexplained and "No change is advised: a step is not as predicted."]).strip()
    if advice.gain is not None and advice.is_accepted:
        until = "Until then change " if advice.costly else "Change "
        said.append(f"{until}{_changed(advice)}: a step is {_gained(advice.gain)} shorter.")
    elif advice.is_split_asked and advice.gain is not None and advice.proposed is not None:
        said.append(f"Leave the placement as it is: {_judged(advice, advice.proposed, advice.gain)}.")
    for one in advice.accepted_limits:
        lower = f"power limits of {counted(len(one.caps.limits_w), 'GPU')}{_with_spare(one.caps)}"
        either = "Or set other" if one is not advice.accepted_limits[0] else "Set"
        said.append(f"{either} {lower}: a step takes {_gained(one.gain)} less {_SAVED[one.caps.goal]}.")
    if not said or (len(said) == 1 and advice.costly):
        said.append("Leave the placement and the power limits as they are.")
    return " ".join(said)


def figure_title(advice: Advice) -> str:
    """Return the answer in one sentence."""
    if advice.unexplained:
        return advice.unexplained.partition(";")[0].removesuffix(".")
    said = []
    if advice.costly:
        first = advice.costly[0]
        cost = "" if first.cost_s is None else f", it costs {_cost_share(first, advice)} of a step"
        said.append(f"{_named(first, advice)}: {_KINDS[first.kind]}{cost}")
    if advice.is_accepted and advice.gain is not None:
        until = "until it is repaired, changing" if advice.costly else "Changing"
        said.append(f"{until} {_changed(advice)} makes a step {_gained(advice.gain)} shorter")
    elif not advice.withheld:
        limits = "; ".join(
            f"power limits of {counted(len(one.caps.limits_w), 'GPU')}{_with_spare(one.caps)} save {_gained(one.gain)} "
            f"of a step's {_SAVED[one.caps.goal]}"
            for one in advice.accepted_limits
        )
        said += [limits[0].upper() + limits[1:]] if limits else []
    return "; ".join(said) or "No GPU costs time, and no other placement or power limit gains for sure"


def goal_of(caps: Caps) -> str:
    """Return the goal of power limits of single GPUs in words."""
    return f"power limits of {counted(len(caps.limits_w), 'GPU')}{_with_spare(caps)}: {_SAVED[caps.goal]}"


def _with_spare(caps: Caps) -> str:
    """Return how much power limits use of the power to spare, such as ` with 94 W more a node`; empty without any."""
    return f" with {caps.spare_w - caps.left_over_w:.0f} W more a node" if caps.spare_w else ""


_KINDS = {
    "contact": "its heat sink has bad contact or too little air",
    "airflow": "it gets too little air",
    "slow": "it computes slowly",
    "degraded": "its hardware holds down its clocks",
    "network": "its transfers are slow",
    "limit": "its power limit is lower than that of others",
    "reported": "the launch reported it",
}
"""Kinds of faulty hardware, in words."""


def _named(one: Outlier, advice: Advice) -> str:
    """Return the name of a part, with its host where that tells more."""
    return _with_host(one.name, one.host, advice)


def _with_host(name: str, host: str, advice: Advice) -> str:
    return name if advice.is_simulated or name.partition(".")[0] == host else f"{name} ({host})"


def _cost_share(one: Outlier, advice: Advice) -> str:
    """Return the share of a step that a part costs, with its interval where that is known."""
    assert one.cost_s is not None
    share = percent_lost(_share(one.cost_s, advice), is_bound=one.is_bound)
    if one.within_s is None or one.is_minor:
        return share
    low, high = (100 * _share(end_s, advice) for end_s in one.within_s)
    return f"{share} [{low:.1f}, {high:.1f}]"


def _gained(gain: Gain) -> str:
    """Return a gain with its 90 % interval, such as `14.6 % [6.6, 21.9]`."""
    return percent_within(gain.share, gain.lo, gain.hi)


def _job(advice: Advice) -> str:
    """Return the run or cluster, and its step as it was and as it is predicted."""
    predicted = f"predicted step {show_step(advice.before.step_time_s)}"
    if (measured := median_step_s(advice.measured_s)) is not None:
        taken = "simulated" if advice.passport and advice.passport.is_simulated else "measured"
        return f"Job: run {advice.name}, {taken} step {show_step(measured)}, {predicted}"
    if advice.passport is not None:
        return f"Job: on {advice.name}, {predicted} with the cooling of run {advice.passport.run}"
    alike = "with all GPUs alike; 'triplepoint predict' lets them differ, which makes a step some percent longer"
    return f"Job: on {advice.name}, {predicted} {alike}"


def _changed(advice: Advice) -> str:
    """Return what of a job the advice changes, in words."""
    proposed, present = advice.proposed, advice.present
    assert proposed is not None, "something is advised"
    is_moved = proposed[:2] != present[:2]
    parts = ["the placement of stages"] * is_moved + ["the micro-batch"] * bool(proposed.micro_batch_size)
    return " and ".join(parts)


def _shared(passport: Passport) -> list[str]:
    """Return what a run showed of the nodes of a cluster."""
    made_up = "; simulated, no real GPU was seen" if passport.is_simulated else ""
    head = f"What run {passport.run} shows of {passport.cluster} ({counted(len(passport.slots), 'GPU')}{made_up}):"
    rows = [("", "value", "90 % interval", "unit")]
    rows += [
        (_SHARED[name], f"{one.value:.3g}", f"[{one.lo:.3g}, {one.hi:.3g}]", "" if one.unit == "1" else one.unit)
        for name, one in passport.shared.items()
    ]
    own = [slot.resistance.value for slot in passport.slots]
    ends = f"{min(own):.3f} to {max(own):.3f}"
    rows.append(("resistance of GPUs, die to air (median, range)", f"{np.median(own):.3f}", ends, "K/W"))
    leakage = [slot.leakage for slot in passport.slots if slot.leakage is not None]
    if leakage:
        ends = f"{min(leakage):.2f} to {max(leakage):.2f}"
        rows.append(("leakage of GPUs over the usual (median, range)", f"{np.median(leakage):.2f}", ends, ""))
    return [*paragraph(head), *table(rows, words={0, 3}, indent=2)]


def _hardware(advice: Advice) -> list[str]:
    if not advice.outliers:
        return ["Hardware: no GPU or node stands out."]
    lines = ["Hardware to repair first:"] if advice.costly else ["Hardware: nothing that costs time stands out."]
    for one in advice.costly[:_LISTED]:
        cost = ""
        if one.cost_s is not None:
            cost = f" It costs {'up to ' * one.is_bound}{show_step(one.cost_s)} of a step ({_cost_share(one, advice)})."
        lines += paragraph(f"{_named(one, advice)}, {one.kind}: {one.evidence}.{cost} To do: {one.action}.", indent=2)
    for one in advice.minor[: _LISTED - len(advice.costly[:_LISTED])]:
        lines += paragraph(
            f"Note: {_named(one, advice)}, {one.kind}: {one.evidence}. It costs less than {percent(LEAST_COST)} of a "
            f"step. When it is out of service anyway: {one.action}.",
            indent=2,
        )
    if len(advice.outliers) > _LISTED:
        lines.append(f"  {len(advice.outliers) - _LISTED} more are in --json.")
    return lines


def _share(cost_s: float, advice: Advice) -> float:
    return cost_s / advice.before.step_time_s


def _drift(advice: Advice, drift: Sequence[Drift]) -> list[str]:
    lines = []
    for one in drift[:_LISTED]:
        other = "; another GPU is in the slot" if one.is_other_gpu else ""
        lines += paragraph(
            f"{_with_host(one.slot.name, one.slot.host, advice)}: {100 * one.change:+.1f} % "
            f"[{100 * one.lo:+.1f}, {100 * one.hi:+.1f}] since run {one.since}{other}",
            indent=2,
        )
    return ["Cooling that changed compared with other GPUs (resistance, die to air):", *lines] if lines else []


def _placement(advice: Advice, restart_minutes: float) -> list[str]:
    """Return what was found of the placement, what to type, and why."""
    why = [line for reason in advice.reasons for line in paragraph(reason, indent=4)]
    if advice.withheld:
        return paragraph(f"Placement and power limits: {advice.withheld}")
    if advice.gain is None or advice.proposed is None:
        return ["Placement: leave it as it is. Why:", *why]
    if not advice.is_accepted:
        judged = _judged(advice, advice.proposed, advice.gain)
        return [*paragraph(f"Placement: leave it as it is; {judged}. Why:"), *why]
    pays_h, latest_h = (payback_h(share, restart_minutes) for share in (advice.gain.share, advice.gain.lo))
    head = f"Placement: change {_changed(advice)}; a step is {_gained(advice.gain)} shorter."
    pays = (
        f"A restart of {restart_minutes:g} min pays after {pays_h:.1f} h of training, or after {latest_h:.1f} h at the "
        "lower end of the interval."
    )
    typed = [f"    {key}: {value}" for key, value in _to_type(advice, advice.proposed).items()]
    return [*paragraph(f"{head} {pays}"), *typed, "  Why:", *why]


def _judged(advice: Advice, placement: Placement, gain: Gain) -> str:
    """Return by how much a placement would make a step shorter or longer, with the interval."""
    if placement == advice.present:
        return "these are the present layers"
    if abs(gain.share) < LEAST_GAIN:
        return f"{words(advice, placement)} would change a step by less than {percent(LEAST_GAIN)}"
    change = f"{_gained(gain)} shorter"
    if gain.share < 0.0:
        change = f"{percent_within(-gain.share, -gain.hi, -gain.lo)} longer"
    return f"{words(advice, placement)} would make a step {change}"


def _to_type(advice: Advice, placement: Placement) -> Mapping[str, str]:
    found = {"hosts in rank order": " ".join(hosts_in_order(advice, placement))}
    if placement.micro_batch_size:
        found["micro_batch_size"] = str(placement.micro_batch_size)
    if placement.layers and placement.layers != advice.present.layers:
        found["pipeline_layers"] = str(list(placement.layers))
        found["Megatron-LM"] = f"--pipeline-model-parallel-layout '{megatron_layout(placement.layers)}'"
    return found


def words(advice: Advice, placement: Placement) -> str:
    """Return what a placement changes, in words."""
    parts = []
    if placement.micro_batch_size:
        parts.append(f"micro-batch {placement.micro_batch_size}")
    if placement.layers and placement.layers != advice.present.layers:
        parts.append(f"layers {','.join(map(str, placement.layers))}")
    if placement.nodes != advice.present.nodes:
        parts.append("hosts in another order")
    return " with ".join(parts[:2]) + "".join(f" and {part}" for part in parts[2:]) if parts else "the present layers"


def _limits(advice: Advice) -> list[str]:
    if advice.withheld:
        return []
    if not advice.limits:
        why = "No other limit of a single GPU gains anything."
        if advice.costly:
            why = "Repair the hardware first, then ask again."
        elif not advice.measured_s.size:
            why = "They need the clocks of a run of this job."
        return [f"Power limits: leave them as they are. {why}"]
    lines = []
    for one in advice.limits:
        caps, (before, after) = one.caps, (one.caps.before, one.caps.after)
        verdict, takes = ("set these", "takes") if one.gain.is_accepted else ("leave them as they are", "would take")
        head = "With the new placement, a step" if advice.is_accepted else "A step"
        done = f"a shorter step with {caps.spare_w:g} W to spare a node" if caps.spare_w else _DONE[caps.goal]
        lines += paragraph(
            f"Power limits for {done}: {verdict}. {head} {takes} "
            f"{_gained(one.gain)} less {_SAVED[caps.goal]}: power of all GPUs "
            f"{_from_to(before.power_w / KILO, after.power_w / KILO, 'kW')}, step "
            f"{_from_to(before.step_time_s, after.step_time_s, 's')}."
        )
        lines += paragraph(
            "Why: GPUs of a stage wait for the slowest. Their clocks differ by "
            f"{percent(before.clock_spread - 1)} without these limits, and by {percent(after.clock_spread - 1)} with "
            "them.",
            indent=2,
        )
        lines += _spare(caps) if caps.spare_w else []
        if one.gain.is_accepted:
            lines += _listed(advice, caps)
    return lines


def _spare(caps: Caps) -> list[str]:
    """Return what becomes of the power to spare in each node."""
    used_w, energy = caps.spare_w - caps.left_over_w, caps.after.energy_j / caps.before.energy_j - 1.0
    text = (
        f"Limits of a node add up to at most {used_w:.0f} W more than now. Its GPUs draw {caps.more_power_w:.0f} W "
        f"more in the mean, and their energy per step changes by {signed_percent(energy)}. The power of the node rises "
        "as much, unless its CPUs or other parts draw that much less."
    )
    if caps.left_over_w >= 1.0:
        text += f" {caps.left_over_w:.0f} W a node are left over: they make the step no shorter."
    return paragraph(text, indent=2)


def _from_to(before: float, after: float, unit: str) -> str:
    """Return a value before and after a change, once if both look the same."""
    now, then = f"{before:.2f}", f"{after:.2f}"
    return f"{then} {unit} as before" if now == then else f"{then} {unit} instead of {now} {unit}"


def _listed(advice: Advice, caps: Caps) -> list[str]:
    """Return the limits by host and GPU, those that change."""
    devices = sorted({device for _, device in caps.limits_w})
    present_w = {round(limit_w) for limit_w in caps.present_w.values()}
    unchanged = f"{present_w.pop()}" if len(present_w) == 1 else "as now"
    rows = [(f"limits in W (-: {unchanged})", *(f"gpu{device}" for device in devices))]
    for node in sorted({node for node, _ in caps.limits_w}):
        rows.append((advice.hosts[node], *(str(caps.limits_w.get((node, device), "-")) for device in devices)))
    return table(rows, indent=2)


def _hot_spots(outlook: Outlook | None, restart_minutes: float) -> list[str]:
    if outlook is None:
        return []
    if not outlook.moving:
        return [f"Hot spots: none moved in {outlook.seen_h:.1f} h."]
    first = ", ".join(f"{one.name} {100 * one.log_per_h:+.1f} %" for one in outlook.moving[:_LISTED])
    lines = paragraph(f"Hot spots: in {outlook.seen_h:.1f} h the contact resistance changed, per hour: {first}.")
    for one in outlook.ahead:
        when = "At the end of the run" if not one.hours else f"After {one.hours:.1f} h more at this rate"
        if one.gain is None:
            lines += paragraph(f"{when}, no other placement is shorter.", indent=2)
            continue
        pays = f"a restart of {restart_minutes:g} min pays after {payback_h(one.gain.share, restart_minutes):.1f} h"
        verdict = pays if one.gain.is_accepted else "leave it, the gain may be none"
        lines += paragraph(f"{when}, another placement saves {_gained(one.gain)} of a step; {verdict}.", indent=2)
    return lines
