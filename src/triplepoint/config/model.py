"""Model architectures: `config/models/*.yaml`."""

from collections import Counter
from functools import lru_cache
from typing import Annotated, ClassVar, Literal, NamedTuple

from pydantic import Field, model_validator

from triplepoint.config.base import NAME_PATTERN, Featured, Layers, Size, Strict
from triplepoint.config.mixers import ATTENTION, EXPERTS, MLP, SHARED, Mixers, SharedBlock
from triplepoint.config.recurrence import Recurrent


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


class LayerKind(NamedTuple):
    """What layers of one model differ in.

    Attributes:
        has_experts: Whether its feed-forward block is of experts.
        window: Tokens its attention sees; None for all.
        mixer: Letter of what mixes its tokens, see `Mixers.pattern`; empty where nothing does.
        has_feed_forward: Whether it has a feed-forward block.
        reuses_weights: Whether the block it shares with other layers counted with one before.
    """

    has_experts: bool = False
    window: int | None = None
    mixer: str = ATTENTION
    has_feed_forward: bool = True
    reuses_weights: bool = False

    @property
    def has_shared_block(self) -> bool:
        """Whether it has a block whose weights it shares with other layers."""
        return self.mixer == SHARED

    @property
    def has_attention(self) -> bool:
        """Whether it has attention."""
        return self.mixer == ATTENTION

    @property
    def num_blocks(self) -> int:
        """Blocks with a norm and a residual add: what mixes tokens, and the feed-forward block."""
        return bool(self.mixer) + self.has_feed_forward


class MixtureOfExperts(Featured):
    """The expert part of a mixture-of-experts model."""

    features: ClassVar[frozenset[str]] = frozenset(
        {"shared_ffn_hidden_size", "num_dense_layers", "layer_interval", "dense_ffn_hidden_size", "pads_experts"}
        | {"latent_size"}
    )

    num_experts: Layers
    """Experts per layer."""
    top_k: Size
    """Experts each token is sent to."""
    capacity_factor: Annotated[float, Field(gt=0)] | None = None
    """Tokens an expert takes, over the even share; tokens beyond it are dropped. None: dropless."""
    pads_experts: bool = True
    """Whether experts that have fewer tokens than the capacity factor allows are filled up to it."""
    shared_ffn_hidden_size: Size | None = None
    """Inner width of the experts every token passes, all of them together. None: there are none."""
    num_dense_layers: Annotated[int, Field(ge=0, le=10_000, strict=True)] = 0
    """First layers that have no experts."""
    layer_interval: Size = 1
    """Each so many-th layer has experts, the last of each group."""
    dense_ffn_hidden_size: Size | None = None
    """Inner width of the feed-forward block of layers without experts. None: that of an expert."""
    latent_size: Size | None = None
    """Width that tokens are projected to before they go to experts, and from after it (LatentMoE, arXiv:2512.20856);
    the router and shared experts see the hidden size. None: that of experts too."""

    @model_validator(mode="after")
    def _check(self) -> "MixtureOfExperts":
        if self.top_k > self.num_experts:
            raise ValueError(f"top_k {self.top_k} is larger than num_experts {self.num_experts}")
        return self


MtpLayers = Annotated[int, Field(ge=0, le=10_000, strict=True)]
"""Layers of multi-token prediction."""


