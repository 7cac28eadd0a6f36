"""How far the simulator was off, over all launched runs of the page."""

import statistics
from collections import Counter
from typing import Any


def sum_up(points: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return lines of term and text: of each predicted quantity its error, and why others have no prediction.

    Args:
        points: Rows of `points`.
    """
    lines = []
    for word, column in (("Step time", "step_time_error"), ("Memory", "memory_error")):
        errors = [point[column] for point in points if point[column] is not None]
        if errors:
            median, worst = statistics.median(map(abs, errors)), max(errors, key=abs)
            lines.append((word, f"{len(errors)} runs, off by {median:.1%} in the median, {worst:+.1%} at worst"))
    inside = [_is_inside(point) for point in points if point["predicted_step_time_lo_s"] and point["step_time_s"]]
    if inside:
        lines.append(("Interval", f"{sum(inside)} of {len(inside)} measured step times lie in the 90 % interval"))
    absent = Counter(point["prediction_absent"] for point in points if point["prediction_absent"])
    lines += [("No prediction", f"{count} runs: {reason}") for reason, count in absent.items()]
    return lines


def _is_inside(point: dict[str, Any]) -> bool:
    return bool(point["predicted_step_time_lo_s"] <= point["step_time_s"] <= point["predicted_step_time_hi_s"])
