"""One configuration point of a study, complete in itself: what `point.json` holds."""

import hashlib
import json
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from triplepoint import MEASUREMENT_VERSION
from triplepoint.config.base import NAME_PATTERN, Featured, Strict
from triplepoint.config.model import ModelConfig
from triplepoint.config.task import Inference, Lora, Task

Positive = Annotated[int, Field(gt=0)]
Engine = Literal["native", "megatron", "deepspeed", "simulated"]
Offload = Literal["optim", "params"]
Overlap = Literal["grad", "param", "tp"]
Precision = Literal["fp32", "bf16", "fp16", "fp8"]
Recompute = Literal["none", "selective", "full"]
Samples = Literal["packed", "padded"]
Schedule = Literal["gpipe", "1f1b", "interleaved_1f1b", "zero_bubble"]
Sharding = Literal["no_shard", "optim", "optim_grads", "optim_grads_params"]


BYTES = "bytes"
"""Tokenizer of texts that needs no file: each byte is a token."""


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

    features: ClassVar[frozenset[str]] = frozenset({"pipeline_layers"})

    tp: Positive = 1
    """Tensor parallel degree."""
    pp: Positive = 1
    """Pipeline parallel degree."""
    dp: Positive = 1
    """Data parallel degree: num_gpus / (tp*pp*cp)."""
    cp: Positive = 1
    """Context parallel degree."""
    ep: Positive = 1
    """Expert parallel degree; its ranks are taken from the data parallel ones."""
    vp: Positive = 1
    """Virtual pipeline stages per rank; above 1 the schedule is interleaved."""
    sequence_parallel: bool = False
    """Whether activations between tensor-parallel regions are split along the sequence."""
    data_parallel_sharding: Sharding = "no_shard"
    """What data parallel ranks share out: nothing (DDP), optimizer state (distributed optimizer, ZeRO-1), gradients too
    (ZeRO-2), parameters too (FSDP, ZeRO-3)."""
    schedule: Schedule | None = None
    """Pipeline schedule; none without pipeline parallelism."""
    pipeline_layers: tuple[Positive, ...] = ()
    """Layers of each pipeline stage, virtual ones too, in the order of the model; empty for an even split."""

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


class Point(Featured):
    """Everything that decides what a run measures, and nothing else.

    The digest of these fields is the identity of a run: when it changes the run is launched again, and only then.
    """

    features: ClassVar[frozenset[str]] = frozenset(
        {
            *(
                "recompute_layers",
                "offload",
                "task",
                "lora",
                "inference",
                "weights",
                "tokenizer",
                "samples",
                "contents",
            ),
            "engine_revision",
        }
    )

    measurement_version: int = MEASUREMENT_VERSION
    """Way of measuring; raised by the project when it changes."""
    model: ModelConfig
    """The whole architecture, so that a changed model file is a changed point."""
    cluster: PointCluster
    """Where it runs."""
    engine: Engine
    """What trains."""
    engine_revision: Positive = 1
    """What the engine does for these settings, where a later version does something else: set by `fold`, so that a
    result of another revision is not taken for one of this point. 2: selective recomputation of the native engine
    repeats the core of attention; before, it kept GEMMs and attention and repeated the rest."""
    num_gpus: Positive
    """World size, tp*pp*cp*dp."""
    layout: Layout
    """Parallelism."""
    micro_batch_size: Positive
    """Sequences per rank and micro-batch."""
    global_batch_size: Positive
    """Sequences per step."""
    sequence_length: Positive
    """Tokens per sequence."""
    recompute: Recompute = "none"
    """Activations recomputed in the backward pass: none, those of the core of attention, or of whole layers."""
    recompute_layers: Positive | None = None
    """With `full`, how many layers of each pipeline stage, virtual ones too, are recomputed, the first ones; none for
    all."""
    overlap: tuple[Overlap, ...] = ()
    """Communication overlapped with computation: gradient reduction, parameter gathering, tensor parallel."""
    offload: tuple[Offload, ...] = ()
    """What a rank keeps in the memory of its host: optimizer state with its update, parameters; deepspeed only."""
    precision: Precision = "bf16"
    """Number format of the matrix products."""
    task: Task = "pretrain"
    """What is done."""
    lora: Lora | None = None
    """Adapters; none without LoRA."""
    inference: Inference | None = None
    """What is asked of the model; none in training. A step is a batch of sequences from their start to their end."""
    weights: str = "random"
    """Weights to start from: `random`, or the path of a checkpoint."""
    corpus: str = "random"
    """Text: `random` tokens, `stdlib` (source of the Python standard library), or a path."""
    tokenizer: str = BYTES
    """What makes tokens of a text: `bytes`, or the path of a `tokenizer.json`."""
    samples: Samples = "packed"
    """Whether samples are cut from the text as it comes, or each is one document, cut or padded to the sequence."""
    contents: Contents | None = None
    """What stands in the files that weights, corpus and tokenizer name; none where they name none."""
    seed: int = 1234
    """Seed of weights and data order."""
    steps: Steps = Steps()
    """Steps of each kind."""
    trace_ranks: Literal["all"] | tuple[int, ...] = "all"
    """Ranks that write a trace of the profiled steps."""
    telemetry_period_s: Annotated[float, Field(gt=0)] = 0.1
    """Time between telemetry samples. Unit: s."""
    repeat: Positive = 1
    """Which repeat of the same measurement this is, from 1."""

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
