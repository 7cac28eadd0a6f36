"""Search for a placement with heat, and the gain of a placement with its interval."""

import math
from dataclasses import dataclass
from typing import NamedTuple

from triplepoint.advise.recommend.passport import Learned
from triplepoint.advise.recommend.placement import Outcome, Placement, Site, learned_cluster
from triplepoint.advise.recommend.placement_search import linear_optimum, search
from triplepoint.config.cluster import ConditionsConfig
from triplepoint.errors import PointError, UserError
from triplepoint.metrics import Z90
from triplepoint.simulate.layouts import Laid
from triplepoint.simulate.predict.prediction import read_calibrations

_MICRO_BATCHES = (1, 2, 4, 8)
"""Micro-batch sizes to search, as in `triplepoint search`."""
_ROUNDS = 2
"""Number of searches: the second one uses the temperatures under the result of the first."""
_MAX_SIMULATED = 3
"""Placements of a search that are simulated with heat."""
_MAX_GAIN_BY_HEAT = 0.03
"""Largest share of a step that a placement gains by heat, in addition to its gain without. Our choice."""
LEAST_GAIN = 1e-3
"""Smallest gain of a placement that counts: the text shows tenths of a percent. Our choice."""
_RESOLUTION = 0.005
"""Resolution of the speeds of GPUs in `simulate.heat.pace`; the error of both steps is at most half of it."""
_MODEL_SHARE = 0.3
"""Standard deviation of the model error of a gain, over the gain: half of the gain is then the lower end of the 90 %
interval. A model of placement inside a node realised half. Source: Lit Silicon, arXiv:2511.09861."""


@dataclass(frozen=True)
class Gain:
    """Share of a step that a placement saves, with its 90 % interval; negative for a loss."""

    share: float
    lo: float
    hi: float

    @property
    def is_accepted(self) -> bool:
        """Whether the whole interval is positive."""
        return self.lo > 0.0


def simulate_layers(site: Site, layers: tuple[int, ...]) -> tuple[Placement, Outcome]:
    """Return a placement with given layers of each stage on the present nodes, and its step.

    Raises:
        UserError: If the layers do not match the model or do not fit in memory.
    """
    present = site.present.layers
    if not present:
        raise UserError("--layers: the run has virtual stages, whose layers are left as they are; leave it out")
    if len(layers) != len(present) or sum(layers) != sum(present):
        raise UserError(
            f"--layers {','.join(map(str, layers))}: {len(layers)} stages with {sum(layers)} layers, the run has "
            f"{len(present)} with {sum(present)}; give the layers of each stage"
        )
    placement = Placement(site.present.nodes, layers)
    if not site.fits(placement):
        raise UserError(f"--layers {','.join(map(str, layers))}: does not fit in memory, or cannot be simulated")
    return placement, site.step(placement)


class Proposal(NamedTuple):
    """A placement, its step, and its gain over the present one."""

    placement: Placement
    after: Outcome
    gain: Gain


def find_proposals(site: Site, learned: Learned | None, before: Outcome) -> list[Proposal]:
    """Return the placements that gain more than 0.1 %, that with the highest lower end first.

    Compared are the best placement with the present micro-batch and the best with each other one. Another micro-batch
    is searched only if it makes the step under the present placement shorter. Its gain has a wider interval, so heat is
    simulated only if the lower end could become the highest.

    Args:
        site: The job.
        learned: Passport of its slots. None: the cluster is as its file declares.
        before: Present step.

    Raises:
        PointError: If GPUs would shut down under its conditions.
    """
    placement, after = find_placement(site, before)
    found = list[Proposal]()

    def lowest() -> float:
        return max((proposal.gain.lo for proposal in found), default=-math.inf)

    if placement and after and 1.0 - after.step_time_s / before.step_time_s >= LEAST_GAIN:
        found.append(Proposal(placement, after, gain_of(site, learned, before, placement, after)))
    present_s = site.quick_step(site.present, before.factor).time_s
    for size in _MICRO_BATCHES:
        changed, unmoved = site.with_micro_batch(size), site.present._replace(micro_batch_size=size)
        if size == site.point.micro_batch_size or changed.refusal or not site.fits(unmoved):
            continue
        if site.quick_step(unmoved, before.factor).time_s >= present_s:
            continue
        if found and _max_gain(site, changed, unmoved, before, present_s).lo <= lowest():
            continue
        changed_step = changed.step(changed.present)
        placement, after = find_placement(changed, changed_step)
        placement, after = (placement or changed.present)._replace(micro_batch_size=size), after or changed_step
        if 1.0 - after.step_time_s / before.step_time_s < LEAST_GAIN:
            continue
        if not found or _narrowest_gain(site, before, placement, after).lo > lowest():
            found.append(Proposal(placement, after, gain_of(site, learned, before, placement, after)))
    return sorted(found, key=lambda proposal: -proposal.gain.lo)


