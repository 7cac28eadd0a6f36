"""Hardware that costs a run time: slots with bad contact, nodes with little air, slow and reported GPUs."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from triplepoint.advise.recommend.passport import Learned, Slot
from triplepoint.advise.recommend.placement import BAD_CONTACT, Outcome, Site
from triplepoint.config.cluster import place_of

Seat = tuple[int, int]
"""Node of the run and device."""


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


def find_outliers(site: Site, learned: Learned | None, before: Outcome, hosts: Mapping[int, str]) -> list[Outlier]:
    """Return hardware that costs time, with what a step would gain if it were sound, most first.

    Args:
        site: The job.
        learned: What was learned of its slots; None where the cluster is taken as it is declared.
        before: Its present step.
        hosts: Host of every node.
    """
    present_s = site.quick_step(site.present, before.factor).time_s

    def cost_s(places: Collection[Seat]) -> float:
        mended = {place: own for place, own in before.factor.items() if place not in places}
        return (present_s - site.quick_step(site.present, mended).time_s) * before.step_time_s / present_s

    slots = {(slot.node, slot.device): slot for slot in learned.passport.slots} if learned else {}
    found = list(_hot(site, slots, hosts, cost_s) if learned else _declared(site, hosts, cost_s))
    for name, speed in site.cluster.slow_gpus.items():
        if (place := place_of(name))[0] in hosts:
            found.append(Outlier(
                name, hosts[place[0]], "slow",
                f"it computes at {100 * speed:.0f} % of the speed of its peers, heat not counted",
                "test or replace the GPU", cost_s([place]),
            ))  # fmt: skip
    found += [
        Outlier(f"rank {one.rank}", one.host, "reported", one.message, "drain the node and test the GPU", None)
        for one in (learned.manifest.suspects if learned and learned.manifest else ())
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
            evidence = f"the median GPU has {median:.2f} times the usual thermal resistance"
            action = "check fans, filters and inlet of the node"
            yield Outlier(f"node{node}", host, "airflow", evidence, action, cost_s(own))
    for place in bad:
        slot = slots[place]
        yield Outlier(
            slot.name, slot.host, "contact",
            f"{slot.contact.value:.1f} [{slot.contact.lo:.1f}, {slot.contact.hi:.1f}] times the usual thermal "
            f"resistance, {slot.temp_c:.0f} degC at {slot.power_w:.0f} W",
            "reseat the heat sink, renew its paste and look for blocked air", cost_s([place]),
        )  # fmt: skip


def _declared(site: Site, hosts: Mapping[int, str], cost_s: Callable[[Collection[Seat]], float]) -> Iterator[Outlier]:
    """Yield faults of GPUs as the cluster's file has them."""
    conditions = site.cluster.conditions
    for name, factor in conditions.bad_contact.items():
        if (place := place_of(name))[0] in hosts:
            yield Outlier(
                name, hosts[place[0]], "contact",
                f"its cluster file says {factor:.1f} times the usual thermal resistance",
                "reseat the heat sink, renew its paste and look for blocked air", cost_s([place]),
            )  # fmt: skip
    for name, share in conditions.blocked_airflow.items():
        if (place := place_of(name))[0] in hosts:
            yield Outlier(
                name, hosts[place[0]], "airflow", f"its cluster file says {100 * share:.0f} % of its air",
                "check fans, filters and inlet of the node", cost_s([place]),
            )  # fmt: skip
