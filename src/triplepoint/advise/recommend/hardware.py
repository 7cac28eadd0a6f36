"""Hardware that costs time: slots with bad contact, nodes with poor airflow, slow GPUs and reported ones."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from triplepoint.advise.recommend.passport import Learned, Slot
from triplepoint.advise.recommend.placement import BAD_CONTACT, Outcome, Seat, Site
from triplepoint.config.cluster import place_of


@dataclass(frozen=True)
class Outlier:
    """A part of the hardware that costs time.

    Attributes:
        name: Node or GPU, counted within the run.
        host: Host of the part.
        kind: contact, airflow, slow or reported.
        evidence: What the measurements or the cluster file show.
        action: Recommended action.
        cost_s: Time that a step loses because of the part; None if unknown. Unit: s.
    """

    name: str
    host: str
    kind: str
    evidence: str
    action: str
    cost_s: float | None


def find_outliers(site: Site, learned: Learned | None, before: Outcome, hosts: Mapping[int, str]) -> list[Outlier]:
    """Return hardware that costs time, with the gain of a step if it were repaired, largest first.

    Args:
        site: The job.
        learned: Passport of its slots. None: the cluster is as its file declares.
        before: Step under the present placement.
        hosts: Host of every node.
    """
    present_s = site.quick_step(site.present, before.factor).time_s

    def cost_s(seats: Collection[Seat]) -> float:
        repaired = {seat: factor for seat, factor in before.factor.items() if seat not in seats}
        return (present_s - site.quick_step(site.present, repaired).time_s) * before.step_time_s / present_s

    slots = {(slot.node, slot.device): slot for slot in learned.passport.slots} if learned else {}
    outliers = list(_hot(site, slots, hosts, cost_s) if learned else _declared(site, hosts, cost_s))
    for name, speed in site.cluster.slow_gpus.items():
        if (place := place_of(name))[0] in hosts:
            outliers.append(Outlier(
                name, hosts[place[0]], "slow",
                f"it computes at {100 * speed:.0f} % of the speed of its peers, heat not counted",
                "test or replace the GPU", cost_s([place]),
            ))  # fmt: skip
    outliers += [
        Outlier(
            f"rank {suspect.rank}", suspect.host, "reported", suspect.message, "drain the node and test the GPU", None
        )
        for suspect in (learned.manifest.suspects if learned and learned.manifest else ())
    ]
    return sorted(outliers, key=lambda outlier: -(outlier.cost_s or 0.0))


def _hot(
    site: Site, slots: Mapping[Seat, Slot], hosts: Mapping[int, str], cost_s: Callable[[Collection[Seat]], float]
) -> Iterator[Outlier]:
    """Yield nodes whose median slot has bad contact, then single slots of other nodes."""
    bad = [place_of(name) for name in site.cluster.conditions.bad_contact]
    for node, host in hosts.items():
        of_node = [seat for seat in slots if seat[0] == node]
        median = float(np.median([slots[seat].contact.value for seat in of_node])) if of_node else 0.0
        if median >= BAD_CONTACT:
            bad = [seat for seat in bad if seat[0] != node]
            evidence = f"the median GPU has {median:.2f} times the usual thermal resistance"
            action = "check fans, filters and inlet of the node"
            yield Outlier(f"node{node}", host, "airflow", evidence, action, cost_s(of_node))
    for seat in bad:
        slot = slots[seat]
        yield Outlier(
            slot.name, slot.host, "contact",
            f"{slot.contact.value:.1f} [{slot.contact.lo:.1f}, {slot.contact.hi:.1f}] times the usual thermal "
            f"resistance, {slot.temp_c:.0f} degC at {slot.power_w:.0f} W",
            "reseat the heat sink, renew its paste and look for blocked air", cost_s([seat]),
        )  # fmt: skip


def _declared(site: Site, hosts: Mapping[int, str], cost_s: Callable[[Collection[Seat]], float]) -> Iterator[Outlier]:
    """Yield the faults of GPUs that the cluster file declares."""
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
