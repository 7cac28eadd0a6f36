"""The class and kind of a kernel or operator by its name, and the kind of a collective by what it was called with.

The rules are data (`rules.yaml`): ordered, the first that matches decides.
"""

import re
from functools import cache
from importlib import resources
from typing import NamedTuple

import yaml

_COLLECTIVES = (
    (r"reduce_?scatter", "reduce_scatter"),
    (r"all_?reduce", "all_reduce"),
    (r"all_?gather", "all_gather"),
    (r"all_?to_?all", "all_to_all"),
    (r"broadcast", "broadcast"),
    (r"barrier", "barrier"),
    (r"send_?recv|isend_irecv", "send_recv"),
    (r"send", "send"),
    (r"recv", "recv"),
    (r"reduce", "reduce"),
    (r"gather", "gather"),
    (r"scatter", "scatter"),
)


_SEARCHED_CHARACTERS = 320
"""Template names run to thousands of characters; what the kernel does stands at the start, argument types follow."""


class Kernel(NamedTuple):
    """What a kernel is: `cls` as gemm, attention, comm; `kind` within it as grouped, forward, all_reduce."""

    cls: str
    kind: str


OTHER = Kernel("other", "unknown")


@cache
def classify_device(name: str) -> Kernel:
    """Return what a GPU kernel, copy or fill is."""
    return _first_match("device", name)


@cache
def classify_host(name: str) -> Kernel:
    """Return what an operator or a communication annotation on the CPU is."""
    return _first_match("host", name)


def collective_kind(name: str) -> str | None:
    """Return the kind a collective's own name states, None if it names none.

    Args:
        name: As in `Collective name`, `nccl:all_reduce`, `c10d::_allgather_base_`.
    """
    lowered = name.lower()
    return next((kind for pattern, kind in _COLLECTIVES if re.search(pattern, lowered)), None)


def _first_match(scheme: str, name: str) -> Kernel:
    start = name[:_SEARCHED_CHARACTERS].lower()
    return next((kernel for pattern, kernel in _rules()[scheme] if pattern.search(start)), OTHER)


@cache
def _rules() -> dict[str, list[tuple[re.Pattern[str], Kernel]]]:
    text = resources.files("triplepoint.trace.taxonomy").joinpath("rules.yaml").read_text(encoding="utf-8")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return {
        scheme: [(re.compile(pattern), Kernel(cls, kind)) for cls, kind, pattern in rules]
        for scheme, rules in yaml.load(text, Loader=loader).items()
    }
