"""Assemble the samples of a host from series of several files: sorted, without duplicates, counters from 0."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from triplepoint.importers.declaration import Series
from triplepoint.recording import Part
from triplepoint.tables.schema import Kind
from triplepoint.tables.telemetry import METRICS, MOST_GPU_W, SAMPLES
from triplepoint.telemetry.sensor import Counters
from triplepoint.units import NS_PER_S

INSTANTANEOUS = re.compile(
    r"\b(A100|A800|A30X?|V100S?|P100|P40|P4|T4|K80|M40|M60)\b|RTX 20|TITAN|Quadro RTX", re.IGNORECASE
)
"""Products of GA100 and older chips, for which NVML's power draw is instantaneous. Source: nvml.h."""
_COLUMNS = {column.name: column for column in SAMPLES.columns}
_NEVER_ZERO = {
    **dict.fromkeys(("gpu_power_w", "gpu_power_average_w", "gpu_energy_j"), "the secondary die of a package reads so"),
    "gpu_memory_temp_c": "a GPU without that sensor reads so",
}
"""Metrics that are 0 throughout only if they are not measured, with the reason."""
_MOST_APART = 3.0
"""Ratio of the counter's power to sampled power, or the reverse, above which the counter is wrong. That of MI100 is
wrong by five orders (ROCm/amdsmi, issue 38); readings 15 s apart may miss half of the energy. Our choice."""
_LEAST_W, _LEAST_COUNTED_S = 1.0, 2.0
"""Smallest power of any GPU (W), and shortest time over which a counter is checked (s). Our choice."""
Key = tuple[str, str, str]
"""Device, metric and part of a series."""


@dataclass(frozen=True)
class HostSamples:
    """Samples of one host."""

    parts: list[Part]
    period_s: float
    """Time between samples of the metric read most often. Unit: s."""
    notes: list[str]
    """Remarks for the user on corrections."""


def assemble(series: Iterable[Series], products: Mapping[str, str]) -> HostSamples:
    """Return the samples of one host.

    Args:
        series: Series of the host, with times on one clock.
        products: Product of each device, if known.
    """
    notes: list[str] = []
    in_order = {key: _sorted(joined, notes) for key, joined in _join(series, products).items()}
    by_device: dict[str, dict[str, list[Series]]] = defaultdict(lambda: defaultdict(list))
    for (device, metric, _), one in in_order.items():
        by_device[device][metric].append(_within_bounds(_total(one), notes))
    columns = {
        device: {metric: _combine(parts) for metric, parts in by_metric.items()}
        for device, by_metric in by_device.items()
    }
    for device, by_metric in columns.items():
        _drop_zeros(device, by_metric, notes)
        _drop_wrong_counter(device, by_metric, notes)
    for device, by_metric in columns.items():
        _drop_unknown(device, by_metric, notes)
    parts = [_part(device, columns[device]) for device in sorted(columns, key=_device_order) if columns[device]]
    return HostSamples([part for part in parts if part.t_ns.size], _period_s(columns), list(dict.fromkeys(notes)))


def _device_order(device: str) -> tuple[bool, int]:
    """Return the sort key of a device: the host first, then GPUs by number."""
    number = re.search(r"\d+$", device)
    return device != "host", int(number[0]) if number else 0


def _join(series: Iterable[Series], products: Mapping[str, str]) -> dict[Key, Series]:
    """Return series by device, metric and part; those of several files are concatenated."""
    groups: dict[Key, list[Series]] = defaultdict(list)
    for one in series:
        metric = one.metric
        if one.is_draw and INSTANTANEOUS.search(products.get(one.device, "")):
            metric = "gpu_power_w"
        groups[one.device, metric, one.part].append(replace(one, metric=metric))
    return {
        key: replace(
            group[0],
            t_ns=np.concatenate([one.t_ns for one in group]),
            values=np.concatenate([one.values for one in group]),
        )
        for key, group in groups.items()
    }


def _sorted(series: Series, notes: list[str]) -> Series:
    """Return a series in the order of time, with each time once; of several values the first known one is kept."""
    order = np.lexsort((np.isnan(series.values), series.t_ns))
    t_ns, values = series.t_ns[order], series.values[order]
    is_first = np.concatenate([[True], np.diff(t_ns) > 0]) if t_ns.size else np.array([], bool)
    repeated = np.flatnonzero(~is_first)
    if repeated.size:
        num_different = int((np.isfinite(values[repeated]) & (values[repeated] != values[repeated - 1])).sum())
        different = f", {num_different} of them with another value; the first is taken"
        notes.append(
            f"{series.device}: {repeated.size} times come twice for {series.metric}"
            + (different if num_different else "; once is taken")
        )
    elif np.any(np.diff(series.t_ns) < 0):
        notes.append(f"{series.device}: lines were not in the order of time; sorted")
    return replace(series, t_ns=t_ns[is_first], values=values[is_first])


