"""What the model says of a run: the prediction beside a measurement, and the memory that every point needs."""

import math
from pathlib import Path
from typing import Any

from triplepoint.config.point import PREDICTED_BY, Point
from triplepoint.config.rules import fold
from triplepoint.errors import UserError
from triplepoint.manifest import Manifest
from triplepoint.simulate.predict.point import allocated_by_rank, layout_sigma, needed_memory, predict_if_configured
from triplepoint.simulate.predict.power import PowerPrediction
from triplepoint.status import PredictionStatus, Status

Row = dict[str, Any]


def set_beside(point: Point, manifest: Manifest, row: Row, ranks: list[Row], config: Path) -> None:
    """Put the prediction of a launched run into its rows; a simulated one gets how far layouts err.

    Args:
        point: What was launched.
        manifest: What came of it.
        row: Its row of `points`.
        ranks: Its rows of `gpus`, in the order of ranks; empty if it did not finish.
        config: Folder of the configuration.
    """
    if manifest.origin == "simulated":
        if manifest.status == Status.OK and point.inference is None:
            row["step_time_layout_sigma"] = layout_sigma(point, config)
        return
    if unknown := unknown_to_predict(point):
        row["prediction_absent"] = unknown
        return
    point = as_planned(point)
    step = predict_if_configured(point, config)
    if step.status in (PredictionStatus.UNSUPPORTED, PredictionStatus.INVALID):
        row["prediction_absent"] = step.reason
        return
    allocated_bytes = allocated_by_rank(point, config)
    row |= {
        "predicted_step_time_s": step.step_time_s,
        "predicted_step_time_lo_s": _known(step.step_time_lo_s),
        "predicted_step_time_hi_s": _known(step.step_time_hi_s),
        "step_time_error": _error(step.step_time_s, row.get("step_time_s")),
        "predicted_memory_bytes": max(allocated_bytes),
        "memory_error": _error(max(allocated_bytes), row.get("peak_memory_bytes")),
        **_power_and_heat(step.power, row),
    }
    for one in ranks:
        predicted = allocated_bytes[one["rank"]]
        one |= {"predicted_memory_bytes": predicted, "memory_error": _error(predicted, one["peak_memory_bytes"])}


def as_planned(point: Point) -> Point:
    """Return the point of a recorded run as a study would have it: what is not known is as usual."""
    return point if point.recorded is None else fold(point.model_copy(update={"recorded": None}))


def unknown_to_predict(point: Point) -> str | None:
    """Return what a prediction of a recorded run lacks; None where it lacks nothing."""
    if point.recorded is None or not (missing := [name for name in PREDICTED_BY if not point.knows(name)]):
        return None
    return f"not known of this job: {', '.join(missing)}; describe it, see docs/own_job.md"


def _power_and_heat(predicted: PowerPrediction, row: Row) -> Row:
    """Return predicted power and heat of a run, and how far they are off, in steps alone: a window is not all steps."""
    power_w, temp_c = _known(predicted.gpu_power_w), _known(predicted.gpu_temp_max_c)
    found: Row = {
        "predicted_gpu_power_w": power_w,
        "predicted_gpu_power_lo_w": _known(predicted.gpu_power_lo_w),
        "predicted_gpu_power_hi_w": _known(predicted.gpu_power_hi_w),
        "predicted_gpu_temp_max_c": temp_c,
        "predicted_gpu_temp_max_lo_c": _known(predicted.gpu_temp_max_lo_c),
        "predicted_gpu_temp_max_hi_c": _known(predicted.gpu_temp_max_hi_c),
    }
    if row.get("step_time_s") is None:
        return found
    if power_w is not None:
        found["gpu_power_error"] = _error(power_w, row.get("gpu_power_w"))
    if temp_c is not None and (highest_c := row.get("gpu_temp_max_c")) is not None:
        found["gpu_temp_error_c"] = temp_c - highest_c
    return found


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _error(predicted: float, measured: float | None) -> float | None:
    """Return how far a prediction is off, 0.1 for one a tenth too high; None where nothing was measured."""
    return predicted / measured - 1 if measured else None


def add_need(point: Point, row: Row, config: Path) -> None:
    """Put into a row of `points` what the fullest rank needs by the model, whether that fits, can run, or not.

    Args:
        point: The point.
        row: Its row.
        config: Folder of the configuration.
    """
    if point.cluster.device == "cpu":
        row["needed_memory_absent"] = "memory of processes is not modelled"
        return
    if unknown := unknown_to_predict(point):
        row["needed_memory_absent"] = unknown
        return
    point = as_planned(point)
    try:
        need = needed_memory(point, config)
    except UserError as error:
        row["needed_memory_absent"] = str(error)
        return
    row |= {
        "needed_memory_bytes": need.total,
        "needed_memory_lo_bytes": max(0.0, need.total - need.half_width),
        "needed_memory_hi_bytes": need.total + need.half_width,
        "memory_capacity_bytes": need.capacity,
    }