def _max_gain(site: Site, changed: Site, unmoved: Placement, before: Outcome, present_s: float) -> Gain:
    """Return the largest gain that another micro-batch may have, without a simulation of heat.

    Args:
        site: The job.
        changed: The job with the other micro-batch.
        unmoved: Present placement with the other micro-batch.
        before: Present step.
        present_s: Present step time without heat. Unit: s.
    """
    placements = (changed.present, linear_optimum(changed, before.factor))
    times_s = [changed.quick_step(placement, before.factor).time_s for placement in placements]
    share = min(1.0 - min(times_s) / present_s + _MAX_GAIN_BY_HEAT, 1.0)
    return gain_within(share, share, share, _layout_width(site, unmoved))


def find_placement(site: Site, before: Outcome) -> tuple[Placement | None, Outcome | None]:
    """Return the best placement of a search, simulated with heat, and its step; None if none has a shorter step."""
    best, after, last = None, None, before
    steps = {site.present: before}
    for _ in range(_ROUNDS):
        new = [placement for placement in search(site, last.factor)[:_MAX_SIMULATED] if placement not in steps]
        if not new:
            break
        steps |= {placement: site.step(placement) for placement in new}
        shortest = min(new, key=lambda placement: steps[placement].step_time_s)
        last = steps[shortest]
        if last.step_time_s < (after or before).step_time_s:
            best, after = shortest, last
    return best, after


def _narrowest_gain(site: Site, before: Outcome, proposed: Placement, after: Outcome) -> Gain:
    """Return a gain with the narrowest interval it may have, that of exactly known contacts."""
    share = 1.0 - after.step_time_s / before.step_time_s
    return gain_within(share, share, share, _layout_width(site, proposed))


def gain_of(site: Site, learned: Learned | None, before: Outcome, proposed: Placement, after: Outcome) -> Gain:
    """Return the gain of a placement with its 90 % interval.

    Both placements are simulated with the same contacts of faulty slots: as estimated, and at both ends of their
    intervals. The interval includes the error of the model and its resolution of speeds.

    Args:
        site: The job.
        learned: Passport of its slots. None: the cluster is as its file declares.
        before: Present step.
        proposed: The placement.
        after: Step under the placement.

    Raises:
        PointError: If GPUs would shut down under its conditions.
    """
    share = 1.0 - after.step_time_s / before.step_time_s
    low, high = share, share
    if learned is not None and site.cluster.conditions.bad_contact:
        for shift in (-Z90, Z90):
            moved = _share_at(site, learned_cluster(learned, shift).conditions, proposed)
            low, high = (low, high) if moved is None else (min(low, moved), max(high, moved))
    return gain_within(share, low, high, _layout_width(site, proposed))


def _layout_width(site: Site, proposed: Placement) -> float:
    """Return the half-width of the 90 % interval of the log ratio of steps with another and the present micro-batch."""
    if not proposed.micro_batch_size:
        return 0.0
    one, other = (
        Laid(site.job(each), site.quick_step(each, {}).gradient_share) for each in (site.present, proposed)
    )  # fmt: skip
    return read_calibrations(site.config)[0].layout_width(one, other)


def gain_within(share: float, low: float, high: float, width: float = 0.0) -> Gain:
    """Return a gain with an interval of all errors: contacts, the model, its resolution of speeds, and the layout.

    Args:
        share: The gain.
        low: Lower end of the interval due to contacts.
        high: Upper end of the interval due to contacts.
        width: Half-width of the 90 % interval of the log ratio of both steps, due to the layout.
    """
    model_width = math.hypot(
        Z90 * math.hypot(_MODEL_SHARE * share, _RESOLUTION / math.sqrt(6.0)), (1.0 - share) * width
    )
    return Gain(share, share - math.hypot(share - low, model_width), share + math.hypot(high - share, model_width))


def _share_at(site: Site, conditions: ConditionsConfig, proposed: Placement) -> float | None:
    """Return the gain under other conditions; None if GPUs would shut down under them."""
    cluster = site.cluster.model_copy(update={"conditions": conditions})
    try:
        before, after = (site.step(each, cluster).step_time_s for each in (site.present, proposed))
    except PointError:
        return None
    return 1.0 - after / before
