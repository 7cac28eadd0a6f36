"""Registry of software stacks, `config/calibration/stacks.yaml`: what each does that a table of runs leaves open."""

from collections.abc import Collection
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from triplepoint.config.base import NAME_PATTERN, Quantity, Strict, unit_is
from triplepoint.config.point import Overlap, Precision
from triplepoint.config.yaml_file import read
from triplepoint.errors import UserError

_Factor = Annotated[float, Field(gt=0)]
Reduced = Literal["experts", "sharded_parameters"]

SIMULATED = "Megatron-Core r0.8"
"""Software of points on the engine `simulated`, on clusters that name none."""

OF_ENGINE = {"megatron": "Megatron-Core", "deepspeed": "DeepSpeed", "native": "PyTorch"}
"""Software that a launched point is predicted for, by its engine."""


class Stack(Strict):
    """One software stack, all its versions."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    """Name of the stack."""
    match: tuple[str, ...]
    """Words that must all stand in the framework's name, lower-case; none for the stack of everything else."""
    source: Annotated[str, Field(min_length=8)]
    """Where this is published."""
    overlap: tuple[Overlap, ...]
    """Communication overlapped with computation where nothing else is said."""
    attention: str | None = None
    """Implementation of fused attention, where it is not the usual one of the GPU type."""
    attention_slowdown: _Factor = 1.0
    """Its time over that of the implementation the kernel tables have. Unit: 1."""
    expert_parallel: Annotated[int, Field(gt=0)] | None = None
    """Expert parallel ranks where a table says 1 or nothing, at most; None if 1 is meant. Unit: 1."""
    has_flash_attention: bool = True
    """Whether scores stay on the chip; otherwise they are written, masked, dropped out and read."""
    has_dropout: bool = False
    """Whether attention and residual branches drop out: masks are stored."""
    has_fused_activation: bool = True
    """Whether bias, activation and gate are one kernel."""
    overlaps_input_gradient: bool = True
    """Whether the reduction of a column-parallel layer's input gradient is overlapped with its weight gradient."""
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
    has_fp8_parameters: bool = False
    """Whether fp8 training keeps parameters of GEMMs in fp8 alone, besides the optimizer's, and gathers them so."""
    has_placeholder_gradients: bool = False
    """Whether layers hand out an unused 16-bit gradient of each shape of weight, since the true one is added up inside
    the GEMM (TransformerEngine, module/base.py, get_dummy_wgrad)."""
    expert_imbalance: _Factor = 1.04
    """Load of the fullest expert parallel rank over the mean, dropless routing. Source: arXiv:2408.15664 table 2,
    MaxVio of bias-balanced routing."""
    sends_tokens_once: bool = False
    """Whether a token goes once to a node, and once to a rank there, for all its experts (DeepEP), to be copied for
    each of them on arrival."""
    routes_in_turn: bool = False
    """Whether the router is a stand-in that gives a token the experts after those of the last token."""
    gathers_once: bool = False
    """Whether sharded parameters of models with experts are gathered once a step and their gradients reduced once, not
    in every micro-batch."""
    has_16bit_remainders: bool = False
    """Whether the optimizer of models without experts keeps, of its fp32 parameters, only the 16 bits that the bf16
    ones lack."""
    gathers_to_recompute: bool = False
    """Whether sharded parameters are gathered for a recomputed forward pass and again for the backward pass after it,
    since recomputation wraps the units that are sharded."""
    shards_fragmentation: Annotated[float, Field(ge=0)] = 0.0
    """Memory that gathering sharded parameters leaves of no use, over what is handed out. Unit: 1."""
    reduces_in_switches: bool = True
    """Whether switches inside a node reduce (NVLink SHARP), where they can."""
    calibrated_as: str | None = None
    """Framework and version whose calibrated constant it takes, where it was not calibrated itself: that whose layers
    it runs."""
    host_time: Annotated[Quantity, unit_is("s")] | None = None
    """Time the host takes to launch one operation, where that is known of the stack; otherwise what its version was
    calibrated with, or the usual one."""
    host_time_sigma: Annotated[float, Field(ge=0)] = 0.0
    """Relative standard deviation of it. Unit: 1."""
    send_wait: Annotated[Quantity, unit_is("s")] | None = None
    """Time a send between pipeline stages and its receive last over what moving the data takes, since one of the two
    ranks comes to it later than the other: passes vary. None where not known."""
    step_pause: Annotated[Quantity, unit_is("s")] | None = None
    """Time of every step in which GPUs wait for the host, after the update: data, logs, synchronisation. None: none is
    known."""
    step_jitter: Annotated[Quantity, unit_is("1")] | None = None
    """Relative standard deviation of the time of a step from step to step. None: not known; simulated steps are all
    alike."""
    has_16bit_state: bool = False
    """Whether sharded parameters, their gradients and Adam's moments are all in 16 bits."""

    def gradient_bytes(self, precision: Precision, kinds: Collection[Reduced] = ()) -> int:
        """Return bytes of one accumulated gradient, in training of some kinds."""
        is_wide = self.reduces_fp32 and precision != "fp16" and not set(kinds) & set(self.reduces_16bit)
        return 4 if precision == "fp32" or is_wide else 2


class Stacks(Strict):
    """All stacks, most special first."""

    stacks: tuple[Stack, ...]
    """First hit wins."""


@lru_cache(maxsize=4)
def read_stacks(config: Path) -> tuple[Stack, ...]:
    """Return the stacks of a configuration folder. Raises `UserError` if the file is missing or wrong."""
    return read(Stacks, config / "calibration" / "stacks.yaml").stacks


@lru_cache(maxsize=1024)
def find_stack(framework: str, config: Path) -> Stack:
    """Return the stack a framework's name belongs to; `other`, plain PyTorch, for a name that is not known."""
    low = framework.lower()
    return next(stack for stack in read_stacks(config) if all(word in low for word in stack.match))


def check_stack(framework: str, where: str | Path, config: Path) -> None:
    """Raise `UserError`, naming the known stacks, where a framework's name is that of none.

    Args:
        framework: Framework and version.
        where: What names it, for the error.
        config: Folder of the configuration.
    """
    if find_stack(framework, config).match or framework in OF_ENGINE.values():
        return
    known = ", ".join([*OF_ENGINE.values(), *(" ".join(one.match) for one in read_stacks(config) if one.match)])
    raise UserError(
        f"{where}: stack: no known software in {framework!r}; expected a name with the words of one: {known}"
    )
