"""Registry of software stacks, `config/calibration/stacks.yaml`: what each does that a table of runs leaves open."""

import difflib
import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import Field

from triplepoint.config.base import NAME_PATTERN, Quantity, Strict, unit_is
from triplepoint.config.point import ContextExchange, Overlap, Point, Precision
from triplepoint.config.software import (
    Attention,
    Dispatch,
    DispatchPrecision,
    Fp8Recipe,
    Launch,
    Moments,
    RecomputeModule,
    Software,
)
from triplepoint.config.task import TARGETS, LoraTargets
from triplepoint.config.yaml_file import read
from triplepoint.errors import PointError, UserError, shown

_Factor = Annotated[float, Field(gt=0)]
Gathered = Literal["experts", "pipelines"]
Reduced = Literal["experts", "sharded_parameters"]
SavedFp8 = Literal["expert_activation", "attention"]

SIMULATED = "Megatron-Core r0.8"
"""Software of points on the engine `simulated`, on clusters that name none."""

OF_ENGINE = {"megatron": "Megatron-Core", "deepspeed": "DeepSpeed", "native": "PyTorch"}
"""Software that a launched point is predicted for, by its engine."""

OF_STACK = ("context_exchange", "lora_targets")
"""Settings whose default a stack has, for predictions that name it."""


COMPILED_LOSS_BYTES = (26, 10)
"""As `Stack.loss_bytes`, of a loss that is compiled."""


MOMENT_BYTES: Mapping[Moments, float] = MappingProxyType({"fp32": 4.0, "bf16": 2.0, "8bit": 1 + 4 / 2048})
"""Of one of Adam's moments, by number format; 8 bits have an fp32 scale for 2,048 numbers. Source: arXiv:2110.02861,
section 2.1; of bf16 DeepSeek-V3, arXiv:2412.19437, section 3.3.3; pytorch/torchtitan docs/bf16_optimizer_states.md."""


