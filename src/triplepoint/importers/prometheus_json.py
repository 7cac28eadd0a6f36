"""Prometheus range queries as JSON, from `/api/v1/query_range` or `promtool query range -o json`.

Source: Prometheus documentation, HTTP API: range vectors, native times in seconds since 1970, values as text.
"""

from typing import Any

import numpy as np

from triplepoint.errors import UserError
from triplepoint.files import load_json
from triplepoint.importers.declaration import Content, FileTelemetry, Format, ReadOptions
from triplepoint.importers.prometheus import COLUMNS, DEVICES, HOSTS, LEFT_OUT, SHOWS, add_series
from triplepoint.importers.times import from_seconds


def _read(content: Content, options: ReadOptions) -> FileTelemetry:
    telemetry = FileTelemetry([])
    for result in _results(content):
        labels = dict(result["metric"])
        name = labels.pop("__name__", "")
        if not name:
            raise UserError(
                f"{content.path}: a series has no __name__, as after a function; query the metric itself, such "
                "as DCGM_FI_DEV_POWER_USAGE[1h]"
            )
        pairs = result.get("values") or [result["value"]]
        try:
            t_ns = from_seconds([float(time) for time, _ in pairs], content.path)
            values = np.array([value for _, value in pairs], float)
        except (ValueError, TypeError, OverflowError):
            raise UserError(
                f"{content.path}: {name}: values are not pairs [time, value]; run the range query again"
            ) from None
        add_series(telemetry, name, labels, t_ns, np.where(np.isfinite(values), values, np.nan))
    if not telemetry.series:
        listed = ", ".join(telemetry.left_out) or "none"
        raise UserError(f"{content.path}: none of its metrics is known: {listed}; query those of docs/import.md")
    return telemetry


def _results(content: Content) -> list[dict[str, Any]]:
    """Return the series of all answers in a file. Raises `UserError` if there is none."""
    try:
        answer = load_json(content.text)
    except ValueError as error:
        raise UserError(f"{content.path}: damaged JSON ({error}); run the query again") from None
    answers = answer if isinstance(answer, list) else [answer]
    if not all(isinstance(answer, dict) for answer in answers):
        raise UserError(f"{content.path}: not an answer of Prometheus, which is a JSON object; run the query again")
    results: list[dict[str, Any]] = []
    for answer in answers:
        if answer.get("status") == "error":
            raise UserError(
                f"{content.path}: Prometheus answered with an error: {answer.get('error')}; run the query again"
            )
        data = answer.get("data", answer)
        results += data.get("result", [answer])
    if not results:
        raise UserError(f"{content.path}: the answer has no series; query the time of the job")
    return results


FORMAT = Format(
    name="Prometheus JSON",
    recorded_by="curl 'http://.../api/v1/query_range?query={__name__=~\"DCGM_FI_.*\"}&start=...&end=...&step=1s'",
    columns=COLUMNS,
    left_out=LEFT_OUT,
    devices=DEVICES,
    hosts=HOSTS,
    matches=lambda content: (
        content.head.lstrip()[:1] in ("{", "[") and '"metric"' in content.head and '"value' in content.head
    ),
    read=_read,
    shows=SHOWS,
)
