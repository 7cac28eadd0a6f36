"""Model architectures, `config/models/*.yaml`: shapes of the layers and numbers of parameters."""

from collections import Counter
from functools import lru_cache
from typing import Annotated, ClassVar, Literal, NamedTuple

from pydantic import Field, model_validator

from triplepoint.config.base import NAME_PATTERN, Featured, Layers, Size, Strict
from triplepoint.config.mixers import ATTENTION, EXPERTS, MLP, SHARED, Mixers, SharedBlock
from triplepoint.config.recurrence import Recurrent


class LatentAttention(Strict):
    """Multi-head latent attention: keys and values of all heads are projected from one small vector per token.

    Source: DeepSeek-V2, arXiv:2405.04434, section 2.1. Keys have the names of Megatron-LM.
    """

    q_lora_rank: Size | None = None
    """Width of compressed queries. None: queries are not compressed."""
    kv_lora_rank: Size
    """Width of the compressed vector of keys and values. A KV cache holds it and the rotated key."""
    qk_head_dim: Size
    """Width of the part of a head's query and key without rotary embedding."""
    qk_pos_emb_head_dim: Size
    """Width of the rotated part: of each query head, and of the one key that all heads share."""
    v_head_dim: Size
    """Width of a head's value."""


class SlidingWindow(Strict):
    """Sliding-window attention."""

    size: Size
    """Tokens a query attends to, including its own. Unit: token."""
    full_interval: Annotated[int, Field(gt=1, strict=True)] | None = None
    """Every how many layers one has full attention: 2 if both kinds alternate. None: all layers have the window."""


class LayerKind(NamedTuple):
    """Properties in which the layers of one model differ.

    Attributes:
        has_experts: Whether the feed-forward block consists of experts.
        window: Tokens that a query attends to; None for all.
        mixer: Letter of the token mixer, see `Mixers.pattern`; empty without one.
        has_feed_forward: Whether the layer has a feed-forward block.
        reuses_weights: Whether an earlier layer has the same shared block, whose weights then count there.
    """

    has_experts: bool = False
    window: int | None = None
    mixer: str = ATTENTION
    has_feed_forward: bool = True
    reuses_weights: bool = False

    @property
    def has_shared_block(self) -> bool:
        """Whether the layer has a block whose weights it shares with other layers."""
        return self.mixer == SHARED

    @property
    def has_attention(self) -> bool:
        """Whether the layer has attention of its own, not counting a shared block."""
        return self.mixer == ATTENTION

    @property
    def num_blocks(self) -> int:
        """Blocks with a norm and a residual add: token mixer and feed-forward block."""
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
    """Experts per token."""
    capacity_factor: Annotated[float, Field(gt=0)] | None = None
    """Capacity of an expert, relative to an even share of the tokens; tokens beyond it are dropped. None: dropless."""
    pads_experts: bool = True
    """Whether experts with fewer tokens than their capacity are padded to it."""
    shared_ffn_hidden_size: Size | None = None
    """Inner width of the shared experts, all of them together, which process every token. None: no shared experts."""
    num_dense_layers: Annotated[int, Field(ge=0, le=10_000, strict=True)] = 0
    """Number of first layers without experts."""
    layer_interval: Size = 1
    """Every how many layers one has experts; it is the last of each group."""
    dense_ffn_hidden_size: Size | None = None
    """Inner width of the feed-forward block of layers without experts. None: that of an expert."""
    latent_size: Size | None = None
    """Width to which tokens are projected before routed experts, and from which after them (LatentMoE,
    arXiv:2512.20856). Router and shared experts work at the hidden size. None: routed experts do so too."""

    @model_validator(mode="after")
    def _check(self) -> "MixtureOfExperts":
        if self.top_k > self.num_experts:
            raise ValueError(f"top_k {self.top_k} is larger than num_experts {self.num_experts}")
        return self


MtpLayers = Annotated[int, Field(ge=0, le=10_000, strict=True)]
"""Layers of multi-token prediction."""


