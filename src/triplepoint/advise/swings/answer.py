"""Power swings of nodes, racks and the job, verdicts on a specification, and remedies."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from triplepoint import swings
from triplepoint.advise.swings.interval import (
    LEAST_BLOCKS,
    Intervals,
    Numbers,
    line_of,
    numbers_of,
    of_draws,
    of_recording,
)
from triplepoint.advise.swings.remedies import Course, Remedy, cap, floor, stagger, storage
from triplepoint.advise.swings.source import NodePower
from triplepoint.advise.swings.spec import Band, Level, SwingSpec, Verdict, check_band, seen_part, tightened, verdicts
from triplepoint.errors import UserError
from triplepoint.metrics import Interval
from triplepoint.units import KILO

BAND_HZ = (0.1, 20.0)
"""Frequencies to which turbines and other parts of a grid respond.

Source: arXiv:2508.14318.
"""


@dataclass(frozen=True)
class LevelSwing:
    """Power swings at one level: of the node or rack that swings most, or of the job.

    Attributes:
        level: `node`, `rack` or `job`.
        which: Name of the node or rack, or `job`.
        num_nodes: Number of its nodes.
        mean_w: Mean power. Unit: W.
        low_w: 1st percentile. Unit: W.
        high_w: 99th percentile. Unit: W.
        range_fraction: Range from the 1st to the 99th percentile over the mean. Unit: 1.
        ramp_up_w_per_s: Fastest rise between samples. Unit: W/s.
        ramp_down_w_per_s: Fastest fall between samples. Unit: W/s.
        line_hz: Frequency of the strongest line; None if samples resolve no frequency. Unit: Hz.
        line_w: Amplitude of the line, half its range. Unit: W.
        band_rms_w: Root mean square of swings in the band; None if samples resolve no part of it. Unit: W.
        band_share: Energy of swings in the band over that of all frequencies. Unit: 1.
        intervals: 90 % intervals of the numbers, by attribute; empty without any.
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
    intervals: Mapping[str, Interval] = field(default_factory=dict)


@dataclass(frozen=True)
class Together:
    """Coherence of the swings of nodes at the strongest line of the job.

    Attributes:
        coherence: Length of the mean phase vector, 0 to 1.
        node_line_w: Mean amplitude of a node at the line. Unit: W.
        job_line_w: Amplitude of the job: number of nodes * mean amplitude * coherence. Unit: W.
        correlation: Mean correlation coefficient of all pairs of nodes.
    """

    coherence: float
    node_line_w: float
    job_line_w: float
    correlation: float


