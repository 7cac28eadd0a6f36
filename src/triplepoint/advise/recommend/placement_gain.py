"""Search for a placement, and the gain of one with its interval."""

import math
from dataclasses import dataclass

from triplepoint.advise.recommend.passport import Learned
from triplepoint.advise.recommend.placement import Outcome, Placement, Site, learned_cluster
from triplepoint.advise.recommend.placement_search import nearest, search
from triplepoint.config.cluster import ConditionsConfig
from triplepoint.errors import PointError, UserError
from triplepoint.metrics import Z90
from triplepoint.simulate.layouts import Laid
from triplepoint.simulate.predict.prediction import read_calibrations

_MICRO_BATCHES = (1, 2, 4, 8)
"""Micro-batches that are searched, those of `triplepoint search`."""
_ROUNDS = 2
"""Searches: the second knows how warm GPUs are under the first one's placement."""
_FOLLOWED = 3
"""Placements of a search that are followed with heat."""
_BY_HEAT = 0.03
"""Share of a step that a placement may gain by heat beyond what it gains at equal factors. Our choice."""
_RESOLUTION = 0.005
"""Speeds of GPUs are told apart in steps of 0.5 % (`simulate.heat.warm`): both steps are off by half of it at most."""
_MODEL_SHARE = 0.3
"""The model's own standard deviation of a gain, over the gain: with it half of what was promised is the end of the 90 %
interval. Half is what was measured of a model of placement inside a node. Source: Lit Silicon, arXiv:2511.09861."""


@dataclass(frozen=True)
class Gain:
    """Share of a step that a placement saves, with its 90 % interval; negative where it costs."""

    share: float
    lo: float
    hi: float

    @property
    def is_accepted(self) -> bool:
        """Whether it is positive beyond doubt."""
        return self.lo > 0.0


def judged(site: Site, layers: tuple[int, ...]) -> tuple[Placement, Outcome]:
    """Return a given split of layers with the nodes as they are, and its step.

    Raises:
        UserError: If layers do not fit the model or the memory.
    """
    now = site.present.layers
    if not now:
        raise UserError("--layers: the run has virtual stages, whose layers are left as they are; leave it out")
    if len(layers) != len(now) or sum(layers) != sum(now):
        raise UserError(
            f"--layers {','.join(map(str, layers))}: {len(layers)} stages with {sum(layers)} layers, the run has "
            f"{len(now)} with {sum(now)}; give the layers of each stage"
        )
    placement = Placement(site.present.nodes, layers)
    if not site.fits(placement):
        raise UserError(f"--layers {','.join(map(str, layers))}: does not fit in memory, or cannot be simulated")
    return placement, site.step(placement)


def find(site: Site, learned: Learned | None, before: Outcome) -> tuple[Placement, Outcome, Gain] | None:
    """Return the placement that is surest to gain, its step and its gain: the one with the highest lower end.

    The best one with the present micro-batch and with each other one are compared. Another micro-batch is searched if a
    step where everything stands as it does now would be shorter with it. It is known less well than another placement:
    where it could not come out surer, its heat is not followed.

    Args:
        site: The job.
        learned: What was learned of the slots; None where the cluster is taken as described.
        before: Its present step.

    Raises:
        PointError: If GPUs cannot work under its conditions.
    """
    placement, after = find_placement(site, before)
    best = (placement, after, gain_of(site, learned, before, placement, after)) if placement and after else None
    now_s = site.quick_step(site.present, before.factor).time_s
    for size in _MICRO_BATCHES:
        own, there = site.with_micro_batch(size), site.present._replace(micro_batch_size=size)
        if size == site.point.micro_batch_size or own.refusal or not site.fits(there):
            continue
        if site.quick_step(there, before.factor).time_s >= now_s:
            continue
        if best and _most(site, own, there, before, now_s).lo <= best[2].lo:
            continue
        present = own.step(own.present)
        placement, after = find_placement(own, present)
        placement, after = (placement or own.present)._replace(micro_batch_size=size), after or present
        if after.step_time_s >= before.step_time_s:
            continue
        if best is None or _without_contacts(site, before, placement, after).lo > best[2].lo:
            gain = gain_of(site, learned, before, placement, after)
            best = (placement, after, gain) if best is None or gain.lo > best[2].lo else best
    return best


