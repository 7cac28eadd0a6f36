"""The parts a job's model is made of on one rank, and which layers stand on which stage."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from triplepoint.config.model import LayerKind
from triplepoint.simulate.job import Job
from triplepoint.simulate.work.attention import attention
from triplepoint.simulate.work.ends import embedding, head, prediction
from triplepoint.simulate.work.experts import experts
from triplepoint.simulate.work.feed_forward import feed_forward
from triplepoint.simulate.work.parts import Part, Share, Weights, join

Layers = tuple[tuple[LayerKind, int], ...]
"""Layers by kind: each kind once, in the order of the model, with how many there are."""


@dataclass(frozen=True)
class Chunk:
    """One model chunk of a stage.

    Attributes:
        layers: Its layers by kind, those of multi-token prediction among them.
        recomputed: Those of them that are recomputed whole.
        is_first: Whether it has the embedding.
        is_last: Whether it has the output projection and the loss.
    """

    layers: Layers
    recomputed: Layers
    is_first: bool
    is_last: bool

    @property
    def num_layers(self) -> int:
        """Its layers."""
        return sum(count for _, count in self.layers)


@dataclass(frozen=True)
class Layer:
    """Parts of one kind of layer.

    Attributes:
        kind: The kind.
        core: The core of attention, which selective recomputation repeats.
        whole: All of it.
    """

    kind: LayerKind
    core: Part
    whole: Part


class Blocks:
    """Parts of the model on one rank.

    Attributes:
        share: What the rank has.
    """

    def __init__(self, share: Share) -> None:
        """Take the parts of `share`, each when asked for."""
        self.share = share
        self._layers: dict[LayerKind, Layer] = {}

    def layer(self, kind: LayerKind) -> Layer:
        """Return the parts of a kind of layer."""
        if kind not in self._layers:
            before, core, projected = attention(self.share, kind.window)
            block = experts(self.share) if kind.has_experts else feed_forward(self.share)
            self._layers[kind] = Layer(kind, core, join((before, core, projected, block)))
        return self._layers[kind]

    def in_chunk(self, chunk: Chunk) -> Iterator[tuple[Layer, int]]:
        """Yield each kind of layer in a chunk, with how many there are."""
        return ((self.layer(kind), count) for kind, count in chunk.layers)

    @cached_property
    def embedding(self) -> Part:
        """Embedding, of the first stage."""
        return embedding(self.share)

    @cached_property
    def head(self) -> Part:
        """Final norm, output projection and loss, of the last stage; with multi-token prediction once more for each."""
        number = self.share.job.model.num_mtp_layers
        return join((head(self.share), *([prediction(self.share)] * number)))

    @property
    def is_tied_across(self) -> bool:
        """Whether first and last stage each hold the table that embedding and output share."""
        return self.share.job.model.tie_embeddings and self.share.job.layout.pp > 1

    def end_weights(self, chunk: Chunk) -> Weights:
        """Return the parameters of a chunk that are not of a layer; a table shared on one stage counts once."""
        found = Weights()
        if chunk.is_first:
            found += self.embedding.weights
        if chunk.is_last:
            found += self.head.weights
            if self.share.job.model.tie_embeddings and self.share.job.layout.pp == 1:
                found += Weights(split=-self.embedding.weights.split)
        return found

    def weights(self, chunks: tuple[Chunk, ...]) -> Weights:
        """Return the parameters of a stage on one rank."""
        ends = (self.end_weights(chunk) for chunk in chunks)
        layers = (layer.whole.weights.times(count) for chunk in chunks for layer, count in self.in_chunk(chunk))
        return sum((*ends, *layers), Weights())

    def adapters(self, chunks: tuple[Chunk, ...]) -> float:
        """Return the trainable parameters of a stage on one rank with LoRA."""
        return sum(layer.whole.adapters * count for chunk in chunks for layer, count in self.in_chunk(chunk))


def split_layers(job: Job) -> list[tuple[Chunk, ...]]:
    """Return the chunks of every stage.

    Layers are split as the layout says, else as evenly as can be. Then chunks that have one layer less than others are
    the last of the model, which has the output projection too, then the first, which has the embedding, then those
    before the last.

    Source:
        NVIDIA/Megatron-LM, account_for_loss_in_pipeline_split and account_for_embedding_in_pipeline_split; what is
        recomputed of each chunk: transformer_block.py, recompute_method block.
    """
    pp, vp = job.layout.pp, job.layout.vp
    counts, kinds = _counts(job), job.model.layer_kinds
    starts = [sum(counts[:index]) for index in range(pp * vp)]
    stages = []
    for stage in range(pp):
        chunks = []
        for index in range(stage, pp * vp, pp):
            is_last = index == pp * vp - 1
            own = kinds[starts[index] : starts[index] + counts[index]]
            own += kinds[-1:] * (job.model.num_mtp_layers * is_last)
            recomputed = own[: _num_recomputed(job, counts[index], len(own))]
            chunks.append(Chunk(_by_kind(own), _by_kind(recomputed), index == 0, is_last))
        stages.append(tuple(chunks))
    return stages


def _by_kind(kinds: tuple[LayerKind, ...]) -> Layers:
    return tuple(Counter(kinds).items())


def _counts(job: Job) -> list[int]:
    """Return layers of every chunk in the order of the model: chunk c of stage s is number c*pp + s."""
    if job.layout.pipeline_layers:
        return list(job.layout.pipeline_layers)
    number = job.layout.pp * job.layout.vp
    each, extra = divmod(job.model.num_layers, number)
    if not extra:
        return [each] * number
    lightest = [number - 1, 0, *range(number - 2, 0, -1)][: number - extra]
    return [each + (index not in lightest) for index in range(number)]


def _num_recomputed(job: Job, num_layers: int, num_all: int) -> int:
    """Return the layers of a chunk that are recomputed; those of multi-token prediction are if all are."""
    if job.recompute != "full":
        return 0
    return num_all if job.recompute_layers is None else min(num_layers, job.recompute_layers)