class ModelConfig(Featured):
    """A decoder-only transformer, or a hybrid model with recurrent mixers."""

    features: ClassVar[frozenset[str]] = frozenset(
        {
            *("kv_channels", "add_qkv_bias", "qk_norm", "has_output_gate", "window", "latent", "num_mtp_layers"),
            *("mixers", "parallel_norms"),
        }
    )

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    """Name of the model; the file is called the same."""
    source: Annotated[str, Field(min_length=8)]
    """Publication of the architecture."""
    num_layers: Layers
    """Layers; in a model with `mixers`, each letter of the pattern is a layer."""
    hidden_size: Size
    """Width of the residual stream."""
    ffn_hidden_size: Size
    """Inner width of the feed-forward block; with experts, of one expert."""
    num_attention_heads: Size
    """Query heads; 1 where no layer has attention."""
    num_query_groups: Size
    """Key/value heads; equal to `num_attention_heads` without grouped-query attention."""
    vocab_size: Size
    """Tokens in the vocabulary, before padding."""
    sequence_length: Size
    """Sequence length of the published training; a study may choose another. Unit: token."""
    activation: Literal["gelu", "swiglu"]
    """Feed-forward activation; swiglu has a gate and so three matrices instead of two."""
    normalization: Literal["layernorm", "rmsnorm"]
    """Normalisation before attention and the feed-forward block."""
    position_embedding: Literal["learned", "rope", "alibi", "none"]
    """Position embedding: learned absolute positions, rotary, attention biased by distance (without parameters), or
    none."""
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
    """Whether the projection to queries, keys and values has a bias although the other linear layers have none."""
    qk_norm: bool = False
    """Whether queries and keys are normalised per head."""
    has_output_gate: bool = False
    """Whether a gate, computed by the query projection, multiplies the output of attention."""
    window: SlidingWindow | None = None
    """Sliding-window attention. None: full attention in all layers."""
    latent: LatentAttention | None = None
    """Multi-head latent attention; `num_query_groups` and `kv_channels` then have no effect."""
    num_mtp_layers: MtpLayers = 0
    """Multi-token prediction layers, used in training only; each has norms and a projection."""
    parallel_norms: Annotated[int, Field(ge=1, le=2, strict=True)] | None = None
    """Norms of a layer whose attention and feed-forward block run in parallel on the same input: 1 for both together,
    or 2, one each. None: the feed-forward block follows attention."""
    mixers: Mixers | None = None
    """Token mixers of a hybrid model. None: every layer has attention and a feed-forward block."""

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
        """Width of the query and key of one attention head."""
        if self.latent:
            return self.latent.qk_head_dim + self.latent.qk_pos_emb_head_dim
        return self.kv_channels or self.hidden_size // self.num_attention_heads

    @property
    def value_head_size(self) -> int:
        """Width of the value of one attention head."""
        return self.latent.v_head_dim if self.latent else self.head_size

    @property
    def layer_kinds(self) -> tuple[LayerKind, ...]:
        """Kind of every layer, first to last; multi-token prediction layers are of kind `mtp_kind`."""
        return _layer_kinds(self.num_layers, self.moe, self.window, self.mixers)

    @property
    def shared_block(self) -> SharedBlock | None:
        """Block whose weights several layers share; None without one."""
        return self.mixers.shared if self.mixers else None

    @property
    def expert_width(self) -> int:
        """Width of the input and output of routed experts."""
        return (self.moe.latent_size if self.moe else None) or self.hidden_size

    @property
    def mtp_kind(self) -> LayerKind:
        """Kind of the multi-token prediction layers: always attention and a feed-forward block.

        It is the kind of the last layer if that has both; otherwise it has experts if any layer has them.
        """
        last = self.layer_kinds[-1]
        if last.has_attention and last.has_feed_forward:
            return last
        has_experts = any(kind.has_experts for kind in self.layer_kinds)
        return LayerKind(has_experts, last.window)

    def num_norms(self, kind: LayerKind) -> int:
        """Return the number of norms of a kind of layer: one before each block, unless `parallel_norms` is 1."""
        return min(kind.num_blocks, self.parallel_norms or kind.num_blocks)

    def recurrent(self, kind: LayerKind) -> Recurrent | None:
        """Return the recurrent mixer of a kind of layer; None if it has none."""
        return self.mixers.recurrent(kind.mixer) if self.mixers else None

    @property
    def dense_ffn_hidden_size(self) -> int:
        """Inner width of the feed-forward block of a layer without experts."""
        return (self.moe.dense_ffn_hidden_size if self.moe else None) or self.ffn_hidden_size

    @property
    def num_embedding_parameters(self) -> int:
        """Parameters of token embedding, output projection and learned positions, without vocabulary padding."""
        tables = 1 if self.tie_embeddings else 2
        positions = self.sequence_length if self.position_embedding == "learned" else 0
        return (tables * self.vocab_size + positions) * self.hidden_size

    @property
    def num_parameters(self) -> int:
        """Total parameters of the model."""
        layers = sum(self._layer_parameters(kind) * count for kind, count in Counter(self.layer_kinds).items())
        return layers + self._norm_parameters + self.num_embedding_parameters + self._mtp_parameters

    @property
    def num_expert_layers(self) -> int:
        """Layers that have experts."""
        return sum(kind.has_experts for kind in self.layer_kinds) if self.moe else 0

    def _layer_parameters(self, kind: LayerKind) -> int:
        """Return the parameters of a layer; shared weights count in the first layer that has them."""
        parameters, mixer = self.num_norms(kind) * self._norm_parameters, self.recurrent(kind)
        if mixer:
            parameters += mixer.num_weights(self.hidden_size) + mixer.num_vectors
            has_norms = kind.has_shared_block and not kind.reuses_weights
            parameters += self.num_shared_weights(kind) + has_norms * self._shared_norms
        elif kind.has_attention:
            parameters += self._attention_parameters
        if not kind.has_feed_forward:
            return parameters
        if not kind.has_experts or self.moe is None:
            return parameters + self._ffn_parameters(self.dense_ffn_hidden_size)
        shared = self.moe.shared_ffn_hidden_size
        width, latent_size = self.expert_width, self.moe.latent_size or 0
        routed = self.moe.num_experts * (self._ffn_parameters(self.ffn_hidden_size, width) + self.hidden_size)
        return (
            parameters + routed + 2 * latent_size * self.hidden_size + (self._ffn_parameters(shared) if shared else 0)
        )

    def num_shared_weights(self, kind: LayerKind, is_counted_again: bool = False) -> int:
        """Return the matrix parameters of a layer's shared block, with the layer's own adapters and projection.

        Args:
            kind: Kind of layer.
            is_counted_again: Whether shared weights count in every layer that uses them, as for multiply-adds.
        """
        block, width = self.shared_block, self.hidden_size
        if block is None or not kind.has_shared_block:
            return 0
        gates = 2 if self.activation == "swiglu" else 1
        not_shared = block.adapter_rank * (width + gates * self.ffn_hidden_size) + width * width
        if kind.reuses_weights and not is_counted_again:
            return not_shared
        heads = self.num_attention_heads + 2 * self.num_query_groups
        attention = (2 * heads + self.num_attention_heads) * self.head_size * width
        return not_shared + attention + self._ffn_parameters(self.ffn_hidden_size)

    @property
    def _shared_norms(self) -> int:
        """Parameters of the norms of a shared block: of its input, twice as wide, and of the feed-forward network."""
        return 3 * self._norm_parameters

    @property
    def num_attention_weights(self) -> int:
        """Matrix parameters of one layer's attention; each multiplies every token once."""
        width, heads, latent = self.hidden_size, self.num_attention_heads, self.latent
        query, out = heads * self.head_size, heads * self.value_head_size * width
        if latent is None:
            return width * ((1 + self.has_output_gate) * query + 2 * self.num_query_groups * self.head_size) + out
        q_rank = latent.q_lora_rank
        queries = q_rank * (width + query) if q_rank else width * query
        kv_down = width * (latent.kv_lora_rank + latent.qk_pos_emb_head_dim)
        return queries + kv_down + latent.kv_lora_rank * heads * (latent.qk_head_dim + latent.v_head_dim) + out

    @property
    def _attention_parameters(self) -> int:
        """Parameters of one layer's attention: matrices, biases and norms of queries and keys."""
        if self.latent:
            return self.num_attention_weights + (self.latent.q_lora_rank or 0) + self.latent.kv_lora_rank
        query_key_value = (self.num_attention_heads + 2 * self.num_query_groups) * self.head_size
        biases = (self.add_bias or self.add_qkv_bias) * query_key_value + self.add_bias * self.hidden_size
        return self.num_attention_weights + biases + 2 * self.qk_norm * self.head_size

    @property
    def _mtp_parameters(self) -> int:
        """Parameters of all multi-token prediction layers: each a layer, three norms and a projection."""
        each = self._layer_parameters(self.mtp_kind) + 3 * self._norm_parameters
        return self.num_mtp_layers * (each + 2 * self.hidden_size * self.hidden_size)

    def _ffn_parameters(self, inner: int, width: int | None = None) -> int:
        """Return the parameters of a feed-forward block of inner width `inner`; its input is `hidden_size` wide."""
        width = width or self.hidden_size
        first_outputs = 2 * inner if self.activation == "swiglu" else inner
        return width * first_outputs + inner * width + self.add_bias * (first_outputs + width)

    @property
    def _norm_parameters(self) -> int:
        """Parameters of one norm."""
        return self.hidden_size * (2 if self.normalization == "layernorm" else 1)


