"""The class and kind of a kernel or operator by its name, and the kind of a collective by what it was called with.

The rules are data: `rules.yaml` and, for comparison, the mappings of others in `paper.yaml` and `hta.yaml`.
"""

from triplepoint.trace.taxonomy.classes import CATEGORIES, OTHER, POINT_TO_POINT, Kernel, collective_kind
from triplepoint.trace.taxonomy.scheme import SCHEMES, Scheme, load_scheme

__all__ = [
    "CATEGORIES",
    "OTHER",
    "POINT_TO_POINT",
    "SCHEMES",
    "Kernel",
    "Scheme",
    "collective_kind",
    "load_scheme",
]
