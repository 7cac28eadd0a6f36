"""The sentence of a comparison: why one side is slower or faster, and hotter or cooler, than the other."""

from collections.abc import Mapping, Sequence
from typing import TypeGuard

from triplepoint.compare.changes import Change
from triplepoint.compare.parts import StepDifference
from triplepoint.compare.quantities import QuantityDifference
from triplepoint.compare.sides import Side
from triplepoint.compare.traced import part_name
from triplepoint.effects import Effect
from triplepoint.text import percent
from triplepoint.units import show_seconds, signed_seconds

_MOST_REASONS = 3
"""Number of parts that are named."""
_ENOUGH = 0.8
"""Share of the difference after which no more parts are named."""
_LEAST = 0.05
"""Smallest share of the difference of a part that is named."""
_MOSTLY = 0.5
"""Share of the additional communication from which waits are named instead of collectives. Our choice."""
_MOST_CHANGES = 3
"""Number of changed settings up to which they are named."""
_NO_CHANGE = 0.001
"""Steps that differ by a smaller share are called equally long."""
_WARMER_K = 0.5
"""Smallest difference in temperature that is named. Unit: K."""
_MOVED = 0.01
"""Smallest relative change of power or clock that is named."""

_WAITS = {"straggler": "waiting in communication for late ranks", "bubble": "waiting in communication for other stages"}


def answer(
    first: Side,
    other: Side,
    changes: Sequence[Change],
    step: StepDifference | None,
    quantities: Sequence[QuantityDifference],
    rank: int | None = None,
) -> str:
    """Return the sentence; A is the first side and B the other.

    Args:
        first: First side.
        other: Other side.
        changes: Changed settings, software and hardware.
        step: Difference of the steps, the other side scaled to equal tokens per GPU; None without step times.
        quantities: Differences of quantities; empty for traces.
        rank: Rank that the parts of the step belong to; None if they are means over ranks.
    """
    by_name = {one.name: one for one in quantities}
    marks = "" if first.origin == other.origin == "measured" else f" ({_origins(first, other)})"
    speed = _speed(step, by_name) if step else "the two sides have no step times to compare"
    clauses = [
        f"{_setting(changes)}{speed}{marks}",
        *(_reasons(step, _parts(step, first, other), rank) if step else []),
        *_heat(by_name, are_alike=_are_alike(changes)),
    ]
    return f"{clauses[0][0].upper()}{clauses[0][1:]}{''.join(clauses[1:])}."


def _origins(first: Side, other: Side) -> str:
    """Return the origins of two sides of which one or both are simulated, in words."""
    return "both simulated" if first.origin == other.origin else f"A {first.origin}, B {other.origin}"


def _setting(changes: Sequence[Change]) -> str:
    """Return the changed settings and device in words; empty if there are none, or too many to be the cause."""
    has_device = any(change.name == "device" for change in changes)
    # The cluster is not named beside the device: another device means another cluster.
    settings = [
        change
        for change in changes
        if change.name == "device" or (change.area == "settings" and not (has_device and change.name == "cluster"))
    ]
    if not 1 <= len(settings) <= _MOST_CHANGES:
        return ""
    texts = [
        f"{'on' if change.name == 'device' else f'with {change.name}'} {change.other} instead of {change.first}"
        for change in settings
    ]
    return f"{' and '.join(texts)}, "


def _speed(step: StepDifference, by_name: Mapping[str, QuantityDifference]) -> str:
    """Return how much longer or shorter a step of B is, with its interval and both times, in words."""
    subject, times = "a step of B", f"{show_seconds(step.other_s)} against {show_seconds(step.first_s)}"
    effect = step_effect(step, by_name)
    if step.scale != 1:
        subject = "for equal tokens per GPU a step of B"
        times += f", {show_seconds(step.other_s / step.scale)} as it ran"
    change = effect.value if effect else step.other_s / step.first_s - 1
    if abs(change) < _NO_CHANGE:
        return f"{subject} takes as long as one of A: {times}"
    size = f"{_percent(change)} {'longer than' if change > 0 else 'less than'}"
    ends = f"{effect.ends.strip()} %" if effect and effect.ends else ""
    if change >= 1:
        size = f"{1 + change:.3g} times as long as"
        ends = f"[{1 + effect.low:.3g}, {1 + effect.high:.3g}]" if effect and ends else ""
    is_tie = effect is not None and effect.is_tie
    spread = f", within the spread {ends}" if is_tie else f" {ends}" if ends else ""
    return f"{subject} takes {size} one of A{spread}: {times}"


def step_effect(step: StepDifference, by_name: Mapping[str, QuantityDifference]) -> Effect | None:
    """Return the relative change of the measured step for equal tokens per GPU; None if the step is profiled."""
    if step.is_profiled:
        return None
    if step.scale == 1:
        return by_name["step_time_s"].effect if "step_time_s" in by_name else None
    rate = by_name.get("tokens_per_s_per_gpu")
    return rate.effect.inverse() if rate else None


