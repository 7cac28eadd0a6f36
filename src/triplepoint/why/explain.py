"""Causes of slow GPUs, ranked, from their sensors and kernels compared with those of their peers."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from triplepoint.text import percent
from triplepoint.why.held import THERMAL, Hold, find_held, whole_nodes
from triplepoint.why.repairs import LEAST_PEERS, Suspect
from triplepoint.why.sensed import Sensed
from triplepoint.why.suspects import LEAST_EXCESS, LEAST_Z, outlier_scores

CAUSES: Mapping[str, str] = {
    "degraded": "check its power supplies, and the brake and error signals at its BMC; until then keep it out of jobs",
    "power limit": "give it the power limit of its peers ('nvidia-smi -q -d POWER'), and look for a power brake",
    "heat": "cool what reaches it: inlet, fans and filters of its node, GPUs before it in the air",
    "contact": "have its heat sink reseated and the path of its air cleared; until then keep it out of jobs",
    "contact or air": "clear its air; run on another node too: if the same slot is hot there, it is air, else contact",
    "network": "check its adapter, cable and port: errors, link width and speed; 'triplepoint doctor' on its node",
    "launch": "look at its host: clock governor, other processes, pinning, garbage collection; or record CUDA graphs",
    "data": "look at its data loader: more workers and prefetching, or its storage",
    "layers": "give the stage fewer layers, or the ends of the model less beside them",
    "computation": "no sensor explains it: look for uneven sequences, memory errors, other processes on the GPU",
}
"""Advice for each cause."""
OF_HEAT = ("heat", "contact", "contact or air")
"""Causes that are heat."""

_LEAST_CLOCK = 0.01
"""Smallest relative difference in clock that counts as a cause. GPUs of one type differ by about 1 %."""
LEAST_THROTTLED = 0.05
"""Smallest throttled share of time, beyond that of peers, that counts as a cause."""
_LOWER_LIMIT = 0.02
"""Smallest relative difference in power limit that counts as a cause."""
_WORSE_CONTACT = 1.25
"""Ratio of thermal resistance to that of peers from which contact is the cause. GPUs of one type differ by 4.5 %
(config/heat/h200.yaml)."""
_HOTTER_K = 8.0
"""Temperature over that of peers from which a low clock is caused by heat. Our choice. Unit: K."""
_LEAST_PART = 0.1
"""Smallest share of a suspect's cost that is reported as a cause; smaller ones are divided among the others."""
LEAST_LOST = 0.002
"""Smallest cost of a reported cause, as a share of the step. Our choice."""


@dataclass(frozen=True)
class Finding:
    """One cause of one slow GPU.

    Attributes:
        rank: Global rank.
        name: Name of the GPU, or of the stage, in messages.
        cause: A key of `CAUSES`.
        lost_s: Time of the job's step that it costs. Unit: s.
        evidence: Measured values of the GPU and of its peers, in words.
        is_bound: Whether `lost_s` is an upper bound, since the clock is known but not the computation time.
        excess: Excess of computation or transfers that the cause explains, over the time of peers; NaN if not known.
    """

    rank: int
    name: str
    cause: str
    lost_s: float
    evidence: str
    is_bound: bool = False
    excess: float = math.nan


Ranks = Callable[[tuple[int, int]], Sequence[int]]
"""Returns all ranks of a place: a replica and a stage."""


