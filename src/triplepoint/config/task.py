"""What a run does: train from nothing, fine-tune adapters beside a frozen model (LoRA), or make text (inference)."""

from typing import Annotated, Literal, get_args

from pydantic import Field

from triplepoint.config.base import Strict

Task = Literal["pretrain", "lora", "inference"]
Target = Literal["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]
TARGETS: tuple[Target, ...] = get_args(Target)
"""The linear layers of a transformer layer, as Megatron-LM calls them, in their order."""

PREFILL_TOKENS = 8192
"""Tokens of prompts that go through a layer together at most: max_num_tokens of TensorRT-LLM by default. Source:
NVIDIA/TensorRT-LLM, docs, tuning max batch size and max num tokens."""

Positive = Annotated[int, Field(gt=0)]


class Lora(Strict):
    """Adapters of low rank beside frozen linear layers.

    Source: Hu et al. 2021, arXiv:2106.09685.
    """

    rank: Positive
    """Width between the two matrices of an adapter."""
    alpha: Annotated[float, Field(gt=0)]
    """What an adapter adds is scaled by alpha over rank."""
    targets: tuple[Target, ...]
    """Layers that have adapters; routed experts have none."""


class Inference(Strict):
    """A batch of sequences that start together and end together."""

    prompt_tokens: Positive
    """Tokens of each prompt."""
    output_tokens: Positive
    """Tokens made of each, the first of them by prefill."""

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
