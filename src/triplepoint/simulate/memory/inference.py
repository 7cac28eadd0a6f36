"""Memory of inference on a rank of each pipeline stage: weights, KV cache and workspace."""

from dataclasses import dataclass

from triplepoint.simulate.job import Job
from triplepoint.simulate.memory.training import CONTEXT_BYTES, FRAGMENTATION, Need, communicator_bytes
from triplepoint.simulate.work.blocks import Blocks, Chunk, split_layers
from triplepoint.simulate.work.cores import cache_bytes_per_token
from triplepoint.simulate.work.ends import vocabulary_rows
from triplepoint.simulate.work.feed_forward import num_up_projections
from triplepoint.simulate.work.layer_parts import FP32_BYTES, Share, Weights, ceil_div
from triplepoint.simulate.work.recurrent import state_bytes


@dataclass(frozen=True, kw_only=True)
class InferenceMemory(Need):
    """Memory of a rank in inference. Unit of all parts: byte.

    Attributes:
        weights: Parameters, in the number format of the GEMMs.
        cache: Keys and values of all sequences at their full length, and states of recurrent mixers.
        workspace: Activations of one pass, and logits.
        runtime: Driver context, loaded kernels, communicators.
        fragmentation: Memory that the allocator reserves but cannot hand out.
    """

    weights: float
    cache: float
    workspace: float
    runtime: float
    fragmentation: float

    @property
    def allocated(self) -> float:
        """Peak that the framework's allocator hands out. Unit: byte."""
        return self.weights + self.cache + self.workspace


def inference_memory(job: Job, tokens: int, prefill_tokens: int, cache_element: int) -> list[InferenceMemory]:
    """Return the memory of a rank of each stage.

    Args:
        job: A job of inference; `micro_batch_size` is the number of sequences on a replica.
        tokens: Tokens of each sequence, prompt and output.
        prefill_tokens: Most tokens that pass a layer together.
        cache_element: Size of a number in the KV cache. Unit: byte.
    """
    blocks = Blocks(Share(job, tokens, cache_element))
    by_stage = []
    for stage, chunks in enumerate(split_layers(job)):
        weights = _weight_bytes(blocks.share, blocks.weights(chunks))
        cache = sum(_cache_bytes(blocks.share, chunk, tokens) for chunk in chunks)
        workspace = _workspace(blocks.share, prefill_tokens, chunks[-1].is_last)
        memory = InferenceMemory(
            weights=weights,
            cache=cache,
            workspace=workspace,
            runtime=CONTEXT_BYTES + communicator_bytes(job),
            fragmentation=FRAGMENTATION * (weights + cache + workspace),
            stage=stage,
            num_stages=job.layout.pp,
            capacity=job.gpu.memory_capacity.value,
        )
        by_stage.append(memory)
    return by_stage


def _weight_bytes(share: Share, weights: Weights) -> float:
    """Return the bytes of weights: in fp8, norms and the router stay in 16 bits."""
    return (weights.split + weights.experts) * share.gemm_element + weights.shared * share.element


def _cache_bytes(share: Share, chunk: Chunk, tokens: int) -> float:
    """Return the bytes that the layers of a chunk cache: keys and values, at most a window of them, and states."""
    model, sequence_bytes = share.job.model, 0.0
    for kind, count in chunk.layers:
        if mixer := model.recurrent(kind):
            sequence_bytes += count * state_bytes(share, mixer)
        if kind.has_attention or kind.has_shared_block:
            sequence_bytes += count * min(tokens, kind.window or tokens) * cache_bytes_per_token(share)
    return sequence_bytes * share.job.micro_batch_size


def _workspace(share: Share, tokens: int, is_last: bool) -> float:
    """Return the bytes of a layer's input, its widest GEMM's output, and fp32 logits on the last stage."""
    model = share.job.model
    inner = max(model.dense_ffn_hidden_size, model.ffn_hidden_size * (model.moe.top_k if model.moe else 1))
    heads = (model.num_attention_heads + 2 * model.num_query_groups) * model.head_size
    mixers = [mixer for kind in set(model.layer_kinds) if (mixer := model.recurrent(kind))]
    projected = max((mixer.projected for mixer in mixers), default=0)
    widest = max(ceil_div(inner, share.tp) * (1 + num_up_projections(share)), ceil_div(max(heads, projected), share.tp))
    logits = share.job.micro_batch_size * vocabulary_rows(share) * share.tp * FP32_BYTES * is_last
    return float(tokens * (2 * model.hidden_size + widest) * share.element + logits)