def explain(suspects: Sequence[Suspect], sensed: Mapping[int, Sensed], ranks_of: Ranks, step_s: float) -> list[Finding]:
    """Return the causes of suspects, most costly first.

    Args:
        suspects: Slow workers.
        sensed: Measurements of GPUs, by rank; may be empty.
        ranks_of: Returns all ranks of a place, recorded or not.
        step_s: Time of the step. Unit: s.
    """
    findings: list[Finding] = []
    for suspect in suspects:
        ranks = [rank for rank in ranks_of(suspect.place) if rank in sensed] or list(suspect.ranks)
        rank = suspect.ranks[0]
        if not suspect.is_single:
            rank = _slowest_rank(suspect, ranks, _of_stage(suspect.place[1], sensed))
        name = sensed[rank].name if rank in sensed else f"rank {rank}"
        parts = list(_parts(suspect, rank, sensed))
        total = sum(share for _, share, _ in parts)
        kept = [part for part in parts if part[1] >= _LEAST_PART * total]
        total = sum(share for _, share, _ in kept)
        for cause, share, evidence in kept:
            # The work of other stages may differ, so the excess over them is a bound.
            is_bound = cause == "degraded" and not suspect.has_peers
            lost_s, part = max(suspect.excess_s, suspect.lost_s) if is_bound else suspect.lost_s, share / total
            if cause == "layers":  # all stages share the layers that this one gives away
                part *= 1 - 1 / suspect.num_stages
            findings.append(Finding(rank, name, cause, lost_s * part, evidence, is_bound, suspect.excess * part))
    findings = [*_by_node(_by_stage(findings, suspects), sensed, max)]
    findings = [finding for finding in findings if finding.lost_s >= LEAST_LOST * step_s]
    return sorted(findings, key=lambda finding: -finding.lost_s)


def _by_node(
    findings: Iterable[Finding], sensed: Mapping[int, Sensed], join: Callable[[Iterable[float]], float]
) -> Iterator[Finding]:
    """Yield the findings; those of a node all of whose GPUs are held by its hardware are joined into one.

    Args:
        findings: The findings.
        sensed: Measurements of GPUs, by rank.
        join: Cost of the node, from those of its findings: stages that wait for each other cost what the slowest does.
    """
    nodes: dict[int, list[Finding]] = {}
    degraded = whole_nodes(find_held(sensed), sensed)
    for finding in findings:
        node = sensed[finding.rank].node if finding.rank in sensed else -1
        if finding.cause == "degraded" and node in degraded:
            nodes.setdefault(node, []).append(finding)
        else:
            yield finding
    for of_node in nodes.values():
        first = max(of_node, key=lambda finding: finding.lost_s)
        name = f"all {len(degraded[sensed[first.rank].node])} GPUs of {sensed[first.rank].node_name}"
        yield replace(first, name=name, lost_s=join(finding.lost_s for finding in of_node))


def _by_stage(findings: Sequence[Finding], suspects: Sequence[Suspect]) -> Iterator[Finding]:
    """Yield the findings; those with cause "layers" are joined into one for each stage."""
    stage_of = {rank: suspect.place[1] for suspect in suspects for rank in suspect.ranks}
    stages: dict[int, list[Finding]] = {}
    for finding in findings:
        if finding.cause == "layers":
            stages.setdefault(stage_of.get(finding.rank, 0), []).append(finding)
        else:
            yield finding
    for stage, of_stage in stages.items():
        first = max(of_stage, key=lambda finding: finding.lost_s)
        yield replace(first, name=f"stage {stage}", lost_s=sum(finding.lost_s for finding in of_stage))


def _of_stage(stage: int, sensed: Mapping[int, Sensed]) -> Mapping[int, Sensed]:
    """Return the GPUs of a stage, which do the same work; all GPUs if those are too few to compare."""
    of_stage = {rank: gpu for rank, gpu in sensed.items() if gpu.stage == stage}
    return of_stage if len(of_stage) > LEAST_PEERS else sensed


def _slowest_rank(suspect: Suspect, ranks: Sequence[int], sensed: Mapping[int, Sensed]) -> int:
    """Return the slowest rank of a suspect; the other ranks of a tensor parallel group wait for it."""
    known = [sensed[rank] for rank in ranks if rank in sensed]
    if suspect.respect not in ("computation", "work") or not known:
        return suspect.ranks[0]
    slowest = max(known, key=lambda gpu: (_relative_slowness(gpu, sensed), -gpu.rank))
    return slowest.rank


def _relative_slowness(gpu: Sensed, sensed: Mapping[int, Sensed]) -> float:
    """Return how much slower a GPU is than its peers, by its clock plus its computation time; 0 if not known."""
    clock = _usual("clock_mhz", gpu, sensed) / gpu.clock_mhz - 1
    compute = gpu.compute_s / _usual("compute_s", gpu, sensed) - 1
    return sum(value for value in (clock, compute) if math.isfinite(value))


