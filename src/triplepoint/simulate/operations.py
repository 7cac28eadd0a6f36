"""Operations of a rank, not yet priced: kernels with shapes, communication with sizes."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, TypeVar

CommKind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv"]


@dataclass(frozen=True)
class Kernel:
    """One kernel, run `count` times. FLOPs are two per multiply-accumulate.

    Attributes:
        cls: gemm, attention, norm, elementwise, embedding, loss, optimizer, moe: as in the taxonomy of traces.
        kind: forward, backward, grouped, softmax, ...
        flops: Of one run. Unit: FLOP.
        num_bytes: Read and written by one run. Unit: byte.
        shape: Of a gemm (m, n, k); of a grouped or batched one (groups, m, n, k), m per group; of attention (batch,
            heads, kv_heads, query length, key length, head size); empty for kernels bound by memory.
        precision: Number format of its GEMMs.
        is_causal: Whether attention skips the masked half; `flops` has it skipped already.
        count: How many times it runs.
    """

    cls: str
    kind: str
    flops: float
    num_bytes: float
    shape: tuple[int, ...] = ()
    precision: str = "bf16"
    is_causal: bool = False
    count: int = 1


@dataclass(frozen=True)
class Communication:
    """One collective or send, run `count` times.

    Attributes:
        kind: The collective, or `send_recv`.
        group: Whose: tp, cp, dp, dp_cp (gradients with context parallelism), pp; of experts etp, ep, edp; see
            `config.mesh.RankMesh.group`.
        num_bytes: Size as nccl-tests counts it: the gathered or scattered buffer of a gather or reduce-scatter, of an
            all-to-all what a rank sends. Unit: byte.
        is_overlapped: Whether computation of the same pass may overlap it.
        count: How many times it runs.
    """

    kind: CommKind
    group: str
    num_bytes: float
    is_overlapped: bool = False
    count: int = 1


Operation = Kernel | Communication


@dataclass(frozen=True)
class ChunkWork:
    """Work of one model chunk of a stage for one micro-batch, in order.

    Attributes:
        forward: Forward pass.
        backward_input: Backward pass up to the gradient of the chunk's input, recomputation first.
        backward_weight: The rest of the backward pass: gradients of weights; with zero bubble it can be put off.
        send_bytes: Activation sent to the next chunk, the gradient of it comes back. Unit: byte.
    """

    forward: tuple[Operation, ...]
    backward_input: tuple[Operation, ...]
    backward_weight: tuple[Operation, ...]
    send_bytes: float

    @property
    def passes(self) -> tuple[tuple[Operation, ...], ...]:
        """All of it for one micro-batch, in order."""
        return self.forward, self.backward_input, self.backward_weight


@dataclass(frozen=True)
class StageWork:
    """Work of the ranks of one pipeline stage in a step.

    Attributes:
        chunks: Of every virtual stage on the rank, first to last; one without interleaving.
        gradient_sync: Reduction of gradients (and gathering of parameters with sharding): once a step, or for
            `optim_grads_params` what is not in the chunks.
        optimizer: Clipping and update.
    """

    chunks: tuple[ChunkWork, ...]
    gradient_sync: tuple[Operation, ...] = field(default_factory=tuple)
    optimizer: tuple[Operation, ...] = field(default_factory=tuple)


AnyWork = TypeVar("AnyWork", StageWork, ChunkWork)


def unlike(works: Iterable[AnyWork]) -> list[AnyWork]:
    """Return stages or chunks that differ: equal ones are the same object, and to compare them takes longer."""
    return list({id(work): work for work in works}.values())
