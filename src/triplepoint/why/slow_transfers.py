"""Slow transfers: workers whose transfers take longer than equal ones of others, with every partner."""

from collections.abc import Iterator, Sequence

import numpy as np

from triplepoint.why.operations import Float
from triplepoint.why.repairs import LEAST_PEERS, Recorded, Repair, Suspect

_LEAST_SLOWER = 1.1
"""Smallest ratio of a worker's transfer times to those of equal transfers, with every partner. Transfers of one network
differ by a few %. Our choice."""


def slow_transfers(recorded: Recorded) -> Iterator[Repair]:
    """Yield the places whose transfers are slow with every partner, slowest first.

    The transfers of a place that was found are left out of the search for the next one: their other members are slow
    because of it.
    """
    operations, order = recorded.operations, recorded.order
    ratio, usual_s = _relative_times(recorded)
    duration_s = operations.work_s.mean(axis=1)
    places = [frozenset(recorded.place[members].tolist()) for members in order.members]
    left = [
        number for number, members in enumerate(order.members) if np.isfinite(ratio[members[0]]) and len(members) > 1
    ]
    while slowest := _slowest_place(recorded, left, places, ratio):
        index, slower = slowest
        transfers = [number for number in left if index in places[number]]
        members = np.concatenate([order.members[number] for number in transfers])
        repaired_s = operations.work_s.copy()
        factor = usual_s[members] / np.maximum(duration_s[members], 1e-12)
        repaired_s[members] *= np.minimum(factor, 1.0)[:, None]
        excess_s = float(sum((duration_s - usual_s)[order.members[number][0]] for number in transfers))
        place = recorded.places[index]
        suspect = Suspect(place, recorded.ranks(place), "transfer", slower - 1, excess_s, True)
        yield Repair(suspect, repaired_s, recorded.gap_s)
        left = [number for number in left if index not in places[number]]


def _relative_times(recorded: Recorded) -> tuple[Float, Float]:
    """Return each transfer's time over the usual time of its size, and that usual time in s; shape (num_operations,).

    The usual time is the median over sets of partners, or that of the faster one of two sets. The ratio is NaN for
    computation, and for transfers of a class with a single set of partners.
    """
    operations = recorded.operations
    duration_s = operations.work_s.mean(axis=1)
    partners = np.empty(len(duration_s), dtype=np.int64)
    numbers: dict[frozenset[int], int] = {}
    for members in recorded.order.members:
        partners[members] = numbers.setdefault(frozenset(recorded.place[members].tolist()), len(numbers))
    ratio, usual_s = np.full(len(duration_s), np.nan), np.zeros(len(duration_s))
    for number in np.unique(operations.rate_class[operations.is_comm]):
        of_class = np.flatnonzero((operations.rate_class == number) & operations.is_comm)
        sets, s_per_byte = np.unique(partners[of_class]), duration_s[of_class] / operations.size_bytes[of_class]
        medians = [float(np.median(s_per_byte[partners[of_class] == one])) for one in sets]
        usual = np.median(medians) if len(sets) >= LEAST_PEERS else min(medians)
        usual_s[of_class] = operations.size_bytes[of_class] * usual
        if len(sets) > 1 and usual_s[of_class[0]] > 0:
            ratio[of_class] = duration_s[of_class] / usual_s[of_class]
    return ratio, usual_s


def _slowest_place(
    recorded: Recorded, transfers: Sequence[int], places: Sequence[frozenset[int]], ratio: Float
) -> tuple[int, float] | None:
    """Return the place whose transfers are slow with all partners, with most excess, and its ratio; None without one.

    Args:
        recorded: The recorded operations.
        transfers: Numbers of the transfers that are compared.
        places: Places of the members of each transfer.
        ratio: Time of each operation's transfer over the usual time; shape (num_operations,).
    """
    by_partners: dict[tuple[int, frozenset[int]], list[float]] = {}
    for number in transfers:
        for place in places[number]:
            by_partners.setdefault((place, places[number]), []).append(float(ratio[recorded.order.members[number][0]]))
    least: dict[int, float] = {}
    excess: dict[int, float] = {}
    for (place, _), ratios in by_partners.items():
        median = float(np.median(ratios))
        least[place] = min(least.get(place, np.inf), median)
        excess[place] = excess.get(place, 0.0) + max(median - 1, 0.0)
    slow = [place for place, ratio_of_fastest in least.items() if ratio_of_fastest >= _LEAST_SLOWER]
    if not slow:
        return None
    slowest = max(slow, key=lambda place: (excess[place], -place))
    return slowest, least[slowest]
