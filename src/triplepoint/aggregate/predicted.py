"""Columns from the model: the prediction of a launched run with its errors, and the memory need of every point."""

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


def add_prediction(point: Point, manifest: Manifest, row: Row, ranks: list[Row], config: Path) -> None:
    """Add the prediction of a launched run to its rows; a simulated run gets the error of its layout instead.

    Args:
        point: Point of the run.
        manifest: Manifest of the run.
        row: Row of the run in `points`, changed in place.
        ranks: Rows of the run in `gpus`, changed in place; empty if it did not finish.
        config: Folder of the configuration.
    """
    if manifest.origin == "simulated":
        if manifest.status == Status.OK and point.inference is None:
            row["step_time_layout_sigma"] = layout_sigma(point, config)
        return
    if reason := unknown_to_predict(point):
        row["prediction_absent"] = reason
        return
    point = as_planned(point)
    prediction = predict_if_configured(point, config)
    if prediction.status in (PredictionStatus.UNSUPPORTED, PredictionStatus.INVALID):
        row["prediction_absent"] = prediction.reason
        return
    allocated_bytes = allocated_by_rank(point, config)
    row |= {
        "predicted_step_time_s": prediction.step_time_s,
        "predicted_step_time_lo_s": _nan_to_none(prediction.step_time_lo_s),
        "predicted_step_time_hi_s": _nan_to_none(prediction.step_time_hi_s),
        "step_time_error": _error(prediction.step_time_s, row.get("step_time_s")),
        "predicted_memory_bytes": max(allocated_bytes),
        "memory_error": _error(max(allocated_bytes), row.get("peak_memory_bytes")),
        **_power_and_heat(prediction.power, row),
    }
    for rank_row in ranks:
        predicted = allocated_bytes[rank_row["rank"]]
        error = _error(predicted, rank_row["peak_memory_bytes"])
        rank_row |= {"predicted_memory_bytes": predicted, "memory_error": error}


def as_planned(point: Point) -> Point:
    """Return the point of a recorded run as if planned by a study, with defaults for unknown settings."""
    return point if point.recorded is None else fold(point.model_copy(update={"recorded": None}))


def unknown_to_predict(point: Point) -> str | None:
    """Return why a recorded run cannot be predicted: unknown settings; None if it can."""
    if point.recorded is None or not (missing := [name for name in PREDICTED_BY if not point.knows(name)]):
        return None
    return f"not known of this job: {', '.join(missing)}; describe it, see docs/own_job.md"


def _power_and_heat(predicted: PowerPrediction, row: Row) -> Row:
    """Return predicted power and heat of a run, by column of `points`, with their errors.

    A recorded run without steps gets no errors, because its power is that of the whole recording.
    """
    power_w, temp_c = _nan_to_none(predicted.gpu_power_w), _nan_to_none(predicted.gpu_temp_max_c)
    columns: Row = {
        "predicted_gpu_power_w": power_w,
        "predicted_gpu_power_lo_w": _nan_to_none(predicted.gpu_power_lo_w),
        "predicted_gpu_power_hi_w": _nan_to_none(predicted.gpu_power_hi_w),
        "predicted_gpu_temp_max_c": temp_c,
        "predicted_gpu_temp_max_lo_c": _nan_to_none(predicted.gpu_temp_max_lo_c),
        "predicted_gpu_temp_max_hi_c": _nan_to_none(predicted.gpu_temp_max_hi_c),
    }
    if row.get("step_time_s") is None:
        return columns
    if power_w is not None:
        columns["gpu_power_error"] = _error(power_w, row.get("gpu_power_w"))
    if temp_c is not None and (measured_c := row.get("gpu_temp_max_c")) is not None:
        columns["gpu_temp_error_c"] = temp_c - measured_c
    return columns


def _nan_to_none(value: float) -> float | None:
    return None if math.isnan(value) else value


def _error(predicted: float, measured: float | None) -> float | None:
    """Return the relative error of a prediction; None without a measurement."""
    return predicted / measured - 1 if measured else None


def add_memory_need(point: Point, row: Row, config: Path) -> None:
    """Add the modelled memory need of the fullest rank to a row of `points`, whether or not the point can run.

    Args:
        point: The point.
        row: Row of the point in `points`, changed in place.
        config: Folder of the configuration.
    """
    if point.cluster.device == "cpu":
        row["needed_memory_absent"] = "memory of processes is not modelled"
        return
    if reason := unknown_to_predict(point):
        row["needed_memory_absent"] = reason
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
