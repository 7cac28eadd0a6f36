"""One sentence that says why one side is slower or faster, and hotter or cooler, than the other."""

from collections.abc import Mapping, Sequence
from typing import TypeGuard

from triplepoint.compare.changes import Change
from triplepoint.compare.parts import StepDifference
from triplepoint.compare.quantities import QuantityDifference
from triplepoint.compare.sides import Side
from triplepoint.compare.traced import part_name
from triplepoint.effects import Effect
from triplepoint.units import show_seconds, signed_seconds

_MOST_REASONS = 3
_ENOUGH = 0.8
"""Share of the difference that the named parts explain before no more are named."""
_LEAST = 0.05
"""Share of the difference a part must have to be named."""
_MOSTLY = 0.5
"""Share of what communication adds from which it is said to be waiting. Our choice."""
_MOST_CHANGES = 3
_NO_CHANGE = 0.001
"""Steps that differ by less than a thousandth are called as fast where no interval is known."""
_WARMER_K = 0.5
_MOVED = 0.01

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
        first: One side.
        other: The other.
        changes: What changed.
        step: The difference of the steps, of the other side scaled to equal work; None without step times.
        quantities: Differences of quantities; none of loose traces.
        rank: The rank whose parts the step's are, where it changed more than others; None where they are means.
    """
    by_name = {one.name: one for one in quantities}
    marks = "" if first.origin == other.origin == "measured" else f" ({_origins(first, other)})"
    speed = _speed(step, by_name) if step else "the two sides have no step times to compare"
    clauses = [
        f"{_setting(changes)}{speed}{marks}",
        *(_reasons(step, _parts(step, first, other), rank) if step else []),
        *_heat(by_name),
    ]
    return f"{clauses[0][0].upper()}{clauses[0][1:]}{''.join(clauses[1:])}."


def _origins(first: Side, other: Side) -> str:
    return "both simulated" if first.origin == other.origin else f"A {first.origin}, B {other.origin}"


def _setting(changes: Sequence[Change]) -> str:
    """Return the changed settings, and the device, where they are few enough to be the cause."""
    has_device = any(change.name == "device" for change in changes)
    # Another device is another cluster.
    settings = [
        change
        for change in changes
        if change.name == "device" or (change.area == "settings" and not (has_device and change.name == "cluster"))
    ]
    if not 1 <= len(settings) <= _MOST_CHANGES:
        return ""
    texts = [
        f"{'on' if one.name == 'device' else f'with {one.name}'} {one.other} instead of {one.first}" for one in settings
    ]
    return f"{' and '.join(texts)}, "


def _speed(step: StepDifference, by_name: Mapping[str, QuantityDifference]) -> str:
    what, times = "a step of B", f"{show_seconds(step.other_s)} against {show_seconds(step.first_s)}"
    effect = step_effect(step, by_name)
    if step.scale != 1:
        what = "for equal tokens per GPU a step of B"
        times += f", {show_seconds(step.other_s / step.scale)} as it ran"
    change = effect.value if effect else step.other_s / step.first_s - 1
    if abs(change) < _NO_CHANGE:
        return f"{what} takes as long as one of A: {times}"
    size = f"{_percent(change)} {'longer than' if change > 0 else 'less than'}"
    ends = f"{effect.ends.strip()} %" if effect and effect.ends else ""
    if change >= 1:
        size = f"{1 + change:.3g} times as long as"
        ends = f"[{1 + effect.low:.3g}, {1 + effect.high:.3g}]" if effect and ends else ""
    is_tie = effect is not None and effect.is_tie
    spread = f", within the spread {ends}" if is_tie else f" {ends}" if ends else ""
    return f"{what} takes {size} one of A{spread}: {times}"


def step_effect(step: StepDifference, by_name: Mapping[str, QuantityDifference]) -> Effect | None:
    """Return the change of the step with its interval, for equal tokens per GPU; None where it is of traces alone."""
    if step.is_profiled:
        return None
    if step.scale == 1:
        return by_name["step_time_s"].effect if "step_time_s" in by_name else None
    rate = by_name.get("tokens_per_s_per_gpu")
    return rate.effect.inverse() if rate else None


def _parts(step: StepDifference, first: Side, other: Side) -> list[tuple[str, float]]:
    """Return what the difference consists of, largest first: names, and times in s.

    Where most of what communication adds is waiting, the waits are named, and not the collectives waited in.
    """
    parts = [(part_name(one.part), one.effect.value) for one in step.parts]
    waited = [side.traced.waited_s if side.traced else {} for side in (first, other)]
    if not all(waited):
        return parts
    waits = {name: waited[1].get(kind, 0.0) * step.scale - waited[0].get(kind, 0.0) for kind, name in _WAITS.items()}
    comm_s = sum(one.effect.value for one in step.parts if one.part.category == "comm")
    if sum(waits.values()) / comm_s < _MOSTLY if comm_s else True:
        return parts
    waits["communication without waits"] = comm_s - sum(waits.values())
    others = [(part_name(one.part), one.effect.value) for one in step.parts if one.part.category != "comm"]
    return sorted([*waits.items(), *others], key=lambda part: -abs(part[1]))


def _reasons(step: StepDifference, parts: Sequence[tuple[str, float]], rank: int | None) -> list[str]:
    """Return the parts that have the sign of the difference, largest first, and the largest of the other sign."""
    whole = step.difference_s
    if not parts or abs(whole) < _NO_CHANGE * step.first_s:
        return []
    toward = [(name, time_s) for name, time_s in parts if time_s / whole >= _LEAST]
    named: list[tuple[str, float]] = []
    for part in toward[:_MOST_REASONS]:
        if sum(time_s for _, time_s in named) / whole < _ENOUGH:
            named.append(part)
    if not named:
        return []
    listed = ", ".join(f"{name} ({signed_seconds(time_s)})" for name, time_s in named)
    against = next((part for part in parts if part[1] / whole <= -_LEAST), None)
    but = f", against {against[0]} ({signed_seconds(against[1])})" if against else ""
    where = "" if rank is None else f"on rank {rank}: "
    return [f", mostly {where}{listed}{but}"]


def _heat(by_name: Mapping[str, QuantityDifference]) -> list[str]:
    """Return how much hotter the hottest GPU is and what goes with it: power, air, clocks."""
    heats = [by_name[name] for name in ("gpu_temp_max_c", "gpu_temp_c") if name in by_name]
    heat = next((one for one in heats if one.is_clear), None)
    power, clock = by_name.get("gpu_power_w"), by_name.get("sm_clock_mhz")
    found = []
    if heat and abs(heat.effect.value) >= _WARMER_K:
        word = "hotter" if heat.effect.value > 0 else "cooler"
        which = "its hottest GPU is" if heat.name == "gpu_temp_max_c" else "its GPUs are"
        found.append(f"; {which} {abs(heat.effect.value):.1f} K {word}")
        found.append(_why_hot(heat.effect.value > 0, power, by_name.get("inlet_temp_c")))
    elif _is_said(power):
        found.append(f"; a GPU draws {_power(power)}")
    if _is_said(clock):
        found.append(f", at a clock {_percent(clock.effect.value)} {'higher' if clock.effect.value > 0 else 'lower'}")
    return found


def _is_said(one: QuantityDifference | None) -> TypeGuard[QuantityDifference]:
    """Return whether a quantity changed by enough, and not within its spread, to be in the sentence."""
    return one is not None and one.is_clear and one.effect.is_relative and abs(one.effect.value) >= _MOVED


def _why_hot(is_hotter: bool, power: QuantityDifference | None, inlet: QuantityDifference | None) -> str:
    sign = 1 if is_hotter else -1
    reasons = []
    if power and power.effect.is_relative and sign * power.effect.value >= _MOVED:
        reasons.append(f"a GPU draws {_power(power)}")
    if inlet and sign * inlet.effect.value >= _WARMER_K:
        reasons.append(f"the air at the inlet is {abs(inlet.effect.value):.1f} K {'warmer' if is_hotter else 'colder'}")
    if reasons:
        return f" as {' and '.join(reasons)}"
    if power:
        return f" though it draws no {'more' if is_hotter else 'less'}: look at air, contact and place in the node"
    return ""


def _power(power: QuantityDifference) -> str:
    word = "more" if power.effect.value > 0 else "less"
    return f"{_percent(power.effect.value)} {word} ({power.other:.0f} W against {power.first:.0f} W)"


def _percent(change: float) -> str:
    return f"{abs(change):.1%}".replace("%", " %")