class ModelConfig(Featured):
    """A decoder-only transformer, or a model that mixes tokens by other means too."""

    features: ClassVar[frozenset[str]] = frozenset(
        {
            *("kv_channels", "add_qkv_bias", "qk_norm", "has_output_gate", "window", "latent", "num_mtp_layers"),
            *("mixers", "parallel_norms"),
        }
    )

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    """Name of the model; the file is called the same."""
    source: Annotated[str, Field(min_length=8)]
    """Where the architecture is published."""
    num_layers: Layers
    """Layers; of a model with `mixers`, letters of the pattern."""
    hidden_size: Size
    """Width of the residual stream."""
    ffn_hidden_size: Size
    """Inner width of the feed-forward block, of one expert where there are experts."""
    num_attention_heads: Size
    """Query heads; 1 where no layer has attention."""
    num_query_groups: Size
    """Key/value heads; equal to `num_attention_heads` without grouped-query attention."""
    vocab_size: Size
    """Tokens in the vocabulary, before padding."""
    sequence_length: Size
    """Sequence length of the published training set-up; a study may choose another. Unit: token."""
    activation: Literal["gelu", "swiglu"]
    """Feed-forward activation; swiglu has a gate and so three matrices instead of two."""
    normalization: Literal["layernorm", "rmsnorm"]
    """Normalisation before attention and feed-forward."""
    position_embedding: Literal["learned", "rope", "alibi", "none"]
    """Learned absolute positions, rotary embedding, attention biased by distance, which has no table, or none."""
    rope_base: Annotated[float, Field(gt=0)] = 10_000.0
    """Base of the rotary frequencies; unused with learned positions."""
    add_bias: bool = False
    """Whether linear layers have a bias."""
    tie_embeddings: bool = False
    """Whether the output projection shares the token embedding."""
    moe: MixtureOfExperts | None = None
    """Experts; None for a dense model."""
    kv_channels: Size | None = None
    """Width of an attention head. None: hidden_size / num_attention_heads."""
    add_qkv_bias: bool = False
    """Whether the projection to queries, keys and values has a bias where other linear layers have none."""
    qk_norm: bool = False
    """Whether queries and keys are normalised head by head."""
    has_output_gate: bool = False
    """Whether the output of attention is multiplied by a gate, which the projection to queries gives too."""
    window: SlidingWindow | None = None
    """Layers whose attention sees the last tokens only. None: there are none."""
    latent: LatentAttention | None = None
    """Compressed keys and values; with them `num_query_groups` and `kv_channels` are without effect."""
    num_mtp_layers: MtpLayers = 0
    """Layers that predict tokens further on in training (multi-token prediction), each with norms and a projection."""
    parallel_norms: Annotated[int, Field(ge=1, le=2, strict=True)] | None = None
    """Norms of a layer whose attention and feed-forward block stand side by side, of one input: 1 for both, or
    2, one each. None: the feed-forward block comes after attention."""
    mixers: Mixers | None = None
    """Layers without attention, or without a feed-forward block. None: every layer has both."""

    @model_validator(mode="after")
    def _check(self) -> "ModelConfig":
        if not (self.kv_channels or self.latent) and self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not divisible by num_attention_heads {self.num_attention_heads}"
            )
        if self.num_attention_heads % self.num_query_groups:
            raise ValueError(
                f"num_attention_heads {self.num_attention_heads} is not divisible by "
                f"num_query_groups {self.num_query_groups}"
            )
        if self.mixers and EXPERTS in self.mixers.pattern and self.moe is None:
            raise ValueError("pattern of mixers has 'E', which needs moe; add it")
        if self.parallel_norms and (self.moe or self.mixers):
            raise ValueError(
                "parallel_norms applies to layers of attention and a dense feed-forward block only; leave it out"
            )
        return self

    @property
    def head_size(self) -> int:
        """Width of one attention head, of its query and key."""
        if self.latent:
            return self.latent.qk_head_dim + self.latent.qk_pos_emb_head_dim
        return self.kv_channels or self.hidden_size // self.num_attention_heads

    @property
    def value_head_size(self) -> int:
        """Width of one attention head's value."""
        return self.latent.v_head_dim if self.latent else self.head_size

    @property
    def layer_kinds(self) -> tuple[LayerKind, ...]:
        """Kind of every layer, first to last; layers of multi-token prediction are as `mtp_kind`."""
        return _layer_kinds(self.num_layers, self.moe, self.window, self.mixers)

    @property
    def shared_block(self) -> SharedBlock | None:
        """Block whose weights several layers share."""
        return self.mixers.shared if self.mixers else None

    @property
    def expert_width(self) -> int:
        """Width of the input and output of routed experts."""
        return (self.moe.latent_size if self.moe else None) or self.hidden_size

    @property
    def mtp_kind(self) -> LayerKind:
        """Kind of layers of multi-token prediction: attention and feed-forward block as the last that has one."""
        last = self.layer_kinds[-1]
        if last.has_attention and last.has_feed_forward:
            return last
        has_experts = any(kind.has_experts for kind in self.layer_kinds)
        return LayerKind(has_experts, last.window)

    def num_norms(self, kind: LayerKind) -> int:
        """Return the norms of a kind of layer: one before each block, or before both where they are side by side."""
        return min(kind.num_blocks, self.parallel_norms or kind.num_blocks)

    def recurrent(self, kind: LayerKind) -> Recurrent | None:
        """Return the mixer with a state of a kind of layer; None where it has none."""
        return self.mixers.recurrent(kind.mixer) if self.mixers else None

    @property
    def dense_ffn_hidden_size(self) -> int:
        """Inner width of the feed-forward block of a layer without experts."""
        return (self.moe.dense_ffn_hidden_size if self.moe else None) or self.ffn_hidden_size

    @property
    def num_embedding_parameters(self) -> int:
        """Parameters of token embedding, output projection and learned positions, without padding of the vocabulary."""
        tables = 1 if self.tie_embeddings else 2
        positions = self.sequence_length if self.position_embedding == "learned" else 0
        return (tables * self.vocab_size + positions) * self.hidden_size

    @property
    def num_parameters(self) -> int:
        """All parameters of the model."""
        layers = sum(self._layer_parameters(kind) * count for kind, count in Counter(self.layer_kinds).items())
        return layers + self._norm_parameters + self.num_embedding_parameters + self._mtp_parameters

    @property
    def num_expert_layers(self) -> int:
        """Layers that have experts."""
        return sum(kind.has_experts for kind in self.layer_kinds) if self.moe else 0

    def _layer_parameters(self, kind: LayerKind) -> int:
        common, mixer = self.num_norms(kind) * self._norm_parameters, self.recurrent(kind)
        if mixer:
            common += mixer.num_weights(self.hidden_size) + mixer.num_vectors
            has_norms = kind.has_shared_block and not kind.reuses_weights
            common += self.num_shared_weights(kind) + has_norms * self._shared_norms
        elif kind.has_attention:
            common += self._attention_parameters
        if not kind.has_feed_forward:
            return common
        if not kind.has_experts or self.moe is None:
            return common + self._ffn_parameters(self.dense_ffn_hidden_size)
        shared = self.moe.shared_ffn_hidden_size
        width, latent = self.expert_width, self.moe.latent_size or 0
        routed = self.moe.num_experts * (self._ffn_parameters(self.ffn_hidden_size, width) + self.hidden_size)
        return common + routed + 2 * latent * self.hidden_size + (self._ffn_parameters(shared) if shared else 0)

    def num_shared_weights(self, kind: LayerKind, is_counted_again: bool = False) -> int:
        """Return the parameters of the matrices of a shared block in a layer, with its own adapters and projection.

        Args:
            kind: Kind of layer.
            is_counted_again: Whether weights that other layers have too count in each, as multiply-adds do.
        """
        block, width = self.shared_block, self.hidden_size
        if block is None or not kind.has_shared_block:
            return 0
        gates = 2 if self.activation == "swiglu" else 1
        own = block.adapter_rank * (width + gates * self.ffn_hidden_size) + width * width
        if kind.reuses_weights and not is_counted_again:
            return own
        heads = self.num_attention_heads + 2 * self.num_query_groups
        attention = (2 * heads + self.num_attention_heads) * self.head_size * width
        return own + attention + self._ffn_parameters(self.ffn_hidden_size)

    @property
    def _shared_norms(self) -> int:
        """Norms of a shared block: of its input, twice as wide, and of the feed-forward network."""
        return 3 * self._norm_parameters

    @property
    def num_attention_weights(self) -> int:
        """Parameters of the matrices of one layer's attention: each multiplies every token once."""
        width, heads, latent = self.hidden_size, self.num_attention_heads, self.latent
        query, out = heads * self.head_size, heads * self.value_head_size * width
        if latent is None:
            return width * ((1 + self.has_output_gate) * query + 2 * self.num_query_groups * self.head_size) + out
        rank = latent.q_lora_rank
        queries = rank * (width + query) if rank else width * query
        into = width * (latent.kv_lora_rank + latent.qk_pos_emb_head_dim)
        return queries + into + latent.kv_lora_rank * heads * (latent.qk_head_dim + latent.v_head_dim) + out

    @property
    def _attention_parameters(self) -> int:
        if self.latent:
            return self.num_attention_weights + (self.latent.q_lora_rank or 0) + self.latent.kv_lora_rank
        query_key_value = (self.num_attention_heads + 2 * self.num_query_groups) * self.head_size
        biases = (self.add_bias or self.add_qkv_bias) * query_key_value + self.add_bias * self.hidden_size
        return self.num_attention_weights + biases + 2 * self.qk_norm * self.head_size

    @property
    def _mtp_parameters(self) -> int:
        each = self._layer_parameters(self.mtp_kind) + 3 * self._norm_parameters
        return self.num_mtp_layers * (each + 2 * self.hidden_size * self.hidden_size)

    def _ffn_parameters(self, inner: int, width: int | None = None) -> int:
        width = width or self.hidden_size
        into = 2 * inner if self.activation == "swiglu" else inner
        return width * into + inner * width + self.add_bias * (into + width)

    @property
    def _norm_parameters(self) -> int:
        return self.hidden_size * (2 if self.normalization == "layernorm" else 1)


