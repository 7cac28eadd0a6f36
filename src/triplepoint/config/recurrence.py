"""Mixers with a state per head, or channel, that tokens are written to and read from."""

from abc import abstractmethod
from typing import ClassVar, Literal, NamedTuple

from pydantic import model_validator

from triplepoint.config.base import Size, Strict


class Projection(NamedTuple):
    """A matrix of a mixer besides those into it and out of it.

    Attributes:
        inputs: Width of its input, over all tensor parallel ranks.
        outputs: Width of its output.
        split: What tensor parallel ranks have a part of: the output (`column`), the input (`row`), or nothing (`none`).
    """

    inputs: int
    outputs: int
    split: Literal["column", "row", "none"]


class Recurrent(Strict):
    """A mixer with a state: projections into it, a causal convolution, the recurrence, a gated norm, a projection out.

    Subclasses give widths of one token over all heads, and shapes of the state.

    Attributes:
        kind: How its chunks are worked out.
        has_groups: Whether tensor parallel ranks have groups of their own.
    """

    kind: ClassVar[Literal["state_space", "delta", "selective"]] = "state_space"
    has_groups: ClassVar[bool] = True

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

    @property
    def kept(self) -> int:
        """Numbers of one token kept for the backward pass: ends of the projections, and the output before its gate."""
        return self.projected + 2 * self.inner

    def projections(self, hidden_size: int) -> tuple[Projection, ...]:
        """Return the matrices besides those into the mixer and out of it."""
        return ()

    def num_weights(self, hidden_size: int) -> int:
        """Return the parameters of a layer's matrices."""
        besides = sum(one.inputs * one.outputs for one in self.projections(hidden_size))
        return hidden_size * (self.projected + self.inner) + besides


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

    kind = "delta"

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


class Mamba1(Recurrent):
    """A selective state space layer, whose decay is of every channel and number of its state.

    Source: Gu and Dao 2023, arXiv:2312.00752, section 3; keys are called as in config.json of Mamba on Hugging Face.
    """

    kind = "selective"
    has_groups = False

    intermediate_size: Size
    """Channels, each with a state."""
    state_dim: Size = 16
    """Numbers of a channel's state (`state_size`)."""
    time_step_rank: Size
    """Width that time steps are made of."""

    @property
    def heads(self) -> int:
        """Channels, each with a state."""
        return self.intermediate_size

    @property
    def groups(self) -> int:
        """All channels are written and read with the same vectors, which every tensor parallel rank has."""
        return 1

    @property
    def state_shape(self) -> tuple[int, int]:
        """One number is written to a state, by a vector as wide as it."""
        return 1, self.state_dim

    @property
    def projected(self) -> int:
        """Width of input and gate."""
        return 2 * self.inner

    @property
    def conv_channels(self) -> int:
        """Channels of the convolution: the input alone."""
        return self.inner

    @property
    def num_vectors(self) -> int:
        """Convolution with bias; decay of every number of a state; skip and bias of the time step of each channel."""
        return self.inner * (self.conv_width + 1 + self.state_dim + 2)

    @property
    def scan_macs(self) -> float:
        """Multiply-adds per token of the recurrence, as of Mamba-2."""
        return 3.5 * self.state_size

    @property
    def kept(self) -> int:
        """Numbers of one token kept for the backward pass, which works out convolution and time steps again.

        Source:
            state-spaces/mamba mamba_ssm/ops/selective_scan_interface.py, MambaInnerFn with checkpoint_lvl 1.
        """
        return self.projected + self.inner + self.time_step_rank + 2 * self.state_dim

    def projections(self, hidden_size: int) -> tuple[Projection, ...]:
        """Return the matrices from the convolution to time step, B and C, and from there to the time steps."""
        small = self.time_step_rank + 2 * self.state_dim
        return Projection(self.inner, small, "row"), Projection(self.time_step_rank, self.inner, "column")


class KimiDelta(Recurrent):
    """Kimi delta attention: the gated delta rule with a decay of every channel of the keys.

    Source: Kimi Linear, arXiv:2510.26692, section 3; keys are called as in `linear_attn_config` of its config.json.
    """

    kind = "delta"

    chunk_size: Size = 64
    """Tokens worked out together. Source: fla-org/flash-linear-attention, fla/ops/kda/chunk.py."""
    num_heads: Size
    """Heads, each with a state."""
    head_dim: Size
    """Width of a head's query, key and value, and of what decays and gates are made of."""

    @property
    def heads(self) -> int:
        """Heads, each with a state."""
        return self.num_heads

    @property
    def groups(self) -> int:
        """Heads of queries and keys: all."""
        return self.num_heads

    @property
    def state_shape(self) -> tuple[int, int]:
        """Width of a value, and of a key."""
        return self.head_dim, self.head_dim

    @property
    def projected(self) -> int:
        """Width of queries, keys and values, and of how much each head writes."""
        return 3 * self.inner + self.heads

    @property
    def num_vectors(self) -> int:
        """Convolutions without bias; decay of each head, bias of each channel; norm, shared by the heads."""
        return self.conv_channels * self.conv_width + self.heads + self.inner + self.head_dim

    @property
    def scan_macs(self) -> float:
        """Multiply-adds per token of the recurrence: read with the key, write, decay, read with the query."""
        return 4.0 * self.state_size

    @property
    def kept(self) -> int:
        """Numbers of one token kept for the backward pass: decays and gates besides."""
        return self.projected + 4 * self.inner

    def projections(self, hidden_size: int) -> tuple[Projection, ...]:
        """Return the two low-rank pairs of matrices, of decays and of gates."""
        down, up = Projection(hidden_size, self.head_dim, "none"), Projection(self.head_dim, self.inner, "column")
        return down, up, down, up
