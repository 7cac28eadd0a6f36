"""Hot spots that move: slots whose contact drifts over a long run, and when another placement would pay for a restart.

Contacts of the run are extrapolated in a straight line of their logarithm, and the search is repeated for later times.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from triplepoint.advise.recommend.passport import Learned, contacts_over
from triplepoint.advise.recommend.placement import BAD_CONTACT, Placement, Site
from triplepoint.advise.recommend.placement_gain import Gain, find_placement, gain_within
from triplepoint.calibrate.heat_runs import SETTLING_S, Observed
from triplepoint.config.cluster import ClusterConfig
from triplepoint.metrics import Z90
from triplepoint.simulate.heat.machine import Machine
from triplepoint.simulate.power.gpu import Float
from triplepoint.units import S_PER_HOUR

_LEAST_S = 1800.0
"""Shortest part of a run in balance that a drift is read off. Our choice: sinks follow within a minute. Unit: s."""
_WINDOWS = 8
_LEAST_Z = 3.5
"""As of drift between passports. Source: Iglewicz and Hoaglin 1993, chapter 3."""
_LEAST_CHANGE = 0.03
"""Change of a contact over the run that counts: half a degree in 20 K from die to sink. Our choice."""
_AHEAD = (0.0, 1.0, 3.0)
"""Times looked ahead to, over the length of the run in balance: a straight line holds no further. Our choice."""


@dataclass(frozen=True)
class Moving:
    """A slot whose contact drifts against those of its cluster.

    Attributes:
        name: The GPU, counted within the run.
        log_per_h: Change of the logarithm of its contact in an hour.
        sigma_per_h: Standard deviation of it.
    """

    name: str
    log_per_h: float
    sigma_per_h: float


@dataclass(frozen=True)
class Ahead:
    """What another placement gains at a later time.

    Attributes:
        hours: From the end of the run. Unit: h.
        placement: The best one found; None where none is shorter.
        gain: Of it over the present one.
    """

    hours: float
    placement: Placement | None
    gain: Gain | None


@dataclass(frozen=True)
class Outlook:
    """What the drift within a run comes to.

    Attributes:
        seen_h: Length of the part of the run that it is read off. Unit: h.
        moving: Slots that drift, most first.
        ahead: Times ahead; none where no slot drifts.
    """

    seen_h: float
    moving: tuple[Moving, ...]
    ahead: tuple[Ahead, ...]


def payback_h(share: float, restart_minutes: float) -> float:
    """Return after how long a shorter step has made up for a restart; infinite where it is not shorter. Unit: h.

    The restart takes time in which the present placement would have trained on. After `t` both have done the same work
    if `t * share` is the length of the restart.

    Args:
        share: Share of a step that is saved.
        restart_minutes: Time that the restart costs, lost work included. Unit: min.
    """
    return restart_minutes / 60.0 / share if share > 0.0 else float("inf")


def find_moving(machine: Machine, one: Observed) -> tuple[float, list[Moving]] | None:
    """Return how long a run was in balance (h), and slots whose contact drifts; None where that is too short.

    Args:
        machine: The nodes as they are described.
        one: Power and temperatures of the run over time.
    """
    start = int(np.ceil(SETTLING_S / one.period_s)) if one.period_s else 0
    length_s = (len(one.series_c) - start) * one.period_s
    if length_s < _LEAST_S:
        return None
    windows = np.array_split(np.arange(start, len(one.series_c)), _WINDOWS)
    times_h = np.array([(own.mean() + 0.5) * one.period_s for own in windows]) / S_PER_HOUR
    logs = np.log([contacts_over(machine, _within(one, own))[1] for own in windows])
    # What all slots share, such as a warmer room, is no drift of a slot.
    logs -= np.median(logs.reshape(_WINDOWS, -1), axis=1)[:, None, None]
    slope, sigma = _lines(times_h, logs)
    span_h = length_s / S_PER_HOUR
    is_moving = (np.abs(slope) > _LEAST_Z * sigma) & (np.abs(slope) * span_h > _LEAST_CHANGE)
    is_moving &= np.isfinite(one.temp_c)
    found = [
        Moving(f"node{node}.gpu{gpu}", float(slope[node, gpu]), float(sigma[node, gpu]))
        for node, gpu in np.argwhere(is_moving).tolist()
    ]
    return span_h, sorted(found, key=lambda own: -abs(own.log_per_h))


def _within(one: Observed, own: np.ndarray) -> Observed:
    power_w = np.nan_to_num(np.nanmean(one.series_w[own], axis=0))
    return replace(one, power_w=power_w, temp_c=np.nanmean(one.series_c[own], axis=0))


def _lines(times_h: Float, values: Float) -> tuple[Float, Float]:
    """Return slope and its standard deviation of straight lines through values of shape (num_times, ...)."""
    apart = times_h - times_h.mean()
    level = values.mean(axis=0)
    slope = np.tensordot(apart, values, axes=1) / (apart**2).sum()
    rest = values - level - apart.reshape(-1, *[1] * (values.ndim - 1)) * slope
    sigma = np.sqrt((rest**2).sum(axis=0) / (len(apart) - 2) / (apart**2).sum())
    return slope, sigma


def foresee(site: Site, learned: Learned) -> Outlook | None:
    """Return what the drift of slots comes to at later times; None where the run is too short to tell.

    Args:
        site: The job, its contacts the mean of the run.
        learned: What was learned of its slots.

    Raises:
        PointError: If GPUs cannot work under its conditions now.
    """
    found = find_moving(learned.runs.machine, learned.runs.observed[0])
    if found is None:
        return None
    seen_h, moving = found
    ahead = tuple(_look(site, moving, seen_h, share * seen_h) for share in _AHEAD) if moving else ()
    return Outlook(seen_h, tuple(moving), ahead)


def _look(site: Site, moving: list[Moving], seen_h: float, hours: float) -> Ahead:
    then = replace(site, cluster=moved_on(site.cluster, _factors(moving, 0.5 * seen_h + hours, 0.0)))
    before = then.step(then.present)
    placement, after = find_placement(then, before)
    if placement is None or after is None:
        return Ahead(hours, None, None)
    share, shares = 1.0 - after.step_time_s / before.step_time_s, list[float]()
    for shift in (-Z90, Z90):
        cluster = moved_on(site.cluster, _factors(moving, 0.5 * seen_h + hours, shift))
        present_s, other_s = (then.step(one, cluster).step_time_s for one in (then.present, placement))
        shares.append(1.0 - other_s / present_s)
    return Ahead(hours, placement, gain_within(share, min(share, *shares), max(share, *shares)))


def _factors(moving: list[Moving], hours: float, shift: float) -> dict[str, float]:
    """Return the factor on contacts after so long, with slopes so many standard deviations further from none."""
    return {
        one.name: float(np.exp((one.log_per_h + np.sign(one.log_per_h) * shift * one.sigma_per_h) * hours))
        for one in moving
    }


def moved_on(cluster: ClusterConfig, factors: Mapping[str, float]) -> ClusterConfig:
    """Return a cluster with factors on the contacts of single GPUs; from `BAD_CONTACT` on they count as faults."""
    before = cluster.conditions
    contact, bad = dict(before.contact), dict(before.bad_contact)
    for name, factor in factors.items():
        own = float(np.clip(contact.get(name, 1.0) * bad.pop(name, 1.0) * factor, 0.3, 20.0))
        contact[name] = own if own < BAD_CONTACT else 1.0
        if own >= BAD_CONTACT:
            bad[name] = own
    conditions = before.model_copy(update={"contact": contact, "bad_contact": bad})
    return cluster.model_copy(update={"conditions": conditions})