def _usual(name: str, gpu: Sensed, sensed: Mapping[int, Sensed], min_others: int = LEAST_PEERS - 1) -> float:
    """Return the median of an attribute over the other GPUs; NaN if it is known for too few of them."""
    values = [getattr(other, name) for other in sensed.values() if other.rank != gpu.rank]
    known = [value for value in values if math.isfinite(value)]
    return float(np.median(known)) if len(known) >= min_others else math.nan


def _parts(suspect: Suspect, rank: int, sensed: Mapping[int, Sensed]) -> Iterator[tuple[str, float, str]]:
    """Yield the causes of a suspect, each with the share of the excess that it explains, and the evidence."""
    longer = percent(suspect.excess)
    if suspect.respect == "transfer":
        yield "network", 1.0, f"its transfers take {longer} longer than equal ones, with every partner"
    elif suspect.respect == "launch":
        yield "launch", 1.0, f"its host is {suspect.excess_s:.3g} s a step later with work that could start than others"
    elif suspect.respect == "data":
        yield "data", 1.0, f"its step begins {suspect.excess_s:.3g} s after that of others ({longer} of the step)"
    else:
        yield from _parts_of_computation(suspect, rank, sensed)


def _parts_of_computation(
    suspect: Suspect, rank: int, sensed: Mapping[int, Sensed]
) -> Iterator[tuple[str, float, str]]:
    """Yield the causes of slow computation: clock, then launches, then what neither explains."""
    others = "workers of its stage" if suspect.has_peers else "other stages"
    if suspect.is_single:
        others = "the other ranks of its stage"
    slow = f"computes {percent(suspect.excess)} longer than {others}"
    if suspect.respect == "work":
        slow = f"comes to collectives {suspect.excess_s:.3g} s a step later than {others}"
    left = 1.0
    gpu = sensed.get(rank)
    if gpu is not None:
        peers = _of_stage(gpu.stage, sensed)
        hold = find_held(sensed).get(rank)
        slower_clock = hold.slower if hold else _usual("clock_mhz", gpu, peers) / gpu.clock_mhz - 1
        least = _LEAST_CLOCK if suspect.has_peers else LEAST_EXCESS
        if slower_clock >= least and (hold or _is_clock_outlier(gpu, peers)):
            share = min(1.0, slower_clock / suspect.excess)
            cause, evidence, is_certain = cause_of_clock(gpu, sensed)
            if suspect.has_peers or is_certain:  # the work of other stages gives their GPUs other clocks
                yield cause, share, f"{slow}; {evidence}"
                left -= share
        late_s = gpu.host_s - _usual("host_s", gpu, peers, min_others=1)
        if left > 0 and late_s >= _LEAST_PART * suspect.excess_s:
            share = min(left, late_s / suspect.excess_s)
            yield "launch", share, f"{slow}; its host is {late_s:.3g} s a step later with launches than others"
            left -= share
    if left > 0:
        cause = "computation" if suspect.has_peers else "layers"
        yield cause, left, slow if gpu is None or math.isnan(gpu.clock_mhz) else f"{slow} at {gpu.clock_mhz:.0f} MHz"


def _is_clock_outlier(gpu: Sensed, peers: Mapping[int, Sensed]) -> bool:
    """Return whether the clock of a GPU is below those of its peers by more than GPUs of one type differ."""
    clocks = {rank: other.clock_mhz for rank, other in peers.items() if math.isfinite(other.clock_mhz)}
    scores = outlier_scores(np.median(list(clocks.values())) / np.array(list(clocks.values())))
    return bool(scores[list(clocks).index(gpu.rank)] > LEAST_Z)


