"""What mixes the tokens of layers without attention: a state per head that tokens are written to and read from."""

from abc import abstractmethod
from typing import Annotated

from pydantic import Field, model_validator

from triplepoint.config.base import Size, Strict

MAMBA, DELTA_NET, ATTENTION = "M", "G", "*"
MLP, EXPERTS = "-", "E"


class Recurrent(Strict):
    """A mixer with a state: projections into it, a causal convolution, the recurrence, a gated norm, a projection out.

    Subclasses give widths of one token over all heads, and shapes of the state.
    """

    conv_width: Size = 4
    """Tokens the causal convolution sees, channel by channel."""
    chunk_size: Size = 256
    """Tokens worked out together as matrix products; states are carried from chunk to chunk. Unit: token."""

    @property
    @abstractmethod
    def heads(self) -> int:
        """Heads, each with a state."""

    @property
    @abstractmethod
    def groups(self) -> int:
        """Groups of heads that are written and read with the same vectors."""

    @property
    @abstractmethod
    def state_shape(self) -> tuple[int, int]:
        """Width of what is written to a head's state, and of the vector it is written and read with."""

    @property
    @abstractmethod
    def projected(self) -> int:
        """Width of the projection into the mixer."""

    @property
    @abstractmethod
    def num_vectors(self) -> int:
        """Parameters of a layer that are no matrices: convolution, decay, norm."""

    @property
    @abstractmethod
    def scan_macs(self) -> float:
        """Multiply-adds per token of the recurrence."""

    @property
    def inner(self) -> int:
        """Width of the mixer's output, over all heads."""
        return self.heads * self.state_shape[0]

    @property
    def conv_channels(self) -> int:
        """Channels of the convolution: what is written, and the vectors it is written and read with."""
        return self.inner + 2 * self.groups * self.state_shape[1]

    @property
    def state_size(self) -> int:
        """Numbers in the states of one sequence in a layer."""
        return self.inner * self.state_shape[1]

    def num_weights(self, hidden_size: int) -> int:
        """Return the parameters of a layer's matrices."""
        return hidden_size * (self.projected + self.inner)


class Mamba2(Recurrent):
    """A state space layer whose decay is one number per head and token.

    Source: Dao and Gu 2024, arXiv:2405.21060, section 7; keys are called as Megatron-LM calls them, without `mamba_`.
    """

    num_heads: Size
    """Heads; times `head_dim` it is `expand` times the hidden size."""
    head_dim: Size = 64
    """Width of a head."""
    state_dim: Size = 128
    """Width of the vectors states are written and read with (B and C)."""
    num_groups: Size = 1
    """Groups of heads that share these vectors."""

    @model_validator(mode="after")
    def _check(self) -> "Mamba2":
        if self.num_heads % self.num_groups:
            raise ValueError(f"num_heads {self.num_heads} is not divisible by num_groups {self.num_groups}")
        return self

    @property
    def heads(self) -> int:
        """Heads, each with a state."""
        return self.num_heads

    @property
    def groups(self) -> int:
        """Groups of heads that share B and C."""
        return self.num_groups

    @property
    def state_shape(self) -> tuple[int, int]:
        """Width of a head, and of B and C."""
        return self.head_dim, self.state_dim

    @property
    def projected(self) -> int:
        """Width of gate, input, B, C and time step."""
        return self.inner + self.conv_channels + self.heads

    @property
    def num_vectors(self) -> int:
        """Convolution with bias; decay, skip and bias of the time step of each head; norm."""
        return self.conv_channels * (self.conv_width + 1) + 3 * self.heads + self.inner

    @property
    def scan_macs(self) -> float:
        """Multiply-adds per token of the recurrence.

        Source:
            NVIDIA/Megatron-LM megatron/training/training.py, num_floating_point_operations: 7 FLOPs per number of a
            state.
        """
        return 3.5 * self.state_size


class DeltaNet(Recurrent):
    """Linear attention with a gated delta rule: what a key held before is taken out of the state.

    Source: Yang et al. 2024, arXiv:2412.06464; keys are called as in config.json of Qwen3-Next, without `linear_`.
    """

    chunk_size: Size = 64
    """Tokens worked out together. Source: fla-org/flash-linear-attention, fla/ops/gated_delta_rule/chunk.py."""
    num_key_heads: Size
    """Heads of queries and keys, each for as many heads of values."""
    num_value_heads: Size
    """Heads of values, each with a state."""
    key_head_dim: Size
    """Width of a head's query and key."""
    value_head_dim: Size
    """Width of a head's value."""

    @model_validator(mode="after")
    def _check(self) -> "DeltaNet":
        if self.num_value_heads % self.num_key_heads:
            raise ValueError(
                f"num_value_heads {self.num_value_heads} is not divisible by num_key_heads {self.num_key_heads}"
            )
        return self

    @property
    def heads(self) -> int:
        """Heads, each with a state."""
        return self.num_value_heads

    @property
    def groups(self) -> int:
        """Heads of queries and keys."""
        return self.num_key_heads

    @property
    def state_shape(self) -> tuple[int, int]:
        """Width of a value, and of a key."""
        return self.value_head_dim, self.key_head_dim

    @property
    def projected(self) -> int:
        """Width of queries, keys, values, gate, and two numbers a head: how much is written, how much decays."""
        return self.inner + self.conv_channels + 2 * self.heads

    @property
    def num_vectors(self) -> int:
        """Convolution without bias; decay and its bias of each head; norm, shared by the heads."""
        return self.conv_channels * self.conv_width + 2 * self.heads + self.value_head_dim

    @property
    def scan_macs(self) -> float:
        """Multiply-adds per token of the recurrence: read with the key, write, decay, read with the query."""
        return 4.0 * self.state_size


class Mixers(Strict):
    """Which layers mix tokens by what."""

    pattern: Annotated[str, Field(pattern=r"^[MG*E-]+$", max_length=10_000)]
    """One letter a layer as Megatron-LM's hybrid pattern: `M` Mamba-2, `G` gated delta rule, `*` attention, `-` a
    feed-forward block, `E` one of experts. A pattern shorter than the model is repeated, a longer one cut."""
    has_feed_forward: bool = False
    """Whether layers that mix tokens have a feed-forward block too, as those of transformers; then there is no `-`, and
    `moe` says which have experts."""
    mamba: Mamba2 | None = None
    """Layers `M`."""
    delta_net: DeltaNet | None = None
    """Layers `G`."""

    @model_validator(mode="after")
    def _check(self) -> "Mixers":
        for letter, key in ((MAMBA, "mamba"), (DELTA_NET, "delta_net")):
            if letter in self.pattern and getattr(self, key) is None:
                raise ValueError(f"pattern has {letter!r} and there is no {key}; give {key}")
        if self.has_feed_forward and {MLP, EXPERTS} & set(self.pattern):
            raise ValueError("pattern has '-' or 'E', and has_feed_forward is true; leave one out")
        return self

    def letter(self, layer: int) -> str:
        """Return the letter of a layer, from 0."""
        return self.pattern[layer % len(self.pattern)]

    def recurrent(self, letter: str) -> Recurrent | None:
        """Return the mixer of layers of a letter, none of those that have no state."""
        return {MAMBA: self.mamba, DELTA_NET: self.delta_net}.get(letter)
