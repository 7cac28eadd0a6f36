"""Point: one complete configuration to measure, the content of `point.json`.

Each setting is declared once, at its field. `Layout` and `Measured` have the settings that are also keys of studies.
"""

import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import AfterValidator, Field

from triplepoint import MEASUREMENT_VERSION
from triplepoint.config.base import (
    NAME_PATTERN,
    Devices,
    Featured,
    Layers,
    Need,
    Row,
    Setting,
    Size,
    StageLayers,
    Strict,
    declared,
)
from triplepoint.config.choices import ModelChoices, choices_of
from triplepoint.config.model import ModelConfig
from triplepoint.config.software import HAS_EXPERTS, Software
from triplepoint.config.task import TARGETS, Inference, Lora, Task

Positive = Annotated[int, Field(gt=0)]
Engine = Literal["native", "megatron", "deepspeed", "simulated"]
Offload = Literal["optim", "params", "activations"]
Overlap = Literal["grad", "param", "tp", "ep"]
PipelineEnd = Literal["embedding", "loss"]
ContextExchange = Literal["ring", "all_gather", "all_to_all"]
Precision = Literal["fp32", "bf16", "fp16", "fp8", "nvfp4"]
Recompute = Literal["none", "selective", "full"]
Samples = Literal["packed", "padded"]
Schedule = Literal["gpipe", "1f1b", "interleaved_1f1b", "zero_bubble"]
Sharding = Literal["no_shard", "optim", "optim_grads", "optim_grads_params"]

BYTES = "bytes"
"""Tokenizer without a file: each byte of the text is a token."""

USUAL_GLOBAL_BATCH_SIZE = 128
"""Batch size omitted in run ids: the published study uses it nearly everywhere."""

USUAL_SEED = 1234
"""Default seed, omitted in labels."""

_USUAL_ENGINE = {"cpu": "native", "cuda": "megatron", "rocm": "megatron"}
_RECOMPUTE_LABELS = {"none": "", "selective": "sel", "full": "act"}


def _in_order(names: Any) -> AfterValidator:
    """Return a validator that sorts flags in the order of their `Literal` type, so that equal sets are equal points."""
    return AfterValidator(lambda chosen: tuple(name for name in get_args(names) if name in chosen))


def usual_schedule(pp: int, vp: int) -> Schedule | None:
    """Return the default pipeline schedule; None without pipeline parallelism."""
    if pp == 1:
        return None
    return "interleaved_1f1b" if vp > 1 else "1f1b"


def layers_label(layers: Iterable[int]) -> str:
    """Return layers per stage as text, with consecutive equal numbers counted: `3.5`, `9.10x6.11`."""
    runs = [(count, len(list(equal))) for count, equal in itertools.groupby(layers)]
    return ".".join(f"{count}x{length}" if length > 1 else str(count) for count, length in runs)


def _is_training(point: "Point") -> bool:
    return point.task != "inference"


def lighter_ends(num_layers: int, num_stages: int) -> tuple[int, ...]:
    """Return the most even layers per stage if the number of layers is not divisible.

    The stages with one layer less are the last, then the first, then those before the last: the ends also have loss
    and embedding.

    Source:
        NVIDIA/Megatron-LM, account_for_loss_in_pipeline_split and account_for_embedding_in_pipeline_split.
    """
    each, extra = divmod(num_layers, num_stages)
    if not extra:
        return (each,) * num_stages
    lighter = [num_stages - 1, 0, *range(num_stages - 2, 0, -1)][: num_stages - extra]
    return tuple(each + (stage not in lighter) for stage in range(num_stages))


def _layers_by_ends(point: "Point") -> tuple[int, ...]:
    """Return the layers per stage that `pipeline_ends` gives; empty if it is not set or the sum is not divisible."""
    layout, stages, ends = point.layout, point.layout.pp * point.layout.vp, point.layout.pipeline_ends
    each, rest = divmod(point.model.num_layers + len(ends), stages)
    if not ends or rest:
        return ()
    first, last = each - ("embedding" in ends), each - ("loss" in ends)
    return () if layout.pp == 1 else (first, *(each,) * (stages - 2), last)


