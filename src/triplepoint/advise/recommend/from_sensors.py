"""Advice from sensors alone, for a run without a described cluster or job: state of its GPUs, and faulty hardware.

Placement is not judged: a simulation needs the airflow of the cluster and the layout of the job.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from triplepoint.advise.recommend.advice import NEEDED
from triplepoint.config.plan import read_planned_run
from triplepoint.text import page, paragraph, percent_lost, table
from triplepoint.units import counted
from triplepoint.why.answer import Answer
from triplepoint.why.explain import CAUSES, Finding
from triplepoint.why.sensed import Sensed

_MAX_LISTED = 8
"""Longest list of faults in the text."""
_HARDWARE_CAUSES = ("degraded", "power limit", "heat", "contact", "contact or air", "network", "computation")
"""Causes of a slow GPU that are in its node, not in the job."""
_RANGES = {
    "temp_c": ("temperature", "degC"), "power_w": ("power", "W"), "clock_mhz": ("clock", "MHz"),
    "rise_k_per_w": ("temperature over the inlet for each watt", "K/W"),
}  # fmt: skip


def content(run: Path, why: Answer) -> dict[str, Any]:
    """Return the advice as keys of a JSON object, a part of those of `triplepoint recommend`."""
    return {
        "answer": headline(run, why),
        "passport": {"cluster": _cluster(run), "run": why.name, "slots": _slots(why.sensed)},
        "outliers": [
            {
                "name": finding.name,
                "kind": finding.cause,
                "evidence": finding.evidence,
                "action": CAUSES[finding.cause],
                "cost_s": finding.lost_s,
                "is_bound": finding.is_bound,
            }
            for finding in _hardware_findings(why)
        ],
        "drift": [],
        "step_time_s": None if why.step_times is None else why.step_times.median_s,
        "is_accepted": False,
        "reasons": [_refusal(run)],
    }


def render(run: Path, why: Answer) -> str:
    """Return the advice as text."""
    return page([
        [*paragraph(headline(run, why)), *paragraph(f"Job: run {why.name} on {_cluster(run)}")],
        _hardware(why), _passport(why), [*why.gpus],
    ])  # fmt: skip


def headline(run: Path, why: Answer) -> str:
    """Return the answer in two sentences: the costliest fault, and what is missing to judge the placement."""
    findings = _hardware_findings(why)
    first = f"No {why.unit} or node stands out."
    if findings:
        worst = findings[0]
        first = f"Repair {worst.name} first: {worst.cause}, it costs {_cost_share(worst, why)} of a step."
    return f"{first} {_refusal(run)}"


def _hardware_findings(why: Answer) -> list[Finding]:
    return [finding for finding in why.findings if finding.cause in _HARDWARE_CAUSES]


def _cost_share(finding: Finding, why: Answer) -> str:
    """Return the share of a step that a cause costs, as text; an upper bound if only a clock is known."""
    return percent_lost(finding.lost_s / why.step_s, is_bound=finding.is_bound)


def _slots(sensed: Sequence[Sensed]) -> list[dict[str, Any]]:
    """Return the measured state of each GPU for the JSON; None for what was not measured."""
    slots = []
    for gpu in sensed:
        values = {name: getattr(gpu, name) for name in ("temp_c", "power_w", "clock_mhz", "inlet_c")}
        values["rise_k_per_w"] = (gpu.temp_c - gpu.inlet_c) / gpu.power_w if gpu.power_w > 0 else math.nan
        known = {name: value if math.isfinite(value) else None for name, value in values.items()}
        slots.append({"host": gpu.host, "node": gpu.node, "device": gpu.device, "uuid": gpu.uuid} | known)
    return slots


def _passport(why: Answer) -> list[str]:
    """Return the paragraph on the range of each measured quantity."""
    slots = _slots(why.sensed)
    rows: list[tuple[str, ...]] = [("", "lowest", "median", "highest", "unit")]
    for name, (words, unit) in _RANGES.items():
        known = [slot[name] for slot in slots if slot[name] is not None]
        if known:
            rows.append((words, *(f"{value:.4g}" for value in (min(known), np.median(known), max(known))), unit))
    head = f"What sensors show of {counted(len(slots), why.unit)}:"
    if len(rows) == 1:
        return [f"{head} no temperature, power or clock was measured."]
    return [head, *table(rows, words={0, 4}, indent=2)]


def _hardware(why: Answer) -> list[str]:
    """Return the paragraph on faulty hardware; empty without any."""
    findings = _hardware_findings(why)
    lines = []
    for finding in findings[:_MAX_LISTED]:
        cost = f"It costs {_cost_share(finding, why)} of a step. To do: {CAUSES[finding.cause]}."
        lines += paragraph(f"{finding.name}, {finding.cause}: {finding.evidence}. {cost}", indent=2)
    if len(findings) > _MAX_LISTED:
        lines.append(f"  {len(findings) - _MAX_LISTED} more are in --json.")
    return ["Hardware to repair first:", *lines] if lines else []


def _cluster(run: Path) -> str:
    return read_planned_run(run / "point.json").point.cluster.name


def _refusal(run: Path) -> str:
    """Return a sentence on why placement is not judged."""
    point = read_planned_run(run / "point.json").point
    unknown = [name for name in ("cluster", *NEEDED) if name == "cluster" or not point.knows(name)]
    if point.cluster.gpu is not None:
        unknown.remove("cluster")
    return (
        f"Placement is not judged: {', '.join(unknown)} of this job are not known; name them with "
        "'--describe job.yaml' of 'triplepoint record' or 'triplepoint import' (docs/own_job.md)."
    )
