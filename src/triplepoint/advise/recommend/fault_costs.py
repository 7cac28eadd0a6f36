"""Time that faulty hardware costs a step, by simulation with and without it."""

from collections.abc import Collection, Mapping

from triplepoint.advise.recommend.passport import Learned
from triplepoint.advise.recommend.placement import Outcome, Seat, Site, learned_cluster
from triplepoint.config.cluster import place_of
from triplepoint.errors import PointError
from triplepoint.metrics import Z90, Interval


class Costs:
    """Time that parts cost a step.

    A slow GPU hides what another one costs that waits for it. The cost of a part is therefore the mean of what its
    repair saves before that of all other faults and after it, as in `why`: parts that hide each other share their cost.
    """

    def __init__(self, site: Site, learned: Learned | None, before: Outcome) -> None:
        """Prepare.

        Args:
            site: The job.
            learned: Passport of its slots. None: the cluster is as its file declares.
            before: Step under the present placement.
        """
        self._site, self._learned, conditions = site, learned, site.cluster.conditions
        self._known_s = {(0.0, frozenset[Seat](), frozenset[int]()): before.step_time_s}
        faults = (*conditions.bad_contact, *conditions.blocked_airflow, *site.cluster.slow_gpus)
        self._faulty, self._braked = frozenset(map(place_of, faults)), frozenset(conditions.braked_nodes)

    def of(self, seats: Collection[Seat], braked: Collection[int] = ()) -> float:
        """Return the time that GPUs cost a step. Unit: s.

        Args:
            seats: The GPUs.
            braked: Nodes whose power brake is part of the fault.
        """
        return self._of(0.0, frozenset(seats), frozenset(braked))

    def interval_of(self, seats: Collection[Seat]) -> Interval | None:
        """Return the 90 % interval of that time due to the contacts; None where contacts are not measured. Unit: s."""
        if self._learned is None or not self._site.cluster.conditions.bad_contact:
            return None
        try:
            ends = [self._of(shift, frozenset(seats), frozenset()) for shift in (-Z90, 0.0, Z90)]
        except PointError:  # GPUs would shut down
            return None
        return Interval(min(ends), max(ends))

    def _of(self, shift: float, seats: frozenset[Seat], braked: frozenset[int]) -> float:
        first_s = self._step_s(shift, frozenset(), frozenset()) - self._step_s(shift, seats, braked)
        others, other_braked = self._faulty - seats, self._braked - braked
        if not others and not other_braked:
            return first_s
        rest_s = self._step_s(shift, others, other_braked)
        return (first_s + rest_s - self._step_s(shift, others | seats, other_braked | braked)) / 2.0

    def _step_s(self, shift: float, seats: frozenset[Seat], braked: frozenset[int]) -> float:
        """Return the step if GPUs were sound. Unit: s.

        Args:
            shift: Standard deviations by which contacts of faulty slots are worse than estimated.
            seats: The GPUs.
            braked: Nodes whose power brake would be off.
        """
        names, cluster = {f"node{node}.gpu{gpu}" for node, gpu in seats}, self._site.cluster
        conditions, left = cluster.conditions, _without(cluster.conditions.bad_contact, names)
        key = shift if left else 0.0, seats, braked
        if key in self._known_s:
            return self._known_s[key]
        if shift and left:
            assert self._learned is not None
            left = _without(learned_cluster(self._learned, shift).conditions.bad_contact, names)
        repaired = conditions.model_copy(update={
            "contact": conditions.contact | ({} if self._learned is None else dict.fromkeys(names, 1.0)),
            "bad_contact": left,
            "blocked_airflow": _without(conditions.blocked_airflow, names),
            "braked_nodes": [node for node in conditions.braked_nodes if node not in braked],
        })  # fmt: skip
        changed = {"conditions": repaired, "slow_gpus": _without(cluster.slow_gpus, names)}
        outcome = self._site.step(self._site.present, cluster.model_copy(update=changed))
        return self._known_s.setdefault(key, outcome.step_time_s)


def _without(values: Mapping[str, float], names: Collection[str]) -> dict[str, float]:
    return {name: value for name, value in values.items() if name not in names}
