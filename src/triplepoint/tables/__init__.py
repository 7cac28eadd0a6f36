"""Schemas of every table: columns with types, units and bounds."""

from triplepoint.tables.results import GPUS, KERNEL_TOTALS, PHASES, POINTS, RESULT_TABLES, RUN_TIMELINE, STEP_ENERGY
from triplepoint.tables.runs import RANK, RUN, STEP, STEPS
from triplepoint.tables.schema import Column, Table
from triplepoint.tables.telemetry import SAMPLES, TELEMETRY
from triplepoint.tables.traces import (
    CATEGORIES,
    COLLECTIVES,
    CRITICAL_PATH,
    INTERVALS,
    KERNELS,
    RANKS,
    SEGMENTS,
    TIMELINE,
)

__all__ = [
    "CATEGORIES",
    "COLLECTIVES",
    "CRITICAL_PATH",
    "Column",
    "GPUS",
    "INTERVALS",
    "KERNELS",
    "KERNEL_TOTALS",
    "PHASES",
    "POINTS",
    "RANK",
    "RANKS",
    "RESULT_TABLES",
    "RUN",
    "RUN_TIMELINE",
    "SAMPLES",
    "SEGMENTS",
    "STEP",
    "STEPS",
    "STEP_ENERGY",
    "TELEMETRY",
    "TIMELINE",
    "Table",
]
