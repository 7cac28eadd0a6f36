"""Work of inference: prefill runs the forward pass over whole prompts, decode adds one token to each sequence.

There are no gradients and no dropout; prefill computes logits of the last token only. GEMMs of decode have one row per
sequence, so they read all weights for little arithmetic. Attention of decode reads the KV cache.
"""

from dataclasses import dataclass, replace

from triplepoint.simulate.job import Job
from triplepoint.simulate.operations import Kernel
from triplepoint.simulate.work.blocks import Blocks, split_layers
from triplepoint.simulate.work.ends import next_token
from triplepoint.simulate.work.layer_parts import Operations, Share
from triplepoint.simulate.work.training import layers_work

_NOT_RUN = ("dropout", "rope", "cast")
"""Kernels that inference does not run. It has no dropout; the kernel before or after does rotation and the cast to fp8.
Source: NVIDIA/TensorRT-LLM, gpt_attention plugin (rotary embedding inside), quantised norm and activation."""


@dataclass(frozen=True)
class StagePass:
    """Work of the ranks of one pipeline stage in one pass.

    Attributes:
        operations: Kernels and communication, in order.
        send_bytes: Activation sent to the next stage; 0 for the last stage. Unit: byte.
    """

    operations: Operations
    send_bytes: float


def served(job: Job) -> Job:
    """Return a job as inference runs it: no recomputation, no adapters, no multi-token prediction layers.

    Inference also uses no context parallelism and no interleaved stages.
    """
    return replace(
        job,
        model=job.model.model_copy(update={"num_mtp_layers": 0}),
        layout=job.layout.model_copy(update={"cp": 1, "vp": 1}),
        recompute="none",
        trainable="all",
    )


def prefill_work(job: Job) -> list[StagePass]:
    """Return the work of prefill for `micro_batch_size` prompts of `sequence_length` tokens, by stage.

    Args:
        job: A job from `served`.
    """
    return _passes(Share(job), Share(_with_one_token(job)))


def decode_work(job: Job, cached: int, cache_element: int) -> list[StagePass]:
    """Return the work of one new token for each of `micro_batch_size` sequences, by stage.

    Args:
        job: A job from `served`.
        cached: Cached tokens of each sequence.
        cache_element: Bytes of a number in the KV cache.
    """
    share = Share(_with_one_token(job), cached, cache_element)
    return _passes(share, share)


def _with_one_token(job: Job) -> Job:
    return replace(job, sequence_length=1, layout=job.layout.model_copy(update={"sequence_parallel": False}))


def _passes(share: Share, logits_share: Share) -> list[StagePass]:
    """Return one pass of every stage.

    Args:
        share: Share of a rank.
        logits_share: Share of the part of the pass that computes logits.
    """
    blocks = Blocks(share)
    send_bytes = float(share.split_tokens * share.job.model.hidden_size * share.element)
    passes = []
    for (chunk,) in split_layers(share.job):
        operations = layers_work(blocks, chunk.layers, "forward")
        if chunk.is_first:
            operations = blocks.embedding.forward + operations
        if chunk.is_last:
            operations += next_token(logits_share).forward
        passes.append(StagePass(_without_unused(operations), 0.0 if chunk.is_last else send_bytes))
    return passes


def _without_unused(operations: Operations) -> Operations:
    return tuple(op for op in operations if not (isinstance(op, Kernel) and op.kind in _NOT_RUN))
