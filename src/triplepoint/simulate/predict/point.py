"""Prediction of a planned point, as in `triplepoint predict`, the cost of a plan and comparisons with measurements."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from triplepoint.config.catalogue import Catalogue
from triplepoint.config.cluster import ClusterConfig
from triplepoint.config.point import Point
from triplepoint.config.rules import refusal
from triplepoint.errors import PointError, UserError
from triplepoint.simulate.artefacts.simulate_run import job_of
from triplepoint.simulate.inference import Serving, memory_by_stage, serving_of
from triplepoint.simulate.job import Job
from triplepoint.simulate.limits import check_order
from triplepoint.simulate.memory.training import Need
from triplepoint.simulate.memory.training import memory_by_stage as memory_of_training
from triplepoint.simulate.predict.prediction import Prediction, predict_job, read_calibrations
from triplepoint.simulate.stacks import OF_ENGINE
from triplepoint.status import PredictionStatus

MANY_POINTS = 200
"""Number of points from which several processes are faster than one; a point takes about 5 ms."""


def predict_point(point: Point, config: Path, stack: str | None = None, with_power: bool = True) -> Prediction:
    """Return the prediction of a point; its status and `reason` say whether and why it cannot be predicted.

    Args:
        point: The point, folded.
        config: Folder of the configuration.
        stack: Framework and its version. None: that of the point's engine; for the engine `simulated`, that of the
            cluster.
        with_power: Whether to predict power, heat and the effect of clocks on time, nine tenths of the work. Without
            them the step time is that at the clocks of the fitted measurements.

    Raises:
        UserError: If the configuration is wrong.
    """
    if point.cluster.device == "cpu":
        return Prediction(PredictionStatus.UNSUPPORTED, "processors are not simulated")
    try:
        job = _job_of(point, config, stack)
        cluster = _catalogue(config).cluster(point.cluster.name)
        if reason := refusal(point, cluster, job.gpu):
            return Prediction(PredictionStatus.INVALID, reason)
        if reason := check_order(point):
            return Prediction(PredictionStatus.UNSUPPORTED, reason)
        return predict_job(job, _serving_of(point), config, cluster, with_power)
    except PointError as error:
        return Prediction(PredictionStatus.UNSUPPORTED, str(error))


def predict_if_configured(point: Point, config: Path, with_power: bool = True) -> Prediction:
    """Return the prediction of a point; wrong or missing configuration becomes its reason instead of an error."""
    try:
        return predict_point(point, config, None, with_power)
    except UserError as error:
        return Prediction(PredictionStatus.UNSUPPORTED, str(error))


def job_on_cluster(point: Point, config: Path, stack: str | None = None) -> tuple[Job, ClusterConfig]:
    """Return the job of a point and its cluster; arguments are those of `predict_point`.

    Raises:
        PointError: If the point cannot be predicted.
        UserError: If the configuration is wrong.
    """
    return _job_of(point, config, stack), _catalogue(config).cluster(point.cluster.name)


def allocated_by_rank(point: Point, config: Path) -> tuple[float, ...]:
    """Return the predicted peak of the framework's allocator on every rank of a point that can run. Unit: byte."""
    job, serving = _job_of(point, config), _serving_of(point)
    by_stage = [memory.allocated for memory in _memory_by_stage(job, serving)]
    return tuple(by_stage[job.mesh.place(rank).pp] for rank in range(job.num_gpus))


def needed_memory(point: Point, config: Path) -> Need:
    """Return the memory of the fullest rank of a point, whether it fits or not.

    Raises:
        UserError: If it cannot be computed, for example because layers do not divide over stages, or the configuration
            is wrong.
    """
    job, serving = _job_of(point, config), _serving_of(point)
    return max(_memory_by_stage(job, serving), key=lambda memory: memory.total)


def layout_sigma(point: Point, config: Path) -> float | None:
    """Return the standard deviation of the log error of a step time, without errors that all layouts of a job share.

    None if the configuration has no constants for the point.
    """
    try:
        return read_calibrations(config)[0].layout_scale(_job_of(point, config))
    except (PointError, UserError):
        return None


def _job_of(point: Point, config: Path, stack: str | None = None) -> Job:
    return job_of(point, _catalogue(config), stack or OF_ENGINE.get(point.engine))


def _serving_of(point: Point) -> Serving | None:
    return serving_of(point) if point.task == "inference" else None


def _memory_by_stage(job: Job, serving: Serving | None) -> Sequence[Need]:
    return memory_by_stage(job, serving) if serving else memory_of_training(job)


@cache
def _catalogue(config: Path) -> Catalogue:
    return Catalogue(config)