class Stack(Strict):
    """One software stack, all its versions."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    """Name of the stack."""
    match: tuple[str, ...]
    """Words that must all stand in the framework's name, lower-case, or one of some, as in `a|b`; none for the stack of
    everything else."""
    source: Annotated[str, Field(min_length=8)]
    """Where this is published."""
    overlap: tuple[Overlap, ...]
    """Communication overlapped with computation where nothing else is said."""
    expert_tensor_parallel: Annotated[int, Field(gt=0)] | None = None
    """Tensor parallel ranks inside an expert where a table says nothing; None for those of other layers. Unit: 1."""
    attention: Attention | None = None
    """Kernels of attention, where they are not the usual ones of the GPU type. `unfused`: scores are written, masked,
    dropped out and read; otherwise they stay on the chip."""
    expert_parallel: Annotated[int, Field(gt=0)] | None = None
    """Expert parallel ranks where a table says 1 or nothing, at most; None if 1 is meant. Unit: 1."""
    has_dropout: bool = False
    """Whether attention and residual branches drop out: masks are stored."""
    launch: Launch = "eager"
    """How the host starts kernels."""
    has_fused_norms: bool = True
    """Whether a norm, and the rotation of queries and keys, are one kernel each where nothing is compiled."""
    has_fused_activation: bool = True
    """Whether bias, activation and gate are one kernel where nothing is compiled."""
    overlaps_input_gradient: bool = True
    """Whether the reduction of a column-parallel layer's input gradient is overlapped with its weight gradient."""
    tp_overlap_hidden: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of tensor parallel gathers and reduce-scatters that GEMMs hide where they are overlapped; 1 but for the
    last of four pieces of a reduce-scatter, as user buffers of Transformer Engine do. Unit: 1."""
    scatters_activations: bool = False
    """Whether pipeline sends carry 1/tp of the activation also without sequence parallelism."""
    reduces_fp32: bool = True
    """Whether gradients of bf16 training are accumulated and reduced in fp32; those of fp16 never are."""
    reduces_16bit: tuple[Reduced, ...] = ()
    """Training whose gradients are in 16 bits nonetheless: of models with experts, or where parameters are sharded."""
    loss_bytes: tuple[int, int] = (38, 14)
    """Read and written per logit by the cross entropy, forward and backward. Unit: byte.

    Of Megatron-LM, kernel by kernel: to fp32 (2+4 bytes), maximum (4), subtract (4+4), exponential (4+4), sum (4),
    divide (4+4); backward: scale (4+4), to 16 bits (4+2). Compiled into fewer kernels: 26 and 10; as one kernel on
    16-bit logits: 2 and 4. Source: NVIDIA/Megatron-LM megatron/core/tensor_parallel/cross_entropy.py and
    fusions/fused_cross_entropy.py; Dao-AILab/flash-attention csrc/xentropy."""
    recompute_modules: tuple[RecomputeModule, ...] = ("core_attn",)
    """What selective recomputation repeats."""
    fp8_recipe: Fp8Recipe = "delayed"
    """What scales of fp8 numbers are of."""
    logit_bytes: Annotated[int, Field(gt=0)] | None = None
    """Held per logit at most by the cross entropy; None for those of Megatron-LM: fp32 probabilities and the logits or
    their gradient, or the logits alone where one kernel works in place. Unit: byte."""
    has_fp8_parameters: bool = False
    """Whether fp8 training keeps parameters of GEMMs in fp8 alone, besides the optimizer's, and gathers them so."""
    has_placeholder_gradients: bool = False
    """Whether layers hand out an unused 16-bit gradient of each shape of weight, since the true one is added up inside
    the GEMM (TransformerEngine, module/base.py, get_dummy_wgrad)."""
    expert_imbalance: _Factor = 1.04
    """Load of the fullest expert parallel rank over the mean, dropless routing. Source: arXiv:2408.15664 table 2,
    MaxVio of bias-balanced routing."""
    dispatch: Dispatch = "all_to_all"
    """How tokens get to experts on other ranks; sent once per node, they are copied for each expert on arrival."""
    dispatch_precision: DispatchPrecision = "bf16"
    """Number format of tokens on their way to experts."""
    token_nodes: Annotated[int, Field(gt=0)] | None = None
    """Nodes that the experts of one token are on, at most; None for no limit. Unit: 1."""
    routes_in_turn: bool = False
    """Whether the router is a stand-in that gives a token the experts after those of the last token."""
    weighs_results: bool = True
    """Whether results of experts are multiplied with the router's weights, and so kept for its gradient; otherwise the
    activation inside the experts is, whose input is kept anyway."""
    saves_fp8: tuple[SavedFp8, ...] = ()
    """What fp8 training keeps for the backward pass in fewer bits than 16: inputs of the activation inside experts, in
    8; outputs of attention, in 12 bits, once for its own gradient and for the projection after it."""
    has_two_directions: bool = False
    """Whether micro-batches enter the pipeline from both ends (DualPipe): a rank holds two stages, the one as far from
    the start as the other is from the end, and half as much of the optimizer of each."""
    gathers_once: tuple[Gathered, ...] = ()
    """Training whose sharded parameters are gathered once a step and their gradients reduced once, not in every
    micro-batch: of models with experts, or with pipelines."""
    has_16bit_remainders: bool = False
    """Whether the optimizer of models without experts keeps, of its fp32 parameters, only the 16 bits that the bf16
    ones lack."""
    gathers_to_recompute: bool = False
    """Whether sharded parameters are gathered for a recomputed forward pass and again for the backward pass after it,
    since recomputation wraps the units that are sharded."""
    shards_fragmentation: Annotated[float, Field(ge=0)] = 0.0
    """Memory that gathering sharded parameters leaves of no use, over what is handed out. Unit: 1."""
    context_exchange: ContextExchange = "ring"
    """How context parallel ranks meet keys and values where nothing else is said."""
    lora_targets: LoraTargets = TARGETS
    """Linear layers that have adapters where nothing else is said."""
    reduces_in_switches: bool = True
    """Whether switches inside a node reduce (NVLink SHARP), where they can."""
    calibrated_as: str | None = None
    """Framework and version whose calibrated constant it takes, where it was not calibrated itself: that whose layers
    it runs."""
    host_time: Annotated[Quantity, unit_is("s")] | None = None
    """Time the host takes to launch one operation, where that is known of the stack; otherwise what its version was
    calibrated with, or the usual one."""
    has_usual_host: bool = False
    """Whether that time is the usual one of its launch, in place of what was calibrated."""
    host_time_sigma: Annotated[float, Field(ge=0)] = 0.0
    """Relative standard deviation of it. Unit: 1."""
    send_wait: Annotated[Quantity, unit_is("s")] | None = None
    """Time a send between pipeline stages and its receive last over what moving the data takes, since one of the two
    ranks comes to it later than the other: passes vary. None where not known."""
    optimizer_moments: Moments = "fp32"
    """Number format of Adam's two moments, where the state is not all in 16 bits."""
    step_pause: Annotated[Quantity, unit_is("s")] | None = None
    """Time of every step in which GPUs wait for the host, after the update: data, logs, synchronisation. None: none is
    known."""
    step_jitter: Annotated[Quantity, unit_is("1")] | None = None
    """Relative standard deviation of the time of a step from step to step. None: not known; simulated steps are all
    alike."""
    has_16bit_state: bool = False
    """Whether sharded parameters, their gradients and Adam's moments are all in 16 bits."""

    @property
    def moment_bytes(self) -> float:
        """Bytes of one of Adam's moments of a parameter."""
        return MOMENT_BYTES[self.optimizer_moments]

    @property
    def fuses_norms(self) -> bool:
        """Whether a norm is one kernel, and rotation too."""
        return self.has_fused_norms or self.launch == "compiled"

    @property
    def fuses_activation(self) -> bool:
        """Whether the activation is one kernel with bias and gate."""
        return self.has_fused_activation or self.launch == "compiled"

    @property
    def bytes_of_loss(self) -> tuple[int, int]:
        """Bytes of the cross entropy per logit: those of fewer kernels where it is compiled. Unit: byte."""
        return min(self.loss_bytes, COMPILED_LOSS_BYTES) if self.launch == "compiled" else self.loss_bytes

    def family(self, framework: str) -> str:
        """Return what versions of a framework are of: the name of this entry, or its own where it has no entry."""
        return self.name if self.match else framework

    def gradient_bytes(self, precision: Precision, kinds: Collection[Reduced] = ()) -> int:
        """Return bytes of one accumulated gradient, in training of some kinds."""
        is_wide = self.reduces_fp32 and precision != "fp16" and not set(kinds) & set(self.reduces_16bit)
        return 4 if precision == "fp32" or is_wide else 2


