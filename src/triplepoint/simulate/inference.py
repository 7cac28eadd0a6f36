"""Simulated inference: time to the first token, time per token after it, tokens per second, memory.

A batch of sequences starts together and ends together. It goes through the pipeline in as many groups as there are
stages, so that all of them work, prompts in more where they are long. Continuous batching, which starts a sequence as
another ends, keeps the batch full where this lets it run; the time of its steps is the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from triplepoint.config.cluster import ClusterConfig
from triplepoint.config.point import Point
from triplepoint.config.task import PREFILL_TOKENS, group_size
from triplepoint.simulate.costs import Constants, Cost, Costs
from triplepoint.simulate.heat.warm import Warm, warm_up
from triplepoint.simulate.intervals import Uncertainty
from triplepoint.simulate.job import Job
from triplepoint.simulate.memory.inference import InferenceMemory, inference_memory
from triplepoint.simulate.power.gpu import Float
from triplepoint.simulate.power.phases import Phases
from triplepoint.simulate.power.step import Pieces
from triplepoint.simulate.power.work import Workload
from triplepoint.simulate.step import costs_of
from triplepoint.simulate.work.inference import StagePass, decode_work, prefill_work, served
from triplepoint.simulate.work.layer_parts import FP32_BYTES

REPLAYED = Constants(host_s=0.0)
"""Passes are recorded once and replayed (CUDA graphs), so that the host holds nothing up."""


@dataclass(frozen=True)
class Serving:
    """What is asked of a model.

    Attributes:
        prompt_tokens: Tokens of each prompt.
        output_tokens: Tokens made of each, the first of them by prefill.
        batch_size: Sequences a replica works on at a time.
        cache_element: Bytes of a number in the cache of keys and values: 2, 4 for fp32, or 1 for fp8.
    """

    prompt_tokens: int
    output_tokens: int
    batch_size: int
    cache_element: int = 2

    def __post_init__(self) -> None:
        """Refuse what is no number of tokens."""
        for name in ("prompt_tokens", "output_tokens", "batch_size", "cache_element"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, expected 1 or more")

    @property
    def prompts_together(self) -> int:
        """Prompts that go through a model without a pipeline at once."""
        return min(self.batch_size, max(1, PREFILL_TOKENS // self.prompt_tokens))

    @property
    def total_tokens(self) -> int:
        """Tokens of a sequence at its end."""
        return self.prompt_tokens + self.output_tokens


@dataclass(frozen=True)
class Groups:
    """How a batch goes through the pipeline; the last group may be smaller.

    Attributes:
        prompts: Prompts in a group.
        num_prompt_groups: Groups of them.
        sequences: Sequences in a group while tokens are made.
        num_groups: Groups of them.
    """

    prompts: int
    num_prompt_groups: int
    sequences: int
    num_groups: int


def groups_of(job: Job, serving: Serving) -> Groups:
    """Return how a batch goes through the pipeline of a job."""
    sequences = group_size(serving.batch_size, job.layout.pp)
    prompts = min(sequences, serving.prompts_together)
    return Groups(prompts, -(-serving.batch_size // prompts), sequences, -(-serving.batch_size // sequences))


@dataclass(frozen=True)
class InferenceStep:
    """What inference takes.

    Attributes:
        prefill_s: From the start to the first token of the last sequence of the batch: time to first token.
        time_per_output_token_s: Mean over the tokens after the first.
        tokens_per_s: Tokens made by all replicas over the whole time.
        memory: Of the rank that needs most; the times are of a GPU with room for it.
        decode: Cost of one token in the middle, all stages, by class of kernel and group of collectives. Unit: s.
        decode_s: From the first token to the last.
        prefill_uncertainty: Of the time to the first token.
        decode_uncertainty: Of the time per token after it.
    """

    prefill_s: float
    time_per_output_token_s: float
    tokens_per_s: float
    memory: InferenceMemory
    decode: Cost
    decode_s: float
    prefill_uncertainty: Uncertainty
    decode_uncertainty: Uncertainty

    @property
    def whole_s(self) -> float:
        """From the start of the batch to its end."""
        return self.prefill_s + self.decode_s

    @property
    def time_to_first_token_s(self) -> float:
        """Another name of the prefill time, as serving systems call it."""
        return self.prefill_s


def serving_of(point: Point) -> Serving:
    """Return what a point of task `inference` asks of a replica."""
    assert point.inference is not None
    asked = point.inference
    # Keys and values are kept as they are computed, in fp8 too: the software that is simulated has no fp8 cache.
    element = FP32_BYTES if point.precision == "fp32" else 2
    return Serving(asked.prompt_tokens, asked.output_tokens, point.micro_batch_size, element)


def passes_of(job: Job, serving: Serving) -> tuple[list[StagePass], list[StagePass]]:
    """Return the passes of a group of prompts, and of a decoded token in the middle for a group of sequences."""
    job, groups = served(job), groups_of(job, serving)
    group = replace(job, micro_batch_size=groups.sequences)
    return _prompt_passes(job, serving), decode_work(group, _lengths(serving)[1], serving.cache_element)


def predict_inference(job: Job, serving: Serving, config: Path, constants: Constants = REPLAYED) -> InferenceStep:
    """Return what serving takes on a job's model, layout and machines.

    Args:
        job: Model, layout, machines and number format; its batch and sequence length are passed over. Context
            parallelism and sequence parallelism of single tokens are not used.
        serving: What is asked.
        config: Folder of the configuration.
        constants: What the software adds to kernel tables.

    Raises:
        UserError: If nothing is known of the GPU.
    """
    job = served(job)
    costs = costs_of(job, constants, config)
    prompts = _prompt_passes(job, serving)
    prefill = _prefill_s(prompts, groups_of(job, serving), costs)
    first, middle, last = (_Decode(job, serving, costs, cached) for cached in _lengths(serving))
    # Simpson's rule: exact where time grows with the cache in a straight line, or bends once.
    mean = (first.time_s + 4 * middle.time_s + last.time_s) / 6
    total = prefill + mean * (serving.output_tokens - 1)
    return InferenceStep(
        prefill_s=prefill,
        time_per_output_token_s=mean,
        tokens_per_s=job.layout.dp * serving.batch_size * serving.output_tokens / total,
        memory=memory_of(job, serving),
        decode=middle.cost,
        decode_s=mean * (serving.output_tokens - 1),
        prefill_uncertainty=_uncertainty_of(prompts, costs),
        decode_uncertainty=_uncertainty_of(middle.passes, costs),
    )


def memory_of(job: Job, serving: Serving) -> InferenceMemory:
    """Return the memory serving takes on the rank that needs most."""
    return max(memory_by_stage(job, serving), key=lambda use: use.total)


def memory_by_stage(job: Job, serving: Serving) -> list[InferenceMemory]:
    """Return the memory serving takes on a rank of each pipeline stage."""
    together = groups_of(job, serving).prompts * serving.prompt_tokens
    held = replace(served(job), micro_batch_size=serving.batch_size)
    return inference_memory(held, serving.total_tokens, together, serving.cache_element)


def _lengths(serving: Serving) -> tuple[int, int, int]:
    """Return the cached tokens of the first, a middle and the last decoded token."""
    first, last = serving.prompt_tokens + 1, max(serving.total_tokens - 1, serving.prompt_tokens + 1)
    return first, (first + last) // 2, last


def _prompt_passes(job: Job, serving: Serving) -> list[StagePass]:
    """Return the passes of a group of prompts of a served job."""
    prompts = groups_of(job, serving).prompts
    return prefill_work(replace(job, micro_batch_size=prompts, sequence_length=serving.prompt_tokens))


def _prefill_s(passes: Sequence[StagePass], groups: Groups, costs: Costs) -> float:
    """Return the time of all prompts: groups follow one another through the pipeline."""
    times = _times(passes, costs)
    return sum(times) + (groups.num_prompt_groups - 1) * max(times)


class _Decode:
    """One new token of every sequence.

    Attributes:
        time_s: Until all have it. Unit: s.
        cost: Of all stages for one group of sequences.
        passes: What the stages do for it.
    """

    def __init__(self, job: Job, serving: Serving, costs: Costs, cached: int) -> None:
        groups = groups_of(job, serving)
        self.passes = decode_work(replace(job, micro_batch_size=groups.sequences), cached, serving.cache_element)
        times = _times(self.passes, costs)
        # Each group goes round all stages for a token; a stage works on every group meanwhile.
        self.time_s = max(sum(times), groups.num_groups * max(times))
        self.cost = Cost()
        for one in self.passes:
            self.cost.include(costs.price(one.operations))


def _times(passes: Sequence[StagePass], costs: Costs) -> list[float]:
    """Return the time of every stage, its send included. Unit: s."""
    return [
        costs.price(one.operations).total_s + (costs.send_s(one.send_bytes, stage) if one.send_bytes else 0.0)
        for stage, one in enumerate(passes)
    ]


def _uncertainty_of(passes: Sequence[StagePass], costs: Costs) -> Uncertainty:
    """Return the uncertainty of the time of passes, from their kernels and collectives."""
    compute_s = sum(costs.price(one.operations).compute_s for one in passes)
    sigmas = costs.sigmas([operation for one in passes for operation in one.operations])
    return Uncertainty(*sigmas, min(1.0, compute_s / sum(_times(passes, costs))))


@dataclass(frozen=True, eq=False)
class Batch:
    """A batch of inference as the load of GPUs; see `triplepoint.simulate.power.load`.

    Attributes:
        job: The job.
        serving: What is asked.
        step: What it takes.
        costs: What its operations cost at the clock they were calibrated with.
    """

    job: Job
    serving: Serving
    step: InferenceStep
    costs: Costs

    @cached_property
    def workload(self) -> Workload:
        """Work of the job's operations."""
        return Workload(self.job, self.costs.time_of)

    @property
    def length_s(self) -> float:
        """From the start of the batch to its end. Unit: s."""
        return self.step.whole_s

    @property
    def num_tokens(self) -> int:
        """Tokens made by all replicas."""
        return self.job.layout.dp * self.serving.batch_size * self.serving.output_tokens

    def place(self, rank: int) -> tuple[int, int]:
        """Return the stage of a rank; replicas do the same."""
        return self.job.mesh.place(rank).pp, 0

    @cached_property
    def _passes(self) -> list[tuple[float, list[StagePass], int]]:
        """Time of prefill and of decode, their passes by stage, and how often a stage makes them."""
        groups = groups_of(self.job, self.serving)
        counts = groups.num_prompt_groups, groups.num_groups * (self.serving.output_tokens - 1)
        both = zip((self.step.prefill_s, self.step.decode_s), passes_of(self.job, self.serving), counts, strict=True)
        return [one for one in both if one[0] > 0.0]

    def _work(self, stage: int) -> Float:
        """Return the work of a stage in prefill and in decode; shape (num_phases, len(UNITS)). Unit: s."""
        return np.array([self.workload.of(passes[stage].operations) * count for _, passes, count in self._passes])

    def pieces(self, places: Sequence[tuple[int, int]]) -> Pieces:
        """Return prefill and decode, each as its mean."""
        end = np.cumsum([time_s for time_s, _, _ in self._passes])
        start, number = np.concatenate([[0.0], end[:-1]]), len(places)
        kind, work = np.repeat(np.arange(number), len(end)), [self._work(stage) for stage, _ in places]
        return Pieces(kind, np.concatenate(work), np.arange(len(kind)), np.tile(start, number), np.tile(end, number))

    def phases(self, stages: Sequence[int], polling_share: float) -> Phases:
        """Return prefill and decode."""
        seconds = np.tile([time_s for time_s, _, _ in self._passes], (len(stages), 1))
        work = np.array([self._work(stage) for stage in stages])
        polling = polling_share if self.job.num_gpus > 1 else 0.0
        work[..., 0] += polling * np.maximum(seconds - work[..., 0], 0.0)
        operations = [[passes[stage].operations for _, passes, _ in self._passes] for stage in stages]
        return Phases(seconds, seconds, work, [[(*one,) for one in of] for of in operations], seconds, work)


def batch_of(job: Job, serving: Serving, config: Path, factor: float = 1.0) -> Batch:
    """Return a batch of inference, its kernels `factor` times as slow; arguments and errors of `predict_inference`."""
    constants = replace(REPLAYED, factor=REPLAYED.factor * factor)
    return Batch(job, serving, predict_inference(job, serving, config, constants), costs_of(job, REPLAYED, config))


def warm_batch(batch: Batch, cluster: ClusterConfig, config: Path) -> Warm[Batch]:
    """Return a batch under the conditions of a cluster: all go at the pace of the slowest GPU."""

    def once_more(factor: dict[int, float]) -> Batch:
        return batch_of(batch.job, batch.serving, config, max(factor.values(), default=1.0))

    return warm_up(batch, once_more, cluster, config)
