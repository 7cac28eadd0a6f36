"""Tasks: train from scratch, fine-tune adapters of a frozen model (LoRA), or generate text (inference)."""

from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, Field

from triplepoint.config.base import Need, Setting, Size, Strict

Task = Literal["pretrain", "lora", "inference"]
Target = Literal["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]
TARGETS: tuple[Target, ...] = get_args(Target)
"""The linear layers of a transformer layer, in order, with the names of Megatron-LM."""

PREFILL_TOKENS = 8192
"""Most prompt tokens in one prefill pass: the default max_num_tokens of TensorRT-LLM. Source: NVIDIA/TensorRT-LLM,
docs, tuning max batch size and max num tokens."""

_IS_LORA = Need(lambda point: point.lora is not None, "task: lora")
_IS_INFERENCE = Need(lambda point: point.inference is not None, "task: inference")
LoraRank = Annotated[
    Size, Setting("Rank of an adapter, the width between its two matrices, with task `lora`.", "1", needs=_IS_LORA)
]
LoraAlpha = Annotated[
    float,
    Field(gt=0),
    Setting("Scale of an adapter's output: alpha over rank.", "1", needs=_IS_LORA, has_column=False),
]
LoraTargets = Annotated[
    tuple[Target, ...],
    Field(min_length=1),
    AfterValidator(lambda chosen: tuple(name for name in TARGETS if name in chosen)),
    Setting("Linear layers with adapters, with the names of Megatron-LM; routed experts have none.", needs=_IS_LORA),
]
PromptTokens = Annotated[
    Size,
    Setting(
        "Tokens of each prompt, with task `inference`. There `global_batch_size` sequences start together, in equal "
        "parts on the data parallel replicas; `sequence_length` and `micro_batch_size` are derived.",
        "1",
        needs=_IS_INFERENCE,
    ),
]
OutputTokens = Annotated[
    Size,
    Setting("Tokens generated per sequence in inference, including the one from prefill.", "1", needs=_IS_INFERENCE),
]


class Lora(Strict):
    """Low-rank adapters of frozen linear layers.

    Source: Hu et al. 2021, arXiv:2106.09685.
    """

    rank: LoraRank
    alpha: LoraAlpha
    targets: LoraTargets


class Inference(Strict):
    """A batch of sequences that start together and end together."""

    prompt_tokens: PromptTokens
    output_tokens: OutputTokens

    @property
    def prompts_together(self) -> int:
        """Prompts in one prefill pass: at most `PREFILL_TOKENS` tokens, at least one prompt."""
        return max(1, PREFILL_TOKENS // self.prompt_tokens)

    @property
    def total_tokens(self) -> int:
        """Tokens of a sequence at its end."""
        return self.prompt_tokens + self.output_tokens


def group_size(batch_size: int, num_stages: int) -> int:
    """Return the sequences per group if an inference batch is split into one group per pipeline stage."""
    return -(-batch_size // num_stages)