def _fold_pipeline_layers(point: "Point") -> tuple[int, ...]:
    """Return the layers per stage; empty if all stages have the same number."""
    layout, stages = point.layout, point.layout.pp * point.layout.vp
    if not layout.pipeline_layers:
        return _layers_by_ends(point)
    is_even = layout.pipeline_layers == (point.model.num_layers / stages,) * stages
    return () if layout.pp == 1 or is_even else layout.pipeline_layers


def _fold_recompute_layers(point: "Point") -> int | None:
    """Return the recomputed layers per stage; None if these are all layers of every stage."""
    is_all = {point.recompute_layers} == set(point.layout.stage_layers(point.model.num_layers))
    return None if point.recompute != "full" or is_all else point.recompute_layers


def _fold_overlap(point: "Point") -> tuple[Overlap, ...]:
    """Return the overlap flags whose communication happens and that the engine heeds."""
    layout = point.layout
    has_communication = {
        "tp": layout.sequence_parallel,
        "grad": layout.dp > 1,
        "ep": point.model.moe is not None and layout.ep > 1,
        "param": layout.dp > 1 and layout.data_parallel_sharding != "no_shard",
    }
    # FSDP overlaps gathering and reduction whatever the flags say, and turns tensor parallel overlap off
    # (NeMo megatron_base_model.py, as shipped with sitar-lab/CharLLM-PPT at dad5f27).
    # DeepSpeed's ZeRO-3 has a switch for each.
    is_fsdp = layout.data_parallel_sharding == "optim_grads_params" and point.engine != "deepspeed"
    is_heeded = {flag: flag == "ep" or not is_fsdp for flag in has_communication}
    return tuple(flag for flag in point.overlap if has_communication[flag] and is_heeded[flag] and _is_training(point))


def _fold_hosts(point: "Point") -> tuple[str, ...]:
    """Return the hosts; empty if a simulated run has them in their usual order."""
    if not point.hosts or point.engine != "simulated":
        return point.hosts
    usual = tuple(f"node{node}" for node in range(point.num_nodes))
    return () if point.hosts == usual else point.hosts


def _task_label(row: Row) -> str:
    """Return the task in run ids, such as `lora16` or `in512-out128`; empty for pre-training."""
    if row["lora_rank"] is not None:
        targets = "" if tuple(row["lora_targets"]) == TARGETS else "-".join(["", *row["lora_targets"]])
        return f"lora{row['lora_rank']}{targets.replace('linear_', '')}"
    if row["prompt_tokens"] is not None:
        return f"in{row['prompt_tokens']}-out{row['output_tokens']}"
    return ""


Host = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
GpuLimit = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}\.gpu\d{1,3}:[1-9]\d{0,4}$")]
NumSteps = Annotated[int, Field(ge=0, le=1_000_000)]
"""A number of steps, limited because each step has a row in the tables of its run."""


class Steps(Strict):
    """Number of steps of each kind; a run does them in this order."""

    warmup: NumSteps = 2
    """Steps before measuring starts."""
    measured: Annotated[NumSteps, Field(gt=0)] = 20
    """Steps with telemetry but no profiler. All times and powers come from them."""
    profiled: NumSteps = 1
    """Steps with the profiler. Traces come from them, times never."""

    @property
    def kinds(self) -> list[str]:
        """Kind of each step, in order."""
        return ["warmup"] * self.warmup + ["measured"] * self.measured + ["profiled"] * self.profiled


