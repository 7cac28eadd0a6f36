"""How far power swings at nodes, racks and the job, whether that keeps to a specification, and what would."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from triplepoint import swings
from triplepoint.advise.swings.remedies import Course, Remedy, cap, floor, stagger, storage
from triplepoint.advise.swings.source import NodePower
from triplepoint.advise.swings.spec import Level, SwingSpec, Verdict, check_band, seen_part, verdicts
from triplepoint.errors import UserError

BAND_HZ = (0.1, 20.0)
"""What turbines and other loads of a grid answer to.

Source: arXiv:2508.14318.
"""


@dataclass(frozen=True)
class LevelSwing:
    """How power swings at one level: of the node or rack that swings most, or of the job.

    Attributes:
        level: Which level.
        which: Name of the node or rack; `job`.
        num_nodes: Nodes in it.
        mean_w: Mean power. Unit: W.
        low_w: 1st percentile. Unit: W.
        high_w: 99th percentile. Unit: W.
        range_fraction: Their distance over the mean. Unit: 1.
        ramp_up_w_per_s: Fastest rise between samples. Unit: W/s.
        ramp_down_w_per_s: Fastest fall. Unit: W/s.
        line_hz: Frequency of the strongest line; None where no frequency is seen. Unit: Hz.
        line_w: Its amplitude, half its range. Unit: W.
        band_rms_w: Root mean square of what swings in the band; None where no part of it is seen. Unit: W.
        band_share: Its energy over that of all frequencies. Unit: 1.
    """

    level: Level
    which: str
    num_nodes: int
    mean_w: float
    low_w: float
    high_w: float
    range_fraction: float
    ramp_up_w_per_s: float
    ramp_down_w_per_s: float
    line_hz: float | None = None
    line_w: float | None = None
    band_rms_w: float | None = None
    band_share: float | None = None


@dataclass(frozen=True)
class Together:
    """How much nodes swing together at the job's strongest line.

    Attributes:
        coherence: Length of the mean of their phases, 0 to 1.
        node_line_w: Mean amplitude of a node there. Unit: W.
        job_line_w: What both make of the job: nodes x amplitude x coherence. Unit: W.
        correlation: Mean coefficient over all pairs of nodes.
    """

    coherence: float
    node_line_w: float
    job_line_w: float
    correlation: float


@dataclass(frozen=True, eq=False)
class SwingAnswer:
    """All that is said of the swings of a job.

    Attributes:
        power: What it was told from.
        seen_hz: Highest frequency that readings show. Unit: Hz.
        band_hz: The band that was looked at; None where no part of it is seen. Unit: Hz.
        levels: Nodes, racks where known, and the job.
        together: None of a single node, or where no line is seen.
        spec: What power may do; None where nobody said.
        verdicts: Of its lines.
        remedies: What keeps power to it, and what that costs.
        notes: What is missing or assumed.
    """

    power: NodePower
    seen_hz: float
    band_hz: tuple[float, float] | None
    levels: tuple[LevelSwing, ...]
    together: Together | None
    spec: SwingSpec | None
    verdicts: tuple[Verdict, ...]
    remedies: tuple[Remedy, ...]
    notes: tuple[str, ...]

    def content(self) -> dict[str, Any]:
        """Return keys and values of its JSON."""
        power = self.power
        lines = [
            {"line": one.line, "unit": one.unit, "found": one.found, "limit": one.limit, "margin": one.margin}
            | {"passes": one.passes}
            for one in self.verdicts
        ]
        return {
            "name": power.name,
            "origin": power.origin,
            "num_nodes": power.nodes_w.shape[1],
            "num_samples": len(power.nodes_w),
            "period_s": power.period_s,
            "window_s": power.window_s,
            "seen_hz": self.seen_hz,
            "band_hz": self.band_hz,
            "levels": self.levels,
            "together": self.together,
            "verdicts": lines,
            "remedies": [{"name": one.name, "passes": one.passes, **one.numbers} for one in self.remedies],
            "notes": self.notes,
        }


@dataclass(frozen=True, eq=False)
class Capped:
    """Power of a point under a power limit of its GPUs.

    Attributes:
        power_limit_w: The limit. Unit: W.
        longer: Time of a step over that without it.
        power: Power of nodes.
    """

    power_limit_w: float
    longer: float
    power: NodePower


def answer_of(
    power: NodePower,
    spec: SwingSpec | None = None,
    band_hz: tuple[float, float] | None = None,
    num_jobs: int = 1,
    capped: Sequence[Capped] = (),
) -> SwingAnswer:
    """Return how power swings, whether it keeps to a specification, and what would.

    Args:
        power: Of nodes over time.
        spec: What it may do; None for no limits.
        band_hz: Band that is asked about, refused unless all of it is seen; None: what is seen of `BAND_HZ`. Unit: Hz.
        num_jobs: Independent jobs like it in one hall.
        capped: The same point under power limits.

    Raises:
        UserError: If a band is not seen, or there are no racks to look at.
    """
    notes, seen = list(power.notes), (power.lasts_s, power.period_s, power.window_s)
    if band_hz is not None:
        check_band(band_hz, *seen)
    wanted, part = band_hz or BAND_HZ, seen_part(band_hz or BAND_HZ, *seen)
    if part != wanted:
        notes.append(_refusal(wanted, seen))
    band = part if part[0] < part[1] else None
    levels = tuple(_swing_of(power, level, band) for level in _levels(power))
    if spec and spec.level not in _levels(power):
        raise UserError(
            f"{power.name}: limits are for a rack, and how many nodes share one is not known; give --nodes-per-rack"
        )
    lines = verdicts(spec, _course(power, spec.level).power_w, power.period_s, power.window_s) if spec else []
    found = SwingAnswer(
        power, swings.highest_hz(power.period_s, power.window_s), band, levels,
        _together(power, levels[-1].line_hz), spec, tuple(lines), (), (),
    )  # fmt: skip
    remedies, more = _remedies(found, num_jobs, capped)
    return replace(found, remedies=remedies, notes=(*notes, *more))


def _refusal(band_hz: tuple[float, float], seen: tuple[float, float, float]) -> str:
    try:
        check_band(band_hz, *seen)
    except UserError as error:
        return str(error)
    return ""


def _levels(power: NodePower) -> tuple[Level, ...]:
    if power.nodes_w.shape[1] == 1:
        return ("job",)
    return ("node", "rack", "job") if power.nodes_per_rack else ("node", "job")


def _parts(power: NodePower, level: Level) -> list[tuple[str, np.ndarray]]:
    """Return names and power of all nodes or racks, or of the job."""
    size = {"node": 1, "rack": power.nodes_per_rack or 1, "job": power.nodes_w.shape[1]}[level]
    starts = range(0, power.nodes_w.shape[1], size)
    names = ["job" if level == "job" else f"{level}{number}" for number in range(len(starts))]
    if level == "node" and power.names:
        names = list(power.names)
    return [
        (name, power.nodes_w[:, start : start + size].sum(axis=1)) for name, start in zip(names, starts, strict=True)
    ]


def _worst(power: NodePower, level: Level) -> tuple[str, np.ndarray]:
    """Return name and power of the part of a level that swings most."""
    return max(_parts(power, level), key=lambda part: swings.swing(part[1], power.period_s).fraction)


def _course(power: NodePower, level: Level) -> Course:
    return Course(_worst(power, level)[1], power.period_s, power.window_s)


def _swing_of(power: NodePower, level: Level, band: tuple[float, float] | None) -> LevelSwing:
    which, power_w = _worst(power, level)
    size = {"node": 1, "rack": power.nodes_per_rack or 1, "job": power.nodes_w.shape[1]}[level]
    one, (low_hz, high_hz) = swings.swing(power_w, power.period_s), _all_seen(power)
    found = LevelSwing(
        level, which, size, one.mean_w, one.low_w, one.high_w, one.fraction, one.ramp_up_w_per_s, one.ramp_down_w_per_s
    )
    if low_hz < high_hz:
        line = swings.strongest_line(power_w, power.period_s, low_hz, high_hz, power.window_s)
        found = replace(found, line_hz=line.frequency_hz, line_w=line.amplitude_w)
    if band is not None:
        inside = swings.in_band(power_w, power.period_s, *band, power.window_s)
        found = replace(found, band_rms_w=inside.rms_w, band_share=inside.share)
    return found


def _all_seen(power: NodePower) -> tuple[float, float]:
    """Return the lowest and highest frequency that are seen. Unit: Hz."""
    return seen_part((0.0, np.inf), power.lasts_s, power.period_s, power.window_s)


def _together(power: NodePower, line_hz: float | None) -> Together | None:
    num_nodes = power.nodes_w.shape[1]
    if num_nodes < 2 or line_hz is None:
        return None
    amplitudes = [swings.amplitude_at(node_w, power.period_s, line_hz) for node_w in power.nodes_w.T]
    coherence, mean_w = swings.coherence(power.nodes_w, power.period_s, line_hz), float(np.mean(amplitudes))
    return Together(coherence, mean_w, num_nodes * mean_w * coherence, swings.correlation(power.nodes_w))


def _remedies(
    found: SwingAnswer, num_jobs: int, capped: Sequence[Capped]
) -> tuple[tuple[Remedy, ...], tuple[str, ...]]:
    """Return what was asked for, and what keeps power to the specification where it does not yet; and notes."""
    power, spec, notes = found.power, found.spec, list[str]()
    course = _course(power, spec.level if spec else "job")
    is_needed = any(not verdict.passes for verdict in found.verdicts)
    remedies = list[Remedy]()
    if (is_needed or num_jobs > 1) and (spec is None or spec.level == "job") and (line_hz := found.levels[-1].line_hz):
        remedies.append(stagger(course, num_jobs, line_hz, spec))
    if spec and is_needed:
        remedies += [floor(course, spec), storage(course, spec)]
        if not capped and power.origin != "simulated":
            notes.append("a power limit is not judged here: readings do not tell what it costs; name the point instead")
    for one in capped:
        under = _course(one.power, spec.level if spec else "job")
        remedies.append(cap(one.power_limit_w, one.longer, under, course, spec))
    return tuple(remedies), tuple(notes)