def cause_of_clock(gpu: Sensed, all_gpus: Mapping[int, Sensed]) -> tuple[str, str, bool]:
    """Return why the clock of a GPU is below that of its peers.

    Args:
        gpu: The GPU.
        all_gpus: All GPUs of the job by rank, including this one.

    Returns:
        The cause, the evidence, and whether the cause is certain: a throttle counter or a power limit shows it.
    """
    if hold := find_held(all_gpus).get(gpu.rank):
        return *_cause_of_hold(gpu, hold, all_gpus), True
    peers = _of_stage(gpu.stage, all_gpus)
    usual_mhz = _usual("clock_mhz", gpu, peers)
    clocks = f"{gpu.clock_mhz:.0f} MHz against {usual_mhz:.0f}"
    (brake, usual_brake), (thermal, usual_thermal) = (
        _throttled_shares(gpu, peers, names) for names in (("power_brake",), ("sw_thermal", "hw_thermal"))
    )
    limit_w = _usual("limit_w", gpu, peers)
    if brake - usual_brake >= LEAST_THROTTLED:
        held = (
            f"{clocks}; a power brake held the clock {percent(brake, 0)} of the time against {percent(usual_brake, 0)}"
        )
        return "power limit", held, True
    if thermal - usual_thermal >= LEAST_THROTTLED:
        held = f"{clocks}; heat held the clock {percent(thermal, 0)} of the time against {percent(usual_thermal, 0)}"
        return *_cause_of_heat(gpu, all_gpus, held), True
    if gpu.limit_w < (1 - _LOWER_LIMIT) * limit_w:
        return "power limit", f"{clocks}; its power limit is {gpu.limit_w:.0f} W against {limit_w:.0f}", True
    hotter_k = gpu.temp_c - _usual("temp_c", gpu, peers)
    is_capped = gpu.throttled.get("power_cap_share", 0.0) >= LEAST_THROTTLED
    if hotter_k >= _HOTTER_K:
        at_limit = "; hotter at its power limit, so it leaks more" if is_capped else ""
        return *_cause_of_heat(gpu, all_gpus, f"{clocks}{at_limit}"), False
    if is_capped:
        capped = gpu.throttled["power_cap_share"]
        evidence = (
            f"{clocks}; at the same limit, held by it {percent(capped, 0)} of the time: a part that needs more power"
        )
        return "power limit", evidence, False
    return "computation", f"{clocks}, and no cause counted", False


def _cause_of_hold(gpu: Sensed, hold: Hold, all_gpus: Mapping[int, Sensed]) -> tuple[str, str]:
    """Return the cause and the evidence of a clock that the hardware holds down: heat, or else degraded hardware."""
    return _cause_of_heat(gpu, all_gpus, hold.evidence) if hold.reason == THERMAL else ("degraded", hold.evidence)


def _cause_of_heat(gpu: Sensed, all_gpus: Mapping[int, Sensed], evidence: str) -> tuple[str, str]:
    """Return "contact" if a hot GPU is badly cooled itself, "heat" if warm air reaches it; and the evidence.

    GPUs at the same position of other nodes are compared by thermal resistance. If the inlet temperature or power is
    not known, the GPU's excess over other nodes beyond that of the rest of its node decides. A job of one node cannot
    tell the two apart, since slots differ in their air: a badly cooled GPU then has "contact or air".

    Args:
        gpu: The hot GPU.
        all_gpus: All GPUs of the job, by rank.
        evidence: Evidence so far, to which that of heat is added.
    """
    resistance = _thermal_resistance(gpu, all_gpus)
    others = [other for other in all_gpus.values() if other.rank != gpu.rank]
    same_position = [other for other in others if other.device == gpu.device]
    compared = same_position if len(same_position) >= LEAST_PEERS else others
    resistances = [_thermal_resistance(other, all_gpus) for other in compared]
    known = [value for value in resistances if math.isfinite(value)]
    usual_c = _usual("temp_c", gpu, all_gpus)
    evidence = f"{evidence}; {gpu.temp_c:.0f} degC against {usual_c:.0f}"
    if math.isfinite(resistance) and known:
        usual = np.median(known)
        evidence += f", {resistance:.3f} K/W over its inlet of {gpu.inlet_c:.0f} degC against {usual:.3f}"
        is_badly_cooled = bool(resistance >= _WORSE_CONTACT * usual)
    else:
        usual_w = _usual("power_w", gpu, all_gpus)
        evidence += f" at {gpu.power_w:.0f} W against {usual_w:.0f}"
        own_k = gpu.temp_c - _of_other_nodes(gpu, all_gpus, usual_c)
        mates = [other for other in others if other.node == gpu.node]
        mates_k = [other.temp_c - _of_other_nodes(other, all_gpus, other.temp_c) for other in mates]
        rest_k = float(np.median([excess for excess in mates_k if math.isfinite(excess)] or [0.0]))
        is_badly_cooled = own_k - rest_k >= _HOTTER_K and gpu.power_w <= usual_w
    if not is_badly_cooled:
        return "heat", evidence
    if all(other.node == gpu.node for other in others):
        return "contact or air", f"{evidence}; no other node shows how hot its slot usually is"
    return "contact", evidence


