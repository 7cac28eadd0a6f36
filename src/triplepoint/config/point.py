"""One configuration point of a study, complete in itself: what `point.json` holds.

Every setting is declared once, with its field: `Layout` and `Measured` hold those that studies have under the same key.
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
"""Tokenizer of texts that needs no file: each byte is a token."""

USUAL_GLOBAL_BATCH_SIZE = 128
"""Left out of run ids: the published study trains nearly everything with it."""

USUAL_SEED = 1234

_USUAL_ENGINE = {"cpu": "native", "cuda": "megatron", "rocm": "megatron"}
_RECOMPUTE = {"none": "", "selective": "sel", "full": "act"}


def _in_order(names: Any) -> AfterValidator:
    """Return the validator that keeps flags in the order of their type, so that the same set is the same point."""
    return AfterValidator(lambda chosen: tuple(name for name in get_args(names) if name in chosen))


def usual_schedule(pp: int, vp: int) -> Schedule | None:
    """Return the schedule of a layout that names none."""
    if pp == 1:
        return None
    return "interleaved_1f1b" if vp > 1 else "1f1b"


def layers_label(layers: Iterable[int]) -> str:
    """Return the layers of stages, a run of equal ones once with its length: `3.5`, `9.10x6.11`."""
    runs = [(count, len(list(equal))) for count, equal in itertools.groupby(layers)]
    return ".".join(f"{count}x{length}" if length > 1 else str(count) for count, length in runs)


def _is_training(point: "Point") -> bool:
    return point.task != "inference"


def lighter_ends(num_layers: int, num_stages: int) -> tuple[int, ...]:
    """Return layers of stages as even as can be: lighter are the last, then the first, then those before the last.

    Source:
        NVIDIA/Megatron-LM, account_for_loss_in_pipeline_split and account_for_embedding_in_pipeline_split.
    """
    each, extra = divmod(num_layers, num_stages)
    if not extra:
        return (each,) * num_stages
    lightest = [num_stages - 1, 0, *range(num_stages - 2, 0, -1)][: num_stages - extra]
    return tuple(each + (stage not in lightest) for stage in range(num_stages))


def _layers_by_ends(point: "Point") -> tuple[int, ...]:
    """Return the layers of stages where ends count as layers; nothing where they do not, or the sum does not split."""
    layout, stages, ends = point.layout, point.layout.pp * point.layout.vp, point.layout.pipeline_ends
    each, rest = divmod(point.model.num_layers + len(ends), stages)
    if not ends or rest:
        return ()
    first, last = each - ("embedding" in ends), each - ("loss" in ends)
    return () if layout.pp == 1 else (first, *(each,) * (stages - 2), last)


def _uneven_layers(point: "Point") -> tuple[int, ...]:
    """Return the layers of stages, nothing where all have the same number."""
    layout, stages = point.layout, point.layout.pp * point.layout.vp
    if not layout.pipeline_layers:
        return _layers_by_ends(point)
    is_even = layout.pipeline_layers == (point.model.num_layers / stages,) * stages
    return () if layout.pp == 1 or is_even else layout.pipeline_layers


def _unlike_layers(point: "Point") -> int | None:
    """Return the number of recomputed layers, none where it is all of every stage."""
    is_all = {point.recompute_layers} == set(point.layout.stage_layers(point.model.num_layers))
    return None if point.recompute != "full" or is_all else point.recompute_layers


def _useful_overlap(point: "Point") -> tuple[Overlap, ...]:
    """Return the overlaps of communication that happens."""
    layout, useful = point.layout, {"tp": point.layout.sequence_parallel, "grad": point.layout.dp > 1}
    useful["ep"] = point.model.moe is not None and layout.ep > 1
    useful["param"] = layout.dp > 1 and layout.data_parallel_sharding != "no_shard"
    # FSDP overlaps gathering and reduction whatever the flags say, and turns tensor parallel overlap off
    # (NeMo megatron_base_model.py, as shipped with sitar-lab/CharLLM-PPT at dad5f27).
    # DeepSpeed's ZeRO-3 has a switch for each.
    is_fsdp = layout.data_parallel_sharding == "optim_grads_params" and point.engine != "deepspeed"
    is_left = {flag: flag == "ep" or not is_fsdp for flag in useful}
    return tuple(flag for flag in point.overlap if useful[flag] and is_left[flag] and _is_training(point))


def _moved_hosts(point: "Point") -> tuple[str, ...]:
    """Return the hosts, nothing where those of a simulated run are in the order they have anyhow."""
    if not point.hosts or point.engine != "simulated":
        return point.hosts
    usual = tuple(f"node{node}" for node in range(point.num_nodes))
    return () if point.hosts == usual else point.hosts


def _task_label(row: Row) -> str:
    if row["lora_rank"] is not None:
        targets = "" if tuple(row["lora_targets"]) == TARGETS else "-".join(["", *row["lora_targets"]])
        return f"lora{row['lora_rank']}{targets.replace('linear_', '')}"
    if row["prompt_tokens"] is not None:
        return f"in{row['prompt_tokens']}-out{row['output_tokens']}"
    return ""


Host = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
GpuLimit = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}\.gpu\d{1,3}:[1-9]\d{0,4}$")]
NumSteps = Annotated[int, Field(ge=0, le=1_000_000)]
"""Each step has a row in the tables of its run."""


class Steps(Strict):
    """How many steps of each kind a run makes, in this order."""

    warmup: NumSteps = 2
    """Steps before measuring starts."""
    measured: Annotated[NumSteps, Field(gt=0)] = 20
    """Steps timed with telemetry only; every figure of time and power comes from these."""
    profiled: NumSteps = 1
    """Steps with the profiler on; traces come from these, times never do."""

    @property
    def kinds(self) -> list[str]:
        """Kind of each step, in order."""
        return ["warmup"] * self.warmup + ["measured"] * self.measured + ["profiled"] * self.profiled


class Layout(Featured):
    """How the model is spread over the ranks; degrees spelled as Megatron-LM spells them."""

    tp: Annotated[Devices, Setting("Tensor parallel degree.", "1", "tp{}")] = 1
    pp: Annotated[Devices, Setting("Pipeline parallel degree.", "1", "pp{}")] = 1
    dp: Annotated[Devices, Setting("Data parallel degree: num_gpus / (tp*pp*cp).", "1", "dp{}")] = 1
    cp: Annotated[Devices, Setting("Context parallel degree.", "1", "cp{}", usual=1)] = 1
    context_exchange: Annotated[
        ContextExchange,
        Setting(
            "How context parallel ranks meet keys and values: sent round a ring, gathered before (`all_gather`), or "
            "pieces of the sequence exchanged for heads and back (`all_to_all`: Ulysses, arXiv:2309.14509); without "
            "effect at cp 1.",
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
            "Tensor parallel degree inside experts, a divisor of tp; the ranks it leaves take other experts, or other "
            "tokens. None: tp.",
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
            "Virtual pipeline stages per rank; above 1 the schedule is interleaved.",
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
            "virtual stages of all ranks, then the second ones; a stage may have 0. Empty: the same number on each. "
            "Tables have `9.10x6.11` for 9, six times 10, and 11 layers, and null for an even split.",
            label="l{}",
            fold=_uneven_layers,
            came_later=True,
        ),
    ] = ()
    pipeline_ends: Annotated[
        tuple[PipelineEnd, ...],
        _in_order(PipelineEnd),
        Setting(
            "What counts as a layer in an even split over pipeline stages, so that its stage has one less: `embedding` "
            "on the first, `loss` with the output projection on the last (Megatron-LM's "
            "account_for_embedding_in_pipeline_split and account_for_loss_in_pipeline_split). The split is that of "
            "`pipeline_layers`, which stands in tables and run ids.",
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
            "Whether activations between tensor parallel regions are split along the sequence; without effect at tp 1.",
            label={True: "sp"},
            words={True: "SP"},
            fold=lambda point: point.layout.sequence_parallel and point.layout.tp > 1 and _is_training(point),
        ),
    ] = False
    data_parallel_sharding: Annotated[
        Sharding,
        Setting(
            "What data parallel ranks shard: nothing (DDP), optimizer state (distributed optimizer, ZeRO-1), gradients "
            "too (ZeRO-2), parameters too (FSDP, ZeRO-3); without effect at dp 1.",
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
            "Pipeline schedule; without effect at pp 1.",
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
        """Return the layers of every stage in the order of the model: virtual stage v of rank s is number v*pp + s.

        Where nothing is said shares are even, and the first stages take what is left over.
        """
        share, rest = divmod(num_layers, self.pp * self.vp)
        return self.pipeline_layers or tuple(share + (stage < rest) for stage in range(self.pp * self.vp))


class PointCluster(Strict):
    """The part of a cluster that decides what is measured."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    """Name of the cluster."""
    device: Literal["cpu", "cuda", "rocm"]
    """What the ranks compute on."""
    gpu: str | None
    """GPU type; none on cpu."""
    gpus_per_node: Positive
    """Ranks placed on each node."""


class Contents(Featured):
    """What stood in the files a point names when it was planned: SHA-256 of each, none where the file was not there."""

    features: ClassVar[frozenset[str]] = frozenset({"corpus", "weights", "tokenizer"})

    corpus: str | None = None
    """Of the part of a text that is read, or of both files of an indexed corpus."""
    weights: str | None = None
    """Of the checkpoint."""
    tokenizer: str | None = None
    """Of the `tokenizer.json`."""


PREDICTED_BY = (
    "model", "tp", "pp", "cp", "dp", "micro_batch_size", "global_batch_size", "sequence_length", "precision",
)  # fmt: skip
"""What must be known of a recorded job for a prediction; other settings are then taken as in a study."""


class Recorded(Strict):
    """That a point was not planned: a job that something else started was watched, or its recordings were read."""

    source: Annotated[str, Field(min_length=1)]
    """What it was recorded by: `triplepoint record`, or the format it was imported from."""
    identity: Annotated[str, Field(min_length=1)]
    """What tells it from every other recording, such as its hosts and its time."""
    unknown: tuple[str, ...] = ()
    """Settings, and `model`, that nobody knows: what stands in the point for them has no meaning, tables have null."""
    has_steps: bool = True
    """Whether the beginnings and ends of its steps are known. If not, its one measured step is the whole recording:
    power and heat are its means, and there is no step time."""
    marked_ranks: Literal["all"] | tuple[int, ...] = "all"
    """Ranks whose own times of steps are known; the others have those of one of them."""


class Measured(Software):
    """Settings that a study and a point have under the same key, other than the layout."""

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
            "What is done: `pretrain`, `lora` (adapters beside a frozen model) or `inference` (prompts read, text "
            "generated; a step is a batch from its start to its end).",
            label=_task_label,
            came_later=True,
        ),
    ] = "pretrain"
    samples: Annotated[
        Samples,
        Setting(
            "`packed`: a sample is cut from the text as it comes, over ends of documents. `padded`: it is one document "
            "(of a text, a line), cut at the sequence length or padded to it; padding is computed but not learned.",
            label={"padded": "padded"},
            words={"padded": "padded samples"},
            fold=lambda point: point.samples if _is_training(point) else "packed",
            came_later=True,
        ),
    ] = "packed"
    recompute: Annotated[
        Recompute,
        Setting(
            "Activations recomputed in the backward pass: `none`; `selective`, those of the core of attention, from "
            "queries, keys and values, as Megatron-LM's `core_attn`, where `recompute_modules` and the stack say "
            "nothing else; or `full`, of whole layers.",
            label=lambda row: f"{_RECOMPUTE[row['recompute']]}{row['recompute_layers'] or ''}",
            words={"none": "no recompute", "selective": "selective recompute", "full": "full recompute"},
            fold=lambda point: point.recompute if _is_training(point) else "none",
        ),
    ] = "none"
    recompute_layers: Annotated[
        Layers | None,
        Setting(
            "With `recompute: full`, how many layers of each pipeline stage, or virtual stage, are recomputed, the "
            "first ones; the others keep their activations. None: all of them; without effect on other kinds of "
            "recomputation.",
            "1",
            words=lambda row: f"of {row['recompute_layers']} layers a stage" if row["recompute_layers"] else "",
            needs=Need(lambda point: point.recompute == "full", "recompute: full"),
            fold=_unlike_layers,
            came_later=True,
        ),
    ] = None
    overlap: Annotated[
        tuple[Overlap, ...],
        _in_order(Overlap),
        Setting(
            "Communication overlapped with computation: gradient reduction, parameter gathering, tensor parallel, "
            "tokens on their way to experts and back (`ep`, behind another micro-batch); a flag that can do nothing in "
            "a point is left out of it.",
            label="cc-{}",
            words="overlap {}",
            needs=Need(lambda point: "ep" not in point.overlap or point.model.moe is not None, HAS_EXPERTS.words),
            fold=_useful_overlap,
        ),
    ] = ()
    offload: Annotated[
        tuple[Offload, ...],
        _in_order(Offload),
        Setting(
            "What a rank keeps in the memory of its host: optimizer state with its update (`optim`), parameters "
            "(`params`): DeepSpeed's ZeRO-Offload; what is kept for the backward pass (`activations`), which is "
            "simulated alone.",
            label="off-{}",
            words="offload {}",
            engines=("deepspeed", "simulated"),
            came_later=True,
        ),
    ] = ()
    precision: Annotated[
        Precision,
        Setting(
            "Number format of the GEMMs; `nvfp4`: 4 bits, with a scale of 8 bits for 16 numbers.",
            label="{}",
            usual="bf16",
        ),
    ] = "bf16"
    seed: Annotated[
        Annotated[int, Field(ge=0, lt=2**32, strict=True)],
        Setting(
            "Seed of weights and data order, of 32 bits: numpy takes no more, torch takes 64.",
            "1",
            "seed{}",
            words=lambda row: "" if row["seed"] == USUAL_SEED else f"seed {row['seed']}",
            usual=USUAL_SEED,
        ),
    ] = USUAL_SEED
    engine: Annotated[
        Engine,
        Setting("What trains, or `simulated`.", label="{}", usual=lambda point: _USUAL_ENGINE[point.cluster.device]),
    ]
    weights: Annotated[
        str,
        Setting(
            "Weights to start from: `random` (what is measured does not depend on their values), or the path of a "
            "checkpoint: a file of torch with a tensor under each name of the native engine.",
            has_column=False,
            came_later=True,
        ),
    ] = "random"
    corpus: Annotated[
        str,
        Setting(
            "Text: `random` tokens, `stdlib` (source of the Python standard library), the path of a text file, or that "
            "of Megatron-LM's indexed format, which holds tokens, without `.bin` or `.idx`.",
            has_column=False,
        ),
    ] = "random"
    tokenizer: Annotated[
        str,
        Setting(
            "What makes tokens of a text: `bytes`, each of which is one, or the path of a `tokenizer.json` of Hugging "
            "Face; without effect on random tokens.",
            needs=Need(lambda point: point.corpus != "random", "a corpus of text"),
            fold=lambda point: BYTES if point.corpus == "random" else point.tokenizer,
            has_column=False,
            came_later=True,
        ),
    ] = BYTES
    steps: Annotated[Steps, Setting("Steps of each kind: warmup, measured, profiled.", has_column=False)] = Steps()
    telemetry_period_s: Annotated[
        Annotated[float, Field(ge=0.001, le=3600)],
        Setting("Time between telemetry samples. Unit: s.", "s", has_column=False),
    ] = 0.1
    hosts: Annotated[
        tuple[Host, ...],
        Setting(
            "Hosts in rank order, one for each node: the first has the first ranks. A launch asks Slurm for them. "
            "Simulated they are `node0`, `node1` and so on, whose parts and faults go with them. Empty: in Slurm's "
            "order. `triplepoint recommend --study` writes it.",
            label=lambda row: "on-" + "-".join(row["hosts"]).lower() if row["hosts"] else "",
            fold=_moved_hosts,
            has_column=False,
            came_later=True,
        ),
    ] = ()
    gpu_power_limits_w: Annotated[
        tuple[GpuLimit, ...],
        AfterValidator(lambda given: tuple(sorted(given))),
        Setting(
            "Power limits of single GPUs, such as `[node1.gpu3:650]`, by host and device. A launch sets none: it "
            "ends where a GPU has another one, and says the command. `triplepoint recommend --study` writes it. Unit: "
            "W.",
            "W",
            label=lambda row: "limits" if row["gpu_power_limits_w"] else "",
            has_column=False,
            came_later=True,
        ),
    ] = ()
    parts_of_repeat: Annotated[
        Annotated[int, Field(gt=0, le=1000, strict=True)] | None,
        Setting(
            "Repeat whose GPUs a simulated cluster has, so that runs can be compared on the same ones. None: each "
            "repeat has GPUs of its own, drawn as parts differ.",
            "1",
            label="parts{}",
            engines=("simulated",),
            has_column=False,
            came_later=True,
        ),
    ] = None


class Point(Measured):
    """Everything that decides what a run measures, and nothing else.

    The digest of these fields is the identity of a run: when it changes the run is launched again, and only then.
    """

    features: ClassVar[frozenset[str]] = frozenset({"lora", "inference", "contents", "engine_revision", "recorded"})

    measurement_version: int = MEASUREMENT_VERSION
    """Way of measuring; raised by the project when it changes."""
    model: ModelConfig
    """The whole architecture, so that a changed model file is a changed point."""
    cluster: PointCluster
    """Where it runs."""
    engine_revision: Positive = 1
    """What the engine does for these settings, where a later version does something else: set by `fold`, so that a
    result of another revision is not taken for one of this point. 2: selective recomputation of the native engine
    repeats the core of attention; before, it kept GEMMs and attention and repeated the rest. 3: experts are split over
    tensor parallel ranks; before, Megatron-Core kept them whole, and the native engine did with ep above 1."""
    num_gpus: Positive
    """World size, tp*pp*cp*dp."""
    layout: Layout
    """Parallelism."""
    lora: Lora | None = None
    """Adapters; none without LoRA."""
    inference: Inference | None = None
    """What is asked of the model; none in training. A step is a batch of sequences from their start to their end."""
    contents: Contents | None = None
    """What stands in the files that weights, corpus and tokenizer name; none where they name none."""
    trace_ranks: Literal["all"] | tuple[int, ...] = "all"
    """Ranks that write a trace of the profiled steps."""
    repeat: Positive = 1
    """Which repeat of the same measurement this is, from 1."""
    recorded: Recorded | None = None
    """What is known of a job that something else started; none of a point that was planned."""

    def knows(self, *names: str) -> bool:
        """Return whether the values of some settings, or `model`, are known: of a planned point all are."""
        return self.recorded is None or not set(names) & set(self.recorded.unknown)

    @property
    def num_microbatches(self) -> int:
        """Micro-batches per rank and step."""
        return self.global_batch_size // (self.micro_batch_size * self.layout.dp)

    @property
    def num_tokens(self) -> int:
        """Tokens a step is counted by: those of the global batch, in inference those made."""
        length = self.sequence_length if self.inference is None else self.inference.output_tokens
        return self.global_batch_size * length

    @property
    def num_nodes(self) -> int:
        """Nodes the ranks fill."""
        return -(-self.num_gpus // self.cluster.gpus_per_node)

    @property
    def traced_ranks(self) -> list[int]:
        """Ranks that write a trace, in order; none where no step is profiled."""
        if not self.steps.profiled:
            return []
        return list(range(self.num_gpus)) if self.trace_ranks == "all" else sorted(set(self.trace_ranks))

    @property
    def node_order(self) -> tuple[int, ...]:
        """Node of a simulated cluster at every place of the rank order; empty where they stand as they are."""
        return tuple(int(host.removeprefix("node")) for host in self.hosts) if self.engine == "simulated" else ()

    @property
    def power_limits_w(self) -> dict[tuple[str, int], float]:
        """Power limits of single GPUs by (host, device). Unit: W."""
        named = (text.rpartition(":") for text in self.gpu_power_limits_w)
        split = ((gpu.rpartition(".gpu"), limit) for gpu, _, limit in named)
        return {(host, int(device)): float(limit) for (host, _, device), limit in split}

    def recompute_at(self, place: int) -> Recompute:
        """Return what is recomputed of a layer, by its place in its stage, from 0."""
        is_kept = self.recompute_layers is not None and place >= self.recompute_layers
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

_OF_SOME_TASKS: dict[str, Any] = dict.fromkeys(name for name, _ in (*declared(Lora, "lora_"), *declared(Inference)))
"""Settings that not every point has."""

DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {name: field.default for section in (Layout, Measured) for name, field in section.model_fields.items()}
)
"""What settings are where nothing is said, by name."""


def settings_of(point: Point) -> dict[str, Any]:
    """Return the values of all settings of a point by name, as table `points` has them; None of those not known."""
    lora = {f"lora_{name}": value for name, value in point.lora or ()}
    values = (
        _OF_SOME_TASKS
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
