"""Recurrent token mixers: Mamba-1, Mamba-2, gated delta rule and Kimi delta attention."""

from abc import abstractmethod
from typing import ClassVar, Literal, NamedTuple

from pydantic import model_validator

from triplepoint.config.base import Size, Strict


class Projection(NamedTuple):
    """A matrix of a mixer, other than its input and output projections.

    Attributes:
        inputs: Width of the input, over all tensor parallel ranks.
        outputs: Width of the output, over all tensor parallel ranks.
        split: Dimension that tensor parallelism splits: the output (`column`), the input (`row`), or `none`.
    """

    inputs: int
    outputs: int
    split: Literal["column", "row", "none"]


class Recurrent(Strict):
    """A recurrent mixer: input projection, causal convolution, recurrence, gated norm, output projection.

    Each head, or channel, has a state. Tokens are written to it with one vector and read from it with another (B and C
    of Mamba, key and query of the delta rule). Subclasses define widths, per token and over all heads, and the shape
    of the state.

    Attributes:
        kind: Algorithm of the recurrence over chunks of tokens.
        has_groups: Whether tensor parallelism splits the groups; if not, every rank has all of them.
    """

    kind: ClassVar[Literal["state_space", "delta", "selective"]] = "state_space"
    has_groups: ClassVar[bool] = True

    conv_width: Size = 4
    """Width of the causal convolution along the sequence, per channel. Unit: token."""
    chunk_size: Size = 256
    """Tokens of a chunk, which is computed with GEMMs; the state passes from chunk to chunk. Unit: token."""

    @property
    @abstractmethod
    def heads(self) -> int:
        """Heads, each with a state."""

    @property
    @abstractmethod
    def groups(self) -> int:
        """Groups of heads that share the vectors for writing and reading."""

    @property
    @abstractmethod
    def state_shape(self) -> tuple[int, int]:
        """Shape of a head's state: width of the written value, and of the vector it is written and read with."""

    @property
    @abstractmethod
    def projected(self) -> int:
        """Output width of the input projection."""

    @property
    @abstractmethod
    def num_vectors(self) -> int:
        """Parameters of a layer outside matrices: convolution, decay, norm."""

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
        """Channels of the convolution: the written values and the vectors for writing and reading."""
        return self.inner + 2 * self.groups * self.state_shape[1]

    @property
    def state_size(self) -> int:
        """Elements of the states of one sequence in a layer."""
        return self.inner * self.state_shape[1]

    @property
    def kept(self) -> int:
        """Activations of one token kept for the backward pass, as a number of elements.

        They are the output of the input projection, the input of the output projection, and the output before its gate.
        """
        return self.projected + 2 * self.inner

    def projections(self, hidden_size: int) -> tuple[Projection, ...]:
        """Return the matrices other than the input and output projections."""
        return ()

    def num_weights(self, hidden_size: int) -> int:
        """Return the parameters of a layer's matrices."""
        others = sum(matrix.inputs * matrix.outputs for matrix in self.projections(hidden_size))
        return hidden_size * (self.projected + self.inner) + others


class Mamba2(Recurrent):
    """Mamba-2, a state space layer with one decay per head and token.

    Source: Dao and Gu 2024, arXiv:2405.21060, section 7. Keys have the names of Megatron-LM without `mamba_`.
    """

    num_heads: Size
    """Heads; `num_heads` * `head_dim` is `expand` times the hidden size."""
    head_dim: Size = 64
    """Width of a head."""
    state_dim: Size = 128
    """Width of the vectors B and C."""
    num_groups: Size = 1
    """Groups of heads that share B and C."""

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
        """Parameters of the convolution with bias; of decay, skip and time-step bias of each head; of the norm."""
        return self.conv_channels * (self.conv_width + 1) + 3 * self.heads + self.inner

    @property
    def scan_macs(self) -> float:
        """Multiply-adds per token of the recurrence.

        Source:
            NVIDIA/Megatron-LM megatron/training/training.py, num_floating_point_operations: 7 FLOPs per element of a
            state.
        """
        return 3.5 * self.state_size


