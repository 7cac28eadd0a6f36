"""Drift of hot spots: slots whose contact changes over a long run, and when another placement would pay for a restart.

The logarithm of contacts is extrapolated linearly, and the search for a placement is repeated for later times.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from triplepoint.advise.recommend.passport import BAD_CONTACT, Learned, contacts_over
from triplepoint.advise.recommend.placement import Placement, Site
from triplepoint.advise.recommend.placement_gain import Gain, find_placement, gain_within
from triplepoint.calibrate.heat_runs import SETTLING_S, Observed
from triplepoint.config.cluster import ClusterConfig
from triplepoint.metrics import Z90
from triplepoint.simulate.heat.machine import Machine
from triplepoint.simulate.power.gpu import Float
from triplepoint.units import S_PER_HOUR

_MIN_DURATION_S = 1800.0
"""Shortest time in thermal balance from which drift is estimated. Our choice: sinks follow within a minute. Unit: s."""
_WINDOWS = 8
"""Parts of that time, with one contact each."""
_MIN_Z = 3.5
"""Smallest drift over its standard deviation that counts, as between passports. Source: Iglewicz and Hoaglin 1993,
chapter 3."""
_MIN_CHANGE = 0.03
"""Smallest relative change of a contact that counts: half a degree in 20 K from die to sink. Our choice."""
_AHEAD = (0.0, 1.0, 3.0)
"""Times for which placements are searched, over the time in balance: the extrapolation holds no further. Our choice."""


@dataclass(frozen=True)
class Moving:
    """A slot whose contact drifts relative to those of its cluster.

    Attributes:
        name: The GPU, counted within the run.
        log_per_h: Change of the logarithm of its contact per hour.
        sigma_per_h: Standard deviation of that change.
    """

    name: str
    log_per_h: float
    sigma_per_h: float


@dataclass(frozen=True)
class Ahead:
    """Best placement at a later time.

    Attributes:
        hours: Time since the end of the run. Unit: h.
        placement: The best placement; None if none has a shorter step than the present one.
        gain: Gain of that placement over the present one.
    """

    hours: float
    placement: Placement | None
    gain: Gain | None


@dataclass(frozen=True)
class Outlook:
    """Drift within a run and its effect at later times.

    Attributes:
        seen_h: Time in balance from which the drift is estimated. Unit: h.
        moving: Slots that drift, fastest first.
        ahead: Best placement at each later time; empty if no slot drifts.
    """

    seen_h: float
    moving: tuple[Moving, ...]
    ahead: tuple[Ahead, ...]


def payback_h(share: float, restart_minutes: float) -> float:
    """Return the time after which a shorter step makes up for a restart; infinite if it is not shorter. Unit: h.

    During the restart the present placement would train on. After a time `t` both have done the same work if
    `t * share` is the length of the restart.

    Args:
        share: Share of a step that is saved.
        restart_minutes: Duration of the restart, lost work included. Unit: min.
    """
    return restart_minutes / 60.0 / share if share > 0.0 else float("inf")


def find_moving(machine: Machine, observed: Observed) -> tuple[float, list[Moving]] | None:
    """Return the time of a run in thermal balance (h) and the slots whose contact drifts; None if it is too short.

    Args:
        machine: The nodes as declared.
        observed: Power and temperatures of the run over time.
    """
    start = int(np.ceil(SETTLING_S / observed.period_s)) if observed.period_s else 0
    length_s = (len(observed.series_c) - start) * observed.period_s
    if length_s < _MIN_DURATION_S:
        return None
    windows = np.array_split(np.arange(start, len(observed.series_c)), _WINDOWS)
    times_h = np.array([(window.mean() + 0.5) * observed.period_s for window in windows]) / S_PER_HOUR
    logs = np.log([contacts_over(machine, _mean_over(observed, window))[1] for window in windows])
    # A change that all slots share, such as a warmer room, is no drift of a slot.
    logs -= np.median(logs.reshape(_WINDOWS, -1), axis=1)[:, None, None]
    slope, sigma = _fit_lines(times_h, logs)
    span_h = length_s / S_PER_HOUR
    is_moving = (np.abs(slope) > _MIN_Z * sigma) & (np.abs(slope) * span_h > _MIN_CHANGE)
    is_moving &= np.isfinite(observed.temp_c)
    moving = [
        Moving(f"node{node}.gpu{gpu}", float(slope[node, gpu]), float(sigma[node, gpu]))
        for node, gpu in np.argwhere(is_moving).tolist()
    ]
    return span_h, sorted(moving, key=lambda slot: -abs(slot.log_per_h))


def _mean_over(observed: Observed, window: np.ndarray) -> Observed:
    """Return a run with the mean power and temperatures of a window, given by the indices of its samples."""
    power_w = np.nan_to_num(np.nanmean(observed.series_w[window], axis=0))
    return replace(observed, power_w=power_w, temp_c=np.nanmean(observed.series_c[window], axis=0))


def _fit_lines(times_h: Float, values: Float) -> tuple[Float, Float]:
    """Fit straight lines to values of shape (num_times, ...); return slopes and their standard deviations per h."""
    centred_h = times_h - times_h.mean()
    level = values.mean(axis=0)
    slope = np.tensordot(centred_h, values, axes=1) / (centred_h**2).sum()
    residual = values - level - centred_h.reshape(-1, *[1] * (values.ndim - 1)) * slope
    sigma = np.sqrt((residual**2).sum(axis=0) / (len(centred_h) - 2) / (centred_h**2).sum())
    return slope, sigma


def predict_drift(site: Site, learned: Learned) -> Outlook | None:
    """Return the drift of slots and its effect at later times; None if the run is too short.

    Args:
        site: The job, with the mean contacts of the run.
        learned: Passport of its slots, and the run.

    Raises:
        PointError: If GPUs would shut down under its present conditions.
    """
    drift = find_moving(learned.runs.machine, learned.runs.observed[0])
    if drift is None:
        return None
    seen_h, moving = drift
    ahead = tuple(_best_after(site, moving, seen_h, share * seen_h) for share in _AHEAD) if moving else ()
    return Outlook(seen_h, tuple(moving), ahead)


def _best_after(site: Site, moving: list[Moving], seen_h: float, hours: float) -> Ahead:
    """Return the best placement some hours after the end of a run.

    Args:
        site: The job, with the mean contacts of the run.
        moving: Slots that drift.
        seen_h: Time of the run in balance: its mean contacts are those of half that time ago. Unit: h.
        hours: Time since the end of the run. Unit: h.
    """
    then = replace(site, cluster=moved_on(site.cluster, _factors(moving, 0.5 * seen_h + hours, 0.0)))
    before = then.step(then.present)
    placement, after = find_placement(then, before)
    if placement is None or after is None:
        return Ahead(hours, None, None)
    share, shares = 1.0 - after.step_time_s / before.step_time_s, list[float]()
    for shift in (-Z90, Z90):
        cluster = moved_on(site.cluster, _factors(moving, 0.5 * seen_h + hours, shift))
        present_s, other_s = (then.step(each, cluster).step_time_s for each in (then.present, placement))
        shares.append(1.0 - other_s / present_s)
    return Ahead(hours, placement, gain_within(share, min(share, *shares), max(share, *shares)))


def _factors(moving: list[Moving], hours: float, shift: float) -> dict[str, float]:
    """Return the factor on the contact of each slot after some hours.

    Args:
        moving: Slots that drift.
        hours: Time. Unit: h.
        shift: Standard deviations by which slopes are steeper than estimated.
    """
    return {
        slot.name: float(np.exp((slot.log_per_h + np.sign(slot.log_per_h) * shift * slot.sigma_per_h) * hours))
        for slot in moving
    }


def moved_on(cluster: ClusterConfig, factors: Mapping[str, float]) -> ClusterConfig:
    """Return a cluster with factors on the contacts of single GPUs; contacts from `BAD_CONTACT` on count as faults."""
    before = cluster.conditions
    contact, bad = dict(before.contact), dict(before.bad_contact)
    for name, factor in factors.items():
        moved = float(np.clip(contact.get(name, 1.0) * bad.pop(name, 1.0) * factor, 0.3, 20.0))
        contact[name] = moved if moved < BAD_CONTACT else 1.0
        if moved >= BAD_CONTACT:
            bad[name] = moved
    conditions = before.model_copy(update={"contact": contact, "bad_contact": bad})
    return cluster.model_copy(update={"conditions": conditions})
