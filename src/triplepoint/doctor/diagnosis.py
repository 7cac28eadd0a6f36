"""Diagnosis from the files of the probes: the checks, as text for a terminal and as JSON, and measured tables."""

import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from triplepoint.config.base import read_json
from triplepoint.doctor.check import Check, Expected, fold
from triplepoint.doctor.check_node import check_node
from triplepoint.doctor.check_nodes import check_agreement, check_fabric, check_gpu_speed, check_together
from triplepoint.doctor.measure import CollectiveRow, KernelRow, RankRows
from triplepoint.doctor.probe import Report
from triplepoint.files import csv_text, write_text
from triplepoint.units import US_PER_S

_ADVICE = "start the check again"


@dataclass(frozen=True)
class Diagnosis:
    """Checks of nodes, with the data that they were made from.

    Attributes:
        checks: Checks, where equal checks of several nodes are one.
        reports: Reports of the nodes, in the order of their numbers.
        collectives: Measured collectives.
        kernels: Measured kernels.
    """

    checks: list[Check]
    reports: list[Report]
    collectives: list[CollectiveRow]
    kernels: list[KernelRow]

    @property
    def has_failed(self) -> bool:
        """Whether measurements on these nodes would fail or be wrong."""
        return any(check.status == "fail" for check in self.checks)


def diagnose(folder: Path, num_nodes: int, expected: Expected) -> Diagnosis:
    """Make the checks from the files of the probes.

    Args:
        folder: Folder of the probes.
        num_nodes: Number of nodes that were asked for a report.
        expected: Expected state of the nodes.
    """
    reports = [read_json(Report, path, _ADVICE) for path in folder.glob("node*.json")]
    reports.sort(key=lambda report: report.facts.node)
    ranks = [read_json(RankRows, path, _ADVICE) for path in sorted(folder.glob("rank*.json"))]
    collectives = [row for rank in ranks for row in rank.collectives]
    kernels = [row for rank in ranks for row in rank.kernels]
    nodes = [report.facts for report in reports]
    checks = check_together(reports, num_nodes)
    for node in nodes:
        checks += check_node(node, expected)
    if nodes:
        checks += check_agreement(nodes)
    if ranks:
        checks += [check_gpu_speed(kernels), *check_fabric(collectives, expected)]
    return Diagnosis(fold(checks), reports, collectives, kernels)


def write_tables(diagnosis: Diagnosis, folder: Path, cluster: str, expected: Expected, source: str) -> list[Path]:
    """Write the tables for `triplepoint calibrate`, and return their paths; empty where nothing was measured.

    Args:
        diagnosis: Diagnosis with the measurements.
        folder: Folder to write to.
        cluster: Name of the cluster or host.
        expected: Expected state of the nodes, which names the GPU type.
        source: Short name of the measurement.
    """
    tables: list[Path] = []
    if diagnosis.collectives:
        tables.append(folder / "collectives.csv")
        write_collectives(diagnosis.collectives, cluster, source, tables[-1])
    if diagnosis.kernels:
        tables.append(folder / "kernels.csv")
        library = {"nvidia": "cublas", "amd": "hipblaslt"}.get(_vendor(diagnosis.reports), "cpu")
        write_kernels(diagnosis.kernels, expected.gpu.name if expected.gpu else "cpu", library, source, tables[-1])
    return tables


def _vendor(reports: Sequence[Report]) -> str:
    return reports[0].facts.vendor if reports else "none"


def write_collectives(rows: Sequence[CollectiveRow], cluster: str, source: str, path: Path) -> None:
    """Write the table that `triplepoint calibrate --collectives` reads.

    Args:
        rows: Measured collectives.
        cluster: Name of the cluster. The name of a fabric is that of the cluster and the level.
        source: Short name of the measurement.
        path: File to write.
    """
    ordered = sorted(rows, key=lambda row: (row.level, row.num_gpus, row.kind, row.num_bytes, row.host))
    cells = [
        {"fabric": f"{cluster}-{row.level}", "kind": row.kind, "num_gpus": row.num_gpus, "num_bytes": row.num_bytes,
         "value": f"{row.time_s * US_PER_S:.6g}", "unit": "us", "read_error": "", "source": source, "host": row.host}
        for row in ordered
    ]  # fmt: skip
    write_text(path, csv_text(list(cells[0]), cells))


def write_kernels(rows: Sequence[KernelRow], gpu: str, library: str, source: str, path: Path) -> None:
    """Write the table that `triplepoint calibrate --kernels` reads.

    Args:
        rows: Measured kernels.
        gpu: GPU type; cpu without one.
        library: Library of the GEMMs.
        source: Short name of the measurement.
        path: File to write.
    """
    cells = [
        {"gpu": gpu, "library": library, "cls": row.cls, "kind": "forward", "precision": row.precision,
         "shape": "x".join(map(str, row.shape)), "is_causal": 0, "flops": f"{row.flops:g}",
         "num_bytes": f"{row.num_bytes:g}", "time_us": f"{row.time_s * US_PER_S:.6g}", "source": source,
         "host": row.host, "device": row.device}
        for row in rows
    ]  # fmt: skip
    write_text(path, csv_text(list(cells[0]), cells))


_WIDTH = 110
_INDENT = " " * 29


def as_text(diagnosis: Diagnosis) -> str:
    """Return a line of text for each check, with the expected state and the remedy where it warns or failed."""
    num_nodes = len(diagnosis.reports)
    counts = {
        status: sum(check.status == status for check in diagnosis.checks) for status in ("fail", "warn", "skipped")
    }
    lines = [line for check in diagnosis.checks for line in _lines(check, num_nodes)]
    summary = ", ".join(f"{number} {status}" for status, number in counts.items() if number) or "all well"
    return "\n".join([*lines, f"{len(diagnosis.checks)} checks: {summary}"])


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


def as_json(diagnosis: Diagnosis, name: str, checked_at: str) -> dict[str, Any]:
    """Return a diagnosis as plain data.

    Args:
        diagnosis: The diagnosis.
        name: Name of the cluster or host.
        checked_at: Time of the check, UTC, ISO 8601.
    """
    return {
        "name": name,
        "checked_at": checked_at,
        "has_failed": diagnosis.has_failed,
        "checks": [asdict(check) for check in diagnosis.checks],
        "nodes": [report.model_dump(mode="json") for report in diagnosis.reports],
    }
