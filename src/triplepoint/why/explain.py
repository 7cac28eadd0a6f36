"""Causes of slow GPUs, ranked, from what sensors and kernels say of them against their peers."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from triplepoint.why.sensed import Sensed
from triplepoint.why.suspects import LEAST_EXCESS, LEAST_Z, Suspect, outlier_scores

CAUSES: Mapping[str, str] = {
    "power limit": "give it the power limit of its peers ('nvidia-smi -q -d POWER'), and look for a power brake",
    "heat": "cool what reaches it: inlet, fans and filters of its node, GPUs before it in the air",
    "contact": "have its heat sink reseated and the path of its air cleared; until then keep it out of jobs",
    "network": "check its adapter, cable and port: errors, link width and speed; 'triplepoint doctor' on its node",
    "launch": "look at its host: clock governor, other processes, pinning, garbage collection; or record CUDA graphs",
    "data": "look at its data loader: more workers and prefetching, or its storage",
    "layers": "give the stage fewer layers, or the ends of the model less beside them",
    "computation": "no sensor explains it: look for uneven sequences, memory errors, other processes on the GPU",
}
"""Causes and what to do about each."""
OF_HEAT = ("heat", "contact")

_LEAST_CLOCK = 0.01
"""Clock below that of peers: below 1 % it explains nothing. Parts of one type differ by about as much."""
_LEAST_THROTTLED = 0.05
"""Share of the time by which a cause must hold a clock longer than those of peers."""
_LOWER_LIMIT = 0.02
_WORSE_CONTACT = 1.25
"""Rise over the inlet for each watt, over that of peers: parts differ by 4.5 % (config/heat/h200.yaml)."""
_HOTTER_K = 8.0
"""Temperature over that of peers from which leakage at the power limit is heat's. Our choice. Unit: K."""
_LEAST_PART = 0.1
"""A smaller part of what a GPU costs is left out, and divided among the others."""
_LEAST_PEERS = 3
LEAST_LOST = 0.002
"""Share of the step from which a cause is named. Our choice."""


@dataclass(frozen=True)
class Finding:
    """One cause of one slow GPU.

    Attributes:
        rank: Global rank.
        name: The GPU in words.
        cause: A key of `CAUSES`.
        lost_s: What it costs of a step. Unit: s.
        evidence: What was measured, of it and of its peers.
        is_bound: Whether it may cost less: what is known is its clock, not how long it computes.
    """

    rank: int
    name: str
    cause: str
    lost_s: float
    evidence: str
    is_bound: bool = False


Ranks = Callable[[tuple[int, int]], Sequence[int]]
"""Returns all ranks of a replica's stage."""


def explain(suspects: Sequence[Suspect], sensed: Mapping[int, Sensed], ranks_of: Ranks, step_s: float) -> list[Finding]:
    """Return the causes of suspects, most costly first.

    Args:
        step_s: Time of the step. Unit: s.
        suspects: Slow workers.
        sensed: What is known of GPUs, by rank; may be empty.
        ranks_of: All ranks of a place, recorded or not.
    """
    found = []
    for one in suspects:
        if one.lost_s <= 0:
            continue
        ranks = [rank for rank in ranks_of(one.place) if rank in sensed] or list(one.ranks)
        rank = _culprit(one, ranks, _of_stage(one.place[1], sensed))
        name = sensed[rank].name if rank in sensed else f"rank {rank}"
        parts = list(_parts(one, rank, sensed))
        whole = sum(share for _, share, _ in parts)
        kept = [part for part in parts if part[1] >= _LEAST_PART * whole]
        whole = sum(share for _, share, _ in kept)
        found += [Finding(rank, name, cause, one.lost_s * share / whole, said) for cause, share, said in kept]
    found = [finding for finding in _by_stage(found, suspects) if finding.lost_s >= LEAST_LOST * step_s]
    return sorted(found, key=lambda finding: -finding.lost_s)


def _by_stage(found: Sequence[Finding], suspects: Sequence[Suspect]) -> Iterator[Finding]:
    """Yield findings, those of the division of layers as one for each stage."""
    stage_of = {rank: one.place[1] for one in suspects for rank in one.ranks}
    stages: dict[int, list[Finding]] = {}
    for one in found:
        if one.cause == "layers":
            stages.setdefault(stage_of.get(one.rank, 0), []).append(one)
        else:
            yield one
    for stage, own in stages.items():
        first = max(own, key=lambda one: one.lost_s)
        yield replace(first, name=f"stage {stage}", lost_s=sum(one.lost_s for one in own))


def _of_stage(stage: int, sensed: Mapping[int, Sensed]) -> Mapping[int, Sensed]:
    """Return the GPUs of a stage, which do the same work; all of them where those are too few to compare."""
    own = {rank: one for rank, one in sensed.items() if one.stage == stage}
    return own if len(own) > _LEAST_PEERS else sensed


