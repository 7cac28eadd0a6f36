"""Prediction of one job: time with its interval, memory, power and bottleneck."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from triplepoint import metrics
from triplepoint.config.cluster import ClusterConfig
from triplepoint.config.task import TARGETS, Inference, Lora
from triplepoint.errors import PointError
from triplepoint.flops import inference_flops_per_token, peak_flops, training_flops_per_token
from triplepoint.simulate.calibration import Calibration
from triplepoint.simulate.costs import Constants, Cost
from triplepoint.simulate.heat.nodes import is_known
from triplepoint.simulate.heat.pace import Reload
from triplepoint.simulate.heat.warm import Warm, slow_ranks, warm_up, warm_up_anywhere, with_factors
from triplepoint.simulate.inference import Serving, batch_of, warm_batch
from triplepoint.simulate.inference_calibration import ServingCalibration
from triplepoint.simulate.intervals import interval
from triplepoint.simulate.job import Job
from triplepoint.simulate.layouts import Laid
from triplepoint.simulate.memory.training import MemoryUse, Need, peak_memory
from triplepoint.simulate.power.load import Training
from triplepoint.simulate.predict.power import PowerPrediction, predict_power
from triplepoint.simulate.predict.software import SoftwareUse, software_use
from triplepoint.simulate.step import Prepared, Step, prepare_step, run_all
from triplepoint.simulate.timeline.tasks import Timeline
from triplepoint.status import PredictionStatus
from triplepoint.units import GIB

Row = TypeVar("Row")

_WORDS = {
    "gemm": "matrix products",
    "moe": "expert kernels",
    "attention": "attention",
    "offload": "copies to and updates on the host",
    "tp": "tensor parallel communication",
    "cp": "context parallel communication",
    "ep": "expert all-to-all",
    "etp": "expert tensor parallel communication",
    "dp": "data parallel communication",
    "dp_cp": "data parallel communication",
    "dp_shard": "data parallel communication",
    "dp_copy": "data parallel communication",
    "edp": "data parallel communication of experts",
    "edp_shard": "data parallel communication of experts",
    "edp_copy": "data parallel communication of experts",
    "pp": "pipeline sends",
    "overlapped": "communication that computation does not cover",
    "host": "launching kernels from the host",
    "contention": "computation slowed by communication beside it",
}
"""Parts of the time, by class of kernel or process group."""
_MEMORY_BOUND = ("norm", "elementwise", "embedding", "loss", "optimizer", "conv")


@dataclass(frozen=True)
class Prediction:
    """One row of output; numbers are NaN where there are none.

    Attributes:
        status: What comes of it.
        reason: One line to a status other than ok, or where a GPU type has no model of power and heat.
        step_time_s: Of one step; of inference, a whole batch from its start to its end.
        step_time_lo_s: Lower end of the 90 % interval.
        step_time_hi_s: Upper end.
        tokens_per_s_per_gpu: Throughput.
        mfu: Model FLOP/s over the peak at the job's number format, 0 to 1.
        memory_gib: Peak on the fullest rank.
        bubble_fraction: Of the step, waiting for other pipeline stages, mean over ranks.
        exposed_comm_s: Communication with no computation to hide it, mean over stages.
        bottleneck: Largest part of the time, with its share.
        time_to_first_token_s: Of inference: until the last sequence of a batch has it.
        time_to_first_token_lo_s: Lower end of the 90 % interval.
        time_to_first_token_hi_s: Upper end.
        time_per_output_token_s: Of inference: one token more for each sequence, mean over those after the first.
        time_per_output_token_lo_s: Lower end of the 90 % interval.
        time_per_output_token_hi_s: Upper end.
        exposed_comm_per_output_token_s: Exposed communication of such a token.
        software: What the software does.
        power: Power and heat.
        laid: What was predicted of training; None of inference, and where nothing was.
    """

    status: PredictionStatus
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
    software: SoftwareUse = SoftwareUse()
    power: PowerPrediction = PowerPrediction()
    laid: Laid | None = None

    def values(self) -> dict[str, object]:
        """Return the values of `COLUMNS` by name, NaN and empty text where there are none."""
        own = {name: getattr(self, name) for name in _OWN_COLUMNS}
        return own | asdict(self.software) | asdict(self.power)

    def cells(self) -> dict[str, object]:
        """Return the columns of a table: nothing for NaN, six digits of a number."""
        return {name: cell_of(value) for name, value in self.values().items()}


_OWN_COLUMNS = tuple(part.name for part in fields(Prediction) if part.name not in ("software", "power", "laid"))

COLUMNS = (
    *_OWN_COLUMNS,
    *(part.name for part in fields(SoftwareUse)),
    *(part.name for part in fields(PowerPrediction)),
)
"""Columns of a table of predictions, in order."""


def predict_job(
    job: Job, serving: Serving | None, config: Path, cluster: ClusterConfig | None = None, with_power: bool = True
) -> Prediction:
    """Return the prediction of a training job, or of inference; a job that cannot run has a status that says why.

    Args:
        job: The job.
        serving: What is asked of it; None for training.
        config: Folder of the configuration, with the calibration.
        cluster: Where it runs: its slow GPUs and conditions count. None: on sound GPUs of usual nodes.
        with_power: Whether power, heat and what clocks do to time are wanted.

    Raises:
        UserError: If the configuration is wrong.
    """
    try:
        if serving:
            found = _predict_serving(job, serving, config, cluster, with_power)
        else:
            found = predict(job, read_calibrations(config)[0], config, cluster, with_power)
        if found.status == PredictionStatus.OK and with_power and not is_known(job.gpu, config):
            return replace(found, reason=f"power, heat and clocks of {job.gpu.name} are not known")
        return found
    except PointError as error:
        return Prediction(PredictionStatus.INVALID, str(error))


def predict(
    job: Job,
    calibration: Calibration | None,
    config: Path,
    cluster: ClusterConfig | None = None,
    with_power: bool = True,
) -> Prediction:
    """Return the prediction of a training job.

    Args:
        job: The job.
        calibration: Constants of stacks and spread of errors; without one there is no interval.
        config: Folder of the configuration.
        cluster: Where it runs: its slow GPUs and conditions count. None: on sound GPUs of usual nodes.
        with_power: Whether power, heat and what clocks do to time are wanted.

    Raises:
        PointError: If the job cannot run.
        UserError: If the configuration is wrong.
    """
    return predict_warm(job, calibration, config, cluster, with_power)[0]


def predict_warm(
    job: Job,
    calibration: Calibration | None,
    config: Path,
    cluster: ClusterConfig | None = None,
    with_power: bool = True,
    with_few_nodes: bool = False,
    memory: MemoryUse | None = None,
) -> tuple[Prediction, Warm[Training[Step]] | None]:
    """Return the prediction of a training job, and the warm job, if it was warmed.

    Args:
        job: As `predict`.
        calibration: As `predict`.
        config: As `predict`.
        cluster: As `predict`.
        with_power: As `predict`.
        with_few_nodes: Whether nodes stand for others, see `warm_up`.
        memory: Its peak memory, where that is known already.

    Raises:
        PointError: If the job cannot run.
        UserError: If the configuration is wrong.
    """
    cold, warm = ColdJob.of(job, calibration, config, cluster, memory), None
    if cold.is_warmed(cluster, with_power):
        warm = (
            warm_up(cold.load, cold.reload, cluster, config, with_few_nodes)
            if cluster
            else warm_up_anywhere(cold.load, config)
        )
    return cold.prediction(warm, with_power), warm


@dataclass(frozen=True, eq=False)
class ColdJob:
    """A training job at the clocks of the calibration, from which power, heat and clocks can be worked out.

    Attributes:
        job: The job.
        calibration: Constants of stacks and spread of errors; None: no interval.
        config: Folder of the configuration.
        memory: Its peak memory.
        load: Its step.
        reload: Simulates the step again, with factors on the computation of ranks.
    """

    job: Job
    calibration: Calibration | None
    config: Path
    memory: MemoryUse
    load: Training[Step]
    reload: Reload[Training[Step]]

    @classmethod
    def of(
        cls,
        job: Job,
        calibration: Calibration | None,
        config: Path,
        cluster: ClusterConfig | None = None,
        memory: MemoryUse | None = None,
    ) -> "ColdJob":
        """Simulate a job at the clocks of the calibration; arguments and errors are those of `predict_warm`."""
        prepared = prepare_step(job, calibration.constants(job) if calibration else Constants(), config)
        slow = slow_ranks(cluster, job) if cluster else {}

        def reload(factor: Mapping[int, float]) -> Training[Step]:
            return Training(prepared.run(with_factors(slow, factor)))

        return cls(job, calibration, config, memory or peak_memory(job), reload({}), reload)

    def is_warmed(self, cluster: ClusterConfig | None, with_power: bool = True) -> bool:
        """Return whether power, heat and clocks are worked out; what does not fit in memory draws no power."""
        return not self.memory.is_out_of_memory and _is_warmed(self.job, self.config, cluster, with_power)

    def prediction(self, warm: Warm[Training[Step]] | None, with_power: bool = True) -> Prediction:
        """Return the prediction of the job, warm or at the clocks of the calibration, with or without its power."""
        load = warm.load if warm else self.load
        found = _prediction(self.job, load.ran, self.memory, self.calibration)
        found = replace(found, software=software_use(self.job, self.config))
        if warm is None or not with_power:
            return found
        interval_s = found.step_time_lo_s, found.step_time_hi_s
        return replace(found, power=predict_power(warm, interval_s, self.config))


def predict_times(
    jobs: Sequence[tuple[Job, MemoryUse]], calibration: Calibration, config: Path, cluster: ClusterConfig
) -> list[Prediction]:
    """Return the step time of training jobs, and whether they fit in memory, without intervals.

    Args:
        jobs: The jobs with their peak memory.
        calibration: As `predict`.
        config: As `predict`.
        cluster: As `predict`.

    Returns:
        One for each job; of one that cannot run a status that says why.

    Raises:
        UserError: If the configuration is wrong.
    """
    found: dict[int, Prediction] = {}
    prepared: dict[int, Prepared] = {}
    for place, (job, memory) in enumerate(jobs):
        try:
            if _is_warmed(job, config, cluster, with_power=False) or slow_ranks(cluster, job):
                found[place] = predict_warm(job, calibration, config, cluster, with_power=False, memory=memory)[0]
            else:
                prepared[place] = prepare_step(job, calibration.constants(job), config)
        except PointError as error:
            found[place] = Prediction(PredictionStatus.INVALID, str(error))
    for place, step in zip(prepared, run_all(list(prepared.values())), strict=True):
        memory = jobs[place][1]
        found[place] = Prediction(*_fits(memory), step_time_s=step.time_s, memory_gib=memory.total / GIB)
    return [found[place] for place in range(len(jobs))]


def _is_warmed(job: Job, config: Path, cluster: ClusterConfig | None, with_power: bool) -> bool:
    """Return whether power, heat and clocks are worked out: on request, and where a limit or a fault slows GPUs."""
    slows = bool(job.power_limits_w) or (cluster is not None and cluster.conditions.slows_gpus)
    return is_known(job.gpu, config) and (with_power or slows)


def _prediction(job: Job, step: Step, memory: MemoryUse, calibration: Calibration | None) -> Prediction:
    low, high = math.nan, math.nan
    if calibration:
        low, high = interval(step.time_s, calibration.quantile, calibration.scale(job, step.uncertainty))
    tokens_per_s = job.global_batch_size * job.sequence_length / step.time_s
    flops = training_flops_per_token(job.model, job.sequence_length, _adapters(job))
    mfu = _mfu(job, tokens_per_s, flops)
    # No GPU computes faster than its peak.
    low = min(max(low, step.time_s * mfu), step.time_s) if mfu > 0 else low
    return Prediction(
        *_fits(memory),
        step_time_s=step.time_s,
        step_time_lo_s=low,
        step_time_hi_s=high,
        tokens_per_s_per_gpu=tokens_per_s / job.num_gpus,
        mfu=mfu,
        memory_gib=memory.total / GIB,
        bubble_fraction=step.timeline.bubble_fraction,
        exposed_comm_s=step.exposed_comm_s,
        bottleneck=_training_bottleneck(step.timeline, step.slowest),
        laid=Laid(job, step.gradient_share),
    )


def _fits(memory: Need) -> tuple[PredictionStatus, str]:
    """Return whether a job fits in memory, and a line where it does not or that is not decided."""
    if memory.is_out_of_memory:
        return PredictionStatus.OOM, f"does not fit on a rank of stage {memory.stage}: {memory.explain()}"
    undecided = memory.undecided
    return (PredictionStatus.UNDECIDED, undecided) if undecided else (PredictionStatus.OK, "")


def _mfu(job: Job, tokens_per_s: float, flops_per_token: float) -> float:
    """Return model FLOP/s over the peak of the job's GPUs; NaN where they have none at its number format."""
    peak = peak_flops(job.gpu, job.precision)
    return math.nan if peak is None else metrics.mfu(tokens_per_s, flops_per_token, job.num_gpus, peak)


