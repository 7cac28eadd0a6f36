"""Registry of software stacks: properties that a table of runs leaves open, from `config/calibration/stacks.yaml`."""

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
"""Software for which launched points are predicted, by engine."""

OF_STACK = ("context_exchange", "lora_targets")
"""Settings whose default the stack decides, in predictions that name one."""


COMPILED_LOSS_BYTES = (26, 10)
"""Like `Stack.loss_bytes`, for a compiled loss."""


MOMENT_BYTES: Mapping[Moments, float] = MappingProxyType({"fp32": 4.0, "bf16": 2.0, "8bit": 1 + 4 / 2048})
"""Bytes of one Adam moment of a parameter, by number format; with 8 bits, 2,048 numbers share an fp32 scale. Source:
arXiv:2110.02861, section 2.1; bf16: DeepSeek-V3, arXiv:2412.19437, section 3.3.3; pytorch/torchtitan
docs/bf16_optimizer_states.md."""


class Stack(Strict):
    """One software stack, all versions."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    """Name of the stack."""
    match: tuple[str, ...]
    """Lower-case words that the framework's name must all contain; `a|b` stands for either word. None for the stack of
    all other names."""
    source: Annotated[str, Field(min_length=8)]
    """Publication of the properties."""
    overlap: tuple[Overlap, ...]
    """Communication overlapped with computation, if a run does not state it."""
    expert_tensor_parallel: Annotated[int, Field(gt=0)] | None = None
    """Tensor parallel ranks inside an expert, if a table does not state them; None for those of other layers.
    Unit: 1."""
    attention: Attention | None = None
    """Attention kernels, if not the default of the GPU type. `unfused`: scores are written, masked, dropped out and
    read; fused kernels keep them on the chip."""
    expert_parallel: Annotated[int, Field(gt=0)] | None = None
    """Largest number of expert parallel ranks if a table states 1 or nothing; None if 1 is meant. Unit: 1."""
    has_dropout: bool = False
    """Whether attention and residual branches have dropout, whose masks are stored."""
    launch: Launch = "eager"
    """How the host starts kernels."""
    has_fused_norms: bool = True
    """Whether a norm, and the rotation of queries and keys, is one kernel each without compilation."""
    has_fused_activation: bool = True
    """Whether bias, activation and gate are one kernel without compilation."""
    overlaps_input_gradient: bool = True
    """Whether the reduction of a column-parallel layer's input gradient overlaps its weight gradient."""
    tp_overlap_hidden: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of overlapped tensor parallel gathers and reduce-scatters that GEMMs hide; 1 hides all except the last of
    four pieces of a reduce-scatter, as user buffers of Transformer Engine do. Unit: 1."""
    scatters_activations: bool = False
    """Whether pipeline sends carry 1/tp of the activation also without sequence parallelism."""
    reduces_fp32: bool = True
    """Whether gradients of bf16 training are accumulated and reduced in fp32; those of fp16 training never are."""
    reduces_16bit: tuple[Reduced, ...] = ()
    """Kinds of training whose gradients are in 16 bits nonetheless: models with experts, or sharded parameters."""
    loss_bytes: tuple[int, int] = (38, 14)
    """Bytes that the cross entropy reads and writes per logit, forward and backward. Unit: byte.

    Megatron-LM, kernel by kernel: to fp32 (2+4 bytes), maximum (4), subtract (4+4), exponential (4+4), sum (4), divide
    (4+4); backward: scale (4+4), to 16 bits (4+2). Compiled into fewer kernels: 26 and 10. As one kernel on 16-bit
    logits: 2 and 4. Source: NVIDIA/Megatron-LM megatron/core/tensor_parallel/cross_entropy.py and
    fusions/fused_cross_entropy.py; Dao-AILab/flash-attention csrc/xentropy.
    """
    recompute_modules: tuple[RecomputeModule, ...] = ("core_attn",)
    """Modules that selective recomputation repeats."""
    fp8_recipe: Fp8Recipe = "delayed"
    """Granularity of fp8 scales."""
    logit_bytes: Annotated[int, Field(gt=0)] | None = None
    """Largest memory of the cross entropy per logit. None for Megatron-LM: fp32 probabilities and the logits or their
    gradient, or only the logits if one kernel works in place. Unit: byte."""
    has_fp8_parameters: bool = False
    """Whether fp8 training keeps parameters of GEMMs only in fp8, in addition to the optimizer's, and gathers them
    so."""
    has_placeholder_gradients: bool = False
    """Whether layers allocate an unused 16-bit gradient per shape of weight, because the GEMM accumulates the real
    gradient (TransformerEngine, module/base.py, get_dummy_wgrad)."""
    expert_imbalance: _Factor = 1.04
    """Load of the fullest expert parallel rank over the mean, with dropless routing. Source: arXiv:2408.15664 table 2,
    MaxVio of bias-balanced routing."""
    dispatch: Dispatch = "all_to_all"
    """How tokens reach experts on other ranks; tokens sent once per node are copied for each expert on arrival."""
    dispatch_precision: DispatchPrecision = "bf16"
    """Number format of tokens sent to experts."""
    token_nodes: Annotated[int, Field(gt=0)] | None = None
    """Largest number of nodes that the experts of one token are on; None for no limit. Unit: 1."""
    routes_in_turn: bool = False
    """Whether the router is a stand-in that gives a token the experts after those of the token before it."""
    weighs_results: bool = True
    """Whether results of experts are multiplied by the router's weights, and so kept for its gradient. Otherwise the
    activation inside the experts is, whose input is kept anyway."""
    saves_fp8: tuple[SavedFp8, ...] = ()
    """Activations that fp8 training keeps in fewer than 16 bits: inputs of the activation inside experts in 8 bits;
    outputs of attention in 12 bits, one copy for its own gradient and for the next projection."""
    has_two_directions: bool = False
    """Whether micro-batches enter the pipeline from both ends (DualPipe). A rank then holds two stages, equally far
    from the two ends, and half of the optimizer state of each."""
    gathers_once: tuple[Gathered, ...] = ()
    """Kinds of training whose sharded parameters are gathered, and their gradients reduced, once a step instead of in
    every micro-batch: models with experts, or pipelines."""
    has_16bit_remainders: bool = False
    """Whether the optimizer of models without experts keeps only the 16 bits of its fp32 parameters that the bf16
    parameters lack."""
    gathers_to_recompute: bool = False
    """Whether sharded parameters are gathered for a recomputed forward pass and again for the backward pass after it,
    since recomputation wraps the sharded units."""
    shards_fragmentation: Annotated[float, Field(ge=0)] = 0.0
    """Memory that gathering sharded parameters fragments, over the allocated memory. Unit: 1."""
    context_exchange: ContextExchange = "ring"
    """How context parallel ranks exchange keys and values, if a run does not state it."""
    lora_targets: LoraTargets = TARGETS
    """Linear layers with adapters, if a run does not state them."""
    reduces_in_switches: bool = True
    """Whether switches inside a node reduce (NVLink SHARP) if they can."""
    calibrated_as: str | None = None
    """Framework and version whose calibration constant it uses if it was not calibrated itself: the one whose layers it
    runs."""
    host_time: Annotated[Quantity, unit_is("s")] | None = None
    """Time of the host to launch one operation, if known for the stack; otherwise the calibrated one of its version, or
    the usual one."""
    has_usual_host: bool = False
    """Whether that time is the usual one of its way to launch, instead of the calibrated one."""
    host_time_sigma: Annotated[float, Field(ge=0)] = 0.0
    """Relative standard deviation of `host_time`. Unit: 1."""
    send_wait: Annotated[Quantity, unit_is("s")] | None = None
    """Additional time of a send between pipeline stages and its receive, beyond the transfer, because one of the two
    ranks arrives later: passes vary. None if not known."""
    optimizer_moments: Moments = "fp32"
    """Number format of Adam's two moments, if the state is not all in 16 bits."""
    step_pause: Annotated[Quantity, unit_is("s")] | None = None
    """Time after the update of every step in which GPUs wait for the host: data, logs, synchronisation. None if not
    known."""
    step_jitter: Annotated[Quantity, unit_is("1")] | None = None
    """Relative standard deviation of the step time between steps. None if not known: simulated steps are then all
    equal."""
    has_16bit_state: bool = False
    """Whether sharded parameters, their gradients and Adam's moments are all in 16 bits."""

    @property
    def moment_bytes(self) -> float:
        """Bytes of one Adam moment of a parameter."""
        return MOMENT_BYTES[self.optimizer_moments]

    @property
    def fuses_norms(self) -> bool:
        """Whether a norm is one kernel, and rotation too."""
        return self.has_fused_norms or self.launch == "compiled"

    @property
    def fuses_activation(self) -> bool:
        """Whether bias, activation and gate are one kernel."""
        return self.has_fused_activation or self.launch == "compiled"

    @property
    def bytes_of_loss(self) -> tuple[int, int]:
        """Bytes that the cross entropy reads and writes per logit, forward and backward; fewer if compiled.

        Unit: byte.
        """
        return min(self.loss_bytes, COMPILED_LOSS_BYTES) if self.launch == "compiled" else self.loss_bytes

    def family(self, framework: str) -> str:
        """Return the name that versions of a framework share: that of this entry, else that of the framework."""
        return self.name if self.match else framework

    def gradient_bytes(self, precision: Precision, kinds: Collection[Reduced] = ()) -> int:
        """Return the bytes of one accumulated gradient.

        Args:
            precision: Number format of the training.
            kinds: Kinds of training that apply.
        """
        is_wide = self.reduces_fp32 and precision != "fp16" and not set(kinds) & set(self.reduces_16bit)
        return 4 if precision == "fp32" or is_wide else 2