def _of_other_nodes(gpu: Sensed, sensed: Mapping[int, Sensed], default_c: float) -> float:
    """Return the median temperature at a GPU's position in other nodes; of all their GPUs if none is known there.

    Args:
        gpu: The GPU.
        sensed: Measurements of all GPUs of the job, by rank.
        default_c: Temperature to return if the job has no other node. Unit: degC.
    """
    others = [other for other in sensed.values() if other.node != gpu.node and math.isfinite(other.temp_c)]
    same_position = [other.temp_c for other in others if other.device == gpu.device]
    known = same_position or [other.temp_c for other in others]
    return float(np.median(known)) if known else default_c


def _thermal_resistance(gpu: Sensed, sensed: Mapping[int, Sensed]) -> float:
    """Return the rise of the die over the inlet per watt; NaN if not known. Unit: K/W.

    The power is the mean of the GPU's own and of the mean of its node: the other GPUs of the node warm the air that
    reaches it, and draw more than a throttled one.
    """
    of_node = [other.power_w for other in sensed.values() if other.node == gpu.node and math.isfinite(other.power_w)]
    return (gpu.temp_c - gpu.inlet_c) / ((gpu.power_w + float(np.mean(of_node or [math.nan]))) / 2)


def _throttled_shares(gpu: Sensed, sensed: Mapping[int, Sensed], causes: Sequence[str]) -> tuple[float, float]:
    """Return the share of time that causes throttle a GPU, and the median of its peers; equal without peers."""

    def throttled_share(one: Sensed) -> float:
        return sum(one.throttled.get(f"{cause}_share", 0.0) for cause in causes)

    others = [throttled_share(other) for other in sensed.values() if other.rank != gpu.rank]
    return throttled_share(gpu), float(np.median(others)) if others else throttled_share(gpu)


def explain_clocks(sensed: Mapping[int, Sensed], step_s: float) -> list[Finding]:
    """Return the causes of GPUs whose clock is an outlier, for jobs without known computation times; costs are bounds.

    The bound holds for a step that is all computation. The job waits for the slowest GPU. So the excess of the slowest
    is shared as in the airport problem: each part of it by all GPUs that are at least that slow.

    Args:
        sensed: Measurements of GPUs, by rank.
        step_s: Time of the step. Unit: s.
    """
    known = [gpu for gpu in sensed.values() if gpu.clock_mhz > 0]
    if len(known) < LEAST_PEERS:
        return []
    held = find_held(sensed)
    slower_clock = np.array([
        held[gpu.rank].slower
        if gpu.rank in held
        else _usual("clock_mhz", gpu, _of_stage(gpu.stage, sensed)) / gpu.clock_mhz - 1
        for gpu in known
    ])  # fmt: skip
    is_held = np.array([gpu.rank in held for gpu in known])
    is_slow = (slower_clock >= LEAST_EXCESS) & (is_held | (outlier_scores(slower_clock) > LEAST_Z))
    slow = sorted(zip(slower_clock[is_slow].tolist(), np.flatnonzero(is_slow).tolist(), strict=True))
    findings, previous, cost_s = [], 0.0, 0.0
    for number, (slower, index) in enumerate(slow):
        cost_s += (slower - previous) / (1 + slow[-1][0]) * step_s / (len(slow) - number)
        gpu = known[index]
        cause, evidence, _ = cause_of_clock(gpu, sensed)
        findings.append(Finding(gpu.rank, gpu.name, cause, cost_s, evidence, is_bound=True, excess=slower))
        previous = slower
    return sorted(_by_node(findings, sensed, sum), key=lambda finding: -finding.lost_s)
