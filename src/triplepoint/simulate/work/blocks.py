"""The parts a job's model is made of on one rank, and which layers stand on which stage."""

from dataclasses import dataclass
from functools import cached_property

from triplepoint.simulate.job import Job
from triplepoint.simulate.work.attention import attention
from triplepoint.simulate.work.ends import embedding, head
from triplepoint.simulate.work.experts import experts
from triplepoint.simulate.work.feed_forward import feed_forward
from triplepoint.simulate.work.parts import Part, Share, Weights, join


@dataclass(frozen=True)
class Chunk:
    """One model chunk of a stage.

    Attributes:
        num_layers: Its layers.
        num_recomputed: Layers of it that are recomputed whole.
        is_first: Whether it has the embedding.
        is_last: Whether it has the output projection and the loss.
    """

    num_layers: int
    num_recomputed: int
    is_first: bool
    is_last: bool


class Blocks:
    """Parts of the model on one rank.

    Attributes:
        share: What the rank has.
        before: Of each layer what comes before the core of attention.
        core: The core of attention, which selective recomputation repeats.
        after: The rest of the layer.
        layer: All three.
    """

    def __init__(self, job: Job) -> None:
        """Work out the parts of `job`."""
        self.share = Share(job)
        self.before, self.core, projected = attention(self.share)
        block = experts(self.share) if job.model.moe else feed_forward(self.share)
        self.after = join((projected, block))
        self.layer = join((self.before, self.core, self.after))

    @cached_property
    def embedding(self) -> Part:
        """Embedding, of the first stage."""
        return embedding(self.share)

    @cached_property
    def head(self) -> Part:
        """Final norm, output projection and loss, of the last stage."""
        return head(self.share)

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
        return sum(ends, self.layer.weights.times(sum(chunk.num_layers for chunk in chunks)))

    def adapters(self, chunks: tuple[Chunk, ...]) -> float:
        """Return the trainable parameters of a stage on one rank with LoRA."""
        return self.layer.adapters * sum(chunk.num_layers for chunk in chunks)


def split_layers(job: Job) -> list[tuple[Chunk, ...]]:
    """Return the chunks of every stage.

    Layers are split as evenly as can be. Chunks that have one layer less than others are the last of the model, which
    has the output projection too, then the first, which has the embedding, then those before the last.

    Source:
        NVIDIA/Megatron-LM, account_for_loss_in_pipeline_split and account_for_embedding_in_pipeline_split.
    """
    pp, vp = job.layout.pp, job.layout.vp
    counts = _counts(job)
    stages = []
    for stage in range(pp):
        left = _num_recomputed(job, sum(counts[stage::pp]))
        chunks = []
        for index in range(stage, pp * vp, pp):
            recomputed = min(left, counts[index])
            left -= recomputed
            chunks.append(Chunk(counts[index], recomputed, index == 0, index == pp * vp - 1))
        stages.append(tuple(chunks))
    return stages


def _counts(job: Job) -> list[int]:
    """Return layers of every chunk in the order of the model: chunk c of stage s is number c*pp + s."""
    pp, number = job.layout.pp, job.layout.pp * job.layout.vp
    if job.layers_per_stage:
        return [
            job.layers_per_stage[index % pp] // job.layout.vp
            + (index // pp < job.layers_per_stage[index % pp] % job.layout.vp)
            for index in range(number)
        ]
    each, extra = divmod(job.model.num_layers, number)
    if not extra:
        return [each] * number
    lightest = [number - 1, 0, *range(number - 2, 0, -1)][: number - extra]
    return [each + (index not in lightest) for index in range(number)]


def _num_recomputed(job: Job, num_layers: int) -> int:
    if job.recompute != "full":
        return 0
    return num_layers if job.recompute_layers is None else min(num_layers, job.recompute_layers)
