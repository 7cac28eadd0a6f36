"""Rows that ask for inference: what is served, and what it takes."""

import re
from functools import lru_cache
from pathlib import Path

from triplepoint.config.cluster import ClusterConfig
from triplepoint.config.conditions import USUAL
from triplepoint.simulate.calibration import ServingCalibration
from triplepoint.simulate.costs import Cost
from triplepoint.simulate.heat.job import is_known
from triplepoint.simulate.heat.warm import warm_up_anywhere
from triplepoint.simulate.inference import Serving, batch_of, warm_batch
from triplepoint.simulate.job import Job
from triplepoint.simulate.predict.bottleneck import word_for
from triplepoint.simulate.predict.cells import Cells, need
from triplepoint.simulate.predict.model import Prediction
from triplepoint.simulate.predict.power import PowerPrediction, predict_power
from triplepoint.simulate.predict.spelling import UnreadableError, is_blank, shown
from triplepoint.status import Status
from triplepoint.units import GIB

_INFERENCE, _TRAINING = r"infer|serv|decod|generat", r"train|tun|sft|lora"


def read_output_tokens(cells: Cells) -> int | None:
    """Return the tokens a row of inference generates for each prompt; None for a row of training.

    Raises:
        UnreadableError: If its task is neither, or the tokens to be made are not stated.
    """
    task = cells.get("task", "").lower()
    if is_blank(task) or re.search(_TRAINING, task):
        return None
    if not re.search(_INFERENCE, task):
        raise UnreadableError(f"task is {shown(task)}, expected training or inference")
    return need(cells, "output_tokens")


def predict_serving(
    job: Job, serving: Serving, config: Path, cluster: ClusterConfig | None = None, with_power: bool = True
) -> Prediction:
    """Return what inference takes; its step is a whole batch from its start to its end.

    Args:
        job: Model, layout and machines.
        serving: What is asked.
        config: Folder of the configuration.
        cluster: Where it runs: its conditions count. None: on sound GPUs of usual nodes.
        with_power: Whether power and heat are wanted.
    """
    batch, warm = batch_of(job, serving, config), None
    is_usual = cluster is None or cluster.conditions == USUAL
    if is_known(job.gpu, config) and (with_power or not is_usual):
        warm = warm_batch(batch, cluster, config) if cluster else warm_up_anywhere(batch, config)
        batch = warm.load
    found = batch.step
    known_to, fits = serving_calibration(config).known_to(job, serving, found), found.memory.fits
    low_s, high_s = known_to.whole_s
    token_low_s, token_high_s = known_to.per_token_s
    first_low_s, first_high_s = known_to.first_token_s
    return Prediction(
        Status.OK if fits else Status.OOM,
        "" if fits else f"does not fit on a rank of stage {found.memory.stage}: {found.memory.explain()}",
        step_time_s=found.whole_s,
        step_time_lo_s=low_s,
        step_time_hi_s=high_s,
        tokens_per_s_per_gpu=found.tokens_per_s / job.num_gpus,
        memory_gib=found.memory.total / GIB,
        bottleneck=_bottleneck(found.decode),
        time_to_first_token_s=found.time_to_first_token_s,
        time_to_first_token_lo_s=first_low_s,
        time_to_first_token_hi_s=first_high_s,
        time_per_output_token_s=found.time_per_output_token_s,
        time_per_output_token_lo_s=token_low_s,
        time_per_output_token_hi_s=token_high_s,
        exposed_comm_per_output_token_s=found.decode.exposed_s,
        power=predict_power(warm, known_to.whole_s, config) if warm and with_power else PowerPrediction(),
    )


@lru_cache(maxsize=4)
def serving_calibration(config: Path) -> ServingCalibration:
    """Return how far predictions of inference can be trusted, by a configuration folder."""
    return ServingCalibration.load(config)


def _bottleneck(cost: Cost) -> str:
    """Return the largest part of a decoded token, such as `matrix products 61 %`."""
    parts: dict[str, float] = {}
    for name, time in cost.by_class.items():
        parts[word_for(name)] = parts.get(word_for(name), 0.0) + time
    largest = max(parts, key=lambda word: parts[word])
    return f"{largest} {100 * parts[largest] / cost.total_s:.0f} %"