def _total(series: Series) -> Series:
    """Return a counter as the total since its first value, across wraps and restarts; rates are summed."""
    if _COLUMNS[series.metric].kind is not Kind.COUNTER or not series.t_ns.size:
        return series
    values = series.values
    if series.is_rate:
        lengths_s = np.diff(series.t_ns, prepend=series.t_ns[0]) / NS_PER_S
        sums = np.cumsum(np.nan_to_num(values) * lengths_s)
        return replace(series, values=np.where(np.isnan(values), np.nan, sums))
    highest = np.nanmax(values) if np.isfinite(values).any() else 0.0
    wraps_at = next((limit for limit in series.wraps_at if limit >= highest), 0.0)
    first = np.isfinite(values).argmax()
    totals = np.full(len(values), np.nan)
    totals[first:] = Counters(1).advance(values[first:, None], np.array([wraps_at]))[:, 0]
    return replace(series, values=totals)


def _within_bounds(series: Series, notes: list[str]) -> Series:
    """Return a series without impossible values, such as a temperature of 65535 or a share of 400 %."""
    column = _COLUMNS[series.metric]
    low = -np.inf if column.minimum is None else column.minimum
    high = np.inf if column.maximum is None else column.maximum
    is_wrong = (series.values < low) | (series.values > high) | np.isinf(series.values)
    if is_wrong.any():
        first = series.values[int(is_wrong.argmax())]
        notes.append(
            f"{series.device}: {int(is_wrong.sum())} values of {series.metric} outside of {low:g} to {high:g} "
            f"{column.unit} left out, the first is {first:g}"
        )
    return replace(series, values=np.where(is_wrong, np.nan, series.values))


def _combine(parts: list[Series]) -> Series:
    """Return one series of the parts of a device, at their common times: counters are summed, gauges averaged."""
    if len(parts) == 1:
        return parts[0]
    t_ns = parts[0].t_ns
    for part in parts[1:]:
        t_ns = np.intersect1d(t_ns, part.t_ns)
    values = np.array([part.values[np.searchsorted(part.t_ns, t_ns)] for part in parts])
    is_counter = _COLUMNS[parts[0].metric].kind is Kind.COUNTER
    return replace(parts[0], t_ns=t_ns, values=values.sum(axis=0) if is_counter else values.mean(axis=0), part="")


def _drop_unknown(device: str, columns: dict[str, Series], notes: list[str]) -> None:
    """Remove columns without any value."""
    for metric in [metric for metric, one in columns.items() if not np.isfinite(one.values).any()]:
        del columns[metric]
        notes.append(f"{device}: {metric} has no value in the whole recording and is left out")


def _drop_zeros(device: str, columns: dict[str, Series], notes: list[str]) -> None:
    """Remove columns that are 0 throughout although they cannot be."""
    for metric, reason in _NEVER_ZERO.items():
        if metric not in columns:
            continue
        values = columns[metric].values
        known = values[np.isfinite(values)]
        if known.size and not known.any() and (metric != "gpu_energy_j" or known.size > 1):
            del columns[metric]
            notes.append(f"{device}: {metric} is 0 throughout and is left out; {reason}")


def _drop_wrong_counter(device: str, columns: dict[str, Series], notes: list[str]) -> None:
    """Remove an energy counter that disagrees with sampled power, or rises by less than any GPU draws."""
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
    is_right = (
        _LEAST_W <= counted_w <= MOST_GPU_W
        if np.isnan(power_w)
        else 1 / _MOST_APART <= counted_w / power_w <= _MOST_APART
    )
    if not is_right:
        extreme = "less" if counted_w < _LEAST_W else "more"
        against = f"{extreme} than any GPU draws" if np.isnan(power_w) else f"the power read is {power_w:.0f} W"
        del columns["gpu_energy_j"]
        notes.append(f"{device}: gpu_energy_j rises by {counted_w:.3g} W and is left out; {against}")


def _part(device: str, columns: Mapping[str, Series]) -> Part:
    """Return the samples of a device, one row for each time of any column."""
    names = [name for name in METRICS if name in columns]
    t_ns = np.unique(np.concatenate([columns[name].t_ns for name in names]))
    values = np.full((len(t_ns), len(names)), np.nan)
    for index, name in enumerate(names):
        values[np.searchsorted(t_ns, columns[name].t_ns), index] = columns[name].values
    is_read = np.isfinite(values).any(axis=1)
    return Part(device, t_ns[is_read], np.zeros(int(is_read.sum()), np.int64), names, values[is_read])


def _period_s(by_device: Mapping[str, Mapping[str, Series]]) -> float:
    """Return the median time between samples of the metric read most often; 1 s if none has two samples. Unit: s."""
    periods_ns = [
        float(np.median(np.diff(series.t_ns)))
        for columns in by_device.values()
        for series in columns.values()
        if series.t_ns.size > 1
    ]
    return round(min(periods_ns) / NS_PER_S, 6) if periods_ns else 1.0
