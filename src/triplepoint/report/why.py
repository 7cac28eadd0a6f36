"""Section of the page of a run on why it is slow."""

from pathlib import Path
from typing import Any

from triplepoint.errors import UserError
from triplepoint.text import percent
from triplepoint.units import S_PER_HOUR
from triplepoint.why.answer import Answer, why_run

_MOST = 8
"""Largest number of causes that a page lists."""
_J_PER_KWH = 1e3 * S_PER_HOUR


def describe_why(run: Path) -> dict[str, Any] | None:
    """Return the variables of the section; None if the steps of the run allow no answer.

    Args:
        run: Folder of a run that finished.
    """
    try:
        answer = why_run(run)
    except UserError:  # for example without a measured step of all ranks; the page is written without the section
        return None
    slow = answer.slowdown
    of_steps = answer.step_times.sentences() if answer.step_times else ()
    return {
        "slowdown": f"{slow.slowdown:.3f}" if answer.is_replayed else None,
        "step_s": f"{answer.step_s:.4g}",
        "ideal_s": f"{slow.ideal_s.mean():.4g}",
        "source": answer.source,
        "causes": [_cause(row) for row in answer.rows()[:_MOST]],
        "heat": answer.heat,
        "notes": [*of_steps, *answer.gpus, *answer.notes],
        "parts": _parts(answer),
    }


def _cause(row: dict[str, Any]) -> dict[str, str]:
    """Return the cells of one cause as texts."""
    energy_j = row["lost_energy_per_day_j"]
    return {
        "gpu": row["gpu"],
        "cause": row["cause"],
        "lost": f"{'up to ' * row['is_bound']}{percent(row['lost_share'])}",
        "gpu_hours": f"{row['lost_gpu_hours_per_day']:.3g}",
        "kwh": "" if energy_j is None else f"{energy_j / _J_PER_KWH:.3g}",
        "evidence": row["evidence"],
        "advice": row["advice"],
    }


def _parts(answer: Answer) -> str:
    """Return a sentence with the largest kind, stage and replica of the slowdown; '' if there is none."""
    slow = answer.slowdown
    parts = []
    for noun, slowdowns in (("kind", slow.by_kind), ("stage", slow.by_stage), ("replica", slow.by_dp)):
        key, value = next(iter(slowdowns.items()))
        if len(slowdowns) > 1 and value >= 1.001:
            parts.append(f"{noun} {key} {value:.3f}")
    return f"With ideal durations of all others: {', '.join(parts)}." if parts else ""
