"""Prometheus range queries as JSON: what `/api/v1/query_range` and `promtool query range -o json` answer.

Source: Prometheus documentation, HTTP API: range vectors, native times in seconds since 1970, values as text.
"""

import json
from typing import Any

import numpy as np

from triplepoint.errors import UserError
from triplepoint.importers.declaration import Asked, Content, Format, Found
from triplepoint.importers.prometheus import COLUMNS, DEVICES, HOSTS, LEFT_OUT, SHOWS, add_series
from triplepoint.units import NS_PER_S


def _read(content: Content, asked: Asked) -> Found:
    found = Found([])
    for one in _results(content):
        labels = dict(one["metric"])
        name = labels.pop("__name__", "")
        if not name:
            raise UserError(
                f"{content.path}: a series has no __name__, as after a function; query the metric itself, such "
                "as DCGM_FI_DEV_POWER_USAGE[1h]"
            )
        pairs = one.get("values") or [one["value"]]
        try:
            t_ns = np.array([round(float(time) * 1000) for time, _ in pairs], np.int64) * (NS_PER_S // 1000)
            values = np.array([value for _, value in pairs], float)
        except (ValueError, TypeError, OverflowError):
            raise UserError(
                f"{content.path}: {name}: values are not pairs [time, value]; run the range query again"
            ) from None
        add_series(found, name, labels, t_ns, np.where(np.isfinite(values), values, np.nan))
    if not found.series:
        listed = ", ".join(found.left_out) or "none"
        raise UserError(f"{content.path}: none of its metrics is known: {listed}; query those of docs/import.md")
    return found


def _results(content: Content) -> list[dict[str, Any]]:
    try:
        answer = json.loads(content.text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{content.path}: damaged JSON ({error}); run the query again") from None
    answers = answer if isinstance(answer, list) else [answer]
    if not all(isinstance(each, dict) for each in answers):
        raise UserError(f"{content.path}: not an answer of Prometheus, which is a JSON object; run the query again")
    results: list[dict[str, Any]] = []
    for each in answers:
        if each.get("status") == "error":
            raise UserError(
                f"{content.path}: Prometheus answered with an error: {each.get('error')}; run the query again"
            )
        data = each.get("data", each)
        results += data.get("result", [each])
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