@lru_cache(maxsize=1024)
def _layer_kinds(
    num_layers: int, moe: MixtureOfExperts | None, window: SlidingWindow | None, mixers: Mixers | None
) -> tuple[LayerKind, ...]:
    """Return the kind of every layer; cached because it is called often for the same model."""

    def has_experts(layer: int) -> bool:
        if moe is None or layer < moe.num_dense_layers:
            return False
        return (layer + 1) % moe.layer_interval == 0

    def window_size(layer: int) -> int | None:
        if window is None or (window.full_interval and (layer + 1) % window.full_interval == 0):
            return None
        return window.size

    def kind(layer: int) -> LayerKind:
        if mixers is None:
            return LayerKind(has_experts(layer), window_size(layer))
        letter = mixers.letter(layer)
        if letter in (MLP, EXPERTS):
            return LayerKind(letter == EXPERTS, mixer="")
        if letter == SHARED:
            return LayerKind(mixer=letter, has_feed_forward=False)
        has_feed_forward = mixers.has_feed_forward
        window_of_layer = window_size(layer) if letter == ATTENTION else None
        return LayerKind(has_feed_forward and has_experts(layer), window_of_layer, letter, has_feed_forward)

    kinds, num_shared = [kind(layer) for layer in range(num_layers)], 0
    for layer, layer_kind in enumerate(kinds):
        if mixers and mixers.shared and layer_kind.has_shared_block:
            kinds[layer] = layer_kind._replace(reuses_weights=num_shared >= mixers.shared.num_blocks)
            num_shared += 1
    return tuple(kinds)