def _most(site: Site, own: Site, there: Placement, before: Outcome, now_s: float) -> Gain:
    """Return what another micro-batch gains at most, without following its heat."""
    placements = (own.present, nearest(own, before.factor))
    times_s = [own.quick_step(one, before.factor).time_s for one in placements]
    share = min(1.0 - min(times_s) / now_s + _BY_HEAT, 1.0)
    return gain_within(share, share, share, _layout_width(site, there))


def find_placement(site: Site, before: Outcome) -> tuple[Placement | None, Outcome | None]:
    """Return the best placement that a search finds, followed with heat, and its step; None where none is shorter."""
    best, after, last = None, None, before
    known = {site.present: before}
    for _ in range(_ROUNDS):
        found = [one for one in search(site, last.factor)[:_FOLLOWED] if one not in known]
        if not found:
            break
        known |= {one: site.step(one) for one in found}
        nearest = min(found, key=lambda one: known[one].step_time_s)
        last = known[nearest]
        if last.step_time_s < (after or before).step_time_s:
            best, after = nearest, last
    return best, after


def _without_contacts(site: Site, before: Outcome, proposed: Placement, after: Outcome) -> Gain:
    """Return a gain as if contacts were known: no interval is narrower."""
    share = 1.0 - after.step_time_s / before.step_time_s
    return gain_within(share, share, share, _layout_width(site, proposed))


def gain_of(site: Site, learned: Learned | None, before: Outcome, proposed: Placement, after: Outcome) -> Gain:
    """Return the gain of a placement with its 90 % interval.

    Both placements are followed at the same contacts of faulty slots: as estimated and at either end of their
    intervals. What the model itself may be off by, and the steps it tells speeds apart by, come on top.

    Args:
        site: The job.
        learned: What was learned of the slots; None where the cluster is taken as described.
        before: The present step.
        proposed: The placement.
        after: Its step.

    Raises:
        PointError: If GPUs cannot work under its conditions.
    """
    share = 1.0 - after.step_time_s / before.step_time_s
    low, high = share, share
    if learned is not None and site.cluster.conditions.bad_contact:
        for shift in (-Z90, Z90):
            moved = _share_at(site, learned_cluster(learned, shift).conditions, proposed)
            low, high = (low, high) if moved is None else (min(low, moved), max(high, moved))
    return gain_within(share, low, high, _layout_width(site, proposed))


def _layout_width(site: Site, proposed: Placement) -> float:
    """Return half the 90 % interval, in log, of a step with another micro-batch over one with the present one."""
    if not proposed.micro_batch_size:
        return 0.0
    one, other = (
        Laid(site.job(each), site.quick_step(each, {}).gradient_share) for each in (site.present, proposed)
    )  # fmt: skip
    return read_calibrations(site.config)[0].layout_width(one, other)


def gain_within(share: float, low: float, high: float, width: float = 0.0) -> Gain:
    """Return a gain whose ends by contacts are given, with what the model and its steps may be off by on top.

    Args:
        share: The gain.
        low: Its lower end by contacts.
        high: Its upper end by contacts.
        width: Half the 90 % interval, in log, of what else differs between the two steps.
    """
    own = math.hypot(Z90 * math.hypot(_MODEL_SHARE * share, _RESOLUTION / math.sqrt(6.0)), (1.0 - share) * width)
    return Gain(share, share - math.hypot(share - low, own), share + math.hypot(high - share, own))


def _share_at(site: Site, conditions: ConditionsConfig, proposed: Placement) -> float | None:
    """Return the gain under other conditions; None where GPUs would shut down under them."""
    cluster = site.cluster.model_copy(update={"conditions": conditions})
    try:
        before, after = (site.step(each, cluster).step_time_s for each in (site.present, proposed))
    except PointError:
        return None
    return 1.0 - after / before