def _adapters(job: Job) -> Lora | None:
    if job.trainable == "all":
        return None
    targets = tuple(target for target in TARGETS if job.lora_targets is None or target in job.lora_targets)
    return Lora(rank=job.lora_rank, alpha=1.0, targets=targets)


def _predict_serving(
    job: Job, serving: Serving, config: Path, cluster: ClusterConfig | None, with_power: bool
) -> Prediction:
    """Return the prediction of inference; its step is a whole batch from its start to its end."""
    batch, warm = batch_of(job, serving, config), None
    if _is_warmed(job, config, cluster, with_power):
        warm = warm_batch(batch, cluster, config) if cluster else warm_up_anywhere(batch, config)
        batch = warm.load
    found = batch.step
    intervals = read_calibrations(config)[1].intervals_of(job, serving, found)
    low_s, high_s = intervals.whole_s
    asked = Inference(prompt_tokens=serving.prompt_tokens, output_tokens=serving.output_tokens)
    token_low_s, token_high_s = intervals.per_token_s
    first_low_s, first_high_s = intervals.first_token_s
    return Prediction(
        *_fits(found.memory),
        step_time_s=found.whole_s,
        step_time_lo_s=low_s,
        step_time_hi_s=high_s,
        tokens_per_s_per_gpu=found.tokens_per_s / job.num_gpus,
        mfu=_mfu(job, found.tokens_per_s, inference_flops_per_token(job.model, asked)),
        memory_gib=found.memory.total / GIB,
        bottleneck=_largest_part(_by_word(found.decode), found.decode.total_s),
        time_to_first_token_s=found.prefill_s,
        time_to_first_token_lo_s=first_low_s,
        time_to_first_token_hi_s=first_high_s,
        time_per_output_token_s=found.time_per_output_token_s,
        time_per_output_token_lo_s=token_low_s,
        time_per_output_token_hi_s=token_high_s,
        exposed_comm_per_output_token_s=found.decode.exposed_s,
        software=software_use(job, config),
        power=predict_power(warm, intervals.whole_s, config) if warm and with_power else PowerPrediction(),
    )


