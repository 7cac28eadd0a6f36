"""How long a collective takes: the fastest algorithm on the levels its group crosses, with what others take away."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import log2
from pathlib import Path

from triplepoint.simulate.collectives.algorithms import Cost, costs
from triplepoint.simulate.collectives.links import Link, load_link
from triplepoint.simulate.collectives.route import Crossing, crossings
from triplepoint.simulate.fabric import Fabric, Group
from triplepoint.simulate.operations import CommKind

SIGMA_PER_DOUBLING = 0.05
"""What a factor of two outside the sizes or groups that were measured adds to sigma: assumed, not measured."""

_Key = tuple[CommKind, Group, int | None]


@dataclass(frozen=True)
class CollectiveModel:
    """Times of collectives on one fabric.

    Attributes:
        fabric: How the GPUs are joined.
        links: The kinds of link it is made of, by name.
    """

    fabric: Fabric
    links: Mapping[str, Link]
    _routes: dict[tuple[Group, int | None], tuple[Crossing, ...]] = field(default_factory=dict, repr=False)
    _costs: dict[_Key, list[Cost]] = field(default_factory=dict, repr=False)
    _times: dict[tuple[_Key, float], float] = field(default_factory=dict, repr=False)

    @classmethod
    def load(cls, fabric: Fabric, config: Path) -> "CollectiveModel":
        """Return the model of a fabric.

        Args:
            fabric: How the GPUs are joined; it carries what depends on the GPU.
            config: Folder of the configuration.

        Raises:
            UserError: If a level's kind of link is not known.
        """
        return cls(fabric, {level.kind: load_link(level.kind, config) for level in fabric.levels})

    def time_s(self, kind: CommKind, num_bytes: float, group: Group, num_sharing: int | None = None) -> float:
        """Return how long a collective takes once all ranks are there.

        Args:
            kind: Of the collective.
            num_bytes: Size as nccl-tests counts it, see `Message`. Unit: byte.
            group: Size and stride.
            num_sharing: Groups at work at once in a node; None for as many as it has room for.

        Returns:
            Time, 0 for a group of one. Unit: s.

        Raises:
            ValueError: If a size is negative, or a group or the number of groups is not positive.
        """
        key = ((kind, group, num_sharing), num_bytes)
        if key not in self._times:
            best = self.choice(kind, num_bytes, group, num_sharing)
            alone = best.time_s(num_bytes) if best else 0.0
            self._times[key] = max(alone, self._inner_s(kind, num_bytes, group, num_sharing))
        return self._times[key]

    def _inner_s(self, kind: CommKind, num_bytes: float, group: Group, num_sharing: int | None) -> float:
        """Return the time of the members joined below the outermost level: with more of them it is never faster.

        The levels' curves are fitted apart, so that the curve of the whole may fall below that of its part.
        """
        route = self.route(group, num_sharing)
        if len(route) < 2 or kind in ("all_to_all", "send_recv"):
            return 0.0
        return self.time_s(kind, num_bytes, Group(int(route[-1].inner), group.stride), num_sharing)

    def choice(self, kind: CommKind, num_bytes: float, group: Group, num_sharing: int | None = None) -> Cost | None:
        """Return the algorithm that is taken, None for a group of one. Arguments and errors are those of `time_s`."""
        if num_bytes < 0:
            raise ValueError(f"{kind} of {num_bytes} byte, expected 0 or more")
        key = (kind, group, num_sharing)
        if key not in self._costs:
            route = self.route(group, num_sharing)
            self._costs[key] = costs(kind, group.size, route) if route else []
        return min(self._costs[key], key=lambda cost: cost.time_s(num_bytes), default=None)

    def route(self, group: Group, num_sharing: int | None = None) -> tuple[Crossing, ...]:
        """Return the levels a group crosses, from the inside out."""
        key = (group, num_sharing)
        if key not in self._routes:
            self._routes[key] = crossings(self.fabric, self.links, group, num_sharing)
        return self._routes[key]

    def sigma(self, num_bytes: float, group: Group) -> float:
        """Return the standard deviation of the logarithm of a time; it grows outside of what was measured."""
        route = self.route(group)
        if not route:
            return 0.0
        link = max((crossing.link for crossing in route), key=lambda found: found.sigma)
        outside = max(link.min_bytes / max(num_bytes, 1.0), num_bytes / link.max_bytes, group.size / link.max_gpus, 1.0)
        return link.sigma + SIGMA_PER_DOUBLING * log2(outside)

    def slowdown(self, group: Group, others: Sequence[Group]) -> float:
        """Return how many times longer the transfers of a group take while `others` transfer too.

        Every group keeps its own bottleneck busy and the other levels it crosses in proportion. A level that is asked
        for more than it has is shared in proportion to what is asked; one that is not slows nobody.
        """
        own = self._loads(group)
        total = dict(own)
        for other in others:
            for place, load in self._loads(other).items():
                total[place] = total.get(place, 0.0) + load
        return max([1.0, *(total[place] for place in own)])

    def together_s(self, times: Mapping[Group, float]) -> float:
        """Return when the last of some groups is done that begin at once, each with its time alone. Unit: s.

        Groups on levels of their own pass each other; a level that several need is busy for all of them in turn.
        """
        busy: dict[int, float] = {}
        for group, time in times.items():
            for place, load in self._loads(group).items():
                busy[place] = busy.get(place, 0.0) + time * load
        return max([*times.values(), *busy.values()], default=0.0)

    def _loads(self, group: Group) -> dict[int, float]:
        """Return the share of each level's bandwidth that a group takes when alone, by place of the level."""
        route = self.route(group)
        reached = {crossing.place: crossing.bandwidth * crossing.link.efficiency for crossing in route}
        slowest = min(reached.values(), default=0.0)
        return {place: slowest / bandwidth for place, bandwidth in reached.items()}
