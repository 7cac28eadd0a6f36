"""Which layers mix tokens by what: attention, mixers with a state, blocks that several layers share."""

from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from triplepoint.config.base import Featured, Size, Strict
from triplepoint.config.recurrence import DeltaNet, KimiDelta, Mamba1, Mamba2, Recurrent

MAMBA, SELECTIVE, DELTA_NET, KIMI_DELTA, SHARED, ATTENTION = "M", "S", "G", "K", "H", "*"
MLP, EXPERTS = "-", "E"


class SharedBlock(Strict):
    """A block of attention and feed-forward network whose weights several layers share.

    Its input is the output of the layer before beside that of the embedding, twice the hidden size; a projection of the
    layer's own adds its output to the input of that layer's Mamba-2 mixer.

    Source: Zamba2, arXiv:2411.15242, section II; the feed-forward network has `ffn_hidden_size`.
    """

    num_blocks: Size
    """Blocks, taken in turn by the layers that have one."""
    adapter_rank: Size
    """Rank of the low-rank matrices that each layer adds to the first matrix of the feed-forward network."""


class Mixers(Featured):
    """Which layers mix tokens by what."""

    features: ClassVar[frozenset[str]] = frozenset({"selective", "kimi_delta", "shared"})

    pattern: Annotated[str, Field(pattern=r"^[MSGKH*E-]+$", max_length=10_000)]
    """One letter a layer as Megatron-LM's hybrid pattern: `M` Mamba-2, `G` gated delta rule, `*` attention, `-` a
    feed-forward block, `E` one of experts; besides, `S` Mamba-1, `K` Kimi delta attention, `H` a shared block and
    Mamba-2 after it. A pattern shorter than the model is repeated, a longer one cut."""
    has_feed_forward: bool = False
    """Whether layers that mix tokens have a feed-forward block too, as those of transformers; then there is no `-`, and
    `moe` says which have experts."""
    mamba: Mamba2 | None = None
    """Layers `M` and `H`."""
    delta_net: DeltaNet | None = None
    """Layers `G`."""
    selective: Mamba1 | None = None
    """Layers `S`."""
    kimi_delta: KimiDelta | None = None
    """Layers `K`."""
    shared: SharedBlock | None = None
    """What layers `H` share."""

    @model_validator(mode="after")
    def _check(self) -> "Mixers":
        for letter, key in _KEYS:
            if letter in self.pattern and getattr(self, key) is None:
                raise ValueError(f"pattern has {letter!r}, which needs {key}; add it")
        if self.has_feed_forward and {MLP, EXPERTS, SHARED} & set(self.pattern):
            raise ValueError("pattern has '-', 'E' or 'H', and has_feed_forward is true; leave one out")
        return self

    def letter(self, layer: int) -> str:
        """Return the letter of a layer, from 0."""
        return self.pattern[layer % len(self.pattern)]

    def recurrent(self, letter: str) -> Recurrent | None:
        """Return the mixer of layers of a letter, none of those that have no state."""
        if letter == SHARED:
            return self.mamba
        return next((getattr(self, key) for known, key in _KEYS[:4] if known == letter), None)


_KEYS = (
    (MAMBA, "mamba"),
    (SELECTIVE, "selective"),
    (DELTA_NET, "delta_net"),
    (KIMI_DELTA, "kimi_delta"),
    (SHARED, "mamba"),
    (SHARED, "shared"),
)
"""Letters and the keys they need; the first four are of mixers with a state."""
