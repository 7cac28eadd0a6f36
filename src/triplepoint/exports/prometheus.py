"""Export power, heat and clocks of nodes and GPUs in Prometheus' text format, for node_exporter's textfile collector.

The collector refuses time stamps, so values of finished runs have none.
Source: https://prometheus.io/docs/instrumenting/exposition_formats/ and the README of node_exporter on the collector.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from triplepoint.exports.runs import ExportedRun
from triplepoint.files import write_text
from triplepoint.tables.results import RESULT_TABLES
from triplepoint.tables.schema import Column
from triplepoint.tables.studies import read_joined

_BASE_UNITS = {
    "s": ("seconds", 1.0),
    "W": ("watts", 1.0),
    "degC": ("celsius", 1.0),
    "MHz": ("hertz", 1e6),
    "byte": ("bytes", 1.0),
    "J/token": ("joules_per_token", 1.0),
    "token/s": ("per_second", 1.0),
    "1": ("ratio", 1.0),
}
"""Unit in metric names, and factor from the table's unit to it, by the table's unit."""
_UNIT_SUFFIXES = ("_per_token_j", "_per_s", "_s", "_w", "_c", "_mhz", "_bytes", "_fraction", "_share")
"""Units at the end of column names, which metric names do not keep."""

_METRICS: Mapping[str, tuple[str, ...]] = {
    "points": (
        *("step_time_s", "tokens_per_s", "mfu", "gpu_energy_per_token_j", "job_gpu_power_w", "throttle_fraction"),
        *("exposed_comm_share", "lost_to_heat_fraction", "lost_to_power_limit_fraction"),
    ),
    "nodes": ("node_power_w", "node_power_peak_w", "gpu_power_w", "host_power_w", "inlet_temp_c"),
    "gpus": (
        *("step_time_s", "peak_memory_bytes", "gpu_power_w", "gpu_power_peak_w", "gpu_temp_c", "gpu_temp_max_c"),
        *("sm_clock_mhz", "power_cap_share", "sw_thermal_share", "hw_thermal_share", "power_brake_share"),
    ),
}
"""Columns that become metrics, by table."""
_LABELS = {
    "points": ("model", "cluster"),
    "nodes": ("node", "host"),
    "gpus": ("rank", "node", "host", "device", "uuid"),
}
"""Columns that become labels, by table."""
_SUBJECTS = {"points": "run", "nodes": "node", "gpus": "gpu"}
"""Begin of metric names, by table."""


def write(study: str, runs: Sequence[ExportedRun], results: Path, path: Path) -> list[Path]:
    """Write the metrics of a study to one file, atomically, as the collector expects.

    Args:
        study: Name of the study, a label of every value.
        runs: Runs of the study; whether each is measured or simulated is a label, too.
        results: Folder of runs and tables.
        path: File to write; the collector reads names that end in `.prom`.

    Returns:
        The file.

    Raises:
        UserError: If a table is missing or damaged.
    """
    write_text(path, metrics_text(study, runs, results))
    return [path]


def metrics_text(study: str, runs: Sequence[ExportedRun], results: Path) -> str:
    """Return the metrics of a study in Prometheus' text format; see `write`."""
    origins = {run.run: run.tags["origin"] for run in runs}
    lines: list[str] = []
    for table, columns in _METRICS.items():
        rows = [row for row in read_joined(results, (study,), table).to_pylist() if row["run"] in origins]
        by_name = {column.name: column for column in RESULT_TABLES[table].columns}
        for name in columns:
            lines += _metric(by_name[name], table, rows, study, origins)
    return "\n".join([*lines, ""])


def _metric(
    column: Column, table: str, rows: Sequence[Mapping[str, Any]], study: str, origins: Mapping[str, str]
) -> list[str]:
    """Return the lines of one metric; none if no row has a value."""
    unit, factor = _BASE_UNITS[column.unit]
    quantity = next((column.name.removesuffix(end) for end in _UNIT_SUFFIXES if column.name.endswith(end)), column.name)
    prefix = f"{_SUBJECTS[table]}_"
    metric = f"triplepoint_{quantity if quantity.startswith(prefix) else prefix + quantity}_{unit}"
    values = []
    for row in rows:
        if row[column.name] is None:
            continue
        labels = {"study": study, "run": row["run"], "origin": origins[row["run"]]}
        labels |= {label: row[label] for label in _LABELS[table] if row[label] is not None}
        label_text = ",".join(f'{label}="{_escape(str(value))}"' for label, value in labels.items())
        values.append(f"{metric}{{{label_text}}} {row[column.name] * factor!r}")
    if not values:
        return []
    description = column.about.replace("\\", "\\\\").replace("\n", " ")
    return [f"# HELP {metric} {description}", f"# TYPE {metric} gauge", *values]


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
