"""Table of runs on the front page: columns, values in display units, and texts for layout and setting."""

import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

import pyarrow as pa

from triplepoint.config.point import SETTINGS
from triplepoint.figures import labels
from triplepoint.status import Status
from triplepoint.tables.results import POINTS
from triplepoint.tables.schema import column_of
from triplepoint.tables.shown import describe, shown_value

Row = Mapping[str, Any]

SHOWN = (
    "step_time_s", "tokens_per_s_per_gpu", "mfu", "gpu_power_w", "gpu_power_peak_w", "gpu_temp_c", "gpu_temp_max_c",
    "sm_clock_mhz", "sm_clock_busy_mhz", "throttle_fraction", "gpu_energy_per_token_j", "peak_memory_bytes",
)  # fmt: skip
"""Quantities of the table in their order; quantities that no run has are left out."""
_COMPARED = (
    "tokens_per_s", "time_to_first_token_s", "time_per_output_token_s", "exposed_comm_s", "idle_s", "kernel_sum_s",
    "lost_to_power_limit_fraction", "lost_to_heat_fraction", "job_gpu_power_w", "job_gpu_samples_per_s_mj",
    "job_host_power_w", "node_power_w", "host_energy_per_token_j", "reserved_memory_bytes", "gpu_utilisation",
    "cpu_utilisation", "predicted_step_time_s", "step_time_error", "predicted_memory_bytes", "memory_error",
    "predicted_gpu_power_w", "gpu_power_error", "predicted_gpu_temp_max_c", "gpu_temp_error_c",
    "loss_first", "loss_last",
)  # fmt: skip
"""Further quantities of comparisons and of the pages of runs."""
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_COLUMNS = {column.name: column for column in POINTS.columns}


def page_name(run: str) -> str:
    """Return the file name of the page of a run without suffix; it is safe in paths and links."""
    if _PLAIN_NAME.fullmatch(run) and len(run) < 200:
        return run
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", run).strip(".-")[:100]
    return f"{safe or 'run'}-{sha256(run.encode()).hexdigest()[:8]}"


def in_order(points: Sequence[Row]) -> list[Row]:
    """Return runs in the order of the table: measured ones first, and finished ones before others."""
    return sorted(points, key=lambda point: (point["origin"] != "measured", point["status"] != Status.OK))


class Words(NamedTuple):
    """Texts on a run, the same as in figures.

    Attributes:
        layout: Label of the layout.
        setting: All other settings.
        apart: Other settings in which the runs of the model on the cluster differ.
    """

    layout: str
    setting: str
    apart: str


def name_settings(points: Sequence[Row]) -> dict[str, Words]:
    """Return the texts on each run, by run id."""
    if not points:
        return {}
    frame = labels.prepare(pa.Table.from_pylist(list(points), schema=POINTS.schema()).to_pandas())
    words = {}
    for _, members in frame.groupby("group", sort=False):
        shared = tuple(name for name in labels.SETTING if members[name].nunique() == 1)
        for _, row in members.iterrows():
            words[row["run"]] = Words(row["layout"], labels.setting_text(row), labels.setting_text(row, shared))
    return words


def quantities(points: Sequence[Row], names: Sequence[str] = SHOWN) -> list[dict[str, Any]]:
    """Return name, heading, unit and description of the quantities that some run has."""
    return [describe(_COLUMNS[name]) for name in names if any(point[name] is not None for point in points)]


def table_rows(points: Sequence[Row], words: Mapping[str, Words]) -> list[dict[str, Any]]:
    """Return one row per run: its names, quantities in display units, and the ends of their intervals."""
    names = [quantity["name"] for quantity in compared(points)]
    return [_row(point, words[point["run"]], names) for point in points]


def _row(point: Row, words: Words, names: Sequence[str]) -> dict[str, Any]:
    row = {
        "run": point["run"],
        "page": page_name(point["run"]),
        "model": point["model"],
        "cluster": point["cluster"],
        "layout": words.layout,
        "setting": words.apart,
        "task": point["task"],
        "origin": point["origin"],
        "status": Status(point["status"]).label,
        "studies": ", ".join(point["studies"]),
        "num_gpus": point["num_gpus"],
        "reason": point["reason"] or "",
    }
    for name in names:
        if (value := shown_value(name, point[name])) is not None:
            row[name] = value
            low, high = interval(point, name)
            if low is not None:
                row[f"{name}:ends"] = [shown_value(name, low), shown_value(name, high)]
    return row


def interval(point: Row, name: str) -> tuple[float | None, float | None]:
    """Return the interval of a quantity: that of the model if simulated, 10th to 90th percentile if measured."""
    for ends in (("lo", "hi"), ("p10", "p90")):
        low, high = (point.get(column_of(name, end)) for end in ends)
        if low is not None and high is not None:
            return low, high
    return None, None


def settings_apart(points: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the settings in which runs differ: name, heading, description and the value of each run."""
    settings = []
    for name, setting in SETTINGS.items():
        if not setting.has_column or name not in _COLUMNS:
            continue
        values = [_text(point[name]) for point in points]
        if len(set(values)) > 1:
            settings.append({"name": name, "label": name.replace("_", " "), "about": setting.about, "values": values})
    return settings


def compared(points: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the quantities of comparisons: those of the table, then the further ones."""
    return quantities(points, (*SHOWN, *_COMPARED))


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)
