"""Differences between the GPUs of a job: the hottest, the one with the lowest clock, and the cost of heat."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from triplepoint.metrics import robust_sigma
from triplepoint.text import percent, signed_percent
from triplepoint.why.explain import OF_HEAT, Finding
from triplepoint.why.held import find_held
from triplepoint.why.operations import Float
from triplepoint.why.repairs import LEAST_PEERS
from triplepoint.why.sensed import Sensed

_EQUAL_POWER = 0.05
"""Powers that differ by a smaller share count as equal: a die 40 K over its inlet is then 2 K off. Our choice."""
_LEAST_SIGMAS = 3.5
"""Smallest robust z-score of an outlier. Source: Iglewicz and Hoaglin 1993, How to Detect and Handle Outliers,
chapter 3."""
_LEAST_K, _LEAST_CLOCK = 3.0, 0.01
"""Smallest difference in temperature and relative difference in clock of an outlier: sensors give whole degrees, and
GPUs of one type differ by about 1 % in clock. Our choice. Unit: K, share."""
_NO_HEAT = 0.001
"""Largest cost of heat that is reported as none, as a share of the step."""
_LEAST_GPUS = 4
"""Smallest number of GPUs for a rank correlation."""

_Quantity = Literal["temp_c", "clock_mhz"]


class _Extreme(NamedTuple):
    """The GPU with the highest or lowest value of a quantity, compared with others."""

    gpu: Sensed
    others: list[Sensed]
    """GPUs it is compared with: of its stage, or all if those are too few."""
    usual: float
    """Median of the others, in the quantity's unit."""
    usual_w: float
    """Median power of the others; NaN if not known. Unit: W."""
    is_outlier: bool


def describe_gpus(sensed: Mapping[int, Sensed]) -> Iterator[str]:
    """Yield a sentence on the hottest GPU and one on the GPU with the lowest clock, if two GPUs or more are known.

    Args:
        sensed: Measurements of GPUs, by rank.
    """
    hot = _extreme("temp_c", sensed, sign=1)
    slow = _extreme("clock_mhz", sensed, sign=-1)
    if hot is not None:
        difference = f"{hot.gpu.temp_c - hot.usual:.1f} K above {_name_others(hot)}"
        yield _sentence("hottest", hot, f"{hot.gpu.temp_c:.0f} degC, {difference}")
    if slow is not None and (hold := find_held(sensed).get(slow.gpu.rank)):
        # All GPUs of its stage may be held, so they do not tell how low its clock is.
        yield f"lowest clock: {slow.gpu.name}: {hold.evidence}"
    elif slow is not None:
        yield _sentence("lowest clock", slow, f"{slow.gpu.clock_mhz:.0f} MHz, {_below(slow)}")


def lowest_clock(sensed: Mapping[int, Sensed]) -> str:
    """Return how far the lowest clock is below the others, and whether it is an outlier, in words.

    Args:
        sensed: Measurements of GPUs, by rank.

    Returns:
        The words; empty if the clock of fewer than two GPUs is known, or the difference is below 1 %.
    """
    slow = _extreme("clock_mhz", sensed, sign=-1)
    if slow is None or slow.gpu.clock_mhz > (1 - _LEAST_CLOCK) * slow.usual:
        return ""
    return f"{_below(slow)}, {'an outlier' if slow.is_outlier else 'no outlier'}"


def _below(slow: _Extreme) -> str:
    """Return how far the lowest clock is below the others, in words."""
    return f"{percent(1 - slow.gpu.clock_mhz / slow.usual)} below {_name_others(slow)}"


def _extreme(name: _Quantity, sensed: Mapping[int, Sensed], sign: int) -> _Extreme | None:
    """Return the GPU with the highest (sign 1) or lowest (sign -1) value; None if fewer than two have one."""
    known = [gpu for gpu in sensed.values() if math.isfinite(getattr(gpu, name)) and getattr(gpu, name) > 0]
    if len(known) < 2:
        return None
    extreme = max(known, key=lambda gpu: (sign * getattr(gpu, name), -gpu.rank))
    others = [gpu for gpu in known if gpu.rank != extreme.rank and gpu.stage == extreme.stage]
    others = others if len(others) >= LEAST_PEERS else [gpu for gpu in known if gpu.rank != extreme.rank]
    values = [getattr(gpu, name) for gpu in others]
    usual = float(np.median(values))
    excess = sign * (getattr(extreme, name) - usual)
    least = _LEAST_K if name == "temp_c" else _LEAST_CLOCK * usual
    spread = _LEAST_SIGMAS * robust_sigma(values) if len(others) >= LEAST_PEERS else 0.0
    powers_w = [gpu.power_w for gpu in others if math.isfinite(gpu.power_w)]
    usual_w = float(np.median(powers_w)) if powers_w else math.nan
    return _Extreme(extreme, others, usual, usual_w, excess >= max(least, spread))


