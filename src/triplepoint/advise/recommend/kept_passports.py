"""Passports kept by cluster, `results/passports/<cluster>.json`, and drift of slots against the last one kept."""

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from triplepoint.advise.recommend.passport import Passport, Slot
from triplepoint.config.base import Strict, read_json
from triplepoint.files import write_text
from triplepoint.metrics import Z90

_MOST_KEPT = 100
_LEAST_Z = 3.5
"""Of a cluster's many slots one is off by two deviations by chance. Source: Iglewicz and Hoaglin 1993, chapter 3."""
_LEAST_DRIFT = 0.05
"""Change of resistance that counts: temperatures of whole degrees make 1 to 2 % of 60 K. Our choice."""


class Kept(Strict):
    """All passports of one cluster, oldest run first."""

    passports: tuple[Passport, ...]
    """One of each run."""


class Drift(NamedTuple):
    """A slot whose resistance changed against the others of its cluster.

    Attributes:
        slot: As it is now.
        change: Of its resistance over the cluster's median, relative.
        lo: Lower end of its 90 % interval.
        hi: Upper end.
        since: Run of the passport before.
        is_other_gpu: Whether another GPU stood in the slot.
    """

    slot: Slot
    change: float
    lo: float
    hi: float
    since: str
    is_other_gpu: bool


def path_of(results: Path, cluster: str) -> Path:
    """Return the file that keeps the passports of a cluster."""
    return results / "passports" / f"{cluster}.json"


def last_before(passport: Passport, results: Path) -> Passport | None:
    """Return the last kept passport of an earlier run on the cluster; None where there is none.

    Raises:
        UserError: If the file is damaged.
    """
    earlier = [one for one in _read(path_of(results, passport.cluster)) if one.started_at < passport.started_at]
    return max((one for one in earlier if one.run != passport.run), key=lambda one: one.started_at, default=None)


def last_of(cluster: str, results: Path) -> Passport | None:
    """Return the last kept passport of a cluster; None where there is none.

    Raises:
        UserError: If the file is damaged.
    """
    return max(_read(path_of(results, cluster)), key=lambda one: one.started_at, default=None)


def keep(passport: Passport, results: Path) -> Path:
    """Keep a passport with those of its cluster, in place of an earlier one of the same run; return the file.

    Raises:
        UserError: If the file is damaged.
    """
    path = path_of(results, passport.cluster)
    others = [one for one in _read(path) if one.run != passport.run]
    kept = sorted([*others, passport], key=lambda one: one.started_at)[-_MOST_KEPT:]
    write_text(path, Kept(passports=tuple(kept)).model_dump_json(indent=1) + "\n")
    return path


def _read(path: Path) -> tuple[Passport, ...]:
    return read_json(Kept, path, "remove it: passports are learned from runs anew").passports if path.exists() else ()


def find_drift(before: Passport, after: Passport) -> list[Drift]:
    """Return slots whose resistance changed against the median of the slots that both have, most first.

    What all slots share (inlet, fans) goes out with the median; what is left is off by each slot's own contact.
    """
    earlier = {(slot.host, slot.device): slot for slot in before.slots}
    pairs = [(earlier[key], slot) for slot in after.slots if (key := (slot.host, slot.device)) in earlier]
    if not pairs:
        return []
    usual = [float(np.median([pair[side].resistance.value for pair in pairs])) for side in (0, 1)]
    found = []
    for old, new in pairs:
        change = math.log(new.resistance.value / usual[1]) - math.log(old.resistance.value / usual[0])
        sigma = math.hypot(_own_sigma(old), _own_sigma(new))
        if abs(change) > max(_LEAST_Z * sigma, _LEAST_DRIFT):
            low, high = change - Z90 * sigma, change + Z90 * sigma
            is_other = None not in (old.uuid, new.uuid) and old.uuid != new.uuid
            found.append(Drift(new, math.expm1(change), math.expm1(low), math.expm1(high), before.run, is_other))
    return sorted(found, key=lambda one: -abs(one.change))


def _own_sigma(slot: Slot) -> float:
    """Return the relative deviation of a resistance that is the slot's own: of a temperature of a whole degree."""
    return 1.0 / math.sqrt(12.0) / (slot.resistance.value * slot.power_w)