class AttentionKernel(Strict):
    """Kernels of attention on GPUs whose tables lack them."""

    name: Attention
    """The kernels."""
    of: Attention
    """Kernels of the same kind that a GPU's table has."""
    slowdown: _Factor
    """Their time over that of the latter. Unit: 1."""
    source: Annotated[str, Field(min_length=8)]
    """Where this is published."""


class Launching(Strict):
    """A way to start kernels."""

    name: Launch
    """The way."""
    host_time: Annotated[Quantity, unit_is("s")]
    """Time of the host for one operation, of stacks that say none of their own and runs that change the way."""
    host_time_sigma: Annotated[float, Field(ge=0)]
    """Relative standard deviation of it between stacks: a choice. Unit: 1."""


class Stacks(Strict):
    """All stacks, most special first."""

    launching: tuple[Launching, ...]
    """Each way once."""
    attention_kernels: tuple[AttentionKernel, ...]
    """First hit wins."""

    stacks: tuple[Stack, ...]
    """First hit wins."""


def read_stacks(config: Path) -> tuple[Stack, ...]:
    """Return the stacks of a configuration folder. Raises `UserError` if the file is missing or wrong."""
    return _read_all(config).stacks


def stack_of(point: Point, framework: str, config: Path) -> Stack:
    """Return the stack as a run has it: what the run says of its software in place of what is usual.

    Args:
        point: The run.
        framework: Framework and its version.
        config: Folder of the configuration.
    """
    return _changed(find_stack(framework, config), _stated(point), config)


def _stated(point: Point) -> tuple[tuple[str, object], ...]:
    values = ((name, getattr(point, name)) for name in Software.model_fields)
    return tuple((name, value) for name, value in values if value not in (None, ()))


@lru_cache(maxsize=1024)
def _changed(stack: Stack, stated: tuple[tuple[str, object], ...], config: Path) -> Stack:
    """Return a stack with other settings, the same object when asked again; the host's time follows the launch."""
    changed = stack.model_copy(update=dict(stated)) if stated else stack
    if changed.launch == stack.launch and (stack.host_time or not stack.has_usual_host):
        return changed
    way = next(way for way in _read_all(config).launching if way.name == changed.launch)
    return changed.model_copy(update={"host_time": way.host_time, "host_time_sigma": way.host_time_sigma})


def attention_kernel(name: str | None, known: Collection[str], config: Path) -> tuple[str | None, float]:
    """Return the kernels of a GPU's table that stand for some, and the time of these over theirs.

    Args:
        name: Kernels of attention; None and `unfused` for the usual ones of the GPU type.
        known: Those its table has, the usual ones first.
        config: Folder of the configuration.

    Raises:
        PointError: If the GPU type has neither them nor any they were compared with.
    """
    if name in (None, "unfused"):
        return None, 1.0
    if name in known:
        return name, 1.0
    for kernel in _read_all(config).attention_kernels:
        if kernel.name == name and kernel.of in known:
            return kernel.of, kernel.slowdown
    raise PointError(f"attention: {name}, this GPU has {' and '.join(known)}; set attention: {next(iter(known))}")


