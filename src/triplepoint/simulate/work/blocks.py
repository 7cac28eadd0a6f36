"""Parts of a job's model on one rank, and the layers of each stage."""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

from triplepoint.config.model import LatentAttention, LayerKind
from triplepoint.config.point import lighter_ends
from triplepoint.simulate.job import Job
from triplepoint.simulate.work.cores import Core, core_of, positions
from triplepoint.simulate.work.ends import embedding, head, multi_token_prediction
from triplepoint.simulate.work.experts import experts
from triplepoint.simulate.work.feed_forward import feed_forward
from triplepoint.simulate.work.layer_parts import Part, Share, Weights, join, streaming
from triplepoint.simulate.work.linear import Linear, linear, norm, residual
from triplepoint.simulate.work.recurrent import recurrent
from triplepoint.simulate.work.shared import shared_block


def attention(share: Share, window: int | None = None) -> tuple[Part, Part, Part]:
    """Return the attention block in three parts: before its core, the core, after it.

    The core alone is what selective recomputation repeats.

    Args:
        share: What the rank has.
        window: Tokens a query sees; None for all.
    """
    model, core = share.job.model, core_of(share, window)
    # Beside a feed-forward block both outputs are added up over the ranks at once. Source: EleutherAI/gpt-neox
    # megatron/model/transformer.py, gpt_j_residual.
    is_beside = model.parallel_norms is not None
    width = core.heads * core.value_size
    out = Linear(width, model.hidden_size, "row", model.add_bias, name="linear_proj", is_beside=is_beside)
    into = _latent(share, core, model.latent) if model.latent else _plain(share, core)
    return (
        join((norm(share, is_quantized_output=True), *into, positions(share, core))),
        core.part(),
        join((*_output_gate(share, core), linear(share, out), residual(share))),
    )


def _plain(share: Share, core: Core) -> tuple[Part, ...]:
    """Return the one projection to queries, keys and values, and their norms."""
    model = share.job.model
    width = ((1 + model.has_output_gate) * core.heads + 2 * core.groups) * core.size
    into = Linear(model.hidden_size, width, "column", model.add_bias or model.add_qkv_bias, name="linear_qkv")
    return (linear(share, into), *((_head_norms(share, core),) if model.qk_norm else ()))


def _latent(share: Share, core: Core, latent: LatentAttention) -> tuple[Part, ...]:
    """Return the projections of latent attention: down to what tensor parallel ranks all have, a norm, up to heads.

    Source:
        NVIDIA/Megatron-LM megatron/core/transformer/multi_latent_attention.py: the projections down are whole on every
        rank, on its part of the sequence.
    """
    width, rank = share.job.model.hidden_size, latent.q_lora_rank
    down = latent.kv_lora_rank + latent.qk_pos_emb_head_dim
    parts = [linear(share, Linear(width, down, "none", name="linear_kv_down_proj"))]
    if rank:
        parts += [
            linear(share, Linear(width, rank, "none", name="linear_q_down_proj", keeps_input=False)),
            norm(share, is_quantized_output=True, width=rank),
        ]
    query, keys = latent_up(share, core, latent)
    return (*parts, query, norm(share, is_quantized_output=True, width=latent.kv_lora_rank), keys)


def latent_up(share: Share, core: Core, latent: LatentAttention) -> tuple[Part, Part]:
    """Return the projections of latent attention up to heads: of queries, and of keys and values."""
    width, rank = share.job.model.hidden_size, latent.q_lora_rank
    query = Linear(
        rank or width, core.heads * core.size, "column", name="linear_q_up_proj", keeps_input=rank is not None
    )
    up = core.heads * (latent.qk_head_dim + latent.v_head_dim)
    return (
        linear(share, query),
        linear(share, Linear(latent.kv_lora_rank, up, "column", name="linear_kv_up_proj")),
    )


def _output_gate(share: Share, core: Core) -> tuple[Part, ...]:
    """Return the gate on the output of attention: a sigmoid and a product in one pass; gate and product are kept."""
    if not share.job.model.has_output_gate:
        return ()
    one = core.output_bytes
    forward, backward = streaming("elementwise", "gate", 3 * one), streaming("elementwise", "gate", 5 * one)
    return (Part((forward,), (backward,), (), 2 * one),)