class DeltaNet(Recurrent):
    """Linear attention with the gated delta rule: a new value replaces what its key held in the state.

    Source: Yang et al. 2024, arXiv:2412.06464. Keys have the names of Qwen3-Next's config.json without `linear_`.
    """

    kind = "delta"

    chunk_size: Size = 64
    """Tokens of a chunk. Source: fla-org/flash-linear-attention, fla/ops/gated_delta_rule/chunk.py."""
    num_key_heads: Size
    """Heads of queries and keys; the heads of values are divided evenly among them."""
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
        """Width of queries, keys, values, gate, and of write strength and decay of each head."""
        return self.inner + self.conv_channels + 2 * self.heads

    @property
    def num_vectors(self) -> int:
        """Parameters of the convolution without bias; of decay and its bias of each head; of the norm of all heads."""
        return self.conv_channels * self.conv_width + 2 * self.heads + self.value_head_dim

    @property
    def scan_macs(self) -> float:
        """Multiply-adds per token of the recurrence: read with the key, write, decay, read with the query."""
        return 4.0 * self.state_size


class Mamba1(Recurrent):
    """Mamba-1, a selective state space layer with a decay for every element of a channel's state.

    Source: Gu and Dao 2023, arXiv:2312.00752, section 3. Keys have the names of Mamba's config.json on Hugging Face.
    """

    kind = "selective"
    has_groups = False

    intermediate_size: Size
    """Channels, each with a state."""
    state_dim: Size = 16
    """Elements of a channel's state (`state_size` of config.json)."""
    time_step_rank: Size
    """Rank of the projection to time steps."""

    @property
    def heads(self) -> int:
        """Channels, each with a state."""
        return self.intermediate_size

    @property
    def groups(self) -> int:
        """One group: all channels share the vectors, which every tensor parallel rank has."""
        return 1

    @property
    def state_shape(self) -> tuple[int, int]:
        """Width of a channel, which is 1, and of its state."""
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
        """Parameters of the convolution with bias; of decay of each state element; of skip and time-step bias."""
        return self.inner * (self.conv_width + 1 + self.state_dim + 2)

    @property
    def scan_macs(self) -> float:
        """Multiply-adds per token of the recurrence, as in Mamba-2."""
        return 3.5 * self.state_size

    @property
    def kept(self) -> int:
        """Elements of one token kept for the backward pass, which recomputes convolution and time steps.

        Source:
            state-spaces/mamba mamba_ssm/ops/selective_scan_interface.py, MambaInnerFn with checkpoint_lvl 1.
        """
        return self.projected + self.inner + self.time_step_rank + 2 * self.state_dim

    def projections(self, hidden_size: int) -> tuple[Projection, ...]:
        """Return the matrix from the convolution to low-rank time step, B and C, and that to the time steps."""
        outputs = self.time_step_rank + 2 * self.state_dim
        return Projection(self.inner, outputs, "row"), Projection(self.time_step_rank, self.inner, "column")


class KimiDelta(Recurrent):
    """Kimi delta attention: the gated delta rule with a decay for every channel of the keys.

    Source: Kimi Linear, arXiv:2510.26692, section 3. Keys have the names of `linear_attn_config` of its config.json.
    """

    kind = "delta"

    chunk_size: Size = 64
    """Tokens of a chunk. Source: fla-org/flash-linear-attention, fla/ops/kda/chunk.py."""
    num_heads: Size
    """Heads, each with a state."""
    head_dim: Size
    """Width of a head's query, key and value, and rank of the projections to decays and gates."""

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
        """Width of queries, keys and values, and of the write strength of each head."""
        return 3 * self.inner + self.heads

    @property
    def num_vectors(self) -> int:
        """Parameters of convolutions without bias; of decay of each head and bias of each channel; of the norm."""
        return self.conv_channels * self.conv_width + self.heads + self.inner + self.head_dim

    @property
    def scan_macs(self) -> float:
        """Multiply-adds per token of the recurrence: read with the key, write, decay, read with the query."""
        return 4.0 * self.state_size

    @property
    def kept(self) -> int:
        """Elements of one token kept for the backward pass: those of `Recurrent`, decays and gates."""
        return self.projected + 4 * self.inner

    def projections(self, hidden_size: int) -> tuple[Projection, ...]:
        """Return two low-rank pairs of matrices, one for decays and one for gates."""
        down, up = Projection(hidden_size, self.head_dim, "none"), Projection(self.head_dim, self.inner, "column")
        return down, up, down, up
