"""Settings of one point as a study writes them: flat keys, most of them with a default."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from pydantic import Field, model_validator

from triplepoint.config.base import NAME_PATTERN, Devices, Size
from triplepoint.config.cluster import ClusterConfig
from triplepoint.config.mesh import ranks_by_role
from triplepoint.config.model import ModelConfig
from triplepoint.config.point import Layout, Measured, Point, PointCluster, usual_schedule
from triplepoint.config.task import (
    TARGETS,
    Inference,
    Lora,
    LoraAlpha,
    LoraRank,
    LoraTargets,
    OutputTokens,
    PromptTokens,
)

MOST_TOKENS = 2**31 - 1
"""Of a sequence, as `sequence_length` takes them."""


class Settings(Layout, Measured):
    """What a study says about a point: the keys of `defaults`, `set`, `axes` and `layout`."""

    model: Annotated[str, Field(pattern=NAME_PATTERN)]
    """Model, a file in `config/models/`."""
    cluster: Annotated[str, Field(pattern=NAME_PATTERN)]
    """Cluster, a file in `config/clusters/`."""
    num_gpus: Devices | None = None
    """World size. None: all of the cluster; a part of a cluster is used only where this says so."""
    dp: Devices | None = None  # type: ignore[assignment]
    """Data parallel degree. None: num_gpus / (tp*pp*cp)."""
    sequence_length: Size | None = None  # type: ignore[assignment]
    """Tokens per sequence. None: the model's."""
    lora_rank: LoraRank = 16
    lora_alpha: LoraAlpha = 32.0
    lora_targets: LoraTargets = TARGETS
    prompt_tokens: PromptTokens | None = None
    output_tokens: OutputTokens | None = None
    trace_ranks: Literal["all", "roles"] | tuple[int, ...] = "all"
    """Ranks that write a trace of the profiled steps: `all`; `roles`, one of every pipeline stage and row of the nodes'
    airflow, those at its inlet and those behind others; or their numbers."""
    repeats: Annotated[int, Field(gt=0, le=1000, strict=True)] = 1
    """How often the same measurement is made; each is a run of its own."""

    @model_validator(mode="after")
    def _check_inference(self) -> "Settings":
        if self.task == "inference" and not (self.prompt_tokens and self.output_tokens):
            raise ValueError("task: inference needs prompt_tokens and output_tokens")
        total = (self.prompt_tokens or 0) + (self.output_tokens or 0)
        if total > MOST_TOKENS:
            raise ValueError(f"prompt_tokens + output_tokens is {total}, a sequence has at most {MOST_TOKENS}")
        return self


def make_points(
    settings: Settings, model: ModelConfig, cluster: ClusterConfig, rows: Sequence[Sequence[int]] | None = None
) -> Iterator[Point]:
    """Yield the point of each repeat, complete but neither folded nor checked.

    Args:
        settings: What the study says.
        model: The model it names.
        cluster: The cluster it names.
        rows: Devices of its nodes by row of their airflow; None where it is not known.
    """
    num_gpus = settings.num_gpus or cluster.num_gpus
    layout, inference = _layout(settings, num_gpus), _inference(settings)
    values = {name: getattr(settings, name) for name in Measured.model_fields}
    values["sequence_length"] = settings.sequence_length or model.sequence_length
    if inference is not None:
        values["micro_batch_size"] = max(1, settings.global_batch_size // layout.dp)
        values["sequence_length"] = inference.total_tokens
    trace_ranks = settings.trace_ranks
    if trace_ranks == "roles":
        trace_ranks = ranks_by_role(layout, cluster.gpus_per_node, rows or [range(cluster.gpus_per_node)])
    place = {name: getattr(cluster, name) for name in PointCluster.model_fields}
    point = Point(
        model=model,
        cluster=PointCluster(**place),
        num_gpus=num_gpus,
        layout=layout,
        lora=_lora(settings),
        inference=inference,
        trace_ranks=trace_ranks,
        **values,
    )
    for repeat in range(1, settings.repeats + 1):
        yield point.model_copy(update={"repeat": repeat})


def _lora(settings: Settings) -> Lora | None:
    if settings.task != "lora":
        return None
    return Lora(rank=settings.lora_rank, alpha=settings.lora_alpha, targets=settings.lora_targets)


def _inference(settings: Settings) -> Inference | None:
    if settings.task != "inference" or settings.prompt_tokens is None or settings.output_tokens is None:
        return None
    return Inference(prompt_tokens=settings.prompt_tokens, output_tokens=settings.output_tokens)


def _layout(settings: Settings, num_gpus: int) -> Layout:
    values = {name: getattr(settings, name) for name in Layout.model_fields}
    # Where the degrees do not divide the GPUs, dp is rounded down, and the check of the world size says what is wrong.
    values["dp"] = settings.dp or max(1, num_gpus // (settings.tp * settings.pp * settings.cp))
    values["schedule"] = settings.schedule or usual_schedule(settings.pp, settings.vp)
    return Layout(**values)
