"""The budget: what launches are expected to take together, beyond which a study is to be named."""

import math
from collections.abc import Sequence

from triplepoint.plan_cost import RunCost
from triplepoint.units import S_PER_HOUR


def over_budget(costs: Sequence[RunCost], max_gpu_hours: float) -> str | None:
    """Return one line with the sum, what each study takes of it and what to type; None within the budget.

    Args:
        costs: Of runs, those that are done or simulated among them.
        max_gpu_hours: The budget. Unit: h.
    """
    costs = [cost for cost in costs if cost.is_ahead and not cost.is_simulated and cost.entry.planned.point.cluster.gpu]
    total_h = _gpu_hours(costs)
    if total_h <= max_gpu_hours:
        return None
    studies = dict.fromkeys(study for cost in costs for study in cost.entry.studies)
    parts = [_of_study(study, [cost for cost in costs if study in cost.entry.studies]) for study in studies]
    shared = " (some are of several studies)" if any(len(cost.entry.studies) > 1 for cost in costs) else ""
    return (
        f"{_launches(costs)} expected to take {total_h:,.1f} GPU h, max_gpu_hours is {max_gpu_hours:g}: "
        f"{', '.join(parts)}{shared}; name what is meant, such as --config studies=[{next(iter(studies))}], "
        f"or the budget, --config max_gpu_hours={math.ceil(total_h)}"
    )


def _of_study(study: str, costs: Sequence[RunCost]) -> str:
    return f"{study} {_gpu_hours(costs):,.1f} h in {len(costs)}"


def _launches(costs: Sequence[RunCost]) -> str:
    return "1 launch is" if len(costs) == 1 else f"{len(costs)} launches are"


def _gpu_hours(costs: Sequence[RunCost]) -> float:
    """Return the GPU hours of some launches; one that is not predicted may take all of its time limit. Unit: h."""
    limits_h = [cost.entry.planned.limits.time_limit_s * cost.num_gpus / S_PER_HOUR for cost in costs]
    return sum(
        limit_h if math.isnan(cost.gpu_hours) else cost.gpu_hours for cost, limit_h in zip(costs, limits_h, strict=True)
    )
