"""Model architectures: `config/models/*.yaml`."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from triplepoint.config.base import NAME_PATTERN, Strict

Positive = Annotated[int, Field(gt=0, strict=True)]


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

    @property
    def num_layer_parameters(self) -> int:
        """Parameters of one transformer layer, biases and normalisation included."""
        norms = 2 * self._norm_parameters
        return (
            self._attention_parameters + self._router_parameters + self._num_experts * self._expert_parameters + norms
        )

    @property
    def num_embedding_parameters(self) -> int:
        """Parameters of token embedding, output projection and learned positions, without padding of the vocabulary."""
        tables = 1 if self.tie_embeddings else 2
        positions = self.sequence_length if self.position_embedding == "learned" else 0
        return (tables * self.vocab_size + positions) * self.hidden_size

    @property
    def num_parameters(self) -> int:
        """All parameters of the model."""
        return self.num_layers * self.num_layer_parameters + self._norm_parameters + self.num_embedding_parameters

    @property
    def num_active_parameters(self) -> int:
        """Parameters that one token passes through: of the experts, `top_k` in each layer."""
        idle = (self.moe.num_experts - self.moe.top_k) * self._expert_parameters if self.moe else 0
        return self.num_parameters - self.num_layers * idle

    @property
    def _num_experts(self) -> int:
        return self.moe.num_experts if self.moe else 1

    @property
    def _attention_parameters(self) -> int:
        width = self.hidden_size
        query_key_value = width + 2 * self.num_query_groups * self.head_size
        return width * query_key_value + width * width + self.add_bias * (query_key_value + width)

    @property
    def _expert_parameters(self) -> int:
        width, inner = self.hidden_size, self.ffn_hidden_size
        into = 2 * inner if self.activation == "swiglu" else inner
        return width * into + inner * width + self.add_bias * (into + width)

    @property
    def _router_parameters(self) -> int:
        return self.hidden_size * self.moe.num_experts if self.moe else 0

    @property
    def _norm_parameters(self) -> int:
        return self.hidden_size * (2 if self.normalization == "layernorm" else 1)
