"""Hardware that costs time: bad contact, poor airflow, slow and degraded GPUs, slow adapters, and reported ones.

What `triplepoint why` finds in the run is in the list too, so both commands name the same parts.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from triplepoint.advise.recommend.degraded import Degraded, device_of, seats_of
from triplepoint.advise.recommend.fault_costs import Costs
from triplepoint.advise.recommend.passport import BAD_CONTACT, Learned
from triplepoint.advise.recommend.placement import MIN_EXCESS, Outcome, Seat, Site
from triplepoint.config.cluster import place_of
from triplepoint.metrics import Interval
from triplepoint.why.answer import Answer
from triplepoint.why.explain import CAUSES, OF_HEAT
from triplepoint.why.held import THERMAL, Hold

LEAST_COST = 1e-3
"""Share of a step from which a part costs time. Parts that cost less are notes. Our choice."""
_SEVERAL, _WEAK_AIR = 3, 1.1
"""Faulty slots of a node, and resistance of its median slot over the usual, from which its airflow is poor: parts of
one node have a median of 1 within 2 %. Our choice."""
_RESEAT = "reseat the heat sink, renew its paste and look for blocked air"
_CHECK_AIR = "check fans, filters and inlet of the node"
_CHECK_COOLING = "check its cooling: heat sink, air or liquid, and what its BMC reports"


@dataclass(frozen=True)
class Outlier:
    """A part of the hardware that costs time.

    Attributes:
        name: Node or GPU, counted within the run.
        host: Host of the part.
        kind: contact, airflow, slow, degraded, network, limit or reported.
        evidence: What the measurements or the cluster file show.
        action: Recommended action.
        cost_s: Time that a step loses because of the part; None if unknown. Unit: s.
        within_s: 90 % interval of the cost, from that of the contact; None if unknown. Unit: s.
        is_bound: Whether the cost is an upper bound, since the clock is known but not the computation time.
        is_minor: Whether it costs less than 0.1 % of a step.
        seats: GPUs of the part.
    """

    name: str
    host: str
    kind: str
    evidence: str
    action: str
    cost_s: float | None
    within_s: Interval | None = None
    is_bound: bool = False
    is_minor: bool = False
    seats: frozenset[Seat] = frozenset()


def find_outliers(
    site: Site,
    learned: Learned | None,
    before: Outcome,
    hosts: Mapping[int, str],
    explained: Answer | None = None,
    degraded: Degraded | None = None,
) -> list[Outlier]:
    """Return hardware that costs time, with the gain of a step if it were repaired, largest first, notes last.

    Args:
        site: The job.
        learned: Passport of its slots. None: the cluster is as its file declares.
        before: Step under the present placement.
        hosts: Host of every node.
        explained: Why the run is slow; None without a run.
        degraded: GPUs whose hardware holds down their clocks.
    """
    costs, degraded = Costs(site, learned, before), degraded or Degraded()
    outliers = list(_degraded(degraded, hosts, costs))
    if not degraded.is_measured:
        outliers += _declared_brakes(site, hosts, costs)
    outliers += _hot(site, learned, hosts, costs) if learned else _declared(site, hosts, costs)
    for name, speed in site.cluster.slow_gpus.items():
        if (place := place_of(name))[0] in hosts and place not in degraded.held:
            outliers.append(Outlier(
                name, hosts[place[0]], "slow",
                f"it computes at {100 * speed:.0f} % of the speed of its peers, heat not counted",
                "test or replace the GPU", costs.of([place]), seats=frozenset([place]),
            ))  # fmt: skip
    outliers += _found_by_why(site, hosts, explained, outliers)
    named = frozenset[Seat]().union(*(outlier.seats for outlier in outliers))
    outliers += [outlier for outlier in _reported(learned) if not outlier.seats & named]
    least_s = LEAST_COST * before.step_time_s
    outliers = [
        replace(outlier, is_minor=outlier.cost_s is not None and outlier.cost_s < least_s) for outlier in outliers
    ]
    return sorted(outliers, key=lambda one: (one.is_minor, -(math.inf if one.kind == "degraded" else one.cost_s or 0)))


def _degraded(degraded: Degraded, hosts: Mapping[int, str], costs: Costs) -> Iterator[Outlier]:
    """Yield nodes and single GPUs whose hardware holds down their clocks."""
    for node in sorted(degraded.nodes):
        seats = frozenset(seat for seat in degraded.held if seat[0] == node)
        holds = [degraded.held[seat] for seat in sorted(seats)]
        hold = holds[0]._replace(
            share=min(hold.share for hold in holds), clock_mhz=float(np.median([hold.clock_mhz for hold in holds]))
        )
        yield Outlier(
            f"node{node}", hosts[node], "degraded", f"all {len(seats)} GPUs: {hold.evidence}", _action_of(hold),
            costs.of(seats, [node]), seats=seats,
        )  # fmt: skip
    for (node, gpu), hold in sorted(degraded.held.items()):
        if node not in degraded.nodes and node in hosts:
            seats = frozenset([(node, gpu)])
            yield Outlier(
                f"node{node}.gpu{gpu}", hosts[node], "degraded", hold.evidence, _action_of(hold), costs.of(seats),
                is_bound=True, seats=seats,
            )  # fmt: skip


def _action_of(hold: Hold) -> str:
    return _CHECK_COOLING if hold.reason == THERMAL else CAUSES["degraded"]


def _hot(site: Site, learned: Learned, hosts: Mapping[int, str], costs: Costs) -> Iterator[Outlier]:
    """Yield nodes several of whose slots are badly cooled alike, then single slots that are worse than their row."""
    slots = {(slot.node, slot.device): slot for slot in learned.passport.slots}
    bad = [place_of(name) for name in site.cluster.conditions.bad_contact]
    for node, host in hosts.items():
        of_node = [seat for seat in slots if seat[0] == node]
        contacts = np.array([slots[seat].contact.value for seat in of_node])
        median = float(np.median(contacts)) if of_node else 0.0
        is_alike = (contacts >= BAD_CONTACT).sum() >= _SEVERAL and median >= _WEAK_AIR
        if median < BAD_CONTACT and not is_alike:
            continue
        usual = _usual_of_rows(learned, node)
        bad = [seat for seat in bad if seat[0] != node or slots[seat].contact.value >= BAD_CONTACT * usual[seat[1]]]
        seats = frozenset(seat for seat in of_node if seat not in bad)
        evidence = (
            f"the median GPU has {median:.2f} times the usual thermal resistance, the worst {contacts.max():.2f} times"
        )
        within_s = costs.interval_of(seats)
        yield Outlier(f"node{node}", host, "airflow", evidence, _CHECK_AIR, costs.of(seats), within_s, seats=seats)
    for seat in bad:
        slot = slots[seat]
        yield Outlier(
            slot.name, slot.host, "contact",
            f"{slot.contact.value:.1f} [{slot.contact.lo:.1f}, {slot.contact.hi:.1f}] times the usual thermal "
            f"resistance, {slot.temp_c:.0f} degC at {slot.power_w:.0f} W",
            _RESEAT, costs.of([seat]), costs.interval_of([seat]), seats=frozenset([seat]),
        )  # fmt: skip


def _usual_of_rows(learned: Learned, node: int) -> dict[int, float]:
    """Return the median contact of each GPU's row in a node: weak air warms the rear row more than the front row."""
    contacts = {slot.device: slot.contact.value for slot in learned.passport.slots if slot.node == node}
    rows = [[device for device in row if device in contacts] for row in learned.runs.machine.airflow.rows]
    return {device: float(np.median([contacts[each] for each in row])) for row in rows for device in row}