class Layout(Featured):
    """Distribution of the model over the ranks; degrees have the names of Megatron-LM."""

    tp: Annotated[Devices, Setting("Tensor parallel degree.", "1", "tp{}")] = 1
    pp: Annotated[Devices, Setting("Pipeline parallel degree.", "1", "pp{}")] = 1
    dp: Annotated[Devices, Setting("Data parallel degree: num_gpus / (tp*pp*cp).", "1", "dp{}")] = 1
    cp: Annotated[Devices, Setting("Context parallel degree.", "1", "cp{}", usual=1)] = 1
    context_exchange: Annotated[
        ContextExchange,
        Setting(
            "How context parallel ranks exchange keys and values: `ring`, sent around a ring; `all_gather`, gathered "
            "before attention; `all_to_all`, parts of the sequence exchanged for heads and back (Ulysses, "
            "arXiv:2309.14509). No effect at cp 1.",
            label={"all_gather": "cpgather", "all_to_all": "ulysses"},
            words={"all_gather": "gathered keys", "all_to_all": "Ulysses"},
            fold=lambda point: point.layout.context_exchange if point.layout.cp > 1 else "ring",
            engines=("simulated",),
            came_later=True,
        ),
    ] = "ring"
    ep: Annotated[
        Devices,
        Setting("Expert parallel degree; its ranks are taken from the data parallel ones.", "1", "ep{}", usual=1),
    ] = 1
    etp: Annotated[
        Devices | None,
        Setting(
            "Tensor parallel degree inside experts, a divisor of tp. The other tensor parallel ranks hold other "
            "experts or process other tokens. None: tp.",
            "1",
            "etp{}",
            needs=HAS_EXPERTS,
            fold=lambda point: point.layout.etp if point.model.moe and point.layout.etp != point.layout.tp else None,
            engines=("native", "megatron", "simulated"),
            came_later=True,
        ),
    ] = None
    vp: Annotated[
        Devices,
        Setting(
            "Model chunks per pipeline stage (virtual pipeline); above 1 the schedule is interleaved.",
            "1",
            "vp{}",
            usual=1,
            fold=lambda point: point.layout.vp if _is_training(point) else 1,
        ),
    ] = 1
    pipeline_layers: Annotated[
        tuple[StageLayers, ...],
        Setting(
            "Layers of each pipeline stage, such as `[3, 5]`: pp*vp numbers in the order of the model, so the first "
            "virtual stages of all ranks come before the second ones. A stage may have 0. Empty: an even split. Tables "
            "show 9, six times 10 and 11 layers as `9.10x6.11`, and an even split as null.",
            label="l{}",
            fold=_fold_pipeline_layers,
            came_later=True,
        ),
    ] = ()
    pipeline_ends: Annotated[
        tuple[PipelineEnd, ...],
        _in_order(PipelineEnd),
        Setting(
            "Parts that count as a layer in an even split over pipeline stages, so that their stage has one layer "
            "less: `embedding` on the first, `loss` with the output projection on the last (Megatron-LM's "
            "account_for_embedding_in_pipeline_split and account_for_loss_in_pipeline_split). Tables and run ids show "
            "the resulting split as `pipeline_layers`.",
            fold=lambda point: (
                ()
                if point.layout.pp == 1 or point.layout.pipeline_layers == _layers_by_ends(point) != ()
                else point.layout.pipeline_ends
            ),
            has_column=False,
            came_later=True,
        ),
    ] = ()
    sequence_parallel: Annotated[
        bool,
        Setting(
            "Whether activations between tensor parallel regions are split along the sequence. No effect at tp 1.",
            label={True: "sp"},
            words={True: "SP"},
            fold=lambda point: point.layout.sequence_parallel and point.layout.tp > 1 and _is_training(point),
        ),
    ] = False
    data_parallel_sharding: Annotated[
        Sharding,
        Setting(
            "State that data parallel ranks shard: nothing (DDP), optimizer state (distributed optimizer, ZeRO-1), "
            "gradients too (ZeRO-2), parameters too (FSDP, ZeRO-3). No effect at dp 1.",
            label={"optim": "zero1", "optim_grads": "zero2", "optim_grads_params": "fsdp"},
            words={"optim": "ZeRO-1", "optim_grads": "ZeRO-2", "optim_grads_params": "FSDP"},
            fold=lambda point: (
                point.layout.data_parallel_sharding
                if _is_training(point) and (point.layout.dp > 1 or point.offload)
                else "no_shard"
            ),
        ),
    ] = "no_shard"
    schedule: Annotated[
        Schedule | None,
        Setting(
            "Pipeline schedule. None: 1f1b, or interleaved_1f1b if vp is above 1. No effect at pp 1.",
            label={name: name.replace("_", "-") for name in get_args(Schedule)},
            words={"gpipe": "GPipe", "1f1b": "1F1B", "interleaved_1f1b": "interleaved", "zero_bubble": "zero-bubble"},
            usual=lambda point: usual_schedule(point.layout.pp, point.layout.vp),
            fold=lambda point: point.layout.schedule if point.layout.pp > 1 and _is_training(point) else None,
        ),
    ] = None

    @property
    def expert_tp(self) -> int:
        """Tensor parallel degree inside experts."""
        return self.etp or self.tp

    def stage_layers(self, num_layers: int) -> tuple[int, ...]:
        """Return the layers of every stage in the order of the model: virtual stage v of rank s has index v*pp + s.

        Without `pipeline_layers` the split is even, and the first stages take the remainder.
        """
        share, rest = divmod(num_layers, self.pp * self.vp)
        return self.pipeline_layers or tuple(share + (stage < rest) for stage in range(self.pp * self.vp))


