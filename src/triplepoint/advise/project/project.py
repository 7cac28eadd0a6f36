"""Projection of a training job to more GPUs by data parallelism: time, power, heat, failures, each with an interval."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from triplepoint.advise.project.failures import Failures, best_checkpoints
from triplepoint.advise.project.interval import UNKNOWN, Interval
from triplepoint.advise.project.network import Batch, Network, Scaled, ratio_of_steps, scale_job
from triplepoint.config.point import Point
from triplepoint.errors import PointError, UserError
from triplepoint.predictions import Request
from triplepoint.processes import on_all_cores
from triplepoint.simulate.heat.nodes import is_known
from triplepoint.simulate.heat.warm import Warm, slow_ranks, warm_up, with_factors
from triplepoint.simulate.power.load import Training
from triplepoint.simulate.predict.power import plug_power_w
from triplepoint.simulate.predict.prediction import Prediction, predict_warm, read_calibrations
from triplepoint.simulate.scaling import ScalingKnown, read_scaling
from triplepoint.simulate.step import Prepared, Step, prepare_step
from triplepoint.status import PredictionStatus

SIZES = (1024, 8192, 32768, 102400)
"""GPUs asked for where none are named, as near as whole replicas and nodes come."""
MOST_GPUS = 131072
"""Most GPUs: beyond, no mean time to failure is published."""
_SHARES = 16
"""Parts that draws are done in: fewer draws are done in one process."""


@dataclass(frozen=True)
class Question:
    """What is projected.

    Attributes:
        request: The point to start from.
        sizes: GPUs; `SIZES` where empty.
        networks: Networks to compare, the first with the others.
        batch: `grown`: each replica has the same work, the global batch grows with them. `fixed`: it stays.
        num_draws: Draws of the parts of all GPUs.
        failures: How often nodes fail, and what that costs.
        measured_s: Median measured step of the run that is the start; None to start from its prediction. Unit: s.
    """

    request: Request
    sizes: tuple[int, ...] = ()
    networks: tuple[Network, ...] = (Network(),)
    batch: Batch = "grown"
    num_draws: int = 20
    failures: Failures = Failures()
    measured_s: float | None = None


@dataclass(frozen=True)
class Projected:
    """A job of one size on one network; NaN where power and heat of the GPU type are not known.

    Attributes:
        scaled: The job and its cluster.
        step_time_s: Of a step; the value is the median over draws of parts.
        efficiency: Tokens per second and GPU over those of the start on this network.
        tokens_per_s: Of all GPUs, without failures.
        power_w: Of all nodes at the plug, all of which becomes heat.
        node_energy_per_token_j: The same, per token.
        gpu_temp_max_c: Of the hottest GPU.
        slowest_gpu: Time of the slowest GPU's computation over that of the middle one, less 1; its interval is that
            of 90 % of the draws.
        mttf_s: Mean time to failure of the job.
        checkpoint_every_s: Work between two checkpoints at the highest goodput.
        goodput: Share of the time that goes into work that is kept.
        kept_tokens_per_s: Tokens per second that are kept.
        against_first: Step time over that of the same size on the first network.
        prediction: Of the first draw.
        predicted_s: Predicted step, the median over draws of parts. Unit: s.
    """

    scaled: Scaled
    step_time_s: Interval
    efficiency: Interval
    tokens_per_s: Interval
    power_w: Interval
    node_energy_per_token_j: Interval
    gpu_temp_max_c: Interval
    slowest_gpu: Interval
    mttf_s: Interval
    checkpoint_every_s: Interval
    goodput: Interval
    kept_tokens_per_s: Interval
    against_first: Interval
    prediction: Prediction
    predicted_s: float

    @property
    def num_gpus(self) -> int:
        """GPUs."""
        return self.scaled.job.num_gpus


@dataclass(frozen=True)
class Projection:
    """The answer.

    Attributes:
        question: What was asked.
        start: Number of GPUs of the point.
        rows: By network, then by size, the start first.
        known: What leaving scale out of the fit showed.
    """

    question: Question
    start: int
    rows: Sequence[Projected]
    known: ScalingKnown


class Drawn(NamedTuple):
    """What one draw of parts gives.

    Attributes:
        step_time_s: Time of a step.
        node_power_w: Mean of a node at the plug; NaN where it is not known.
        slowest: Computing time of the slowest GPU over the middle one's, less 1; NaN likewise.
    """

    step_time_s: float
    node_power_w: float
    slowest: float


def project(question: Question, config: Path) -> Projection:
    """Return what a point would be at other sizes.

    Args:
        question: What is asked.
        config: Folder of the configuration.

    Raises:
        UserError: If the point or a size cannot run, or the configuration is wrong.
    """
    point, known = question.request.point, read_scaling(config)
    if question.request.invalid_because or point.task == "inference":
        raise UserError(f"{question.request.where}: {question.request.invalid_because or 'inference is not projected'}")
    sizes = [point.num_gpus, *(size for size in _sizes(question, config) if size != point.num_gpus)]
    rows = list[Projected]()
    for network in question.networks:
        start: Projected | None = None
        for place, size in enumerate(sizes):
            scaled = scale_job(question.request, network, question.batch, size, config)
            first = rows[place] if len(rows) >= len(sizes) else None
            row = _projected(scaled, question, config, start, first, known)
            start = start or row
            rows.append(row)
    return Projection(question, point.num_gpus, rows, known)


def _unit(point: Point) -> int:
    """Return the fewest GPUs that are whole replicas and whole nodes."""
    layout = point.layout
    return math.lcm(layout.tp * layout.pp * layout.cp, point.cluster.gpus_per_node)


def _sizes(question: Question, config: Path) -> list[int]:
    """Return the sizes asked for, or usual ones. Raises `UserError` if one cannot be made of the point's replicas."""
    point = question.request.point
    unit = _unit(point)
    if not question.sizes:
        near = [unit * max(1, round(size / unit)) for size in SIZES]
        if question.batch == "fixed":
            near = _of_fixed_batch(question, config)
        return [size for size in dict.fromkeys(near) if point.num_gpus < size <= MOST_GPUS]
    for size in question.sizes:
        if size % unit or size > MOST_GPUS:
            nearest = unit * max(1, min(round(size / unit), MOST_GPUS // unit))
            raise UserError(
                f"project: --gpus {size}: expected a multiple of {unit}, whole replicas and whole nodes, of at most "
                f"{MOST_GPUS}; set {nearest}"
            )
        if question.batch == "fixed" and (reason := _refused(question, size, config)):
            others = ",".join(map(str, _of_fixed_batch(question, config))) or "no other size: raise global_batch_size"
            raise UserError(f"{reason}; with this batch: {others}")
    return list(dict.fromkeys(question.sizes))


def _of_fixed_batch(question: Question, config: Path) -> list[int]:
    """Return sizes, doublings of the point's either way, at which its batch still splits over replicas and stages."""
    point, unit = question.request.point, _unit(question.request.point)
    near = (point.num_gpus * 2**power / 2**5 for power in range(17))
    sizes = [int(size) for size in near if size % unit == 0 and size != point.num_gpus and size <= MOST_GPUS]
    return [size for size in sizes if _refused(question, size, config) is None]


def _refused(question: Question, size: int, config: Path) -> str | None:
    """Return why the job cannot run at a size, in one line; None where it can."""
    try:
        scale_job(question.request, question.networks[0], question.batch, size, config)
    except UserError as error:
        return str(error)
    return None


def draws(scaled: Scaled, numbers: Sequence[int], config: Path) -> list[Drawn]:
    """Return what draws of parts give, of a job whose GPU type has known power and heat.

    The work of a step is prepared once; power, heat and clocks are followed on a few nodes for each draw.

    Args:
        scaled: The job.
        numbers: Of the draws; 0 is that of `triplepoint predict`.
        config: Folder of the configuration.

    Raises:
        PointError: If GPUs cannot work under the conditions of the cluster.
    """
    job, cluster = scaled.job, scaled.cluster
    usual = prepare_step(job, read_calibrations(config)[0].constants(job), config)
    slow, found = slow_ranks(cluster, job), []
    for number in numbers:
        prepared = replace(usual, job=replace(job, draw=job.draw + number))

        def simulate(factor: Mapping[int, float], prepared: Prepared = prepared) -> Training[Step]:
            return Training(prepared.run(with_factors(slow, factor)))

        warm = warm_up(simulate({}), simulate, cluster, config, with_few_nodes=True)
        found.append(Drawn(warm.load.length_s, plug_power_w(warm, config)[0], _slowest(warm)))
    return found


def _slowest(warm: Warm[Any]) -> float:
    """Return the time of the slowest GPU's computation over that of the middle one, less 1."""
    slowdown, weight = warm.trace.slowdown.mean(axis=0).reshape(-1), warm.seats.weight.reshape(-1)
    order = np.argsort(slowdown)
    middle = int(np.searchsorted(np.cumsum(weight[order]), weight.sum() / 2))
    return float(slowdown[weight > 0].max() / slowdown[order[middle]] - 1.0)


def _predicted(scaled: Scaled, num_draws: int, config: Path) -> tuple[Prediction, list[Drawn]]:
    """Return the prediction of the first draw of parts, and all draws. Raises `UserError` if the job cannot run."""
    calibration, gpus = read_calibrations(config)[0], scaled.job.num_gpus
    try:
        found, _ = predict_warm(scaled.job, calibration, config, scaled.cluster, with_few_nodes=True)
        if found.status not in (PredictionStatus.OK, PredictionStatus.UNDECIDED):
            raise UserError(f"project: {gpus} GPUs: {found.reason}")
        if not is_known(scaled.job.gpu, config):  # without power nothing depends on parts
            return found, [Drawn(found.step_time_s, math.nan, math.nan)]
        shares = [range(first, num_draws, _SHARES) for first in range(min(_SHARES, num_draws))]
        some = on_all_cores(partial(draws, scaled, config=config), shares, _SHARES)
        return found, [one for share in some for one in share]
    except PointError as error:
        raise UserError(f"project: {gpus} GPUs: {error}") from None


def _projected(
    scaled: Scaled,
    question: Question,
    config: Path,
    start: Projected | None,
    first: Projected | None,
    known: ScalingKnown,
) -> Projected:
    """Return a size with its intervals; `start` is that of its network, `first` the same size on the first network."""
    job = scaled.job
    prediction, found = _predicted(scaled, question.num_draws, config)
    step_s, of_parts = _over_draws([one.step_time_s for one in found], prediction)
    predicted_s = step_s.value
    if question.measured_s is not None:  # what the prediction is off by is the same at all sizes
        longer = predicted_s / start.predicted_s if start else 1.0
        width = math.hypot(known.ratio_width(job.num_gpus, start.num_gpus), of_parts) if start else 0.0
        step_s = Interval(*[question.measured_s * longer] * 3).within(width)
    tokens_per_s = step_s.inverse.times(job.global_batch_size * job.sequence_length)
    efficiency = Interval(1.0, 1.0, 1.0)
    if start is not None:
        each, before = tokens_per_s.value / job.num_gpus, start.tokens_per_s.value / start.num_gpus
        ratio = Interval(*[each / before] * 3)
        efficiency = ratio.within(math.hypot(known.ratio_width(job.num_gpus, start.num_gpus), of_parts))
    power = _power(prediction, found, scaled.cluster.num_nodes)
    mttf_s = Interval(*(question.failures.mttf_s(job.num_gpus, end) for end in ("mid", "lo", "hi")))
    costs = question.failures.checkpoint_s, question.failures.restart_s
    best = [best_checkpoints(end_s, *costs) for end_s in mttf_s]
    goodput = Interval(*(one.goodput for one in best))
    against = Interval(1.0, 1.0, 1.0)
    if first is not None:
        against = ratio_of_steps(predicted_s / first.predicted_s, job, first.scaled.job, config)
    temps = (prediction.power.gpu_temp_max_c, prediction.power.gpu_temp_max_lo_c, prediction.power.gpu_temp_max_hi_c)
    return Projected(
        scaled, step_s, efficiency, tokens_per_s, power,
        power.product(tokens_per_s.inverse), Interval(*temps), _of_draws([one.slowest for one in found]),
        mttf_s, Interval(*(one.interval_s for one in best)), goodput, tokens_per_s.product(goodput),
        against, prediction, predicted_s,
    )  # fmt: skip


def _over_draws(steps_s: Sequence[float], prediction: Prediction) -> tuple[Interval, float]:
    """Return the step time with its interval, and half the interval of draws, in log."""
    middle, low, high = _of_draws(steps_s)
    of_parts = 0.5 * math.log(high / low)
    ends = prediction.step_time_lo_s / prediction.step_time_s, prediction.step_time_hi_s / prediction.step_time_s
    return Interval(middle, *(middle * end for end in ends)).within(of_parts), of_parts


def _of_draws(values: Sequence[float]) -> Interval:
    low, middle, high = np.quantile(values, [0.05, 0.5, 0.95])
    return Interval(float(middle), float(low), float(high))


def _power(prediction: Prediction, found: Sequence[Drawn], num_nodes: int) -> Interval:
    """Return the power of all nodes at the plug; that of GPUs says how well it is known. Unit: W."""
    power, middle = prediction.power, float(np.median([one.node_power_w for one in found]))
    if math.isnan(middle):
        return UNKNOWN
    ends = power.gpu_power_lo_w / power.gpu_power_w, power.gpu_power_hi_w / power.gpu_power_w
    return Interval(middle, *(middle * end for end in ends)).times(num_nodes)