@lru_cache(maxsize=1024)
def _layer_kinds(
    num_layers: int, moe: MixtureOfExperts | None, window: SlidingWindow | None, mixers: Mixers | None
) -> tuple[LayerKind, ...]:
    """Return the kind of every layer; asked for many times of one model."""

    def has_experts(layer: int) -> bool:
        if moe is None or layer < moe.num_dense_layers:
            return False
        return (layer + 1) % moe.layer_interval == 0

    def width(layer: int) -> int | None:
        if window is None or (window.full_interval and (layer + 1) % window.full_interval == 0):
            return None
        return window.size

    def kind(layer: int) -> LayerKind:
        if mixers is None:
            return LayerKind(has_experts(layer), width(layer))
        letter = mixers.letter(layer)
        if letter in (MLP, EXPERTS):
            return LayerKind(letter == EXPERTS, mixer="")
        if letter == SHARED:
            return LayerKind(mixer=letter, has_feed_forward=False)
        has_block = mixers.has_feed_forward
        seen = width(layer) if letter == ATTENTION else None
        return LayerKind(has_block and has_experts(layer), seen, letter, has_block)

    kinds, num_shared = [kind(layer) for layer in range(num_layers)], 0
    for layer, found in enumerate(kinds):
        if mixers and mixers.shared and found.has_shared_block:
            kinds[layer] = found._replace(reuses_weights=num_shared >= mixers.shared.num_blocks)
            num_shared += 1
    return tuple(kinds)
