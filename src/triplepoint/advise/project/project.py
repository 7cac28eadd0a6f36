"""Projection of a training job to more GPUs by data parallelism: time, power, heat and failures with intervals."""

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
from triplepoint.simulate.step import Prepared, Step, prepare_step, simulate_step
from triplepoint.status import PredictionStatus

SIZES = (1024, 8192, 32768, 102400)
"""Default numbers of GPUs, rounded to whole replicas and nodes."""
IDLE_BELOW = 0.005
"""Relative change of a step time below which a topology makes no difference. Our choice."""
MOST_GPUS = 131072
"""Largest number of GPUs with a published mean time to failure."""
_SHARES = 16
"""Tasks that draws are divided into; fewer draws run in one process."""


@dataclass(frozen=True)
class Question:
    """A projection to make.

    Attributes:
        request: The point to start from.
        sizes: Numbers of GPUs. Empty: `SIZES`.
        networks: Networks to compare with the first.
        batch: `grown`: the global batch grows with the replicas, each of which has the same work. `fixed`: it stays.
        num_draws: Number of random draws of GPU parts.
        failures: Failure rate of nodes, and the time that failures cost.
        measured_s: Median measured step of the run to start from. None: start from the prediction. Unit: s.
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
    """A job of one size on one network; NaN for quantities that need unknown power and heat of the GPU type.

    Attributes:
        scaled: The job and its cluster.
        step_time_s: Step time, median over draws of parts. Unit: s.
        efficiency: Tokens per second and GPU over those of the start on this network.
        tokens_per_s: Tokens per second of all GPUs, without failures.
        power_w: Power of all nodes at the plug, all of which becomes heat. Unit: W.
        node_energy_per_token_j: Energy of all nodes at the plug per token. Unit: J.
        gpu_temp_max_c: Temperature of the hottest GPU. Unit: degC.
        slowest_gpu: Computation time of the slowest GPU over that of the median one, minus 1; the interval has 90 % of
            the draws.
        mttf_s: Mean time to failure of the job. Unit: s.
        checkpoint_every_s: Time of work between two checkpoints at the highest goodput. Unit: s.
        goodput: Share of the time spent on work that is kept.
        kept_tokens_per_s: Tokens per second with failures.
        against_first: Step time over that of the same size on the first network.
        prediction: Prediction with the first draw of parts.
        predicted_s: Predicted step time, median over draws of parts. Unit: s.
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
        """Number of GPUs."""
        return self.scaled.job.num_gpus


@dataclass(frozen=True)
class Projection:
    """Result of a projection.

    Attributes:
        question: The question.
        start: Number of GPUs of the point.
        rows: Jobs by network and size, the start of each network first.
        known: Errors of predictions for larger jobs than those of the fit.
        idle_topologies: Networks whose topology changes no step at the largest size, against a fat tree without
            oversubscription.
    """

    question: Question
    start: int
    rows: Sequence[Projected]
    known: ScalingKnown
    idle_topologies: Sequence[Network] = ()


class Drawn(NamedTuple):
    """A step with one draw of parts.

    Attributes:
        step_time_s: Step time. Unit: s.
        node_power_w: Mean power of a node at the plug; NaN if unknown. Unit: W.
        slowest: Computation time of the slowest GPU over that of the median one, minus 1; NaN if unknown.
    """

    step_time_s: float
    node_power_w: float
    slowest: float


def project(question: Question, config: Path) -> Projection:
    """Project a point to other sizes.

    Args:
        question: Point, sizes and networks.
        config: Folder of the configuration.

    Raises:
        UserError: If the point or a size cannot run, or the configuration is invalid.
    """
    point, known = question.request.point, read_scaling(config)
    if question.request.invalid_because or point.task == "inference":
        raise UserError(f"{question.request.where}: {question.request.invalid_because or 'inference is not projected'}")
    sizes = [point.num_gpus, *(size for size in sizes_of(question, config) if size != point.num_gpus)]
    rows = list[Projected]()
    for network in question.networks:
        start: Projected | None = None
        for place, size in enumerate(sizes):
            scaled = scale_job(question.request, network, question.batch, size, config)
            first = rows[place] if len(rows) >= len(sizes) else None
            row = _projected(scaled, question, config, start, first, known)
            start = start or row
            rows.append(row)
    idle = [network for network in question.networks if _is_topology_idle(question, network, max(sizes), config)]
    return Projection(question, point.num_gpus, rows, known, idle)