class AttentionKernel(Strict):
    """Attention kernels on GPU types whose tables lack them."""

    name: Attention
    """The missing kernels."""
    of: Attention
    """Kernels of the same kind that a GPU's table has."""
    slowdown: _Factor
    """Time of the missing kernels over that of `of`. Unit: 1."""
    source: Annotated[str, Field(min_length=8)]
    """Publication of the slowdown."""


class Launching(Strict):
    """One way to start kernels."""

    name: Launch
    """Name of the way."""
    host_time: Annotated[Quantity, unit_is("s")]
    """Time of the host to launch one operation, for stacks without a time of their own and runs that change the way."""
    host_time_sigma: Annotated[float, Field(ge=0)]
    """Relative standard deviation of `host_time` between stacks: a choice. Unit: 1."""


class Stacks(Strict):
    """Content of `stacks.yaml`; more specific stacks come first."""

    launching: tuple[Launching, ...]
    """Ways to start kernels, each once."""
    attention_kernels: tuple[AttentionKernel, ...]
    """Replacements of attention kernels; the first match applies."""

    stacks: tuple[Stack, ...]
    """The stacks; the first match applies."""


def read_stacks(config: Path) -> tuple[Stack, ...]:
    """Return the stacks of a configuration folder. Raises `UserError` if the file is missing or wrong."""
    return _read_all(config).stacks


