"""Table schemas: columns with types, units and bounds.

Result tables are in `results`, which needs the settings of a study and so pydantic; the sampler must not import it.
"""

from triplepoint.tables.schema import Column, Table
from triplepoint.tables.telemetry import SAMPLES, TELEMETRY
from triplepoint.tables.traces import (
    CATEGORIES,
    COLLECTIVES,
    CRITICAL_PATH,
    INTERVALS,
    KERNELS,
    RANK,
    RANKS,
    RUN,
    SEGMENTS,
    STEP,
    STEPS,
    TIMELINE,
)

__all__ = [
    "CATEGORIES",
    "COLLECTIVES",
    "CRITICAL_PATH",
    "Column",
    "INTERVALS",
    "KERNELS",
    "RANK",
    "RANKS",
    "RUN",
    "SAMPLES",
    "SEGMENTS",
    "STEP",
    "STEPS",
    "TELEMETRY",
    "TIMELINE",
    "Table",
]
