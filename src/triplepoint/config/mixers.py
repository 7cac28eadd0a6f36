"""Token mixers of hybrid models: which layers have attention, a recurrent mixer or a shared block."""

from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from triplepoint.config.base import Featured, Size, Strict
from triplepoint.config.recurrence import DeltaNet, KimiDelta, Mamba1, Mamba2, Recurrent

MAMBA, SELECTIVE, DELTA_NET, KIMI_DELTA, SHARED, ATTENTION = "M", "S", "G", "K", "H", "*"
MLP, EXPERTS = "-", "E"


class SharedBlock(Strict):
    """An attention and feed-forward block whose weights several layers share.

    Its input is the output of the previous layer concatenated with that of the embedding, twice the hidden size. Each
    layer has its own projection, which adds the output of the block to the input of the layer's Mamba-2 mixer.

    Source: Zamba2, arXiv:2411.15242, section II; the feed-forward network has `ffn_hidden_size`.
    """

    num_blocks: Size
    """Different blocks; the layers with a shared block take them in turn."""
    adapter_rank: Size
    """Rank of the low-rank adapter that each layer adds to the first matrix of the feed-forward network."""


class Mixers(Featured):
    """The token mixer of every layer."""

    features: ClassVar[frozenset[str]] = frozenset({"selective", "kimi_delta", "shared"})

    pattern: Annotated[str, Field(pattern=r"^[MSGKH*E-]+$", max_length=10_000)]
    """One letter per layer, as in Megatron-LM's hybrid pattern: `M` Mamba-2, `G` gated delta rule, `*` attention, `-` a
    feed-forward block, `E` a feed-forward block of experts. In addition: `S` Mamba-1, `K` Kimi delta attention, `H` a
    shared block followed by Mamba-2. A pattern shorter than the model repeats; a longer one is cut."""
    has_feed_forward: bool = False
    """Whether every layer also has a feed-forward block, as in transformers. Then the pattern has no `-`, and `moe`
    decides which layers have experts."""
    mamba: Mamba2 | None = None
    """Mamba-2 mixer of layers `M` and `H`."""
    delta_net: DeltaNet | None = None
    """Gated delta rule of layers `G`."""
    selective: Mamba1 | None = None
    """Mamba-1 mixer of layers `S`."""
    kimi_delta: KimiDelta | None = None
    """Kimi delta attention of layers `K`."""
    shared: SharedBlock | None = None
    """Shared block of layers `H`."""

    @model_validator(mode="after")
    def _check(self) -> "Mixers":
        for letter, key in _REQUIRED_KEYS:
            if letter in self.pattern and getattr(self, key) is None:
                raise ValueError(f"pattern has {letter!r}, which needs {key}; add it")
        if self.has_feed_forward and {MLP, EXPERTS, SHARED} & set(self.pattern):
            raise ValueError("pattern has '-', 'E' or 'H', and has_feed_forward is true; leave one out")
        return self

    def letter(self, layer: int) -> str:
        """Return the letter of a layer; layers count from 0."""
        return self.pattern[layer % len(self.pattern)]

    def recurrent(self, letter: str) -> Recurrent | None:
        """Return the recurrent mixer of layers with a letter; None if they have none."""
        if letter == SHARED:
            return self.mamba
        return next((getattr(self, key) for known, key in _REQUIRED_KEYS[:4] if known == letter), None)


_REQUIRED_KEYS = (
    (MAMBA, "mamba"),
    (SELECTIVE, "selective"),
    (DELTA_NET, "delta_net"),
    (KIMI_DELTA, "kimi_delta"),
    (SHARED, "mamba"),
    (SHARED, "shared"),
)
"""Letters and the keys they require; the first four keys are recurrent mixers."""
