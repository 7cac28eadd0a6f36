"""GPUs whose clocks the hardware holds down, and those that compute slowly, put into the description of a cluster."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from triplepoint.advise.recommend.placement import MIN_EXCESS, Seat, Site
from triplepoint.why.answer import Answer
from triplepoint.why.explain import Finding
from triplepoint.why.held import THERMAL, Hold, find_held, whole_nodes


@dataclass(frozen=True, eq=False)
class Degraded:
    """GPUs whose clock the hardware holds down.

    Attributes:
        held: What holds down the clock of each GPU.
        nodes: Nodes all of whose GPUs are held.
        braked: Those of them that are not held by heat.
        is_measured: Whether sensors show it, so that the cluster file need not.
    """

    held: Mapping[Seat, Hold] = field(default_factory=dict)
    nodes: frozenset[int] = frozenset()
    braked: frozenset[int] = frozenset()
    is_measured: bool = False

    @classmethod
    def of(cls, explained: Answer | None, badly_cooled: Collection[Seat] = ()) -> "Degraded":
        """Return what the sensors of a run show; nothing without a run.

        Args:
            explained: Why the run is slow.
            badly_cooled: GPUs whose passport shows bad contact: it is why the hardware slows them when they are hot.
        """
        sensed = {gpu.rank: gpu for gpu in explained.sensed} if explained else {}
        seats = seats_of(explained)
        held = {
            rank: hold
            for rank, hold in find_held(sensed).items()
            if hold.reason != THERMAL or seats[rank] not in badly_cooled
        }
        nodes = whole_nodes(held, sensed)
        braked = [node for node, ranks in nodes.items() if all(held[rank].reason != THERMAL for rank in ranks)]
        is_measured = any("power_brake_share" in gpu.throttled for gpu in sensed.values())
        by_seat = {seats[rank]: hold for rank, hold in held.items()}
        return cls(by_seat, frozenset(nodes), frozenset(braked), is_measured)

    def on(self, site: Site) -> Site:
        """Return the site with these faults: nodes braked, other GPUs as slow as their clocks."""
        cluster, conditions = site.cluster, site.cluster.conditions
        braked = sorted({*self.braked, *(() if self.is_measured else conditions.braked_nodes)})
        slow = {
            f"node{node}.gpu{gpu}": 1.0 / (1.0 + hold.slower)
            for (node, gpu), hold in self.held.items()
            if node not in self.braked and hold.slower > MIN_EXCESS
        }
        conditions = conditions.model_copy(update={"braked_nodes": braked})
        return replace(
            site, cluster=cluster.model_copy(update={"conditions": conditions, "slow_gpus": slow | cluster.slow_gpus})
        )


def with_slow_findings(site: Site, explained: Answer | None, degraded: Degraded) -> Site:
    """Return the site with the GPUs that `why` finds slow in traces at the clock of their peers."""
    slow = dict(site.cluster.slow_gpus)
    for finding, seat in _computing_slowly(explained, degraded):
        slow.setdefault(f"node{seat[0]}.gpu{seat[1]}", 1.0 / (1.0 + finding.excess))
    return replace(site, cluster=site.cluster.model_copy(update={"slow_gpus": slow}))


def _computing_slowly(explained: Answer | None, degraded: Degraded) -> Iterator[tuple[Finding, Seat]]:
    """Yield the findings of GPUs that compute slowly for no reason that a sensor shows, and their seats."""
    findings = explained.findings if explained else ()
    others = {finding.rank for finding in findings if finding.cause != "computation"}
    seats = seats_of(explained)
    for finding in findings:
        is_slow = finding.cause == "computation" and finding.rank not in others and finding.excess > MIN_EXCESS
        if is_slow and finding.rank in seats and seats[finding.rank] not in degraded.held:
            yield finding, seats[finding.rank]


def seats_of(explained: Answer | None) -> dict[int, Seat]:
    """Return node and device of ranks with sensors."""
    sensed = explained.sensed if explained else ()
    return {gpu.rank: (gpu.node, device_of(gpu.device)) for gpu in sensed if gpu.device.startswith("gpu")}


def device_of(name: str) -> int:
    """Return the number of a device by its name, gpu0, gpu1, ...; 0 of anything else."""
    return int(name.removeprefix("gpu")) if name.startswith("gpu") else 0