@lru_cache(maxsize=4)
def _read_all(config: Path) -> Stacks:
    return read(Stacks, config / "calibration" / "stacks.yaml")


@lru_cache(maxsize=1024)
def find_stack(framework: str, config: Path) -> Stack:
    """Return the stack a framework's name belongs to; `other`, plain PyTorch, for a name that is not known."""
    return next(stack for stack in read_stacks(config) if all(_has(framework, word) for word in stack.match))


def _joined(name: str) -> str:
    """Return a name without what people put between its words, or leave out: `torch titan`, `Megatron LM`."""
    return re.sub(r"[\s_-]", "", name.lower())


@lru_cache(maxsize=256)
def _pattern(word: str) -> re.Pattern[str]:
    """Return what finds a word, or one of some, that no other letters follow but those of `_ENDINGS`."""
    parts = "|".join(r"[\s_-]*".join(map(re.escape, _joined(part))) for part in word.split("|"))
    return re.compile(rf"(?:{parts})(?![a-z])|(?:{parts})(?={_ENDINGS})")


_ENDINGS = "lm|core|deepspeed|bridge|face|ai|automodel|framework|megatron|fw|foundry"
"""What is written together with the word before it: `MegatronCore`, `HuggingFace`, `ColossalAI`."""


def _has(name: str, word: str) -> bool:
    return _pattern(word).search(name.lower()) is not None


_MEGATRON = r"megatron-core|megatron-lm-.*"
_RUNS_ON: tuple[tuple[str, str], ...] = (
    (r"nemo.*", rf"nemo.*|{_MEGATRON}"),
    (r"megatron-deepspeed", rf"deepspeed|{_MEGATRON}"),
    (r"primus", rf"torchtitan|{_MEGATRON}"),
    (r"hugging-face", r"deepspeed"),
    (r"megatron-.*|flagscale|megascale", _MEGATRON),
)
"""Stacks, as patterns, and others whose words their names may have besides, since they are built on them."""


@lru_cache(maxsize=256)
def check_one(framework: str, config: Path) -> str:
    """Return a line where a framework's name has the words of several stacks that are not built on each other."""
    names = [one.name for one in read_stacks(config) if one.match and all(_has(framework, word) for word in one.match)]
    below = next((others for name, others in _RUNS_ON if names and re.fullmatch(name, names[0])), "")
    others = [name for name in names[1:] if name != names[0] and not re.fullmatch(below, name)]
    if not others:
        return ""
    return f"{shown(framework)} names {' and '.join(dict.fromkeys((names[0], *others)))}, expected one software stack"


_PLAIN = re.compile(r"\b(?:py)?torch\b|\bfsdp\d?\b|\bddp\b")
"""Names of what `other` stands for: plain PyTorch."""


def unknown_stack(framework: str, config: Path) -> str:
    """Return a line where a framework's name is that of no stack, with the nearest known one; nothing where it is."""
    if find_stack(framework, config).match or _PLAIN.search(framework.lower()):
        return ""
    return f"framework {shown(framework)} is taken as plain PyTorch, it is none that is known{_near(framework, config)}"


def _near(framework: str, config: Path) -> str:
    """Return the nearest known stacks as a question, nothing where none is near."""
    names = {name.lower(): name for name in OF_ENGINE.values()}
    for one in sorted(read_stacks(config), key=lambda stack: len(stack.match)):
        whole = " ".join(word.split("|")[0] for word in one.match)
        for word in (word for name in one.match for word in name.split("|")):
            names.setdefault(word, word if len(one.match) == 1 else whole)
    words = [_joined(framework), *re.split(r"[^a-z]+", framework.lower())]
    near = {names[name]: None for word in words for name in difflib.get_close_matches(word, names, 2, _LEAST_ALIKE)}
    return f" (did you mean {' or '.join(list(near)[:2])}?)" if near else ""


_LEAST_ALIKE = 0.7


def check_stack(framework: str, where: str | Path, config: Path) -> None:
    """Raise `UserError`, naming the known stacks, where a framework's name is that of none or of several.

    Args:
        framework: Framework and version.
        where: What names it, for the error.
        config: Folder of the configuration.
    """
    if line := check_one(framework, config):
        raise UserError(f"{where}: stack: {line}")
    if find_stack(framework, config).match or framework in OF_ENGINE.values():
        return
    names = ", ".join([*OF_ENGINE.values(), *(" ".join(one.match) for one in read_stacks(config) if one.match)])
    known = _near(framework, config) or f": {names}"
    raise UserError(f"{where}: stack: no known software in {framework!r}; expected a name with the words of one{known}")
