"""Columns, types, units and bounds of every table, checked when it is written and when it is read."""

from triplepoint.tables.results import GPUS, KERNEL_TOTALS, PHASES, POINTS, RESULT_TABLES, RUN_TIMELINE
from triplepoint.tables.runs import INTERVALS, KERNELS, RANK, RUN, SAMPLES, STEP, STEPS, TELEMETRY, TIMELINE
from triplepoint.tables.schema import Column, Table

__all__ = [
    "Column",
    "GPUS",
    "INTERVALS",
    "KERNELS",
    "KERNEL_TOTALS",
    "PHASES",
    "POINTS",
    "RANK",
    "RESULT_TABLES",
    "RUN",
    "RUN_TIMELINE",
    "SAMPLES",
    "STEP",
    "STEPS",
    "TELEMETRY",
    "TIMELINE",
    "Table",
]
