"""What a kernel is, in two levels, and which of the three parts of a step it counts as."""

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
