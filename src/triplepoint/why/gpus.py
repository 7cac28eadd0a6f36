"""How GPUs of a job differ by their sensors: the hottest, the one of the lowest clock, and what heat explains."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import numpy as np

from triplepoint.metrics import robust_sigma
from triplepoint.why.explain import OF_HEAT, Finding
from triplepoint.why.operations import Float
from triplepoint.why.sensed import Sensed

_LEAST_OTHERS = 1
_LEAST_PEERS = 3
"""Other GPUs from which their spread says whether one stands out; of fewer the difference is said as it is."""
_EQUAL_POWER = 0.05
"""Powers that differ by less count as equal: a die 40 K over its inlet is then 2 K off. Our choice."""
_LEAST_SIGMAS = 3.5
"""Source: Iglewicz and Hoaglin 1993, How to Detect and Handle Outliers, chapter 3."""
_LEAST_K, _LEAST_CLOCK = 3.0, 0.01
"""Temperature and clock that differ by less are said to be alike: sensors give whole degrees, parts of one type differ
by about 1 % in clock. Our choice. Unit: K, share."""

_NO_HEAT = 0.001
"""Share of the step below which heat is said to cost nothing."""
_LEAST_GPUS = 4
"""GPUs a rank correlation is said of."""

_Quantity = Literal["temp_c", "clock_mhz"]


def describe_gpus(sensed: Mapping[int, Sensed]) -> Iterator[str]:
    """Yield a sentence each on the hottest GPU and the one of the lowest clock; nothing where no two are known.

    Args:
        sensed: What is known of GPUs, by rank.
    """
    hot = _apart("temp_c", sensed, sign=1)
    slow = _apart("clock_mhz", sensed, sign=-1)
    if hot is not None:
        yield _sentence("hottest", hot, f"{hot[0].temp_c:.0f} degC", _kelvin(hot))
    if slow is not None:
        yield _sentence("lowest clock", slow, f"{slow[0].clock_mhz:.0f} MHz", _percent(slow))


def _apart(name: _Quantity, sensed: Mapping[int, Sensed], sign: int) -> tuple[Sensed, list[Sensed], float, bool] | None:
    """Return the GPU with the most, or least, of a quantity; the others; their median; whether it stands out."""
    known = [one for one in sensed.values() if math.isfinite(getattr(one, name)) and getattr(one, name) > 0]
    if len(known) <= _LEAST_OTHERS:
        return None
    extreme = max(known, key=lambda one: (sign * getattr(one, name), -one.rank))
    others = [one for one in known if one.rank != extreme.rank and one.stage == extreme.stage]
    others = others if len(others) >= _LEAST_PEERS else [one for one in known if one.rank != extreme.rank]
    values = [getattr(one, name) for one in others]
    usual = float(np.median(values))
    excess = sign * (getattr(extreme, name) - usual)
    least = _LEAST_K if name == "temp_c" else _LEAST_CLOCK * usual
    spread = _LEAST_SIGMAS * robust_sigma(values) if len(others) >= _LEAST_PEERS else 0.0
    return extreme, others, usual, excess >= max(least, spread)


def _kelvin(found: tuple[Sensed, list[Sensed], float, bool]) -> str:
    return f"{found[0].temp_c - found[2]:.1f} K above {_others(found[1])}"


def _percent(found: tuple[Sensed, list[Sensed], float, bool]) -> str:
    return f"{1 - found[0].clock_mhz / found[2]:.1%} below {_others(found[1])}"


def _others(others: Sequence[Sensed]) -> str:
    return "that of the other" if len(others) == 1 else f"the median of the {len(others)} others"


def _sentence(what: str, found: tuple[Sensed, list[Sensed], float, bool], value: str, apart: str) -> str:
    one, others, _, is_odd = found
    said = f"{what}: {one.name}, {value}, {apart}{_at_power(one, others)}"
    return f"{said}: {_why(what, one, others)}" if is_odd else f"{said}: as GPUs of one type differ"


def _at_power(one: Sensed, others: Sequence[Sensed]) -> str:
    usual_w = _usual_w(others)
    if math.isnan(one.power_w) or math.isnan(usual_w):
        return "; power is not known"
    words = "equal power" if _has_equal_power(one, others) else f"{one.power_w / usual_w - 1:+.0%} power"
    return f" at {words} ({one.power_w:.0f} W against {usual_w:.0f} W)"


def _usual_w(others: Sequence[Sensed]) -> float:
    known = [one.power_w for one in others if math.isfinite(one.power_w)]
    return float(np.median(known)) if known else math.nan


def _has_equal_power(one: Sensed, others: Sequence[Sensed]) -> bool:
    return abs(one.power_w / _usual_w(others) - 1) < _EQUAL_POWER


def _why(what: str, one: Sensed, others: Sequence[Sensed]) -> str:
    """Return what power says of a GPU that stands out."""
    usual_w = _usual_w(others)
    if math.isnan(one.power_w) or math.isnan(usual_w):
        return "it stands out"
    if what == "hottest":
        if one.power_w > usual_w and not _has_equal_power(one, others):
            return "it draws more, so its load may be the reason"
        return "its cooling or its air is worse"
    if one.power_w < usual_w and not _has_equal_power(one, others):
        return "it draws less: held back, or with less to do"
    return "it gets less clock for its power: a hotter or worse part, or other work"


def explain_heat(findings: Sequence[Finding], sensed: Mapping[int, Sensed], step_s: float) -> str:
    """Return what heat explains, with how temperature and clock go together over GPUs."""
    lost_s = sum(one.lost_s for one in findings if one.cause in OF_HEAT)
    known = [one for one in sensed.values() if math.isfinite(one.temp_c) and math.isfinite(one.clock_mhz)]
    if len(known) < _LEAST_GPUS:
        return f"Heat is judged from {_LEAST_GPUS} GPUs with temperature and clock on; {len(known)} have both here."
    rho = _rank_correlation([one.temp_c for one in known], [one.clock_mhz for one in known])
    over = f"over {len(known)} GPUs temperature and clock have a rank correlation of {rho:.2f}"
    if math.isnan(rho):
        over = f"the {len(known)} GPUs do not differ in temperature or in clock"
    if lost_s < _NO_HEAT * step_s:
        return f"Heat explains nothing here: no GPU is slow because of it; {over}."
    return f"Heat explains {lost_s / step_s:.1%} of the step; {over}."


def _rank_correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Return Spearman's rank correlation; NaN where one of both has a single value."""

    def ranked(values: Sequence[float]) -> Float:
        return np.array([np.mean(np.flatnonzero(np.sort(values) == value)) for value in values])

    both = np.stack([ranked(one), ranked(other)])
    apart = both - both.mean(axis=1, keepdims=True)
    length = float(np.prod(np.sqrt((apart**2).sum(axis=1))))
    return float((apart[0] * apart[1]).sum() / length) if length else math.nan
