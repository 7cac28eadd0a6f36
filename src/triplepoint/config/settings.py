"""Settings of one point as a study writes them: flat keys, most of them with a default."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from pydantic import Field, model_validator

from triplepoint.config.base import NAME_PATTERN, Devices, Layers, Size, Strict
from triplepoint.config.cluster import ClusterConfig
from triplepoint.config.mesh import ranks_by_role
from triplepoint.config.model import ModelConfig
from triplepoint.config.point import (
    BYTES,
    Engine,
    Layout,
    Offload,
    Overlap,
    Point,
    PointCluster,
    Precision,
    Recompute,
    Samples,
    Schedule,
    Sharding,
    Steps,
)
from triplepoint.config.task import TARGETS, Inference, Lora, Target, Task

OVERLAPS: tuple[Overlap, ...] = ("grad", "param", "tp")
OFFLOADS: tuple[Offload, ...] = ("optim", "params")
"""The order flags are kept in, so that the same set is the same point."""


class Settings(Strict):
    """What a study says about a point: the keys of `defaults`, `set`, `axes` and `layout`."""

    model: Annotated[str, Field(pattern=NAME_PATTERN)]
    """Model, a file in `config/models/`."""
    cluster: Annotated[str, Field(pattern=NAME_PATTERN)]
    """Cluster, a file in `config/clusters/`."""
    engine: Engine
    """What trains, or `simulated`."""
    num_gpus: Devices | None = None
    """World size. None: all of the cluster; a part of a cluster is used only where this says so."""
    tp: Devices = 1
    """Tensor parallel degree."""
    pp: Devices = 1
    """Pipeline parallel degree."""
    dp: Devices | None = None
    """Data parallel degree. None: num_gpus / (tp*pp*cp)."""
    cp: Devices = 1
    """Context parallel degree."""
    ep: Devices = 1
    """Expert parallel degree; its ranks are taken from the data parallel ones."""
    vp: Layers = 1
    """Virtual pipeline stages per rank."""
    sequence_parallel: bool = False
    """Whether activations between tensor parallel regions are split along the sequence; without effect at tp 1."""
    data_parallel_sharding: Sharding = "no_shard"
    """What data parallel ranks share out: nothing (DDP), optimizer state (ZeRO-1), gradients too (ZeRO-2), parameters
    too (FSDP, ZeRO-3); without effect at dp 1."""
    schedule: Schedule | None = None
    """Pipeline schedule. None: 1f1b where pp is above 1, interleaved_1f1b where vp is too; without effect at pp 1."""
    pipeline_layers: tuple[Layers, ...] = ()
    """Layers of each pipeline stage, such as `[3, 5]`: pp*vp numbers in the order of the model, so the first virtual
    stages of all ranks, then the second ones. Empty: the same number on each."""
    micro_batch_size: Size = 1
    """Sequences per rank and micro-batch."""
    global_batch_size: Size
    """Sequences per step."""
    sequence_length: Size | None = None
    """Tokens per sequence. None: the model's."""
    recompute: Recompute = "none"
    """Activations recomputed in the backward pass: `none`; `selective`, those of the core of attention, from queries,
    keys and values, as Megatron-LM's `core_attn`; or `full`, of whole layers."""
    recompute_layers: Layers | None = None
    """With `recompute: full`, how many layers of each pipeline stage, or virtual stage, are recomputed; the others keep
    their activations. None: all of them; without effect on other kinds of recomputation."""
    overlap: tuple[Overlap, ...] = ()
    """Communication overlapped with computation: gradient reduction, parameter gathering, tensor parallel; a flag that
    can do nothing in a point is left out of it."""
    offload: tuple[Offload, ...] = ()
    """What a rank keeps in the memory of its host: optimizer state with its update (`optim`), parameters (`params`).
    DeepSpeed's ZeRO-Offload, so with engine: deepspeed only."""
    precision: Precision = "bf16"
    """Number format of the matrix products."""
    task: Task = "pretrain"
    """What is done: `pretrain`, `lora` (adapters beside a frozen model) or `inference` (prompts read, text made)."""
    lora_rank: Size = 16
    """Width between the two matrices of an adapter; with task `lora`."""
    lora_alpha: Annotated[float, Field(gt=0)] = 32.0
    """What an adapter adds is scaled by alpha over rank."""
    lora_targets: Annotated[tuple[Target, ...], Field(min_length=1)] = TARGETS
    """Layers that have adapters, as Megatron-LM calls them; routed experts have none."""
    prompt_tokens: Size | None = None
    """Tokens of each prompt; with task `inference`, where `global_batch_size` sequences start together, in equal parts
    on the data parallel replicas, and `sequence_length` and `micro_batch_size` follow."""
    output_tokens: Size | None = None
    """Tokens made of each, the first of them as the prompt is read."""
    weights: str = "random"
    """Weights to start from: `random` (what is measured does not depend on their values), or the path of a checkpoint:
    a file of torch with a tensor under each name of the native engine."""
    corpus: str = "random"
    """Text: `random` tokens, `stdlib` (source of the Python standard library), the path of a text file, or that of
    Megatron-LM's indexed format, which holds tokens, without `.bin` or `.idx`."""
    tokenizer: str = BYTES
    """What makes tokens of a text: `bytes`, each of which is one, or the path of a `tokenizer.json` of Hugging Face;
    without effect on random tokens."""
    samples: Samples = "packed"
    """`packed`: a sample is cut from the text as it comes, over ends of documents. `padded`: it is one document (of a
    text, a line), cut at the sequence length or padded to it; padding is computed but not learned."""
    seed: Annotated[int, Field(ge=0, lt=2**32, strict=True)] = 1234
    """Seed of weights and data order, of 32 bits: numpy takes no more, torch takes 64."""
    steps: Steps = Steps()
    """Steps of each kind: warmup, measured, profiled."""
    trace_ranks: Literal["all", "roles"] | tuple[int, ...] = "all"
    """Ranks that write a trace of the profiled steps: `all`; `roles`, one of every pipeline stage and row of the nodes'
    airflow, those at its inlet and those behind others; or their numbers."""
    telemetry_period_s: Annotated[float, Field(ge=0.001, le=3600)] = 0.1
    """Time between telemetry samples. Unit: s."""
    repeats: Annotated[int, Field(gt=0, le=1000, strict=True)] = 1
    """How often the same measurement is made; each is a run of its own."""

    @model_validator(mode="after")
    def _check_inference(self) -> "Settings":
        if self.task == "inference" and not (self.prompt_tokens and self.output_tokens):
            raise ValueError("task: inference needs prompt_tokens and output_tokens")
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
    named = PointCluster(name=cluster.name, device=cluster.device, gpu=cluster.gpu, gpus_per_node=cluster.gpus_per_node)
    common = {name: getattr(settings, name) for name in _SAME}
    layout, inference = _layout(settings, num_gpus), _inference(settings)
    micro_batch_size, sequence_length = settings.micro_batch_size, settings.sequence_length or model.sequence_length
    if inference is not None:
        micro_batch_size = max(1, settings.global_batch_size // layout.dp)
        sequence_length = inference.prompt_tokens + inference.output_tokens
    for repeat in range(1, settings.repeats + 1):
        yield Point(
            model=model,
            cluster=named,
            num_gpus=num_gpus,
            layout=layout,
            micro_batch_size=micro_batch_size,
            sequence_length=sequence_length,
            lora=_lora(settings),
            inference=inference,
            trace_ranks=_trace_ranks(settings, layout, cluster, rows),
            overlap=tuple(flag for flag in OVERLAPS if flag in settings.overlap),
            offload=tuple(part for part in OFFLOADS if part in settings.offload),
            repeat=repeat,
            **common,
        )


_SAME = (
    *("engine", "global_batch_size", "recompute", "recompute_layers", "precision", "task"),
    *("weights", "corpus", "tokenizer", "samples", "seed", "steps", "telemetry_period_s"),
)
"""Keys that a point has under the same name, taken over as they are."""


def _trace_ranks(
    settings: Settings, layout: Layout, cluster: ClusterConfig, rows: Sequence[Sequence[int]] | None
) -> Literal["all"] | tuple[int, ...]:
    if settings.trace_ranks != "roles":
        return settings.trace_ranks
    return ranks_by_role(layout, cluster.gpus_per_node, rows or [range(cluster.gpus_per_node)])


def _lora(settings: Settings) -> Lora | None:
    if settings.task != "lora":
        return None
    targets = tuple(name for name in TARGETS if name in settings.lora_targets)
    return Lora(rank=settings.lora_rank, alpha=settings.lora_alpha, targets=targets)


def _inference(settings: Settings) -> Inference | None:
    if settings.task != "inference" or settings.prompt_tokens is None or settings.output_tokens is None:
        return None
    return Inference(prompt_tokens=settings.prompt_tokens, output_tokens=settings.output_tokens)


def _layout(settings: Settings, num_gpus: int) -> Layout:
    # Where the degrees do not divide the GPUs, dp is rounded down, and the check of the world size says what is wrong.
    dp = settings.dp or max(1, num_gpus // (settings.tp * settings.pp * settings.cp))
    return Layout(
        tp=settings.tp,
        pp=settings.pp,
        dp=dp,
        cp=settings.cp,
        ep=settings.ep,
        vp=settings.vp,
        sequence_parallel=settings.sequence_parallel,
        data_parallel_sharding=settings.data_parallel_sharding,
        schedule=settings.schedule or usual_schedule(settings.pp, settings.vp),
        pipeline_layers=settings.pipeline_layers,
    )


def usual_schedule(pp: int, vp: int) -> Schedule | None:
    """Return the schedule of a layout that names none."""
    if pp == 1:
        return None
    return "interleaved_1f1b" if vp > 1 else "1f1b"