def _head_norms(share: Share, core: Core) -> Part:
    """Return the norms of queries and keys, whose input is kept."""
    one = core.query_bytes + core.pair_bytes / 2
    return Part(
        (streaming("norm", "forward", 2 * one),),
        (streaming("norm", "backward", 3 * one),),
        (),
        one,
        Weights(shared=2.0 * core.size),
    )


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
        core: The core of attention, which selective recomputation repeats; nothing without attention.
        whole: All of it.
    """

    kind: LayerKind
    core: Part
    whole: Part


class LayerParts:
    """Layers, embedding and head of a model on one rank, each made when asked for.

    Attributes:
        share: What the rank has.
    """

    def __init__(self, share: Share) -> None:
        """Take the parts of `share`."""
        self.share = share
        self._layers: dict[LayerKind, Layer] = {}

    def layer(self, kind: LayerKind) -> Layer:
        """Return the parts of a kind of layer."""
        if kind not in self._layers:
            parts, core = self._mixer(kind)
            if kind.has_feed_forward:
                parts += (experts(self.share) if kind.has_experts else feed_forward(self.share),)
            self._layers[kind] = Layer(kind, core, join(parts))
        return self._layers[kind]

    def _mixer(self, kind: LayerKind) -> tuple[tuple[Part, ...], Part]:
        """Return what mixes the tokens of a layer, and the core of attention in it."""
        if mixer := self.share.job.model.recurrent(kind):
            before = (shared_block(self.share, kind),) if kind.has_shared_block else ()
            return (*before, recurrent(self.share, mixer)), Part()
        if not kind.has_attention:
            return (), Part()
        parts = attention(self.share, kind.window)
        return parts, parts[1]

    @cached_property
    def embedding(self) -> Part:
        """Embedding, of the first stage."""
        return embedding(self.share)

    @cached_property
    def head(self) -> Part:
        """Final norm, output projection and loss, of the last stage; with multi-token prediction once more for each."""
        number = self.share.job.model.num_mtp_layers
        return join((head(self.share), *([multi_token_prediction(self.share)] * number)))


@lru_cache(maxsize=256)  # for the layouts of a search
def _shared_parts(job: Job) -> LayerParts:
    return LayerParts(Share(job))


class Blocks:
    """Parts of the model on one rank, and how they make up stages.

    Jobs that differ only in pipeline, replicas or step share their layers.

    Attributes:
        share: What the rank has.
        parts: Its layers, embedding and head.
    """

    def __init__(self, share: Share) -> None:
        """Take the parts of `share`."""
        self.share = share
        self.parts = _shared_parts(share.job.of_layers) if share.cached is None else LayerParts(share)

    def layer(self, kind: LayerKind) -> Layer:
        """Return the parts of a kind of layer."""
        return self.parts.layer(kind)

    def in_chunk(self, chunk: Chunk) -> Iterator[tuple[Layer, int]]:
        """Yield each kind of layer in a chunk, with how many there are."""
        return ((self.layer(kind), count) for kind, count in chunk.layers)

    @property
    def embedding(self) -> Part:
        """Embedding, of the first stage."""
        return self.parts.embedding

    @property
    def head(self) -> Part:
        """Final norm, output projection and loss, of the last stage; with multi-token prediction once more for each."""
        return self.parts.head

    @property
    def is_tied_across(self) -> bool:
        """Whether first and last stage each hold the table that embedding and output share."""
        return self.share.job.model.tie_embeddings and self.share.job.layout.pp > 1

    def end_weights(self, chunk: Chunk) -> Weights:
        """Return the parameters of a chunk that are not of a layer; a table shared on one stage counts once."""
        weights = Weights()
        if chunk.is_first:
            weights += self.embedding.weights
        if chunk.is_last:
            weights += self.head.weights
            if self.share.job.model.tie_embeddings and self.share.job.layout.pp == 1:
                weights += Weights(split=-self.embedding.weights.split)
        return weights

    def weights(self, chunks: tuple[Chunk, ...]) -> Weights:
        """Return the parameters of a stage on one rank."""
        ends = (self.end_weights(chunk) for chunk in chunks)
        layers = (layer.whole.weights.times(count) for chunk in chunks for layer, count in self.in_chunk(chunk))
        return sum((*ends, *layers), Weights())

    def adapters(self, chunks: tuple[Chunk, ...]) -> float:
        """Return the trainable parameters of a stage on one rank with LoRA."""
        return sum(layer.whole.adapters * count for chunk in chunks for layer, count in self.in_chunk(chunk))


def blocks_of(job: Job) -> Blocks:
    """Return the parts of a training job's model on one rank; splits of its layers have the same."""
    return _blocks(job.in_any_split)


@lru_cache(maxsize=2)  # what a job takes and how much memory it needs are asked one after the other
def _blocks(job: Job) -> Blocks:
    return Blocks(Share(job))


def split_layers(job: Job) -> list[tuple[Chunk, ...]]:
    """Return the chunks of every stage, layers split as the layout says, else as evenly as can be.

    Source:
        What is recomputed of each chunk: NVIDIA/Megatron-LM transformer_block.py, recompute_method block.
    """
    pp, vp = job.layout.pp, job.layout.vp
    kinds = job.model.layer_kinds
    counts = job.layout.pipeline_layers or lighter_ends(len(kinds), pp * vp)
    predicted = (job.model.mtp_kind,) * job.model.num_mtp_layers
    return list(_split(kinds, predicted, (pp, vp), tuple(counts), _num_recomputed(job)))


@lru_cache(maxsize=16)  # for jobs that differ in something else
def _split(
    kinds: tuple[LayerKind, ...],
    predicted: tuple[LayerKind, ...],
    shape: tuple[int, int],
    counts: tuple[int, ...],
    num_recomputed: float,
) -> tuple[tuple[Chunk, ...], ...]:
    """Return the chunks of every stage.

    Args:
        kinds: Of all layers.
        predicted: Of those of multi-token prediction, which are in the last chunk, and recomputed if all are.
        shape: Stages, and chunks of each.
        counts: Layers of every chunk.
        num_recomputed: Layers of a chunk that are recomputed, at most.
    """
    (pp, vp), chunk_of = shape, dict[Chunk, Chunk]()
    starts = [sum(counts[:index]) for index in range(pp * vp)]
    stages = []
    for stage in range(pp):
        chunks = []
        for index in range(stage, pp * vp, pp):
            is_last = index == pp * vp - 1
            own = kinds[starts[index] : starts[index] + counts[index]]
            again = own if num_recomputed >= len(own) else own[: int(num_recomputed)]
            if is_last:
                own, again = own + predicted, again + predicted * (num_recomputed == math.inf)
            chunk = Chunk(_by_kind(own), _by_kind(again), index == 0, is_last)
            chunks.append(chunk_of.setdefault(chunk, chunk))
        stages.append(tuple(chunks))
    return tuple(stages)


def _by_kind(kinds: tuple[LayerKind, ...]) -> Layers:
    return tuple(Counter(kinds).items())


def _num_recomputed(job: Job) -> float:
    """Return how many layers of a chunk are recomputed, at most; infinite for all."""
    if job.recompute != "full":
        return 0
    return math.inf if job.recompute_layers is None else job.recompute_layers
