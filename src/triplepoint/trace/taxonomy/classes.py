"""Classes and kinds of kernels, and kinds of collectives by their names."""

import re
from functools import cache
from typing import Final, NamedTuple

CATEGORIES: Final = ("compute", "comm", "memory")

_NOT_COMPUTE: Final = {
    "comm": "comm",
    "communication": "comm",
    "AllReduce": "comm",
    "AllGather": "comm",
    "ReduceScatter": "comm",
    "SendRecv": "comm",
    "memory": "memory",
    "neither": "memory",
}
"""Classes of the built-in schemes that are not computation."""


class Kernel(NamedTuple):
    """What a kernel is: `cls` as gemm, attention, comm; `kind` within it as grouped, forward, all_reduce."""

    cls: str
    kind: str

    @property
    def category(self) -> str:
        """Return compute, comm or memory. A class a user adds is computation."""
        return _NOT_COMPUTE.get(self.cls, "compute")


OTHER: Final = Kernel("other", "unknown")


_KINDS: Final = (
    (r"barrier", "barrier"),
    (r"reduce_?scatter", "reduce_scatter"),
    (r"all_?reduce", "all_reduce"),
    (r"all_?gather", "all_gather"),
    (r"all_?to_?all", "all_to_all"),
    (r"broadcast", "broadcast"),
    (r"send_?recv|point_?to_?point|isend_irecv", "send_recv"),
    (r"send", "send"),
    (r"recv", "recv"),
    (r"reduce", "reduce"),
    (r"gather", "gather"),
    (r"scatter", "scatter"),
)
"""In this order: NCCL's barrier is annotated `nccl:all_reduce_barrier`, and `reduce` stands within other names."""

POINT_TO_POINT: Final = ("send", "recv", "send_recv")
"""Kinds between two ranks."""


@cache
def collective_kind(name: str) -> str | None:
    """Return the kind a collective's own name states, None if it names none (`nccl:coalesced`).

    Args:
        name: As in `Collective name`, `nccl:all_reduce`, `nccl:send 0->1`, `c10d::_allgather_base_`.
    """
    lowered = name.lower()
    return next((kind for pattern, kind in _KINDS if re.search(pattern, lowered)), None)
