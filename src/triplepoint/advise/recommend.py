"""Advice on a run: what its hardware costs, and whether another placement of pipeline stages gains."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from triplepoint.advise.passport import Learned, Passport, Slot, hosts_of, learn
from triplepoint.advise.placement import BAD_CONTACT, Outcome, Placement, Site, learned_cluster, with_slow_gpus
from triplepoint.advise.placement_search import search
from triplepoint.config.cluster import ConditionsConfig, place_of
from triplepoint.config.plan import read_planned_run
from triplepoint.errors import PointError, UserError
from triplepoint.metrics import Z90
from triplepoint.tables import STEPS
from triplepoint.units import NS_PER_S

Seat = tuple[int, int]
"""Node of the run and device."""

_ROUNDS = 2
"""Searches: the second knows how warm GPUs are under the first one's placement."""
_FOLLOWED = 3
"""Placements of a search that are followed with heat."""
_RESOLUTION = 0.005
"""Speeds of GPUs are told apart in steps of 0.5 % (`simulate.heat.warm`): both steps are off by half of it at most."""
_MODEL_SHARE = 0.3
"""The model's own standard deviation of a gain, over the gain: with it half of what was promised is the end of the 90 %
interval. Half is what was measured of a model of placement inside a node. Source: Lit Silicon, arXiv:2511.09861."""


@dataclass(frozen=True)
class Outlier:
    """A part of the hardware that costs time.

    Attributes:
        name: Node or GPU, counted within the run.
        host: Its host.
        kind: contact, airflow, slow or reported.
        evidence: What was found.
        action: What to do.
        cost_s: What a step loses by it; None where that is not known. Unit: s.
    """

    name: str
    host: str
    kind: str
    evidence: str
    action: str
    cost_s: float | None


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


@dataclass(frozen=True, eq=False)
class Advice:
    """What is recommended for a run.

    Attributes:
        passport: Of its slots.
        outliers: Hardware that costs time, most first.
        hosts: Hosts of the run by node.
        measured_s: Median measured step. Unit: s.
        present: The placement as it is.
        before: Its predicted step.
        proposed: The best placement found, or the one asked about; None where none is shorter.
        after: Its predicted step.
        gain: Of it.
        reasons: Why it is recommended or not, in sentences.
    """

    passport: Passport
    outliers: list[Outlier]
    hosts: Mapping[int, str]
    measured_s: float
    present: Placement
    before: Outcome
    proposed: Placement | None
    after: Outcome | None
    gain: Gain | None
    reasons: list[str]

    @property
    def is_accepted(self) -> bool:
        """Whether another placement is recommended."""
        return self.gain is not None and self.gain.is_accepted


def advise(folder: Path, config: Path, layers: tuple[int, ...] = ()) -> Advice:
    """Return what is recommended for a run.

    Args:
        folder: `results/runs/<run>`, after the telemetry stage.
        config: Folder of the configuration.
        layers: Layers of every stage to judge, in place of a search; empty to search.

    Raises:
        UserError: If a file is missing, the run is no training run or cannot be simulated.
    """
    learned = learn(folder, config)
    point = read_planned_run(folder / "point.json").point
    if point.task == "inference":
        raise UserError(f"{folder.name}: an inference run; placement is recommended for training runs")
    if not point.knows("model", "tp", "pp", "dp", "global_batch_size", "micro_batch_size"):
        raise UserError(
            f"{folder.name}: model, layout or batch of the recorded job are not known; describe it (docs/own_job.md)"
        )
    site = Site(point, learned_cluster(learned), config)
    try:
        before = site.step(site.present)
        slowed = with_slow_gpus(site, learned, before)
        if slowed.cluster.slow_gpus != site.cluster.slow_gpus:
            site, before = slowed, slowed.step(slowed.present)
        proposed, after = judged(site, layers) if layers else find(site, before)
        gain = gain_of(site, learned, before, proposed, after) if proposed and after else None
    except PointError as error:
        raise UserError(f"{folder.name}: cannot be simulated: {error}") from None
    hosts = hosts_of(learned.manifest)
    return Advice(
        learned.passport, _outliers(site, learned, before, hosts), hosts, measured_step_s(folder), site.present, before,
        proposed, after, gain, _reasons(site, before, proposed, after, gain, hosts),
    )  # fmt: skip


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
    if not site.fits(layers):
        raise UserError(f"--layers {','.join(map(str, layers))}: does not fit in memory, or cannot be simulated")
    placement = Placement(site.present.nodes, layers)
    return placement, site.step(placement)


def find(site: Site, before: Outcome) -> tuple[Placement | None, Outcome | None]:
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
    own = Z90 * math.hypot(_MODEL_SHARE * share, _RESOLUTION / math.sqrt(6.0))
    return Gain(share, share - math.hypot(share - low, own), share + math.hypot(high - share, own))


def _share_at(site: Site, conditions: ConditionsConfig, proposed: Placement) -> float | None:
    """Return the gain under other conditions; None where GPUs would shut down under them."""
    cluster = site.cluster.model_copy(update={"conditions": conditions})
    try:
        before, after = (site.step(each, cluster).step_time_s for each in (site.present, proposed))
    except PointError:
        return None
    return 1.0 - after / before


