"""Shares of a change that several factors make together: one at a time, their interaction, and Shapley values."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

Factors = frozenset[str]
"""Names of the factors that are changed; nothing else is."""

MOST_EXACT = 6
"""Factors of which Shapley values are computed: all 64 combinations of six are simulated."""


@dataclass(frozen=True)
class Shares:
    """A change of one quantity, in its unit.

    Attributes:
        base: The quantity with no factor changed.
        changed: With all of them changed.
        effect: By factor, what changing it alone does.
        shapley: By factor, its Shapley value; they add up to the whole. Empty where not computed.
    """

    base: float
    changed: float
    effect: Mapping[str, float]
    shapley: Mapping[str, float]

    @property
    def whole(self) -> float:
        """What changing all factors does."""
        return self.changed - self.base

    @property
    def interaction(self) -> float:
        """What effects of factors one at a time leave unexplained of the whole."""
        return self.whole - math.fsum(self.effect.values())


def one_at_a_time(names: Sequence[str]) -> list[Factors]:
    """Return what has to be known for effects and their interaction: nothing, each factor, all."""
    return list(dict.fromkeys([Factors(), *(Factors([name]) for name in names), Factors(names)]))


def all_combinations(names: Sequence[str]) -> list[Factors]:
    """Return every set of factors, the empty one first."""
    return [Factors(some) for size in range(len(names) + 1) for some in combinations(names, size)]


def shares(values: Mapping[Factors, float], names: Sequence[str]) -> Shares:
    """Return the shares of factors in a change; Shapley values where all combinations are there.

    Args:
        values: The quantity by what is changed: nothing, each factor alone and all at least.
        names: The factors.
    """
    base = values[Factors()]
    effect = {name: values[Factors([name])] - base for name in names}
    is_whole = all(some in values for some in all_combinations(names))
    found = {name: _shapley(values, name, names) for name in names} if is_whole else {}
    return Shares(base, values[Factors(names)], effect, found)


def _shapley(values: Mapping[Factors, float], name: str, names: Sequence[str]) -> float:
    """Return the mean of what a factor adds to those before it, over all orders of the factors.

    Source:
        Shapley 1953, A value for n-person games.
    """
    return math.fsum(weight * (values[some | {name}] - values[some]) for some, weight in _before(name, names))


def _before(name: str, names: Sequence[str]) -> Iterator[tuple[Factors, float]]:
    """Yield every set of other factors, with the share of orders in which it comes before this one."""
    others = [other for other in names if other != name]
    for some in all_combinations(others):
        orders = math.factorial(len(some)) * math.factorial(len(others) - len(some))
        yield some, orders / math.factorial(len(names))
