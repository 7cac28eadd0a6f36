"""Operations of a rank: kernels with shapes, and communication with sizes; without times."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, TypeVar

CommKind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv"]


@dataclass(frozen=True)
class Kernel:
    """One kernel, run `count` times. A multiply-accumulate is two FLOPs.

    Attributes:
        cls: Class as in the taxonomy of traces: gemm, attention, norm, elementwise, embedding, loss, optimizer, moe,
            conv.
        kind: Class in detail: forward, backward, grouped, softmax, ...
        flops: FLOPs of one run. Unit: FLOP.
        num_bytes: Bytes that one run reads and writes. Unit: byte.
        shape: Of a GEMM (m, n, k); of a grouped or batched GEMM (groups, m, n, k), m per group; of attention (batch,
            heads, kv_heads, query length, key length, head size); empty for memory-bound kernels.
        precision: Number format of its GEMMs.
        is_causal: Whether attention skips the masked half; `flops` already leaves it out.
        count: Number of runs.
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
    """One collective or point-to-point operation, run `count` times.

    Attributes:
        kind: Kind of collective, or `send_recv`.
        group: Process group: tp, cp, dp, dp_cp (gradients with context parallelism), pp; of experts etp, ep, edp; see
            `config.mesh.RankMesh.group`.
        num_bytes: Size as nccl-tests counts it: the whole buffer of an all-gather or reduce-scatter, the bytes that a
            rank sends in an all-to-all. Unit: byte.
        is_overlapped: Whether computation of the same pass may overlap it.
        count: Number of runs.
    """

    kind: CommKind
    group: str
    num_bytes: float
    is_overlapped: bool = False
    count: int = 1


Operation = Kernel | Communication


@dataclass(frozen=True)
class ChunkWork:
    """Work of one model chunk of a stage for one micro-batch.

    Attributes:
        forward: Operations of the forward pass, in order.
        backward_input: Operations of the backward pass up to the gradient of the chunk's input, recomputation first.
        backward_weight: Operations of the weight gradients; a zero-bubble schedule can delay them.
        send_bytes: Activation sent to the next chunk; its gradient comes back. Unit: byte.
    """

    forward: tuple[Operation, ...]
    backward_input: tuple[Operation, ...]
    backward_weight: tuple[Operation, ...]
    send_bytes: float

    @property
    def passes(self) -> tuple[tuple[Operation, ...], ...]:
        """Operations of all passes of one micro-batch, in order."""
        return self.forward, self.backward_input, self.backward_weight


@dataclass(frozen=True)
class StageWork:
    """Work of the ranks of one pipeline stage in a step.

    Attributes:
        chunks: Work of every model chunk of the stage, first to last; one without interleaving.
        gradient_sync: Gradient reduction (and parameter gathers with sharding) once a step; with `optim_grads_params`
            what is not in the chunks.
        optimizer: Gradient clipping and parameter update.
    """

    chunks: tuple[ChunkWork, ...]
    gradient_sync: tuple[Operation, ...] = field(default_factory=tuple)
    optimizer: tuple[Operation, ...] = field(default_factory=tuple)


AnyWork = TypeVar("AnyWork", StageWork, ChunkWork)


def distinct(works: Iterable[AnyWork]) -> list[AnyWork]:
    """Return the distinct stages or chunks; equal ones are the same object, which is faster to test than equality."""
    return list({id(work): work for work in works}.values())