def _name_others(extreme: _Extreme) -> str:
    """Return words for the value of the others."""
    return "that of the other" if len(extreme.others) == 1 else f"the median of the {len(extreme.others)} others"


def _sentence(title: str, extreme: _Extreme, value: str) -> str:
    """Return the sentence on an extreme GPU: its value, its power, and the reason if it is an outlier."""
    reason = _reason(title, extreme) if extreme.is_outlier else "as GPUs of one type differ"
    return f"{title}: {extreme.gpu.name}, {value}{_describe_power(extreme)}: {reason}"


def _describe_power(extreme: _Extreme) -> str:
    """Return the power of an extreme GPU against that of the others, in words."""
    power_w, usual_w = extreme.gpu.power_w, extreme.usual_w
    if math.isnan(power_w) or math.isnan(usual_w):
        return "; power is not known"
    words = "equal power" if _has_equal_power(extreme) else f"{signed_percent(power_w / usual_w - 1, 0)} power"
    return f" at {words} ({power_w:.0f} W against {usual_w:.0f} W)"


def _has_equal_power(extreme: _Extreme) -> bool:
    """Return whether an extreme GPU draws as much as the others."""
    return abs(extreme.gpu.power_w / extreme.usual_w - 1) < _EQUAL_POWER


def _reason(title: str, extreme: _Extreme) -> str:
    """Return the reason that power suggests for an outlier."""
    power_w, usual_w = extreme.gpu.power_w, extreme.usual_w
    if math.isnan(power_w) or math.isnan(usual_w):
        return "it stands out"
    if title == "hottest":
        if power_w > usual_w and not _has_equal_power(extreme):
            return "it draws more, so its load may be the reason"
        return "its cooling or its air is worse"
    if power_w < usual_w and not _has_equal_power(extreme):
        return "it draws less: held back, or with less to do"
    return "it gets less clock for its power: a hotter or worse part, or other work"


def explain_heat(findings: Sequence[Finding], sensed: Mapping[int, Sensed], step_s: float) -> str:
    """Return a sentence on the cost of heat and the rank correlation of temperature and clock over GPUs.

    Args:
        findings: Causes of slow GPUs.
        sensed: Measurements of GPUs, by rank.
        step_s: Time of the step. Unit: s.
    """
    lost_s = sum(finding.lost_s for finding in findings if finding.cause in OF_HEAT)
    known = [gpu for gpu in sensed.values() if math.isfinite(gpu.temp_c) and math.isfinite(gpu.clock_mhz)]
    if len(known) < _LEAST_GPUS:
        return f"Heat is judged from {_LEAST_GPUS} GPUs with temperature and clock on; {len(known)} have both here."
    rho = _rank_correlation([gpu.temp_c for gpu in known], [gpu.clock_mhz for gpu in known])
    over = f"over {len(known)} GPUs temperature and clock have a rank correlation of {rho:.2f}"
    if math.isnan(rho):
        over = f"the {len(known)} GPUs do not differ in temperature or in clock"
    if lost_s < _NO_HEAT * step_s:
        return f"Heat explains nothing here: no GPU is slow because of it; {over}."
    return f"Heat explains {percent(lost_s / step_s)} of the step; {over}."


def _rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Return Spearman's rank correlation; NaN if all values of one series are equal."""

    def mean_ranks(values: Sequence[float]) -> Float:
        return np.array([np.mean(np.flatnonzero(np.sort(values) == value)) for value in values])

    ranks = np.stack([mean_ranks(first), mean_ranks(second)])
    deviations = ranks - ranks.mean(axis=1, keepdims=True)
    norm = float(np.prod(np.sqrt((deviations**2).sum(axis=1))))
    return float((deviations[0] * deviations[1]).sum() / norm) if norm else math.nan