def stack_of(point: Point, framework: str, config: Path) -> Stack:
    """Return the stack of a run: the registry's entry, with the software settings that the run states.

    Args:
        point: The run.
        framework: Framework and version.
        config: Folder of the configuration.
    """
    return _with_settings(find_stack(framework, config), _stated_settings(point), config)


def _stated_settings(point: Point) -> tuple[tuple[str, object], ...]:
    values = ((name, getattr(point, name)) for name in Software.model_fields)
    return tuple((name, value) for name, value in values if value not in (None, ()))


@lru_cache(maxsize=1024)
def _with_settings(stack: Stack, stated: tuple[tuple[str, object], ...], config: Path) -> Stack:
    """Return a stack with stated settings, always the same object; the launch time follows the way to launch."""
    changed = stack.model_copy(update=dict(stated)) if stated else stack
    if changed.launch == stack.launch and (stack.host_time or not stack.has_usual_host):
        return changed
    way = next(way for way in _read_all(config).launching if way.name == changed.launch)
    return changed.model_copy(update={"host_time": way.host_time, "host_time_sigma": way.host_time_sigma})


def attention_kernel(name: str | None, known: Collection[str], config: Path) -> tuple[str | None, float]:
    """Return the attention kernels of a GPU's table that stand for others, and the time of the others over theirs.

    Args:
        name: Attention kernels; None or `unfused` for the default of the GPU type.
        known: Kernels in the GPU's table, the default first.
        config: Folder of the configuration.

    Raises:
        PointError: If the table has neither the kernels nor any that they were compared with.
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
    """Return the stack that a framework's name belongs to; `other`, plain PyTorch, for an unknown name."""
    return next(stack for stack in read_stacks(config) if all(_has_word(framework, word) for word in stack.match))


