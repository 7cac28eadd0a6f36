"""The class and kind of a kernel or operator by its name, and the kind of a collective by what it was called with.

The rules are data: `rules.yaml` and, for comparison, the mappings of others in `paper.yaml` and `hta.yaml`.
"""

from triplepoint.trace.taxonomy.collectives import collective_kind
from triplepoint.trace.taxonomy.kernel import CATEGORIES, OTHER, Kernel
from triplepoint.trace.taxonomy.scheme import SCHEMES, Scheme, load_scheme

__all__ = [
    "CATEGORIES",
    "OTHER",
    "SCHEMES",
    "Kernel",
    "Scheme",
    "classify_device",
    "classify_host",
    "collective_kind",
    "load_scheme",
]


def classify_device(name: str) -> Kernel:
    """Return what a GPU kernel, copy or fill is in the default scheme."""
    return load_scheme().device(name)


def classify_host(name: str) -> Kernel:
    """Return what an operator or a communication annotation on the CPU is in the default scheme."""
    return load_scheme().host(name)
