"""What the simulator says of a launched run, beside what happened."""

import math
from pathlib import Path
from typing import Any

from triplepoint.config.point import Point
from triplepoint.manifest import Manifest
from triplepoint.status import Status

Row = dict[str, Any]


def set_beside(point: Point, manifest: Manifest, row: Row, ranks: list[Row], config: Path) -> None:
    """Put the prediction of a launched run into its rows; a simulated one is its own prediction and gets none.

    Args:
        point: What was launched.
        manifest: What came of it.
        row: Its row of `points`.
        ranks: Its rows of `gpus`, in the order of ranks; empty if it did not finish.
        config: Folder of the configuration.
    """
    if manifest.origin == "simulated":
        return
    from triplepoint.simulate.predict.point import predict_point

    found = predict_point(point, config)
    step = found.step
    if step.status in ("unsupported", Status.INVALID):
        row["prediction_absent"] = step.reason
        return
    row |= {
        "predicted_step_time_s": step.step_time_s,
        "predicted_step_time_lo_s": _known(step.step_time_lo_s),
        "predicted_step_time_hi_s": _known(step.step_time_hi_s),
        "step_time_error": _error(step.step_time_s, row.get("step_time_s")),
        "predicted_memory_bytes": max(found.allocated_bytes),
        "memory_error": _error(max(found.allocated_bytes), row.get("peak_memory_bytes")),
    }
    for one in ranks:
        predicted = found.allocated_bytes[one["rank"]]
        one |= {"predicted_memory_bytes": predicted, "memory_error": _error(predicted, one["peak_memory_bytes"])}


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _error(predicted: float, measured: float | None) -> float | None:
    """Return how far a prediction is off, 0.1 for one a tenth too high; None where nothing was measured."""
    return predicted / measured - 1 if measured else None
