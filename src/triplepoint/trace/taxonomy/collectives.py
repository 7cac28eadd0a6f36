"""The kind of a collective, by what it was called."""

import re
from functools import cache
from typing import Final

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


@cache
def collective_kind(name: str) -> str | None:
    """Return the kind a collective's own name states, None if it names none (`nccl:coalesced`).

    Args:
        name: As in `Collective name`, `nccl:all_reduce`, `nccl:send 0->1`, `c10d::_allgather_base_`.
    """
    lowered = name.lower()
    return next((kind for pattern, kind in _KINDS if re.search(pattern, lowered)), None)