def _is_topology_idle(question: Question, network: Network, size: int, config: Path) -> bool:
    """Return whether a network that has a topology gives the same step as a fat tree without oversubscription."""
    one = scale_job(question.request, network, question.batch, size, config)
    if one.cluster.topology is None and one.cluster.oversubscription <= 1.0:
        return False
    plain = Network("fat_tree", 1.0, network.adapters)
    other = scale_job(question.request, plain, question.batch, size, config)
    constants = read_calibrations(config)[0].constants(one.job)
    times = [simulate_step(scaled.job, constants, config).time_s for scaled in (one, other)]
    return abs(times[0] / times[1] - 1.0) < IDLE_BELOW


def _unit(point: Point) -> int:
    """Return the smallest number of GPUs that is a multiple of a replica and of a node."""
    layout = point.layout
    return math.lcm(layout.tp * layout.pp * layout.cp, point.cluster.gpus_per_node)


def sizes_of(question: Question, config: Path) -> list[int]:
    """Return the sizes of the question, else the default. Raises `UserError` for one without whole replicas."""
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
                f"{MOST_GPUS:,}, up to where failures are published; set {nearest}"
            )
        if question.batch == "fixed" and (reason := _refused(question, size, config)):
            others = ",".join(map(str, _of_fixed_batch(question, config))) or "no other size: raise global_batch_size"
            raise UserError(f"{reason}; with this batch: {others}")
    return list(dict.fromkeys(question.sizes))


def _of_fixed_batch(question: Question, config: Path) -> list[int]:
    """Return the sizes, doublings and halvings of the point's, at which its batch is divisible by replicas."""
    point, unit = question.request.point, _unit(question.request.point)
    near = (point.num_gpus * 2**power / 2**5 for power in range(17))
    sizes = [int(size) for size in near if size % unit == 0 and size != point.num_gpus and size <= MOST_GPUS]
    return [size for size in sizes if _refused(question, size, config) is None]


def _refused(question: Question, size: int, config: Path) -> str | None:
    """Return the reason in one line why the job cannot run at a size; None if it can."""
    try:
        scale_job(question.request, question.networks[0], question.batch, size, config)
    except UserError as error:
        return str(error)
    return None


def draws(scaled: Scaled, numbers: Sequence[int], config: Path) -> list[Drawn]:
    """Simulate a step with each draw of parts, for a job whose GPU type has known power and heat.

    The step is prepared once; power, heat and clocks are simulated on a few nodes for each draw.

    Args:
        scaled: The job.
        numbers: Numbers of the draws; 0 is the draw of `triplepoint predict`.
        config: Folder of the configuration.

    Raises:
        PointError: If GPUs would shut down under the conditions of the cluster.
    """
    job, cluster = scaled.job, scaled.cluster
    usual = prepare_step(job, read_calibrations(config)[0].constants(job), config)
    slow, drawn = slow_ranks(cluster, job), []
    for number in numbers:
        prepared = replace(usual, job=replace(job, draw=job.draw + number))

        def simulate(factor: Mapping[int, float], prepared: Prepared = prepared) -> Training[Step]:
            return Training(prepared.run(with_factors(slow, factor)))

        warm = warm_up(simulate({}), simulate, cluster, config, with_few_nodes=True)
        drawn.append(Drawn(warm.load.length_s, plug_power_w(warm, config)[0], _slowest(warm)))
    return drawn


def _slowest(warm: Warm[Any]) -> float:
    """Return the computation time of the slowest GPU over that of the median one, minus 1."""
    slowdown, weight = warm.trace.slowdown.mean(axis=0).reshape(-1), warm.seats.weight.reshape(-1)
    order = np.argsort(slowdown)
    middle = int(np.searchsorted(np.cumsum(weight[order]), weight.sum() / 2))
    return float(slowdown[weight > 0].max() / slowdown[order[middle]] - 1.0)


