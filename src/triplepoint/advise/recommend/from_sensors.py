"""Advice on a run whose cluster or job is not described: what sensors show of its GPUs, and hardware that stands out.

Without the cluster's airflow and the job's layout there is nothing to simulate: placement is not judged.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from triplepoint.advise.recommend.advice import NEEDED
from triplepoint.config.plan import read_planned_run
from triplepoint.text import page, paragraph, percent, table
from triplepoint.units import counted
from triplepoint.why.answer import Answer
from triplepoint.why.explain import CAUSES, Finding
from triplepoint.why.sensed import Sensed

_LISTED = 8
_OF_HARDWARE = ("power limit", "heat", "contact", "network", "computation")
"""Causes of a slow GPU that lie in its node, not in the job."""
_RANGES = {
    "temp_c": ("temperature", "degC"), "power_w": ("power", "W"), "clock_mhz": ("clock", "MHz"),
    "rise_k_per_w": ("temperature over the inlet for each watt", "K/W"),
}  # fmt: skip


def content(run: Path, why: Answer) -> dict[str, Any]:
    """Return the advice as keys of a JSON object, those of `triplepoint recommend` that can be said."""
    return {
        "answer": headline(run, why),
        "passport": {"cluster": _cluster(run), "run": why.name, "slots": _slots(why.sensed)},
        "outliers": [
            {
                "name": one.name,
                "kind": one.cause,
                "evidence": one.evidence,
                "action": CAUSES[one.cause],
                "cost_s": one.lost_s,
                "is_bound": one.is_bound,
            }
            for one in why.findings
            if one.cause in _OF_HARDWARE
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
    """Return the answer in two sentences: hardware that stands out, and what placement would need."""
    found = _of_hardware(why)
    first = f"No {why.unit} or node stands out."
    if found:
        cost = (
            f"up to {percent(found[0].lost_s / why.step_s)}"
            if found[0].is_bound
            else percent(found[0].lost_s / why.step_s)
        )
        first = f"Repair {found[0].name} first: {found[0].cause}, it costs {cost} of a step."
    return f"{first} {_refusal(run)}"


def _of_hardware(why: Answer) -> list[Finding]:
    return [one for one in why.findings if one.cause in _OF_HARDWARE]


def _share(one: Finding, why: Answer) -> str:
    """Return what a cause costs of a step; an upper bound where only a clock is known."""
    return f"{'up to ' * one.is_bound}{percent(one.lost_s / why.step_s)}"


def _slots(sensed: Sequence[Sensed]) -> list[dict[str, Any]]:
    slots = []
    for one in sensed:
        values = {name: getattr(one, name) for name in ("temp_c", "power_w", "clock_mhz", "inlet_c")}
        values["rise_k_per_w"] = (one.temp_c - one.inlet_c) / one.power_w if one.power_w > 0 else math.nan
        known = {name: value if math.isfinite(value) else None for name, value in values.items()}
        slots.append({"host": one.host, "node": one.node, "device": one.device, "uuid": one.uuid} | known)
    return slots


def _passport(why: Answer) -> list[str]:
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
    found = _of_hardware(why)
    lines = []
    for one in found[:_LISTED]:
        share = f"{'up to ' * one.is_bound}{percent(one.lost_s / why.step_s)}"
        lines += paragraph(
            f"{one.name}, {one.cause}: {one.evidence}. It costs {share} of a step. To do: {CAUSES[one.cause]}.",
            indent=2,
        )
    if len(found) > _LISTED:
        lines.append(f"  {len(found) - _LISTED} more are in --json.")
    return ["Hardware to repair first:", *lines] if lines else []


def _cluster(run: Path) -> str:
    return read_planned_run(run / "point.json").point.cluster.name


def _refusal(run: Path) -> str:
    point = read_planned_run(run / "point.json").point
    unknown = [name for name in ("cluster", *NEEDED) if name == "cluster" or not point.knows(name)]
    if point.cluster.gpu is not None:
        unknown.remove("cluster")
    return (
        f"Placement is not judged: {', '.join(unknown)} of this job are not known; name them with "
        "'--describe job.yaml' of 'triplepoint record' or 'triplepoint import' (docs/own_job.md)."
    )