def with_progress(rows: Sequence[Row], say: Callable[[str], None]) -> Iterator[Row]:
    """Yield rows to predict, with a line on how many are done before each."""
    for num_done, row in enumerate(rows):
        say(f"predicted {num_done} of {len(rows)} rows")
        yield row


@lru_cache(maxsize=4)
def read_calibrations(config: Path) -> tuple[Calibration, ServingCalibration]:
    """Return how far predictions of training and of inference can be trusted. Raises `UserError` if a file is wrong."""
    return Calibration.load(config), ServingCalibration.load(config)


def _training_bottleneck(timeline: Timeline, slowest: Cost) -> str:
    """Return the largest part of a step's time that something could be done about.

    Args:
        timeline: Of the step.
        slowest: Cost of the stage that the step depends on, by class of kernel and process group.
    """
    parts = {
        "pipeline bubble": timeline.bubble_fraction * timeline.step_time_s,
        "gradient reduction after the backward pass": float(
            (timeline.final_sync[:, 1] - timeline.end[:, -1].max(axis=1)).max(initial=0.0)
        ),
    }
    return _largest_part(parts | _by_word(slowest), timeline.step_time_s)


def _by_word(cost: Cost) -> dict[str, float]:
    parts: dict[str, float] = {}
    for name, time_s in cost.by_class.items():
        word = "kernels bound by memory" if name in _MEMORY_BOUND else _WORDS.get(name, name)
        parts[word] = parts.get(word, 0.0) + time_s
    return parts


def _largest_part(parts: dict[str, float], total_s: float) -> str:
    """Return the largest part with its share of the time, such as `matrix products 62 %`."""
    largest = max(parts, key=lambda word: parts[word])
    return f"{largest} {100 * parts[largest] / total_s:.0f} %"


def cell_of(value: object) -> object:
    """Return what a table shows of a value: nothing for NaN, six digits of a number."""
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.6g}"
    return value
