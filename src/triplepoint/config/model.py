"""Model architectures: `config/models/*.yaml`."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from triplepoint.config.base import NAME_PATTERN, Strict

Positive = Annotated[int, Field(gt=0)]


class MixtureOfExperts(Strict):
    """The expert part of a mixture-of-experts model."""

    num_experts: Positive
    """Experts per layer."""
    top_k: Positive
    """Experts each token is sent to."""
    capacity_factor: Annotated[float, Field(gt=0)] | None = None
    """Tokens an expert takes, over the even share; tokens beyond it are dropped. None: dropless."""

    @model_validator(mode="after")
    def _check(self) -> "MixtureOfExperts":
        if self.top_k > self.num_experts:
            raise ValueError(f"top_k {self.top_k} is larger than num_experts {self.num_experts}")
        return self


class ModelConfig(Strict):
    """A decoder-only transformer."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    """Name of the model; the file is called the same."""
    source: Annotated[str, Field(min_length=8)]
    """Where the architecture is published."""
    num_layers: Positive
    """Transformer layers."""
    hidden_size: Positive
    """Width of the residual stream."""
    ffn_hidden_size: Positive
    """Inner width of the feed-forward block, of one expert where there are experts."""
    num_attention_heads: Positive
    """Query heads."""
    num_query_groups: Positive
    """Key/value heads; equal to `num_attention_heads` without grouped-query attention."""
    vocab_size: Positive
    """Tokens in the vocabulary, before padding."""
    sequence_length: Positive
    """Sequence length of the published training set-up; a study may choose another. Unit: token."""
    activation: Literal["gelu", "swiglu"]
    """Feed-forward activation; swiglu has a gate and so three matrices instead of two."""
    normalization: Literal["layernorm", "rmsnorm"]
    """Normalisation before attention and feed-forward."""
    position_embedding: Literal["learned", "rope"]
    """Learned absolute positions or rotary embedding."""
    rope_base: Annotated[float, Field(gt=0)] = 10_000.0
    """Base of the rotary frequencies; unused with learned positions."""
    add_bias: bool = False
    """Whether linear layers have a bias."""
    tie_embeddings: bool = False
    """Whether the output projection shares the token embedding."""
    moe: MixtureOfExperts | None = None
    """Experts; None for a dense model."""

    @model_validator(mode="after")
    def _check(self) -> "ModelConfig":
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not divisible by num_attention_heads {self.num_attention_heads}"
            )
        if self.num_attention_heads % self.num_query_groups:
            raise ValueError(
                f"num_attention_heads {self.num_attention_heads} is not divisible by "
                f"num_query_groups {self.num_query_groups}"
            )
        return self

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads
