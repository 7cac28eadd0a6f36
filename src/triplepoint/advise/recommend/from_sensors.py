"""Advice on a run whose cluster or job nobody described: what sensors show of its slots, and hardware that stands out.

Without the cluster's airflow and the job's layout there is nothing to simulate: placement is not judged.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from triplepoint.advise.recommend.advice import NEEDED
from triplepoint.config.plan import read_planned_run
from triplepoint.units import counted
from triplepoint.why.answer import Answer
from triplepoint.why.explain import CAUSES
from triplepoint.why.sensed import Sensed

_LISTED = 8
_OF_HARDWARE = ("power limit", "heat", "contact", "network", "computation")
"""Causes of a slow GPU that lie in its node, not in the job."""
_RANGES = {"temp_c": "degC", "power_w": "W", "clock_mhz": "MHz", "rise_k_per_w": "K/W over the inlet"}


def content(run: Path, why: Answer) -> dict[str, Any]:
    """Return the advice as keys of a JSON object, those of `triplepoint recommend` that can be said."""
    return {
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
    """Return the advice in lines for a person."""
    return "\n".join([*_passport(run, why), *_hardware(why), *why.gpus, f"placement: {_refusal(run)}"])


def _slots(sensed: Sequence[Sensed]) -> list[dict[str, Any]]:
    slots = []
    for one in sensed:
        values = {name: getattr(one, name) for name in ("temp_c", "power_w", "clock_mhz", "inlet_c")}
        values["rise_k_per_w"] = (one.temp_c - one.inlet_c) / one.power_w if one.power_w > 0 else math.nan
        known = {name: value if math.isfinite(value) else None for name, value in values.items()}
        slots.append({"host": one.host, "node": one.node, "device": one.device, "uuid": one.uuid} | known)
    return slots


def _passport(run: Path, why: Answer) -> Iterator[str]:
    slots = _slots(why.sensed)
    yield f"{_cluster(run)}, by sensors of run {why.name}: {counted(len(slots), why.unit)}"
    if not any(slot[name] is not None for slot in slots for name in _RANGES):
        yield "  no temperature, power or clock was measured"
    for name, unit in _RANGES.items():
        known = [slot[name] for slot in slots if slot[name] is not None]
        if known:
            yield f"  {min(known):.4g} to {max(known):.4g} {unit}, median {np.median(known):.4g}"


def _hardware(why: Answer) -> Iterator[str]:
    found = [one for one in why.findings if one.cause in _OF_HARDWARE]
    if not found:
        yield f"hardware: no {why.unit} or node stands out"
        return
    yield "hardware first:"
    for one in found[:_LISTED]:
        share = f"costs {'up to ' * one.is_bound}{one.lost_s / why.step_s:.1%} of a step"
        yield f"  {one.name}, {one.cause}: {one.evidence}; {share}; {CAUSES[one.cause]}"
    if len(found) > _LISTED:
        yield f"  and {len(found) - _LISTED} more; --json lists all"


def _cluster(run: Path) -> str:
    return read_planned_run(run / "point.json").point.cluster.name


def _refusal(run: Path) -> str:
    point = read_planned_run(run / "point.json").point
    unknown = [name for name in ("cluster", *NEEDED) if name == "cluster" or not point.knows(name)]
    if point.cluster.gpu is not None:
        unknown.remove("cluster")
    return (
        f"not judged: {', '.join(unknown)} of this job not known; say them with '--describe job.yaml' of "
        "'triplepoint record' or 'triplepoint import' (docs/own_job.md)"
    )
