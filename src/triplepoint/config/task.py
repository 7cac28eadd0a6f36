"""Tasks: train from scratch, fine-tune adapters of a frozen model (LoRA), or generate text (inference)."""

from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, Field

from triplepoint.config.base import Need, Setting, Size, Strict

Task = Literal["pretrain", "lora", "inference"]
Target = Literal["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]
TARGETS: tuple[Target, ...] = get_args(Target)
"""The linear layers of a transformer layer, as Megatron-LM calls them, in their order."""

PREFILL_TOKENS = 8192
"""Tokens of prompts that go through a layer together at most: max_num_tokens of TensorRT-LLM by default. Source:
NVIDIA/TensorRT-LLM, docs, tuning max batch size and max num tokens."""

_IS_LORA = Need(lambda point: point.lora is not None, "task: lora")
_IS_INFERENCE = Need(lambda point: point.inference is not None, "task: inference")
LoraRank = Annotated[
    Size, Setting("Width between the two matrices of an adapter; with task `lora`.", "1", needs=_IS_LORA)
]
LoraAlpha = Annotated[
    float,
    Field(gt=0),
    Setting("What an adapter adds is scaled by alpha over rank.", "1", needs=_IS_LORA, has_column=False),
]
LoraTargets = Annotated[
    tuple[Target, ...],
    Field(min_length=1),
    AfterValidator(lambda chosen: tuple(name for name in TARGETS if name in chosen)),
    Setting("Linear layers that have adapters, as Megatron-LM calls them; routed experts have none.", needs=_IS_LORA),
]
PromptTokens = Annotated[
    Size,
    Setting(
        "Tokens of each prompt; with task `inference`, where `global_batch_size` sequences start together, in equal "
        "parts on the data parallel replicas, and `sequence_length` and `micro_batch_size` follow.",
        "1",
        needs=_IS_INFERENCE,
    ),
]
OutputTokens = Annotated[
    Size,
    Setting("Tokens generated per sequence in inference, including the one from prefill.", "1", needs=_IS_INFERENCE),
]


class Lora(Strict):
    """Adapters of low rank, added to frozen linear layers.

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
        """Prompts that go through the model at once, so that their tokens are no more than `PREFILL_TOKENS`."""
        return max(1, PREFILL_TOKENS // self.prompt_tokens)

    @property
    def total_tokens(self) -> int:
        """Tokens of a sequence at its end."""
        return self.prompt_tokens + self.output_tokens


def group_size(batch_size: int, num_stages: int) -> int:
    """Return how many sequences go through a pipeline together, so that there is a group for every stage to work on."""
    return -(-batch_size // num_stages)
