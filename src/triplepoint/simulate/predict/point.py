"""What is predicted of a planned point, to be held against what was measured of it."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from triplepoint.config.catalogue import Catalogue
from triplepoint.config.point import Point
from triplepoint.config.rules import refusal
from triplepoint.errors import UserError
from triplepoint.simulate.artefacts.simulate_run import job_of
from triplepoint.simulate.calibration import Calibration
from triplepoint.simulate.inference import memory_by_stage, serving_of
from triplepoint.simulate.job import Job
from triplepoint.simulate.limits import check_order
from triplepoint.simulate.memory.training import memory_by_stage as memory_of_training
from triplepoint.simulate.predict.model import Prediction, predict
from triplepoint.simulate.predict.serving import predict_serving
from triplepoint.status import Status

STACKS = {"megatron": "Megatron-Core", "deepspeed": "DeepSpeed", "native": "PyTorch"}
"""Software that a launched point is predicted for, by its engine; simulated points keep that of the published study."""


@dataclass(frozen=True)
class PointPrediction:
    """What is predicted of one run.

    Attributes:
        step: Its step, or why there is none.
        allocated_bytes: Peak of the framework's allocator on every rank; empty without a prediction. Unit: byte.
    """

    step: Prediction
    allocated_bytes: tuple[float, ...] = ()


def predict_point(point: Point, config: Path) -> PointPrediction:
    """Return what is predicted of a point; what cannot be predicted says why in its `step.reason`.

    Args:
        point: The point.
        config: Folder of the configuration.
    """
    step = predict_step(point, config)
    if step.status not in (Status.OK, Status.OOM):
        return PointPrediction(step)
    job = _job_of(point, config)
    uses = memory_by_stage(job, serving_of(point)) if point.task == "inference" else memory_of_training(job)
    stages = [use.allocated for use in uses]
    return PointPrediction(step, tuple(stages[job.mesh.place(rank).pp] for rank in range(point.num_gpus)))


def predict_step(point: Point, config: Path, with_power: bool = True) -> Prediction:
    """Return what is predicted of a step of a point.

    Args:
        point: The point.
        config: Folder of the configuration.
        with_power: Whether power and heat are wanted.
    """
    if point.cluster.device == "cpu":
        return Prediction("unsupported", "processors are not simulated")
    try:
        catalogue, calibration = _load(config)
        job, cluster = _job_of(point, config), catalogue.cluster(point.cluster.name)
        if reason := refusal(point, cluster, job.gpu):
            return Prediction(Status.INVALID, reason)
        if reason := check_order(point):
            return Prediction("unsupported", reason)
        if point.task == "inference":
            return predict_serving(job, serving_of(point), config, cluster, with_power)
        return predict(job, calibration, config, cluster, with_power)
    except UserError as error:
        return Prediction("unsupported", str(error))


def _job_of(point: Point, config: Path) -> Job:
    return job_of(point, _load(config)[0], STACKS.get(point.engine))


@cache
def _load(config: Path) -> tuple[Catalogue, Calibration]:
    return Catalogue(config), Calibration.load(config)
