"""Shares of factors in a joint change: effects of single factors, their interaction, and Shapley values."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

Factors = frozenset[str]
"""Names of the changed factors."""

MOST_EXACT = 6
"""Largest number of factors with Shapley values: all 64 combinations of six are simulated."""


@dataclass(frozen=True)
class Shares:
    """A change of one quantity, in its unit.

    Attributes:
        base: The quantity with no factor changed.
        changed: The quantity with all factors changed.
        effect: Change by each factor alone.
        shapley: Shapley value of each factor; they add up to the whole. Empty if not computed.
    """

    base: float
    changed: float
    effect: Mapping[str, float]
    shapley: Mapping[str, float]

    @property
    def whole(self) -> float:
        """Change by all factors together."""
        return self.changed - self.base

    @property
    def interaction(self) -> float:
        """Part of the whole that the effects of single factors do not explain."""
        return self.whole - math.fsum(self.effect.values())


def one_at_a_time(names: Sequence[str]) -> list[Factors]:
    """Return the sets of factors needed for effects and interaction: none, each alone, all."""
    return list(dict.fromkeys([Factors(), *(Factors([name]) for name in names), Factors(names)]))


def all_combinations(names: Sequence[str]) -> list[Factors]:
    """Return every set of factors, the empty one first."""
    return [Factors(some) for size in range(len(names) + 1) for some in combinations(names, size)]


def shares(values: Mapping[Factors, float], names: Sequence[str]) -> Shares:
    """Return the shares of factors in a change, with Shapley values if all combinations are given.

    Args:
        values: Quantity by the set of changed factors: at least none, each factor alone, and all.
        names: Names of the factors.
    """
    base = values[Factors()]
    effect = {name: values[Factors([name])] - base for name in names}
    is_complete = all(some in values for some in all_combinations(names))
    shapley = {name: _shapley(values, name, names) for name in names} if is_complete else {}
    return Shares(base, values[Factors(names)], effect, shapley)


def _shapley(values: Mapping[Factors, float], name: str, names: Sequence[str]) -> float:
    """Return the mean change by a factor after those before it, over all orders of the factors.

    Source:
        Shapley 1953, A value for n-person games.
    """
    return math.fsum(weight * (values[some | {name}] - values[some]) for some, weight in _before(name, names))


def _before(name: str, names: Sequence[str]) -> Iterator[tuple[Factors, float]]:
    """Yield each set of other factors, with the share of orders in which exactly that set precedes this factor."""
    others = [other for other in names if other != name]
    for some in all_combinations(others):
        orders = math.factorial(len(some)) * math.factorial(len(others) - len(some))
        yield some, orders / math.factorial(len(names))