def _parts(step: StepDifference, first: Side, other: Side) -> list[tuple[str, float]]:
    """Return the parts of the difference, largest first, as name and time in s.

    If waiting makes up most of the additional communication, the waits are named instead of the collectives.
    """
    parts = [(part_name(one.part), one.effect.value) for one in step.parts]
    waited = [side.traced.waited_s if side.traced else {} for side in (first, other)]
    if not all(waited):
        return parts
    waits = {name: waited[1].get(kind, 0.0) * step.scale - waited[0].get(kind, 0.0) for kind, name in _WAITS.items()}
    comm_s = sum(one.effect.value for one in step.parts if one.part.category == "comm")
    if not comm_s or sum(waits.values()) / comm_s < _MOSTLY:
        return parts
    waits["communication without waits"] = comm_s - sum(waits.values())
    not_comm = [(part_name(one.part), one.effect.value) for one in step.parts if one.part.category != "comm"]
    return sorted([*waits.items(), *not_comm], key=lambda part: -abs(part[1]))


def _reasons(step: StepDifference, parts: Sequence[tuple[str, float]], rank: int | None) -> list[str]:
    """Return the largest parts with the sign of the difference, and the largest with the other sign, as a clause."""
    total_s = step.difference_s
    if not parts or abs(total_s) < _NO_CHANGE * step.first_s:
        return []
    same_sign = [(name, time_s) for name, time_s in parts if time_s / total_s >= _LEAST]
    named: list[tuple[str, float]] = []
    for part in same_sign[:_MOST_REASONS]:
        if sum(time_s for _, time_s in named) / total_s < _ENOUGH:
            named.append(part)
    if not named:
        return []
    listed = ", ".join(f"{name} ({signed_seconds(time_s)})" for name, time_s in named)
    opposite = next((part for part in parts if part[1] / total_s <= -_LEAST), None)
    against = f", against {opposite[0]} ({signed_seconds(opposite[1])})" if opposite else ""
    where = "" if rank is None else f"on rank {rank}: "
    return [f", mostly {where}{listed}{against}"]


def _are_alike(changes: Sequence[Change]) -> bool:
    """Return whether two sides do the same work on the same type of device: else their heat may differ by the work."""
    return not any(change.area in ("settings", "job") or change.name == "device" for change in changes)


def _heat(by_name: Mapping[str, QuantityDifference], are_alike: bool) -> list[str]:
    """Return clauses on temperature and its reasons, or on power; and on clocks."""
    temperatures = [by_name[name] for name in ("gpu_temp_max_c", "gpu_temp_c") if name in by_name]
    temperature = next((one for one in temperatures if one.is_clear), None)
    power, clock = by_name.get("gpu_power_w"), by_name.get("sm_clock_mhz")
    clauses = []
    if temperature and abs(temperature.effect.value) >= _WARMER_K:
        is_hotter = temperature.effect.value > 0
        subject = "its hottest GPU is" if temperature.name == "gpu_temp_max_c" else "its GPUs are"
        difference = f"{abs(temperature.effect.value):.1f} K {'hotter' if is_hotter else 'cooler'}"
        clauses += [f"; {subject} {difference}", _heat_reason(is_hotter, power, by_name.get("inlet_temp_c"), are_alike)]
    elif _has_moved(power):
        clauses.append(f"; a GPU draws {_power(power)}")
    if _has_moved(clock):
        clauses.append(f", at a clock {_percent(clock.effect.value)} {'higher' if clock.effect.value > 0 else 'lower'}")
    return clauses


def _has_moved(quantity: QuantityDifference | None) -> TypeGuard[QuantityDifference]:
    """Return whether a quantity changed by enough, and beyond its spread, to be named."""
    return (
        quantity is not None
        and quantity.is_clear
        and quantity.effect.is_relative
        and abs(quantity.effect.value) >= _MOVED
    )


def _heat_reason(
    is_hotter: bool, power: QuantityDifference | None, inlet: QuantityDifference | None, are_alike: bool
) -> str:
    """Return the reason for another temperature: power or inlet air; if neither, where to look if jobs are alike."""
    sign = 1 if is_hotter else -1
    reasons = []
    if power and power.effect.is_relative and sign * power.effect.value >= _MOVED:
        reasons.append(f"a GPU draws {_power(power)}")
    if inlet and sign * inlet.effect.value >= _WARMER_K:
        reasons.append(f"the air at the inlet is {abs(inlet.effect.value):.1f} K {'warmer' if is_hotter else 'colder'}")
    if reasons:
        return f" as {' and '.join(reasons)}"
    if power:
        advice = ": look at air, contact and place in the node" if are_alike else ""
        return f" though it draws no {'more' if is_hotter else 'less'}{advice}"
    return ""


def _power(power: QuantityDifference) -> str:
    """Return the change of power with both values, in words."""
    word = "more" if power.effect.value > 0 else "less"
    return f"{_percent(power.effect.value)} {word} ({power.other:.0f} W against {power.first:.0f} W)"


def _percent(change: float) -> str:
    return percent(abs(change))