def _culprit(suspect: Suspect, ranks: Sequence[int], sensed: Mapping[int, Sensed]) -> int:
    """Return the rank of a worker that is slow: ranks of a tensor parallel group wait for one another."""
    known = [sensed[rank] for rank in ranks if rank in sensed]
    if suspect.respect not in ("computation", "work") or not known:
        return suspect.ranks[0]
    slowest = max(known, key=lambda one: (_slower(one, sensed), -one.rank))
    return slowest.rank


def _slower(one: Sensed, sensed: Mapping[int, Sensed]) -> float:
    """Return how much more slowly a GPU runs than its peers, by its clock and its own computation; 0 if not known."""
    clock = _usual("clock_mhz", one, sensed) / one.clock_mhz - 1
    compute = one.compute_s / _usual("compute_s", one, sensed) - 1
    return sum(value for value in (clock, compute) if math.isfinite(value))


def _usual(name: str, one: Sensed, sensed: Mapping[int, Sensed], least: int = _LEAST_PEERS - 1) -> float:
    """Return the median over the other GPUs; NaN of fewer than so many others."""
    values = [getattr(other, name) for other in sensed.values() if other.rank != one.rank]
    known = [value for value in values if math.isfinite(value)]
    return float(np.median(known)) if len(known) >= least else math.nan


def _parts(suspect: Suspect, rank: int, sensed: Mapping[int, Sensed]) -> Iterator[tuple[str, float, str]]:
    """Yield causes of one suspect, the share of its excess that each explains, and the evidence."""
    percent = f"{suspect.excess:.1%}"
    if suspect.respect == "transfer":
        yield "network", 1.0, f"its transfers take {percent} longer than equal ones, with every partner"
    elif suspect.respect == "launch":
        yield "launch", 1.0, f"its host is {suspect.excess_s:.3g} s a step later with work that could start than others"
    elif suspect.respect == "data":
        yield "data", 1.0, f"its step begins {suspect.excess_s:.3g} s after that of others ({percent} of the step)"
    else:
        yield from _of_computation(suspect, rank, sensed)


def _of_computation(suspect: Suspect, rank: int, sensed: Mapping[int, Sensed]) -> Iterator[tuple[str, float, str]]:
    whose = "workers of its stage" if suspect.has_peers else "other stages"
    slow = f"computes {suspect.excess:.1%} longer than {whose}"
    if suspect.respect == "work":
        slow = f"comes to collectives {suspect.excess_s:.3g} s a step later than {whose}"
    left = 1.0
    one = sensed.get(rank)
    if one is not None:
        peers = _of_stage(one.stage, sensed)
        behind = _usual("clock_mhz", one, peers) / one.clock_mhz - 1
        if behind >= (_LEAST_CLOCK if suspect.has_peers else LEAST_EXCESS) and _is_odd(one, peers):
            share = min(1.0, behind / suspect.excess)
            cause, why, is_plain = cause_of_clock(one, sensed)
            if suspect.has_peers or is_plain:  # GPUs of other stages have other clocks by their work
                yield cause, share, f"{slow}; {why}"
                left -= share
        late_s = one.host_s - _usual("host_s", one, peers, least=1)
        if left > 0 and late_s >= _LEAST_PART * suspect.excess_s:
            share = min(left, late_s / suspect.excess_s)
            yield "launch", share, f"{slow}; its host is {late_s:.3g} s a step later with launches than others"
            left -= share
    if left > 0:
        rest = "computation" if suspect.has_peers else "layers"
        yield rest, left, slow if one is None or math.isnan(one.clock_mhz) else f"{slow} at {one.clock_mhz:.0f} MHz"


def _is_odd(one: Sensed, peers: Mapping[int, Sensed]) -> bool:
    """Return whether the clock of a GPU stands out from those of its peers, which differ as parts do."""
    clocks = {rank: other.clock_mhz for rank, other in peers.items() if math.isfinite(other.clock_mhz)}
    scores = outlier_scores(np.median(list(clocks.values())) / np.array(list(clocks.values())))
    return bool(scores[list(clocks).index(one.rank)] > LEAST_Z)


