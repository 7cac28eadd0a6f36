"""A diagnosis as text for a terminal, and as JSON."""

import textwrap
from dataclasses import asdict
from typing import Any

from triplepoint.doctor.check import Check
from triplepoint.doctor.diagnose import Diagnosis

_WIDTH = 110
_INDENT = " " * 29


def as_text(found: Diagnosis) -> str:
    """Return a line for each check, with what is expected and what to do where it is not well."""
    num_nodes = len(found.reports)
    counts = {status: sum(check.status == status for check in found.checks) for status in ("fail", "warn", "skipped")}
    lines = [line for check in found.checks for line in _lines(check, num_nodes)]
    summary = ", ".join(f"{number} {status}" for status, number in counts.items() if number) or "all well"
    return "\n".join([*lines, f"{len(found.checks)} checks: {summary}"])


def _lines(check: Check, num_nodes: int) -> list[str]:
    where = f"{', '.join(check.nodes)}: " if 0 < len(check.nodes) < num_nodes else ""
    text = _wrapped(f"{where}{check.found}")
    lines = [f"{check.status:<8} {check.name:<19} {text}"]
    if check.status in ("warn", "fail"):
        wanted = f"expected {check.expected}; " if check.expected else ""
        lines.append(f"{_INDENT}-> {_wrapped(f'{wanted}{check.advice}')}")
    return lines


def _wrapped(text: str) -> str:
    return f"\n{_INDENT}".join(textwrap.wrap(text, _WIDTH, break_long_words=False) or [""])


def as_json(found: Diagnosis, name: str, checked_at: str) -> dict[str, Any]:
    """Return everything that was found, as plain data.

    Args:
        found: The diagnosis.
        name: Cluster, or host.
        checked_at: Time of the check, UTC, ISO 8601.
    """
    return {
        "name": name,
        "checked_at": checked_at,
        "has_failed": found.has_failed,
        "checks": [asdict(check) for check in found.checks],
        "nodes": [report.model_dump(mode="json") for report in found.reports],
    }
