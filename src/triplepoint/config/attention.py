"""What attention of some models has that plain grouped-query attention has not: sections of a model file."""

from typing import Annotated

from pydantic import Field

from triplepoint.config.base import Size, Strict


class LatentAttention(Strict):
    """Multi-head latent attention: keys and values of all heads are made of one small vector per token.

    Source: DeepSeek-V2, arXiv:2405.04434, section 2.1; keys are called as Megatron-LM calls them.
    """

    q_lora_rank: Size | None = None
    """Width queries are compressed to. None: they are not compressed."""
    kv_lora_rank: Size
    """Width keys and values are compressed to together; this, and the rotated part, is what a cache holds."""
    qk_head_dim: Size
    """Width of a head's query and key that is not rotated."""
    qk_pos_emb_head_dim: Size
    """Width of the rotated part, of a query head and of the one key all heads share."""
    v_head_dim: Size
    """Width of a head's value."""


class SlidingWindow(Strict):
    """Attention to the last tokens only."""

    size: Size
    """Tokens a query sees, itself included. Unit: token."""
    full_interval: Annotated[int, Field(gt=1, strict=True)] | None = None
    """Each so many-th layer sees everything: 2 where both kinds alternate. None: no layer does."""