def cause_of_clock(one: Sensed, everyone: Mapping[int, Sensed]) -> tuple[str, str, bool]:
    """Return why the clock of a GPU is below that of its peers, what says so, and whether a counter or limit does.

    Args:
        one: The GPU.
        everyone: All GPUs of the job, itself too.
    """
    sensed = _of_stage(one.stage, everyone)
    usual_mhz = _usual("clock_mhz", one, sensed)
    behind = f"{one.clock_mhz:.0f} MHz against {usual_mhz:.0f}"
    brake, thermal = (_beyond(one, sensed, names) for names in (("power_brake",), ("sw_thermal", "hw_thermal")))
    limit_w = _usual("limit_w", one, sensed)
    if brake >= _LEAST_THROTTLED:
        return "power limit", f"{behind}; its power brake held the clock {brake:.0%} of the time longer", True
    if thermal >= _LEAST_THROTTLED:
        return *_of_heat(one, everyone, f"{behind}; heat held the clock {thermal:.0%} of the time longer"), True
    if one.limit_w < (1 - _LOWER_LIMIT) * limit_w:
        return "power limit", f"{behind}; its power limit is {one.limit_w:.0f} W against {limit_w:.0f}", True
    hotter_k = one.temp_c - _usual("temp_c", one, sensed)
    is_capped = one.throttled.get("power_cap_share", 0.0) >= _LEAST_THROTTLED
    if hotter_k >= _HOTTER_K:
        at_limit = "; hotter at its power limit, so it leaks more" if is_capped else ""
        return *_of_heat(one, everyone, f"{behind}{at_limit}"), False
    if is_capped:
        capped = one.throttled["power_cap_share"]
        said = f"{behind}; at the same limit, held by it {capped:.0%} of the time: a part that needs more power"
        return "power limit", said, False
    return "computation", f"{behind}, and no cause counted", False


def _of_heat(one: Sensed, sensed: Mapping[int, Sensed], said: str) -> tuple[str, str]:
    """Return whether a hot GPU is ill cooled itself or stands in heat: by its rise over the inlet for each watt."""
    rise = _rise(one, sensed)
    others = [other for other in sensed.values() if other.rank != one.rank]
    alike = [other for other in others if other.device == one.device]
    alike = alike if len(alike) >= _LEAST_PEERS else others
    rises = [_rise(other, sensed) for other in alike]
    known = [value for value in rises if math.isfinite(value)]
    usual_c = _usual("temp_c", one, sensed)
    said = f"{said}; {one.temp_c:.0f} degC against {usual_c:.0f}"
    if math.isfinite(rise) and known:
        said += f", {rise:.3f} K/W over its inlet of {one.inlet_c:.0f} degC against {np.median(known):.3f}"
        return ("contact" if rise >= _WORSE_CONTACT * np.median(known) else "heat"), said
    usual_w = _usual("power_w", one, sensed)
    is_alone = one.temp_c - usual_c >= _HOTTER_K and one.power_w <= usual_w
    return ("contact" if is_alone else "heat"), f"{said} at {one.power_w:.0f} W against {usual_w:.0f}"


def _rise(one: Sensed, sensed: Mapping[int, Sensed]) -> float:
    """Return by how much a die is above its inlet for each watt, half of them its own, half its node's. Unit: K/W.

    The air that reaches it was warmed by others of its node, which draw more than a GPU that is throttled.
    """
    of_node = [other.power_w for other in sensed.values() if other.node == one.node and math.isfinite(other.power_w)]
    return (one.temp_c - one.inlet_c) / ((one.power_w + float(np.mean(of_node or [math.nan]))) / 2)


def _beyond(one: Sensed, sensed: Mapping[int, Sensed], names: Sequence[str]) -> float:
    """Return by which share of the time causes held a clock longer than the median of peers; 0 where not counted."""

    def held(of: Sensed) -> float:
        return sum(of.throttled.get(f"{name}_share", 0.0) for name in names)

    others = [held(other) for other in sensed.values() if other.rank != one.rank]
    return held(one) - float(np.median(others)) if others else 0.0


def explain_clocks(sensed: Mapping[int, Sensed], step_s: float) -> list[Finding]:
    """Return the causes of GPUs whose clock is below that of all others: where nothing tells how long they compute.

    The job waits for the slowest, so what several cost is divided as the cost of a runway is among aircraft of
    different size; what is said is a bound, of a step that computes all the time.
    """
    known = [one for one in sensed.values() if one.clock_mhz > 0]
    if len(known) < _LEAST_PEERS:
        return []
    usual = [_of_stage(one.stage, sensed) for one in known]
    behind = np.array(
        [_usual("clock_mhz", one, peers) / one.clock_mhz - 1 for one, peers in zip(known, usual, strict=True)]
    )
    z_scores = outlier_scores(behind)
    is_slow = (behind >= LEAST_EXCESS) & (z_scores > LEAST_Z)
    slow = sorted(zip(behind[is_slow].tolist(), np.flatnonzero(is_slow).tolist(), strict=True))
    found, last, shared = [], 0.0, 0.0
    for index, (size, at) in enumerate(slow):
        shared += (size - last) / (1 + slow[-1][0]) * step_s / (len(slow) - index)
        cause, said, _ = cause_of_clock(known[at], sensed)
        found.append(Finding(known[at].rank, known[at].name, cause, shared, said, is_bound=True))
        last = size
    return found[::-1]