def _predicted(scaled: Scaled, num_draws: int, config: Path) -> tuple[Prediction, list[Drawn]]:
    """Return the prediction of the first draw of parts, and all draws. Raises `UserError` if the job cannot run."""
    calibration, gpus = read_calibrations(config)[0], scaled.job.num_gpus
    try:
        prediction, _ = predict_warm(scaled.job, calibration, config, scaled.cluster, with_few_nodes=True)
        if prediction.status not in (PredictionStatus.OK, PredictionStatus.UNDECIDED):
            raise UserError(f"project: {gpus} GPUs: {prediction.reason}")
        if not is_known(scaled.job.gpu, config):  # parts matter only with power and heat
            return prediction, [Drawn(prediction.step_time_s, math.nan, math.nan)]
        shares = [range(first, num_draws, _SHARES) for first in range(min(_SHARES, num_draws))]
        drawn = on_all_cores(partial(draws, scaled, config=config), shares, _SHARES)
        return prediction, [draw for share in drawn for draw in share]
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
    """Return the projection to one size.

    Args:
        scaled: The job.
        question: The question.
        config: Folder of the configuration.
        start: Projection to the size of the point, on the same network; None for this size itself.
        first: Projection to the same size on the first network; None for the first network itself.
        known: Errors of predictions for larger jobs than those of the fit.
    """
    job = scaled.job
    prediction, drawn = _predicted(scaled, question.num_draws, config)
    step_s, parts_width = _over_draws([draw.step_time_s for draw in drawn], prediction)
    predicted_s = step_s.value
    if question.measured_s is not None:  # the error of the prediction is taken to be the same at all sizes
        longer = predicted_s / start.predicted_s if start else 1.0
        width = math.hypot(known.ratio_width(job.num_gpus, start.num_gpus), parts_width) if start else 0.0
        step_s = Interval(*[question.measured_s * longer] * 3).within(width)
    tokens_per_s = step_s.inverse.times(job.global_batch_size * job.sequence_length)
    efficiency = Interval(1.0, 1.0, 1.0)
    if start is not None:
        each, before = tokens_per_s.value / job.num_gpus, start.tokens_per_s.value / start.num_gpus
        ratio = Interval(*[each / before] * 3)
        efficiency = ratio.within(math.hypot(known.ratio_width(job.num_gpus, start.num_gpus), parts_width))
    power = _power(prediction, drawn, scaled.cluster.num_nodes)
    mttf_s = Interval(*(question.failures.mttf_s(job.num_gpus, end) for end in ("mid", "lo", "hi")))
    costs = question.failures.checkpoint_s, question.failures.restart_s
    best = [best_checkpoints(end_s, *costs) for end_s in mttf_s]
    goodput = Interval(*(checkpoints.goodput for checkpoints in best))
    against = Interval(1.0, 1.0, 1.0)
    if first is not None:
        against = ratio_of_steps(predicted_s / first.predicted_s, job, first.scaled.job, config)
    temps = (prediction.power.gpu_temp_max_c, prediction.power.gpu_temp_max_lo_c, prediction.power.gpu_temp_max_hi_c)
    return Projected(
        scaled, step_s, efficiency, tokens_per_s, power,
        power.product(tokens_per_s.inverse), Interval(*temps), _quantiles([draw.slowest for draw in drawn]),
        mttf_s, Interval(*(checkpoints.interval_s for checkpoints in best)), goodput, tokens_per_s.product(goodput),
        against, prediction, predicted_s,
    )  # fmt: skip


def _over_draws(steps_s: Sequence[float], prediction: Prediction) -> tuple[Interval, float]:
    """Return the step time with its interval, and the half-width of the interval of draws, in log."""
    middle, low, high = _quantiles(steps_s)
    parts_width = 0.5 * math.log(high / low)
    ends = prediction.step_time_lo_s / prediction.step_time_s, prediction.step_time_hi_s / prediction.step_time_s
    return Interval(middle, *(middle * end for end in ends)).within(parts_width), parts_width


def _quantiles(values: Sequence[float]) -> Interval:
    """Return median, 5th and 95th percentile."""
    low, middle, high = np.quantile(values, [0.05, 0.5, 0.95])
    return Interval(float(middle), float(low), float(high))


def _power(prediction: Prediction, drawn: Sequence[Drawn], num_nodes: int) -> Interval:
    """Return the power of all nodes at the plug, with the relative interval of GPU power. Unit: W."""
    power, middle = prediction.power, float(np.median([draw.node_power_w for draw in drawn]))
    if math.isnan(middle):
        return UNKNOWN
    ends = power.gpu_power_lo_w / power.gpu_power_w, power.gpu_power_hi_w / power.gpu_power_w
    return Interval(middle, *(middle * end for end in ends)).times(num_nodes)
