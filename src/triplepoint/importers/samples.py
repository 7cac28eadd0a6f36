"""From series of several files to the samples of a host: sorted, each time once, counters from 0, times shared."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from triplepoint.importers.declaration import Series
from triplepoint.recording import Part
from triplepoint.tables.schema import Kind
from triplepoint.tables.telemetry import METRICS, SAMPLES
from triplepoint.telemetry.sensor import Counters
from triplepoint.units import NS_PER_S

INSTANTANEOUS = re.compile(
    r"\b(A100|A800|A30X?|V100S?|P100|P40|P4|T4|K80|M40|M60)\b|RTX 20|TITAN|Quadro RTX", re.IGNORECASE
)
"""Products of GA100 and older chips, whose power draw NVML gives for an instant. Source: nvml.h."""
_COLUMNS = {column.name: column for column in SAMPLES.columns}
_NEVER_ZERO = {
    **dict.fromkeys(("gpu_power_w", "gpu_power_average_w", "gpu_energy_j"), "the secondary die of a package reads so"),
    "gpu_memory_temp_c": "a GPU without that sensor reads so",
}
"""What is 0 throughout only where it is not measured, with why."""
_MOST_APART = 3.0
"""Power by the counter over sampled power, or the reverse, above which the counter is taken for wrong. That of MI100 is
so by five orders (ROCm/amdsmi, issue 38); readings 15 s apart may miss half of what is drawn. Our choice."""
_LEAST_W, _LEAST_COUNTED_S = 1.0, 2.0
"""Power that every GPU draws, and time that a counter is judged over. Our choice."""
Key = tuple[str, str, str]
"""Device, metric and part."""


@dataclass(frozen=True)
class HostSamples:
    """Samples of one host."""

    parts: list[Part]
    period_s: float
    """Time between samples of the metric read most often. Unit: s."""
    notes: list[str]


def assemble(series: Iterable[Series], products: Mapping[str, str]) -> HostSamples:
    """Return the samples of one host.

    Args:
        series: Of that host, times on one clock.
        products: Product of each device, where known.
    """
    notes: list[str] = []
    together = _join(series, products)
    ordered = {key: _in_order(one, notes) for key, one in together.items()}
    totals = {key: _total(one) for key, one in ordered.items()}
    whole = {key: _within_bounds(one, notes) for key, one in totals.items()}
    by_device: dict[str, dict[str, Series]] = defaultdict(dict)
    for device, metric in dict.fromkeys((key[0], key[1]) for key in whole):
        parts = [one for key, one in whole.items() if key[:2] == (device, metric)]
        by_device[device][metric] = _combine(parts)
    for device, columns in by_device.items():
        _drop_zeros(device, columns, notes)
        _drop_wrong_counter(device, columns, notes)
    made = [_part(device, by_device[device]) for device in sorted(by_device, key=_place) if by_device[device]]
    return HostSamples([part for part in made if part.t_ns.size], _period_s(by_device), _counted(notes))


def _place(device: str) -> tuple[bool, int]:
    number = re.search(r"\d+$", device)
    return device != "host", int(number[0]) if number else 0


def _counted(notes: list[str]) -> list[str]:
    return list(dict.fromkeys(notes))


def _join(series: Iterable[Series], products: Mapping[str, str]) -> dict[Key, Series]:
    """Return series by device, metric and part: those of several files one after the other."""
    groups: dict[Key, list[Series]] = defaultdict(list)
    for one in series:
        metric = one.metric
        if one.is_draw and INSTANTANEOUS.search(products.get(one.device, "")):
            metric = "gpu_power_w"
        groups[one.device, metric, one.part].append(replace(one, metric=metric))
    return {
        key: replace(
            parts[0],
            t_ns=np.concatenate([one.t_ns for one in parts]),
            values=np.concatenate([one.values for one in parts]),
        )
        for key, parts in groups.items()
    }


def _in_order(one: Series, notes: list[str]) -> Series:
    """Return a series by time, each time once: of two values the first that is known."""
    order = np.lexsort((np.isnan(one.values), one.t_ns))
    t_ns, values = one.t_ns[order], one.values[order]
    is_first = np.concatenate([[True], np.diff(t_ns) > 0]) if t_ns.size else np.array([], bool)
    again = np.flatnonzero(~is_first)
    if again.size:
        differ = int((np.isfinite(values[again]) & (values[again] != values[again - 1])).sum())
        notes.append(
            f"{one.device}: {again.size} times come twice for {one.metric}"
            + (f", {differ} of them with another value; the first is taken" if differ else "; once is taken")
        )
    elif np.any(np.diff(one.t_ns) < 0):
        notes.append(f"{one.device}: lines were not in the order of time; sorted")
    return replace(one, t_ns=t_ns[is_first], values=values[is_first])


def _total(one: Series) -> Series:
    """Return a counter as what was counted since the first value, over wraps and restarts; rates are summed."""
    if _COLUMNS[one.metric].kind is not Kind.COUNTER or not one.t_ns.size:
        return one
    if one.is_rate:
        lengths_s = np.diff(one.t_ns, prepend=one.t_ns[0]) / NS_PER_S
        return replace(
            one, values=np.where(np.isnan(one.values), np.nan, np.cumsum(np.nan_to_num(one.values) * lengths_s))
        )
    highest = np.nanmax(one.values) if np.isfinite(one.values).any() else 0.0
    wraps_at = next((limit for limit in one.wraps_at if limit >= highest), 0.0)
    first = np.isfinite(one.values).argmax()
    totals = np.full(len(one.values), np.nan)
    totals[first:] = Counters(1).advance(one.values[first:, None], np.array([wraps_at]))[:, 0]
    return replace(one, values=totals)


def _within_bounds(one: Series, notes: list[str]) -> Series:
    """Return a series without values that cannot be: a temperature of 65535, a share of 400 %."""
    column = _COLUMNS[one.metric]
    low = -np.inf if column.minimum is None else column.minimum
    high = np.inf if column.maximum is None else column.maximum
    is_wrong = (one.values < low) | (one.values > high)
    if is_wrong.any():
        first = one.values[int(is_wrong.argmax())]
        notes.append(
            f"{one.device}: {int(is_wrong.sum())} values of {one.metric} outside of {low:g} to {high:g} {column.unit} "
            "left out"
            f", the first is {first:g}"
        )
    return replace(one, values=np.where(is_wrong, np.nan, one.values))


def _combine(parts: list[Series]) -> Series:
    """Return parts as one at the times all of them have: counters summed, others averaged."""
    if len(parts) == 1:
        return parts[0]
    t_ns = parts[0].t_ns
    for one in parts[1:]:
        t_ns = np.intersect1d(t_ns, one.t_ns)
    values = np.array([one.values[np.searchsorted(one.t_ns, t_ns)] for one in parts])
    is_counter = _COLUMNS[parts[0].metric].kind is Kind.COUNTER
    return replace(parts[0], t_ns=t_ns, values=values.sum(axis=0) if is_counter else values.mean(axis=0), part="")


def _drop_zeros(device: str, columns: dict[str, Series], notes: list[str]) -> None:
    """Remove columns that are 0 throughout and cannot be."""
    for metric, why in _NEVER_ZERO.items():
        if metric not in columns:
            continue
        values = columns[metric].values
        known = values[np.isfinite(values)]
        if known.size and not known.any() and (metric != "gpu_energy_j" or known.size > 1):
            del columns[metric]
            notes.append(f"{device}: {metric} is 0 throughout and is left out; {why}")


def _drop_wrong_counter(device: str, columns: dict[str, Series], notes: list[str]) -> None:
    """Remove an energy counter that does not count joules: against power, or below what any GPU draws."""
    counter = columns.get("gpu_energy_j")
    if counter is None:
        return
    known = np.isfinite(counter.values)
    t_s, counted_j = counter.t_ns[known] / NS_PER_S, counter.values[known]
    if not known.any() or t_s[-1] - t_s[0] < _LEAST_COUNTED_S:
        return
    counted_w = float((counted_j[-1] - counted_j[0]) / (t_s[-1] - t_s[0]))
    power = columns.get("gpu_power_w") or columns.get("gpu_power_average_w")
    power_w = float(np.nanmean(power.values)) if power is not None and np.isfinite(power.values).any() else np.nan
    is_right = counted_w >= _LEAST_W if np.isnan(power_w) else 1 / _MOST_APART <= counted_w / power_w <= _MOST_APART
    if not is_right:
        against = "less than any GPU draws" if np.isnan(power_w) else f"the power read is {power_w:.0f} W"
        del columns["gpu_energy_j"]
        notes.append(f"{device}: gpu_energy_j rises by {counted_w:.3g} W and is left out; {against}")


def _part(device: str, columns: Mapping[str, Series]) -> Part:
    names = [name for name in METRICS if name in columns]
    t_ns = np.unique(np.concatenate([columns[name].t_ns for name in names]))
    values = np.full((len(t_ns), len(names)), np.nan)
    for place, name in enumerate(names):
        values[np.searchsorted(t_ns, columns[name].t_ns), place] = columns[name].values
    is_read = np.isfinite(values).any(axis=1)
    return Part(device, t_ns[is_read], np.zeros(int(is_read.sum()), np.int64), names, values[is_read])


def _period_s(by_device: Mapping[str, Mapping[str, Series]]) -> float:
    """Return the median time between samples of the metric that was read most often."""
    gaps = [
        float(np.median(np.diff(one.t_ns)))
        for columns in by_device.values()
        for one in columns.values()
        if one.t_ns.size > 1
    ]
    return round(min(gaps) / NS_PER_S, 6) if gaps else 1.0
