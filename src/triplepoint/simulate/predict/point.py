"""What is predicted of a planned point, to be held against what was measured of it."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from triplepoint.config.catalogue import Catalogue
from triplepoint.config.point import Point
from triplepoint.config.rules import refusal
from triplepoint.errors import UserError
from triplepoint.simulate.artefacts.run import job_of
from triplepoint.simulate.calibration.fitted import Calibration
from triplepoint.simulate.inference import Serving, memory_by_stage, predict_inference, serving_of
from triplepoint.simulate.job import Job
from triplepoint.simulate.limits import check_order
from triplepoint.simulate.memory.model import memory_by_stage as memory_of_training
from triplepoint.simulate.predict.model import Prediction, predict
from triplepoint.simulate.predict.serving import serving_calibration
from triplepoint.units import GIB

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
    if point.cluster.device == "cpu":
        return PointPrediction(Prediction("unsupported", "processors are not simulated"))
    try:
        catalogue, calibration = _load(config)
        job = job_of(point, catalogue, STACKS.get(point.engine))
        if reason := refusal(point, catalogue.cluster(point.cluster.name), job.gpu):
            return PointPrediction(Prediction("invalid", reason))
        if reason := check_order(point):
            return PointPrediction(Prediction("unsupported", reason))
        if point.task == "inference":
            step, stages = _served(job, serving_of(point), config)
        else:
            step = predict(job, calibration, config)
            stages = [use.allocated for use in memory_of_training(job)]
    except UserError as error:
        return PointPrediction(Prediction("unsupported", str(error)))
    return PointPrediction(step, tuple(stages[job.mesh.place(rank).pp] for rank in range(point.num_gpus)))


def _served(job: Job, serving: Serving, config: Path) -> tuple[Prediction, list[float]]:
    """Return what is predicted of inference, whose step is a whole batch, and what is allocated in each stage."""
    found = predict_inference(job, serving, config)
    memory, known_to = found.memory, serving_calibration(config).known_to(job, serving, found)
    low_s, high_s = known_to.whole_s
    first_low_s, first_high_s = known_to.first_token_s
    fits = "" if memory.fits else f"does not fit on a rank of stage {memory.stage}: {memory.explain()}"
    step = Prediction(
        "ok" if memory.fits else "oom",
        fits,
        step_time_s=found.whole_s,
        step_time_lo_s=low_s,
        step_time_hi_s=high_s,
        tokens_per_s_per_gpu=found.tokens_per_s / job.num_gpus,
        memory_gib=memory.total / GIB,
        time_to_first_token_s=found.time_to_first_token_s,
        time_to_first_token_lo_s=first_low_s,
        time_to_first_token_hi_s=first_high_s,
    )
    return step, [use.allocated for use in memory_by_stage(job, serving)]


@cache
def _load(config: Path) -> tuple[Catalogue, Calibration]:
    return Catalogue(config), Calibration.load(config)