class PointCluster(Strict):
    """The part of a cluster that affects a measurement."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    """Name of the cluster."""
    device: Literal["cpu", "cuda", "rocm"]
    """Device that the ranks compute on."""
    gpu: str | None
    """GPU type; none on cpu."""
    gpus_per_node: Positive
    """Ranks placed on each node."""


class Contents(Featured):
    """SHA-256 of the files that a point names, at planning; None for a file that was missing."""

    features: ClassVar[frozenset[str]] = frozenset({"corpus", "weights", "tokenizer"})

    corpus: str | None = None
    """Digest of the part of the text that is read, or of both files of an indexed corpus."""
    weights: str | None = None
    """Digest of the checkpoint."""
    tokenizer: str | None = None
    """Digest of the `tokenizer.json`."""


PREDICTED_BY = (
    "model", "tp", "pp", "cp", "dp", "micro_batch_size", "global_batch_size", "sequence_length", "precision",
)  # fmt: skip
"""Settings that a prediction of a recorded job needs; the others take the defaults of a study."""


class Recorded(Strict):
    """Origin of a point that was not planned: a watched job of the user, or imported recordings."""

    source: Annotated[str, Field(min_length=1)]
    """Recorder: `triplepoint record`, or the imported format."""
    identity: Annotated[str, Field(min_length=1)]
    """Text that distinguishes this recording from all others, such as its hosts and its time."""
    unknown: tuple[str, ...] = ()
    """Settings, and `model`, that are not known. Their values in the point have no meaning; tables have null."""
    has_steps: bool = True
    """Whether the start and end of steps are known. If not, the whole recording counts as one measured step: power and
    temperature are its means, and there is no step time."""
    marked_ranks: Literal["all"] | tuple[int, ...] = "all"
    """Ranks that recorded their own step times; the others have the times of one of these."""


class Measured(Software):
    """Settings outside the layout that studies and points have under the same key."""

    micro_batch_size: Annotated[
        Size, Setting("Sequences per rank and micro-batch.", "1", "mbs{}", words="micro-batch {}")
    ] = 1
    global_batch_size: Annotated[
        Size, Setting("Sequences per step.", "1", "gbs{}", words="batch {}", usual=USUAL_GLOBAL_BATCH_SIZE)
    ]
    sequence_length: Annotated[
        Size,
        Setting(
            "Tokens per sequence.",
            "1",
            "seq{}",
            words="sequence {}",
            usual=lambda point: point.model.sequence_length if _is_training(point) else point.sequence_length,
        ),
    ]
    task: Annotated[
        Task,
        Setting(
            "Task: `pretrain`; `lora`, adapters of a frozen model; or `inference`, prefill and generation, where a "
            "step is a batch of prompts from start to end.",
            label=_task_label,
            came_later=True,
        ),
    ] = "pretrain"
    samples: Annotated[
        Samples,
        Setting(
            "How samples are made. `packed`: each is the next `sequence_length` tokens, across documents. `padded`: "
            "each is one document (in a text file, a line), cut or padded to `sequence_length`; padding is computed "
            "but not learned.",
            label={"padded": "padded"},
            words={"padded": "padded samples"},
            fold=lambda point: point.samples if _is_training(point) else "packed",
            came_later=True,
        ),
    ] = "packed"
    recompute: Annotated[
        Recompute,
        Setting(
            "Activations recomputed in the backward pass: `none`; `selective`, those of core attention, as "
            "Megatron-LM's `core_attn`, unless `recompute_modules` or the stack name others; `full`, those of whole "
            "layers.",
            label=lambda row: f"{_RECOMPUTE_LABELS[row['recompute']]}{row['recompute_layers'] or ''}",
            words={"none": "no recompute", "selective": "selective recompute", "full": "full recompute"},
            fold=lambda point: point.recompute if _is_training(point) else "none",
        ),
    ] = "none"
    recompute_layers: Annotated[
        Layers | None,
        Setting(
            "With `recompute: full`, how many first layers of each pipeline stage, or virtual stage, are recomputed; "
            "the others keep their activations. None: all. No effect on other kinds of recomputation.",
            "1",
            words=lambda row: f"of {row['recompute_layers']} layers a stage" if row["recompute_layers"] else "",
            needs=Need(lambda point: point.recompute == "full", "recompute: full"),
            fold=_fold_recompute_layers,
            came_later=True,
        ),
    ] = None
    overlap: Annotated[
        tuple[Overlap, ...],
        _in_order(Overlap),
        Setting(
            "Communication overlapped with computation: gradient reduction (`grad`), parameter gathering (`param`), "
            "tensor parallel (`tp`), token exchange with experts behind another micro-batch (`ep`). Flags without "
            "effect in a point are removed from it.",
            label="cc-{}",
            words="overlap {}",
            needs=Need(lambda point: "ep" not in point.overlap or point.model.moe is not None, HAS_EXPERTS.words),
            fold=_fold_overlap,
        ),
    ] = ()
    offload: Annotated[
        tuple[Offload, ...],
        _in_order(Offload),
        Setting(
            "State kept in host memory: optimizer state and its update (`optim`) and parameters (`params`), as "
            "DeepSpeed's ZeRO-Offload; activations for the backward pass (`activations`), simulated only.",
            label="off-{}",
            words="offload {}",
            engines=("deepspeed", "simulated"),
            came_later=True,
        ),
    ] = ()
    precision: Annotated[
        Precision,
        Setting(
            "Number format of the GEMMs; `nvfp4` has 4 bits, with a scale of 8 bits for 16 numbers.",
            label="{}",
            usual="bf16",
        ),
    ] = "bf16"
    seed: Annotated[
        Annotated[int, Field(ge=0, lt=2**32, strict=True)],
        Setting(
            "Seed of weights and data order, 32 bits as numpy requires.",
            "1",
            "seed{}",
            words=lambda row: "" if row["seed"] == USUAL_SEED else f"seed {row['seed']}",
            usual=USUAL_SEED,
        ),
    ] = USUAL_SEED
    engine: Annotated[
        Engine,
        Setting(
            "Engine that runs the point: a training framework, or `simulated`.",
            label="{}",
            usual=lambda point: _USUAL_ENGINE[point.cluster.device],
        ),
    ]
    weights: Annotated[
        str,
        Setting(
            "Initial weights: `random` (times and power do not depend on the values), or the path of a checkpoint, a "
            "torch file with a tensor under each parameter name of the native engine.",
            has_column=False,
            came_later=True,
        ),
    ] = "random"
    corpus: Annotated[
        str,
        Setting(
            "Training text: `random` tokens; `stdlib`, the source of the Python standard library; the path of a text "
            "file; or the path, without `.bin` or `.idx`, of tokens in Megatron-LM's indexed format.",
            has_column=False,
        ),
    ] = "random"
    tokenizer: Annotated[
        str,
        Setting(
            "Tokenizer of the text: `bytes`, each byte a token, or the path of a `tokenizer.json` of Hugging Face. No "
            "effect on random tokens.",
            needs=Need(lambda point: point.corpus != "random", "a corpus of text"),
            fold=lambda point: BYTES if point.corpus == "random" else point.tokenizer,
            has_column=False,
            came_later=True,
        ),
    ] = BYTES
    steps: Annotated[Steps, Setting("Steps of each kind: warmup, measured, profiled.", has_column=False)] = Steps()
    telemetry_period_s: Annotated[
        Annotated[float, Field(ge=0.001, le=3600)],
        Setting("Sampling period of the telemetry. Unit: s.", "s", has_column=False),
    ] = 0.1
    hosts: Annotated[
        tuple[Host, ...],
        Setting(
            "Hosts in rank order, one for each node; the first has the first ranks. A launch requests them from Slurm. "
            "Hosts of a simulated run are `node0`, `node1` and so on, and keep their GPUs and faults in any order. "
            "Empty: Slurm's order. `triplepoint recommend --study` writes this key.",
            label=lambda row: "on-" + "-".join(row["hosts"]).lower() if row["hosts"] else "",
            fold=_fold_hosts,
            has_column=False,
            came_later=True,
        ),
    ] = ()
    gpu_power_limits_w: Annotated[
        tuple[GpuLimit, ...],
        AfterValidator(lambda given: tuple(sorted(given))),
        Setting(
            "Power limits of single GPUs by host and device, such as `[node1.gpu3:650]`. A launch does not set them: "
            "if a GPU has another limit it ends and prints the command to set it. `triplepoint recommend --study` "
            "writes this key. Unit: W.",
            "W",
            label=lambda row: "limits" if row["gpu_power_limits_w"] else "",
            has_column=False,
            came_later=True,
        ),
    ] = ()
    parts_of_repeat: Annotated[
        Annotated[int, Field(gt=0, le=1000, strict=True)] | None,
        Setting(
            "Repeat whose GPUs a simulated run uses, to compare runs on the same GPUs. None: each repeat draws its "
            "own GPUs from the spread of parts.",
            "1",
            label="parts{}",
            engines=("simulated",),
            has_column=False,
            came_later=True,
        ),
    ] = None


class Point(Measured):
    """Everything that determines what a run measures, and nothing else.

    The digest of these fields identifies the run: a finished launch runs again only if its digest changes.
    """

    features: ClassVar[frozenset[str]] = frozenset({"lora", "inference", "contents", "engine_revision", "recorded"})

    measurement_version: int = MEASUREMENT_VERSION
    """Version of the measuring method; the project raises it when the method changes."""
    model: ModelConfig
    """The whole architecture, so that a changed model file changes the point."""
    cluster: PointCluster
    """Cluster that the point runs on."""
    engine_revision: Positive = 1
    """Revision of the engine's behaviour for these settings, set by `fold`. Results of another revision do not count as
    results of this point. 2: selective recomputation of the native engine repeats core attention; before, it kept GEMMs
    and attention and repeated the rest. 3: experts are split over tensor parallel ranks; before, Megatron-Core, and the
    native engine with ep above 1, kept them whole. 4: tensor parallel layers of the native engine do without DTensor,
    whose dispatch in Python took most of a step on CPUs."""
    num_gpus: Positive
    """World size, tp*pp*cp*dp."""
    layout: Layout
    """Parallelism."""
    lora: Lora | None = None
    """Adapters; None without LoRA."""
    inference: Inference | None = None
    """Prompt and output lengths; None in training."""
    contents: Contents | None = None
    """Digests of the files that `weights`, `corpus` and `tokenizer` name; None if they name none."""
    trace_ranks: Literal["all"] | tuple[int, ...] = "all"
    """Ranks that write a trace of the profiled steps."""
    repeat: Positive = 1
    """Number of the repeat of this measurement, from 1."""
    recorded: Recorded | None = None
    """Origin of a recorded or imported job; None for a planned point."""

    def knows(self, *names: str) -> bool:
        """Return whether the values of all named settings, or of `model`, are known; always true if planned."""
        return self.recorded is None or not set(names) & set(self.recorded.unknown)

    @property
    def num_microbatches(self) -> int:
        """Micro-batches per rank and step."""
        return self.global_batch_size // (self.micro_batch_size * self.layout.dp)

    @property
    def num_tokens(self) -> int:
        """Tokens per step: those of the global batch; in inference, those generated."""
        length = self.sequence_length if self.inference is None else self.inference.output_tokens
        return self.global_batch_size * length

    @property
    def num_nodes(self) -> int:
        """Nodes of the run."""
        return -(-self.num_gpus // self.cluster.gpus_per_node)

    @property
    def traced_ranks(self) -> list[int]:
        """Ranks that write a trace, in order; none if no step is profiled."""
        if not self.steps.profiled:
            return []
        return list(range(self.num_gpus)) if self.trace_ranks == "all" else sorted(set(self.trace_ranks))

    @property
    def node_order(self) -> tuple[int, ...]:
        """Indices of the nodes of a simulated cluster in rank order; empty for the usual order."""
        return tuple(int(host.removeprefix("node")) for host in self.hosts) if self.engine == "simulated" else ()

    @property
    def power_limits_w(self) -> dict[tuple[str, int], float]:
        """Power limits of single GPUs by (host, device). Unit: W."""
        pairs = (text.rpartition(":") for text in self.gpu_power_limits_w)
        limits_w = ((gpu.rpartition(".gpu"), limit_w) for gpu, _, limit_w in pairs)
        return {(host, int(device)): float(limit_w) for (host, _, device), limit_w in limits_w}

    def recompute_at(self, index: int) -> Recompute:
        """Return the recomputation of a layer, by its index in its stage."""
        is_kept = self.recompute_layers is not None and index >= self.recompute_layers
        return "none" if is_kept else self.recompute

    def digest(self) -> str:
        """Return the identity of the point: SHA-256 over its canonical JSON."""
        return hashlib.sha256(canonical(self.model_dump(mode="json")).encode()).hexdigest()


def canonical(content: Any) -> str:
    """Return JSON with sorted keys and no spaces, the same text for the same content."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)


