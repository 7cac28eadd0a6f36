"""What frameworks do differently inside a layer: attention, fusions, gradient format, what runs beside what."""

from dataclasses import dataclass
from functools import lru_cache

from triplepoint.config.point import Precision


@dataclass(frozen=True)
class Software:
    """How one framework computes a layer.

    Attributes:
        words: All must stand in the stack's name, lower-case, for this to be it.
        source: Where it is published.
        has_flash_attention: Whether scores stay on the chip; otherwise they are written, masked, dropped out and read.
        has_dropout: Whether attention and residual branches drop out: masks are stored.
        has_fused_activation: Whether bias, activation and gate are one kernel.
        overlaps_input_gradient: Whether the reduction of a column-parallel layer's input gradient runs beside its
            weight gradient.
        scatters_activations: Whether pipeline sends carry 1/tp of the activation also without sequence parallelism.
        reduces_fp32: Whether gradients of bf16 training are accumulated and reduced in fp32; those of fp16 never are.
        loss_bytes: Read and written per logit by the cross entropy, forward and backward. Unit: byte.
        has_fp8_parameters: Whether fp8 training keeps parameters of products in fp8 alone, beside the optimizer's, and
            gathers them so.
        has_placeholder_gradients: Whether layers hand out an unused 16-bit gradient of each shape of weight, since the
            true one is added up inside the product (TransformerEngine, module/base.py, get_dummy_wgrad).
        expert_imbalance: Load of the fullest expert parallel rank over the mean, dropless routing.
        sends_tokens_once: Whether a token goes once to a node, and once to a rank there, for all its experts (DeepEP),
            to be copied for each of them on arrival.
        routes_in_turn: Whether the router is a stand-in that gives a token the experts after those of the last token.
        gathers_once: Whether sharded parameters of models with experts are gathered once a step and their gradients
            reduced once, not in every micro-batch.
        has_16bit_state: Whether sharded parameters, their gradients and Adam's moments are all in 16 bits.
    """

    words: tuple[str, ...]
    source: str
    has_flash_attention: bool = True
    has_dropout: bool = False
    has_fused_activation: bool = True
    overlaps_input_gradient: bool = True
    scatters_activations: bool = False
    reduces_fp32: bool = True
    loss_bytes: tuple[int, int] = (38, 14)
    has_fp8_parameters: bool = False
    has_placeholder_gradients: bool = False
    expert_imbalance: float = 1.04
    sends_tokens_once: bool = False
    routes_in_turn: bool = False
    gathers_once: bool = False
    has_16bit_state: bool = False

    def gradient_bytes(self, precision: Precision) -> int:
        """Return bytes of one accumulated gradient."""
        if precision == "fp32" or (self.reduces_fp32 and precision != "fp16"):
            return 4
        return 2


# Cross entropy of Megatron-LM, kernel by kernel: to fp32 (2+4 bytes), maximum (4), subtract (4+4), exponential (4+4),
# sum (4), divide (4+4); backward: scale (4+4), to 16 bits (4+2). Compiled into fewer kernels: 26 and 10; as one kernel
# on 16-bit logits: 2 and 4. Source: NVIDIA/Megatron-LM megatron/core/tensor_parallel/cross_entropy.py and
# fusions/fused_cross_entropy.py; Dao-AILab/flash-attention csrc/xentropy.
_COMPILED_LOSS = (26, 10)
_SINGLE_KERNEL_LOSS = (2, 4)

_KNOWN = (
    Software(
        ("megatron-lm", "2021"),
        "arXiv:2104.04473: fused softmax, bias+GeLU, bias+dropout+add; scatter/gather of pipeline sends",
        has_flash_attention=False,
        has_dropout=True,
        overlaps_input_gradient=False,
        scatters_activations=True,
    ),
    Software(
        ("megatron-lm", "2022"),
        "arXiv:2205.05198, and NVIDIA/Megatron-LM v3.0 asynchronous all-reduce of the input gradient",
        has_flash_attention=False,
        has_dropout=True,
        scatters_activations=True,
    ),
    Software(
        ("megatron-deepspeed",),
        "microsoft/Megatron-DeepSpeed, a fork of Megatron-LM 2021; arXiv:2312.12391 (vTrain) trains with it; "
        "microsoft/DeepSpeed deepspeed/runtime/pipe/engine.py, is_pipe_partitioned with tensor parallelism",
        has_flash_attention=False,
        has_dropout=True,
        overlaps_input_gradient=False,
        scatters_activations=True,
    ),
    Software(
        ("automodel",),
        "NVIDIA-NeMo/Automodel @36044ad: FSDP2 with bf16 parameters, fp32 reduction; moe/fsdp_mixin.py, no resharding, "
        "no reduction but in the last micro-batch; docs/performance-summary.mdx, DeepEP and the fake balanced gate in "
        "all results with experts; moe/layers.py, FakeBalancedGate, expert (i * top_k + j) modulo their number; "
        "examples/benchmark/configs, torch.optim.Adam over parameters of torch_dtype bf16, without copies",
        has_fused_activation=False,
        expert_imbalance=1.0,
        sends_tokens_once=True,
        routes_in_turn=True,
        gathers_once=True,
        has_16bit_state=True,
    ),
    Software(
        ("nemo",),
        "NVIDIA/NeMo scripts/performance: grad_reduce_in_fp32 False, cross_entropy_loss_fusion True; "
        "recipes/precision: fp8_params True",
        reduces_fp32=False,
        loss_bytes=_COMPILED_LOSS,
        has_fp8_parameters=True,
        has_placeholder_gradients=True,
    ),
    Software(
        ("megatron",),
        "NVIDIA/Megatron-LM arguments.py: accumulate_allreduce_grads_in_fp32 with bf16; layers of TransformerEngine",
        has_placeholder_gradients=True,
    ),
    Software(
        ("llm-foundry",),
        "mosaicml/llm-foundry: flash attention, fused_crossentropy; mosaicml/composer: DEFAULT reduces in fp32",
        has_fused_activation=False,
        loss_bytes=_SINGLE_KERNEL_LOSS,
    ),
    Software(("deepspeed",), "DeepSpeed: 16-bit gradients by default", reduces_fp32=False),
)
"""Most special first. Imbalance of dropless routing 1.04: arXiv:2408.15664 table 2, MaxVio of bias-balanced routing."""

_OTHER = Software((), "as current Megatron-Core", has_placeholder_gradients=True)


@lru_cache(maxsize=256)
def software_of(stack: str) -> Software:
    """Return what is known of a stack by its name; a name that is not known counts as current Megatron-Core."""
    low = stack.lower()
    return next((known for known in _KNOWN if all(word in low for word in known.words)), _OTHER)
