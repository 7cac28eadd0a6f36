"""The work of inference: prefill runs forward over whole prompts, decode adds one token to each sequence.

No gradients, no dropout; prefill makes logits of the last token only. GEMMs of decode have as many rows as
there are sequences, so that they read all weights for little work; its attention reads the cache of keys and values.
"""

from dataclasses import dataclass, replace

from triplepoint.simulate.job import Job
from triplepoint.simulate.operations import Kernel
from triplepoint.simulate.work.blocks import Blocks, split_layers
from triplepoint.simulate.work.ends import next_token
from triplepoint.simulate.work.layer_parts import Operations, Share
from triplepoint.simulate.work.training import layers_work

_NOT_RUN = ("dropout", "rope", "cast")
"""Kernels that inference has not: dropout; rotation and the cast to fp8, done by the kernel before or after. Source:
NVIDIA/TensorRT-LLM, gpt_attention plugin (rotary embedding inside), quantised norm and activation."""


@dataclass(frozen=True)
class StagePass:
    """Work of the ranks of a pipeline stage in one pass.

    Attributes:
        operations: Kernels and communication, in order.
        send_bytes: Activation sent to the next stage; 0 of the last. Unit: byte.
    """

    operations: Operations
    send_bytes: float


def served(job: Job) -> Job:
    """Return a job without what is of training only: recomputation, adapters, layers that predict further tokens.

    Context parallelism and interleaved stages are not used either.
    """
    return replace(
        job,
        model=job.model.model_copy(update={"num_mtp_layers": 0}),
        layout=job.layout.model_copy(update={"cp": 1, "vp": 1}),
        recompute="none",
        trainable="all",
    )


def prefill_work(job: Job) -> list[StagePass]:
    """Return the work of prompts of `sequence_length` tokens, `micro_batch_size` at a time, of a served job."""
    return _passes(Share(job), Share(_of_one_token(job)))


def decode_work(job: Job, cached: int, cache_element: int) -> list[StagePass]:
    """Return the work of one new token for each of `micro_batch_size` sequences, of a served job.

    Args:
        job: The job.
        cached: Tokens of each sequence that keys and values are cached of.
        cache_element: Bytes of a number in the cache.
    """
    share = Share(_of_one_token(job), cached, cache_element)
    return _passes(share, share)


def _of_one_token(job: Job) -> Job:
    return replace(job, sequence_length=1, layout=job.layout.model_copy(update={"sequence_parallel": False}))


def _passes(share: Share, last: Share) -> list[StagePass]:
    """Return one pass of every stage; `last` is the share of what makes logits."""
    blocks = Blocks(share)
    sent = float(share.split_tokens * share.job.model.hidden_size * share.element)
    passes = []
    for (chunk,) in split_layers(share.job):
        operations = layers_work(blocks, chunk.layers, "forward")
        if chunk.is_first:
            operations = blocks.embedding.forward + operations
        if chunk.is_last:
            operations += next_token(last).forward
        passes.append(StagePass(_kept(operations), 0.0 if chunk.is_last else sent))
    return passes


def _kept(operations: Operations) -> Operations:
    return tuple(op for op in operations if not (isinstance(op, Kernel) and op.kind in _NOT_RUN))