@dataclass(frozen=True, eq=False)
class SwingAnswer:
    """Answer on the power swings of a job.

    Attributes:
        power: Power of nodes over time.
        seen_hz: Highest frequency that readings resolve. Unit: Hz.
        band_hz: The examined band; None if readings resolve no part of it. Unit: Hz.
        levels: Swings of nodes, racks if known, and the job.
        together: Coherence of nodes; None for a single node or without a line.
        spec: Specification of power; None without one.
        verdicts: Verdict on each line of the specification.
        remedies: Ways to keep the specification, with their cost.
        notes: Sentences on missing data and assumptions.
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

    def spectrum(self) -> dict[str, list[float]]:
        """Return frequencies (Hz) and amplitudes (W) of the power of the job, at most 500; empty without a band."""
        low_hz, high_hz = _all_seen(self.power)
        found = np.empty((2, 0))
        if low_hz < high_hz:
            found = swings.spectrum_in_short(_worst(self.power, "job")[1], self.power.period_s, low_hz, high_hz)
        return {"frequencies_hz": found[0].tolist(), "amplitudes_w": found[1].tolist()}

    def content(self) -> dict[str, Any]:
        """Return keys and values of its JSON."""
        power = self.power
        lines = [
            {"line": verdict.line, "unit": verdict.unit, "found": verdict.found, "limit": verdict.limit}
            | {"margin": verdict.margin, "passes": verdict.passes, "verdict": verdict.words}
            | {"found_lo": verdict.within and verdict.within.lo, "found_hi": verdict.within and verdict.within.hi}
            for verdict in self.verdicts
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
            "spectrum": self.spectrum(),
            "verdicts": lines,
            "remedies": [{"name": remedy.name, "passes": remedy.passes, **remedy.numbers} for remedy in self.remedies],
            "notes": self.notes,
        }


@dataclass(frozen=True, eq=False)
class Capped:
    """Power of a point under a power limit of its GPUs.

    Attributes:
        power_limit_w: The limit. Unit: W.
        longer: Step time over that without the limit.
        power: Power of nodes under the limit.
    """

    power_limit_w: float
    longer: float
    power: NodePower


def answer_of(
    power: NodePower,
    spec: SwingSpec | None = None,
    band_hz: tuple[float, float] | None = None,
    num_jobs: int = 1,
    drawn: Sequence[NodePower] = (),
) -> SwingAnswer:
    """Return the power swings, the verdicts on a specification, and remedies.

    Args:
        power: Power of nodes over time.
        spec: Specification of power. None: no limits.
        band_hz: Band to examine, all of which readings must resolve. None: the part of `BAND_HZ` that they resolve.
            Unit: Hz.
        num_jobs: Number of independent jobs of this kind in one hall.
        drawn: Power of the same point with what is unknown of it drawn, over the same time and as often, for intervals.
            Empty: intervals come from how parts of the recording differ.

    Raises:
        UserError: If readings do not resolve a band, or the specification is for racks and these are unknown.
    """
    notes, seen = list(power.notes), (power.lasts_s, power.period_s, power.window_s)
    if band_hz is not None:
        check_band(band_hz, *seen)
    wanted, part = band_hz or BAND_HZ, seen_part(band_hz or BAND_HZ, *seen)
    if part != wanted:
        notes.append(_refusal(wanted, seen))
    band = part if part[0] < part[1] else None
    levels = tuple(_swing_of(power, level, band) for level in _levels(power))
    line_hz = levels[-1].line_hz
    num_repeats = int(power.lasts_s * line_hz) if line_hz else 0
    if power.num_steps is not None:
        num_repeats = min(num_repeats, power.num_steps)
    if spec and spec.level not in _levels(power):
        raise UserError(
            f"{power.name}: limits are for a rack, and how many nodes share one is not known; give --nodes-per-rack"
        )
    lines = verdicts(spec, _course(power, spec.level).power_w, power.period_s, power.window_s) if spec else []
    bands = [(limit.low_hz, limit.high_hz) for limit in spec.bands] if spec else []
    within = {level.level: _intervals(power, level.level, band, bands, drawn, num_repeats) for level in levels}
    if not within["job"]:
        what = f"{num_repeats} steps or periods" if num_repeats else "no period that readings resolve"
        notes.append(f"no number has an interval: the recording holds {what}, and it takes {LEAST_BLOCKS}")
    levels = tuple(replace(level, intervals=_of_attributes(within[level.level], band)) for level in levels)
    if spec:
        lines = [replace(verdict, within=within[spec.level].get(verdict.line)) for verdict in lines]
    answer = SwingAnswer(
        power, swings.highest_hz(power.period_s, power.window_s), band, levels, _together(power, line_hz), spec,
        tuple(lines), (), (),
    )  # fmt: skip
    remedies, more = _remedies(answer, num_jobs, ())
    return replace(answer, remedies=remedies, notes=(*notes, *more))


def with_capped(answer: SwingAnswer, num_jobs: int, capped: Sequence[Capped]) -> SwingAnswer:
    """Return the answer on a point with the power of the same point under power limits among its remedies."""
    return replace(answer, remedies=_remedies(answer, num_jobs, capped)[0])


def _intervals(
    power: NodePower,
    level: Level,
    band: Band | None,
    more: Sequence[Band],
    drawn: Sequence[NodePower],
    num_repeats: int,
) -> Intervals:
    """Return the 90 % intervals of the numbers of a level, see `numbers_of`; empty if there are none."""
    bands = [*([band] if band else []), *more]

    def numbers(one: NodePower) -> Numbers:
        return numbers_of(_worst(one, level)[1], one.period_s, bands, one.window_s)

    if drawn:
        return of_draws(numbers(power), [numbers(one) for one in drawn])
    return of_recording(_worst(power, level)[1], power.period_s, bands, numbers(power), num_repeats)


def _of_attributes(within: Intervals, band: Band | None) -> dict[str, Interval]:
    """Return intervals by attribute of `LevelSwing`, in W and W/s."""
    if not within:
        return {}

    def in_watts(name: str) -> Interval:
        return Interval(*(KILO * end for end in within[name]))

    found = {name: within[name] for name in ("mean_w", "low_w", "high_w", "range_fraction")}
    found |= {f"{name}_w_per_s": in_watts(f"{name}_kw_per_s") for name in ("ramp_up", "ramp_down")}
    if band is not None:
        found |= {"band_rms_w": in_watts(line_of("rms_kw", band)), "band_share": within[line_of("share", band)]}
    return found


def _refusal(band_hz: tuple[float, float], seen: tuple[float, float, float]) -> str:
    """Return why readings do not resolve a band; empty if they do."""
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
    """Return name and power of each node or rack, or of the job."""
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
    parts = _parts(power, level)
    if len(parts) == 1:
        return parts[0]
    parts_w = np.stack([part_w for _, part_w in parts], axis=1)
    low_w, high_w = swings.ends(parts_w)
    return parts[int(((high_w - low_w) / parts_w.mean(axis=0)).argmax())]


def _course(power: NodePower, level: Level) -> Course:
    return Course(_worst(power, level)[1], power.period_s, power.window_s)


def _swing_of(power: NodePower, level: Level, band: tuple[float, float] | None) -> LevelSwing:
    which, power_w = _worst(power, level)
    size = {"node": 1, "rack": power.nodes_per_rack or 1, "job": power.nodes_w.shape[1]}[level]
    swing, (low_hz, high_hz) = swings.swing(power_w, power.period_s), _all_seen(power)
    result = LevelSwing(
        level, which, size, swing.mean_w, swing.low_w, swing.high_w, swing.fraction, swing.ramp_up_w_per_s,
        swing.ramp_down_w_per_s,
    )  # fmt: skip
    if low_hz < high_hz:
        line = swings.strongest_line(power_w, power.period_s, low_hz, high_hz, power.window_s)
        result = replace(result, line_hz=line.frequency_hz, line_w=line.amplitude_w)
    if band is not None:
        inside = swings.in_band(power_w, power.period_s, *band, power.window_s)
        result = replace(result, band_rms_w=inside.rms_w, band_share=inside.share)
    return result


def _all_seen(power: NodePower) -> tuple[float, float]:
    """Return the lowest and highest frequency that readings resolve. Unit: Hz."""
    return seen_part((0.0, np.inf), power.lasts_s, power.period_s, power.window_s)


def _together(power: NodePower, line_hz: float | None) -> Together | None:
    num_nodes = power.nodes_w.shape[1]
    if num_nodes < 2 or line_hz is None:
        return None
    amplitudes = [swings.amplitude_at(node_w, power.period_s, line_hz) for node_w in power.nodes_w.T]
    coherence, mean_w = swings.coherence(power.nodes_w, power.period_s, line_hz), float(np.mean(amplitudes))
    return Together(coherence, mean_w, num_nodes * mean_w * coherence, swings.correlation(power.nodes_w))


def _remedies(
    answer: SwingAnswer, num_jobs: int, capped: Sequence[Capped]
) -> tuple[tuple[Remedy, ...], tuple[str, ...]]:
    """Return remedies that are requested or needed to keep the specification, and notes."""
    power, notes = answer.power, list[str]()
    # Remedies are sized for the upper ends of intervals.
    spec = tightened(answer.spec, answer.verdicts) if answer.spec else None
    course = _course(power, spec.level if spec else "job")
    is_needed = any(not verdict.passes for verdict in answer.verdicts)
    remedies = list[Remedy]()
    if (is_needed or num_jobs > 1) and (spec is None or spec.level == "job") and (line_hz := answer.levels[-1].line_hz):
        remedies.append(stagger(course, num_jobs, line_hz, spec))
    if spec and is_needed:
        remedies += [floor(course, spec), storage(course, spec)]
        if not capped and power.origin != "simulated":
            notes.append("a power limit is not judged here: readings do not tell what it costs; name the point instead")
    for limited in capped:
        capped_course = _course(limited.power, spec.level if spec else "job")
        remedies.append(cap(limited.power_limit_w, limited.longer, capped_course, course, spec))
    return tuple(remedies), tuple(notes)