def _without_separators(name: str) -> str:
    """Return a lower-case name without separators, which people use or leave out: `torch titan`, `Megatron LM`."""
    return re.sub(r"[\s_-]", "", name.lower())


@lru_cache(maxsize=256)
def _pattern(word: str) -> re.Pattern[str]:
    """Return a pattern of a word, or of alternatives `a|b`, that ends there or goes on with one of `_ENDINGS`."""
    parts = "|".join(r"[\s_-]*".join(map(re.escape, _without_separators(part))) for part in word.split("|"))
    return re.compile(rf"(?:{parts})(?![a-z])|(?:{parts})(?={_ENDINGS})")


_ENDINGS = "lm|core|deepspeed|bridge|face|ai|automodel|framework|megatron|fw|foundry"
"""Words that people write together with the word before: `MegatronCore`, `HuggingFace`, `ColossalAI`."""


def _has_word(name: str, word: str) -> bool:
    return _pattern(word).search(name.lower()) is not None


_MEGATRON = r"megatron-core|megatron-lm-.*"
_RUNS_ON: tuple[tuple[str, str], ...] = (
    (r"nemo.*", rf"nemo.*|{_MEGATRON}"),
    (r"megatron-deepspeed", rf"deepspeed|{_MEGATRON}"),
    (r"primus", rf"torchtitan|{_MEGATRON}"),
    (r"hugging-face", r"deepspeed"),
    (r"megatron-.*|flagscale|megascale", _MEGATRON),
)
"""Patterns of stacks, and of the stacks that they are built on, whose words their names may also contain."""


@lru_cache(maxsize=256)
def check_one(framework: str, config: Path) -> str:
    """Return an error line if a framework's name fits several stacks that are not built on each other, else ""."""
    names = [
        stack.name
        for stack in read_stacks(config)
        if stack.match and all(_has_word(framework, word) for word in stack.match)
    ]
    below = next((others for name, others in _RUNS_ON if names and re.fullmatch(name, names[0])), "")
    others = [name for name in names[1:] if name != names[0] and not re.fullmatch(below, name)]
    if not others:
        return ""
    return f"{shown(framework)} names {' and '.join(dict.fromkeys((names[0], *others)))}, expected one software stack"


_PLAIN = re.compile(r"\b(?:py)?torch\b|\bfsdp\d?\b|\bddp\b")
"""Names of plain PyTorch, the stack `other`."""


def unknown_stack(framework: str, config: Path) -> str:
    """Return a line if a framework's name belongs to no stack, with the nearest known one, else ""."""
    if find_stack(framework, config).match or _PLAIN.search(framework.lower()):
        return ""
    suggestion = _suggestion(framework, config)
    return f"framework {shown(framework)} is taken as plain PyTorch, it is none that is known{suggestion}"


def _suggestion(framework: str, config: Path) -> str:
    """Return the nearest known stacks as a question, "" if none is near."""
    names = {name.lower(): name for name in OF_ENGINE.values()}
    for stack in sorted(read_stacks(config), key=lambda stack: len(stack.match)):
        full_name = " ".join(word.split("|")[0] for word in stack.match)
        for word in (word for alternatives in stack.match for word in alternatives.split("|")):
            names.setdefault(word, word if len(stack.match) == 1 else full_name)
    words = [_without_separators(framework), *re.split(r"[^a-z]+", framework.lower())]
    near = {
        names[name]: None for word in words for name in difflib.get_close_matches(word, names, 2, _LEAST_SIMILARITY)
    }
    return f" (did you mean {' or '.join(list(near)[:2])}?)" if near else ""


_LEAST_SIMILARITY = 0.7


def check_stack(framework: str, where: str | Path, config: Path) -> None:
    """Refuse a framework's name that belongs to no stack or to several.

    Args:
        framework: Framework and version.
        where: Source of the name, for the error.
        config: Folder of the configuration.

    Raises:
        UserError: If it belongs to none or to several, with the known stacks.
    """
    if line := check_one(framework, config):
        raise UserError(f"{where}: stack: {line}")
    if find_stack(framework, config).match or framework in OF_ENGINE.values():
        return
    names = ", ".join([*OF_ENGINE.values(), *(" ".join(stack.match) for stack in read_stacks(config) if stack.match)])
    known = _suggestion(framework, config) or f": {names}"
    raise UserError(f"{where}: stack: no known software in {framework!r}; expected a name with the words of one{known}")