def _declared_brakes(site: Site, hosts: Mapping[int, str], costs: Costs) -> Iterator[Outlier]:
    """Yield the nodes under a power brake that the cluster file declares."""
    for node in site.cluster.conditions.braked_nodes:
        if node in hosts:
            seats = frozenset((node, gpu) for gpu in range(site.cluster.gpus_per_node))
            yield Outlier(
                f"node{node}", hosts[node], "degraded", "its cluster file says that its power brake is on",
                CAUSES["degraded"], costs.of(seats, [node]), seats=seats,
            )  # fmt: skip


def _declared(site: Site, hosts: Mapping[int, str], costs: Costs) -> Iterator[Outlier]:
    """Yield the faults of GPUs that the cluster file declares."""
    conditions = site.cluster.conditions
    for name, factor in conditions.bad_contact.items():
        if (place := place_of(name))[0] in hosts:
            yield Outlier(
                name, hosts[place[0]], "contact",
                f"its cluster file says {factor:.1f} times the usual thermal resistance",
                _RESEAT, costs.of([place]), seats=frozenset([place]),
            )  # fmt: skip
    for name, share in conditions.blocked_airflow.items():
        if (place := place_of(name))[0] in hosts:
            yield Outlier(
                name, hosts[place[0]], "airflow", f"its cluster file says {100 * share:.0f} % of its air",
                _CHECK_AIR, costs.of([place]), seats=frozenset([place]),
            )  # fmt: skip


def _found_by_why(
    site: Site, hosts: Mapping[int, str], explained: Answer | None, outliers: Sequence[Outlier]
) -> Iterator[Outlier]:
    """Yield the hardware that `why` names and the passport does not: slow adapters, lower limits, hot GPUs."""
    named = frozenset[Seat]().union(*(outlier.seats for outlier in outliers))
    seats, sensed = seats_of(explained), {gpu.rank: gpu for gpu in explained.sensed} if explained else {}
    limits_w = [gpu.limit_w for gpu in sensed.values() if math.isfinite(gpu.limit_w)]
    for finding in explained.findings if explained else ():
        seat, gpu = seats.get(finding.rank), sensed.get(finding.rank)
        if seat is None or gpu is None or seat[0] not in hosts:
            continue
        name = f"node{seat[0]}.gpu{seat[1]}"
        is_lower = bool(limits_w) and gpu.limit_w < (1.0 - MIN_EXCESS) * float(np.median(limits_w))
        kind = None
        if finding.cause == "network":
            kind = "network"
        elif finding.cause == "power limit" and is_lower and name not in site.cluster.conditions.power_limits_w:
            kind = "limit"
        elif finding.cause in OF_HEAT and not finding.is_bound and seat not in named:
            kind = "airflow" if finding.cause == "heat" else "contact"
        if kind is not None:
            yield Outlier(
                name, hosts[seat[0]], kind, finding.evidence, CAUSES[finding.cause], finding.lost_s,
                is_bound=finding.is_bound, seats=frozenset([seat]),
            )  # fmt: skip


def _reported(learned: Learned | None) -> Iterator[Outlier]:
    """Yield the GPUs that the launch reported."""
    manifest = learned.manifest if learned else None
    if manifest is None:
        return
    seats = {device.rank: (node.node, device_of(device.device)) for node in manifest.nodes for device in node.devices}
    for suspect in manifest.suspects:
        place = frozenset([seats[suspect.rank]] if suspect.rank in seats else [])
        yield Outlier(
            f"rank {suspect.rank}", suspect.host, "reported", suspect.message, "drain the node and test the GPU", None,
            seats=place,
        )  # fmt: skip