def _outliers(site: Site, learned: Learned, before: Outcome, hosts: Mapping[int, str]) -> list[Outlier]:
    """Return hardware that costs time, with what a step would gain if it were sound, most first."""
    present_s = site.quick_step(site.present, before.factor).time_s

    def cost_s(places: Collection[Seat]) -> float:
        mended = {place: own for place, own in before.factor.items() if place not in places}
        return (present_s - site.quick_step(site.present, mended).time_s) * before.step_time_s / present_s

    slots = {(slot.node, slot.device): slot for slot in learned.passport.slots}
    found = list(_hot(site, slots, hosts, cost_s))
    for name, speed in site.cluster.slow_gpus.items():
        if (place := place_of(name)) in slots:
            found.append(Outlier(
                name, slots[place].host, "slow", f"computes at {speed:.0%} of the speed of its peers, beyond its heat",
                "test or replace the GPU", cost_s([place]),
            ))  # fmt: skip
    found += [
        Outlier(f"rank {one.rank}", one.host, "reported", one.message, "drain the node and test the GPU", None)
        for one in learned.manifest.suspects
    ]
    return sorted(found, key=lambda one: -(one.cost_s or 0.0))


def _hot(
    site: Site, slots: Mapping[Seat, Slot], hosts: Mapping[int, str], cost_s: Callable[[Collection[Seat]], float]
) -> Iterator[Outlier]:
    """Yield nodes whose median slot is cooled badly, then single slots of other nodes."""
    bad = [place_of(name) for name in site.cluster.conditions.bad_contact]
    for node, host in hosts.items():
        own = [place for place in slots if place[0] == node]
        median = float(np.median([slots[place].contact.value for place in own])) if own else 0.0
        if median >= BAD_CONTACT:
            bad = [place for place in bad if place[0] != node]
            evidence = f"its GPUs have {median:.2f} times the usual resistance in the median"
            action = "look after fans, filters and inlet of the node"
            yield Outlier(f"node{node}", host, "airflow", evidence, action, cost_s(own))
    for place in bad:
        slot = slots[place]
        yield Outlier(
            slot.name, slot.host, "contact",
            f"{slot.contact.value:.1f} times the usual resistance ({slot.contact.lo:.1f} to {slot.contact.hi:.1f}), "
            f"{slot.temp_c:.0f} degC at {slot.power_w:.0f} W",
            "reseat the heat sink, renew its paste, look for blocked air", cost_s([place]),
        )  # fmt: skip


def _reasons(
    site: Site,
    before: Outcome,
    proposed: Placement | None,
    after: Outcome | None,
    gain: Gain | None,
    hosts: Mapping[int, str],
) -> list[str]:
    """Return what limits the step before and after, and why a placement is recommended or not."""
    lines = [f"now stage {_limit(site, site.present, before, hosts)}"]
    balance = 1.0 - float(before.busy_s.mean() / before.busy_s.max())
    if proposed is None or after is None or gain is None:
        why = "the run has one pipeline stage" if site.point.layout.pp == 1 else "no other placement is shorter"
        return [
            *lines,
            f"{why}; in perfect balance the longest stage would be busy {balance:.1%} less, and layers cannot be split",
        ]
    lines.append(f"then stage {_limit(site, proposed, after, hosts)}")
    change = float(after.busy_s.max() / before.busy_s.max()) - 1.0
    lines.append(
        f"the longest stage is busy {abs(change):.1%} {'less' if change < 0 else 'longer'}, the step is "
        f"{abs(gain.share):.1%} {'shorter' if gain.share > 0 else 'longer'}"
    )
    if not gain.is_accepted:
        lines.append(
            "it would be slower"
            if gain.hi < 0
            else f"the gain cannot be told from none: {gain.lo:+.1%} to {gain.hi:+.1%}"
        )
    return lines


def _limit(site: Site, placement: Placement, outcome: Outcome, hosts: Mapping[int, str]) -> str:
    """Return the stage that is busy longest, its layers and its slowest GPU, in words."""
    stage = int(outcome.busy_s.argmax())
    per_stage, per_node = site.point.num_gpus // site.point.layout.pp, site.cluster.gpus_per_node
    places = [
        (placement.nodes[rank // per_node], rank % per_node)
        for rank in range(stage * per_stage, (stage + 1) * per_stage)
    ]
    node, device = max(places, key=outcome.factor.__getitem__)
    factor = outcome.factor[node, device]
    layers = f" with {placement.layers[stage]} layers" if placement.layers else ""
    text = f"{stage}{layers} is busy longest, {outcome.busy_s.max():.2f} s of {outcome.step_time_s:.2f} s"
    return text if factor <= 1.01 else f"{text}; gpu{device} of {hosts[node]} takes {factor:.2f} of a sound one's time"


def measured_step_s(folder: Path) -> float:
    """Return the median measured step, of its slowest rank. Unit: s."""
    steps = STEPS.read(folder / "raw" / "steps.parquet")
    columns = {name: steps[name].to_numpy(zero_copy_only=False) for name in ("step", "kind", "t_start_ns", "t_end_ns")}
    of = columns["kind"] == "measured"
    if not of.any():
        raise UserError(f"{folder.name}: no measured steps; launch the run again")
    number, time_ns = columns["step"][of], (columns["t_end_ns"] - columns["t_start_ns"])[of].astype(float)
    return float(np.median([time_ns[number == one].max() for one in np.unique(number)])) / NS_PER_S
