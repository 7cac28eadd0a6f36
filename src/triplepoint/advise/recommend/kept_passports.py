"""Kept passports of clusters, `results/passports/<cluster>.json`, and drift of slots since the last one."""

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from triplepoint.advise.recommend.passport import Passport, Slot
from triplepoint.config.base import Strict, read_json
from triplepoint.files import write_text
from triplepoint.metrics import Z90

_MAX_KEPT = 100
_MIN_Z = 3.5
"""Smallest change over its standard deviation that counts: of many slots, one deviates by 2 by chance. Source: Iglewicz
and Hoaglin 1993, chapter 3."""
_MIN_DRIFT = 0.05
"""Smallest relative change of resistance that counts: rounding to whole degrees is 1 to 2 % of 60 K. Our choice."""


class Kept(Strict):
    """File with the passports of one cluster."""

    passports: tuple[Passport, ...]
    """One passport per run, oldest first."""


class Drift(NamedTuple):
    """A slot whose resistance changed relative to the others of its cluster.

    Attributes:
        slot: The slot in the present passport.
        change: Relative change of its resistance, over the median of the cluster.
        lo: Lower end of the 90 % interval of the change.
        hi: Upper end of the interval.
        since: Run of the earlier passport.
        is_other_gpu: Whether the slot then had another GPU.
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
    """Return the last kept passport of an earlier run on the cluster; None without one.

    Raises:
        UserError: If the file is damaged.
    """
    earlier = [kept for kept in _read(path_of(results, passport.cluster)) if kept.started_at < passport.started_at]
    return max((kept for kept in earlier if kept.run != passport.run), key=lambda kept: kept.started_at, default=None)


def last_of(cluster: str, results: Path) -> Passport | None:
    """Return the last kept passport of a cluster; None without one.

    Raises:
        UserError: If the file is damaged.
    """
    return max(_read(path_of(results, cluster)), key=lambda kept: kept.started_at, default=None)


def keep(passport: Passport, results: Path) -> Path:
    """Add a passport to those of its cluster, replacing an earlier one of the same run; return the file.

    Raises:
        UserError: If the file is damaged.
    """
    path = path_of(results, passport.cluster)
    others = [kept for kept in _read(path) if kept.run != passport.run]
    kept = sorted([*others, passport], key=lambda kept: kept.started_at)[-_MAX_KEPT:]
    write_text(path, Kept(passports=tuple(kept)).model_dump_json(indent=1) + "\n")
    return path


def _read(path: Path) -> tuple[Passport, ...]:
    return read_json(Kept, path, "remove it: passports are learned from runs anew").passports if path.exists() else ()


def find_drift(before: Passport, after: Passport) -> list[Drift]:
    """Return slots whose resistance changed relative to the median of the slots in both passports, largest first.

    The median removes what all slots share, such as inlet and fans; the rest is due to the contact of each slot.
    """
    earlier = {(slot.host, slot.device): slot for slot in before.slots}
    pairs = [(earlier[key], slot) for slot in after.slots if (key := (slot.host, slot.device)) in earlier]
    if not pairs:
        return []
    medians = [float(np.median([pair[side].resistance.value for pair in pairs])) for side in (0, 1)]
    drifts = []
    for old, new in pairs:
        change = math.log(new.resistance.value / medians[1]) - math.log(old.resistance.value / medians[0])
        sigma = math.hypot(_rounding_sigma(old), _rounding_sigma(new))
        if abs(change) > max(_MIN_Z * sigma, _MIN_DRIFT):
            low, high = change - Z90 * sigma, change + Z90 * sigma
            is_other = None not in (old.uuid, new.uuid) and old.uuid != new.uuid
            drifts.append(Drift(new, math.expm1(change), math.expm1(low), math.expm1(high), before.run, is_other))
    return sorted(drifts, key=lambda drift: -abs(drift.change))


def _rounding_sigma(slot: Slot) -> float:
    """Return the relative standard deviation of a resistance due to temperatures in whole degrees."""
    return 1.0 / math.sqrt(12.0) / (slot.resistance.value * slot.power_w)
