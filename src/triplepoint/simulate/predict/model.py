"""What a training job takes: time of a step with its interval, memory, and what holds it up."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from triplepoint import metrics
from triplepoint.config.cluster import ClusterConfig
from triplepoint.config.conditions import USUAL
from triplepoint.config.task import TARGETS, Lora
from triplepoint.errors import UserError
from triplepoint.flops import peak_flops, training_flops_per_token
from triplepoint.simulate.calibration import Calibration
from triplepoint.simulate.costs import Constants
from triplepoint.simulate.heat.job import is_known
from triplepoint.simulate.heat.warm import Warm, slow_ranks, warm_up, warm_up_anywhere, with_factors
from triplepoint.simulate.intervals import interval
from triplepoint.simulate.job import Job
from triplepoint.simulate.memory.training import MemoryUse, peak_memory
from triplepoint.simulate.power.load import Training
from triplepoint.simulate.predict.bottleneck import name_bottleneck
from triplepoint.simulate.predict.power import PowerPrediction, predict_power
from triplepoint.simulate.step import Step, simulate_step
from triplepoint.status import Status

GIB = 2**30


@dataclass(frozen=True)
class Prediction:
    """One row of output; numbers are NaN where there are none.

    Attributes:
        status: ok, oom (does not fit; the numbers are of a GPU with room for it), invalid (contradicts itself) or
            unsupported (not simulated).
        reason: One line to a status other than ok.
        step_time_s: Of one step; of inference, a whole batch from its start to its end.
        step_time_lo_s: Lower end of the 90 % interval.
        step_time_hi_s: Upper end.
        tokens_per_s_per_gpu: Throughput.
        mfu: Model FLOP/s over the peak at the job's number format, 0 to 1.
        memory_gib: Peak on the fullest rank.
        bubble_fraction: Of the step, waiting for other pipeline stages, mean over ranks.
        exposed_comm_s: Communication beside no computation, mean over stages.
        bottleneck: Largest part of the time, with its share.
        time_to_first_token_s: Of inference: until the last sequence of a batch has it.
        time_to_first_token_lo_s: Lower end of the 90 % interval.
        time_to_first_token_hi_s: Upper end.
        time_per_output_token_s: Of inference: one token more for each sequence, mean over those after the first.
        time_per_output_token_lo_s: Lower end of the 90 % interval.
        time_per_output_token_hi_s: Upper end.
        exposed_comm_per_output_token_s: Exposed communication of such a token.
        power: Power and heat of training.
    """

    status: Literal[Status.OK, Status.OOM, Status.INVALID, "unsupported"]
    reason: str = ""
    step_time_s: float = math.nan
    step_time_lo_s: float = math.nan
    step_time_hi_s: float = math.nan
    tokens_per_s_per_gpu: float = math.nan
    mfu: float = math.nan
    memory_gib: float = math.nan
    bubble_fraction: float = math.nan
    exposed_comm_s: float = math.nan
    bottleneck: str = ""
    time_to_first_token_s: float = math.nan
    time_to_first_token_lo_s: float = math.nan
    time_to_first_token_hi_s: float = math.nan
    time_per_output_token_s: float = math.nan
    time_per_output_token_lo_s: float = math.nan
    time_per_output_token_hi_s: float = math.nan
    exposed_comm_per_output_token_s: float = math.nan
    power: PowerPrediction = PowerPrediction()


def predict(
    job: Job,
    calibration: Calibration | None,
    config: Path,
    cluster: ClusterConfig | None = None,
    with_power: bool = True,
) -> Prediction:
    """Return what a job takes; a job that cannot run has a status that says why.

    Args:
        job: The job.
        calibration: Constants of stacks and spread of errors; without one there is no interval.
        config: Folder of the configuration.
        cluster: Where it runs: its slow GPUs and conditions count. None: on sound GPUs of usual nodes.
        with_power: Whether power and heat are wanted, which take a third of the time.
    """
    constants = calibration.constants(job) if calibration else Constants()
    slow = slow_ranks(cluster, job.num_gpus) if cluster else {}
    try:
        memory = peak_memory(job)
        step = simulate_step(job, constants, config, slow)
        warm = None
        is_usual = cluster is None or cluster.conditions == USUAL
        if is_known(job.gpu, config) and (with_power or not is_usual):
            warm = _warm(step, constants, config, cluster, slow)
            step = warm.load.ran
    except UserError as error:
        return Prediction(Status.INVALID, str(error))
    found = _prediction(job, step, memory, calibration)
    if warm is None or not with_power:
        return found
    return replace(found, power=predict_power(warm, (found.step_time_lo_s, found.step_time_hi_s), config))


def _warm(
    step: Step, constants: Constants, config: Path, cluster: ClusterConfig | None, slow: Mapping[int, float]
) -> Warm[Training[Step]]:
    if cluster is None:
        return warm_up_anywhere(Training(step), config)

    def once_more(factor: dict[int, float]) -> Training[Step]:
        return Training(simulate_step(step.job, constants, config, with_factors(slow, factor)))

    return warm_up(Training(step), once_more, cluster, config)


def _prediction(job: Job, step: Step, memory: MemoryUse, calibration: Calibration | None) -> Prediction:
    low, high = math.nan, math.nan
    if calibration:
        low, high = interval(step.time_s, calibration.quantile, calibration.scale(job, step.uncertainty))
    tokens_per_s = job.global_batch_size * job.sequence_length / step.time_s
    flops = training_flops_per_token(job.model, job.sequence_length, _adapters(job))
    peak = peak_flops(job.gpu, job.precision)
    is_ok = memory.total <= job.gpu.memory_capacity.value
    return Prediction(
        Status.OK if is_ok else Status.OOM,
        "" if is_ok else f"does not fit on a rank of stage {memory.stage}: {memory.explain()}",
        step_time_s=step.time_s,
        step_time_lo_s=low,
        step_time_hi_s=high,
        tokens_per_s_per_gpu=tokens_per_s / job.num_gpus,
        mfu=math.nan if peak is None else metrics.mfu(tokens_per_s, flops, job.num_gpus, peak),
        memory_gib=memory.total / GIB,
        bubble_fraction=step.timeline.bubble_fraction,
        exposed_comm_s=step.exposed_comm_s,
        bottleneck=name_bottleneck(job, step.timeline, step.slowest),
    )


def _adapters(job: Job) -> Lora | None:
    if job.trainable == "all":
        return None
    targets = tuple(target for target in TARGETS if job.lora_targets is None or target in job.lora_targets)
    return Lora(rank=job.lora_rank, alpha=1.0, targets=targets)