SETTINGS: Mapping[str, Setting] = MappingProxyType(
    dict(
        [
            *declared(Layout),
            *declared(Measured),
            *declared(ModelChoices),
            *declared(Lora, "lora_"),
            *declared(Inference),
        ]
    )
)
"""All settings of points by name, those of the layout first."""

_TASK_SETTINGS: dict[str, Any] = dict.fromkeys(name for name, _ in (*declared(Lora, "lora_"), *declared(Inference)))
"""Settings of LoRA and inference, with None for the points of other tasks."""

DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {name: field.default for section in (Layout, Measured) for name, field in section.model_fields.items()}
)
"""Defaults of the settings of `Layout` and `Measured`, by name."""


def settings_of(point: Point) -> dict[str, Any]:
    """Return the values of all settings of a point by name, as in table `points`; None for unknown ones."""
    lora = {f"lora_{name}": value for name, value in point.lora or ()}
    values = (
        _TASK_SETTINGS
        | choices_of(point.model)
        | {"lora_targets": ()}
        | dict(point.layout)
        | dict(point)
        | lora
        | dict(point.inference or ())
    )
    values["pipeline_layers"] = layers_label(point.layout.pipeline_layers) or None
    if point.recorded is None:
        return {name: values[name] for name in SETTINGS}
    return {name: values[name] if point.knows(name) else None for name in SETTINGS}
