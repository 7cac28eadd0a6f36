"""From the files the probes left to the checks."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from triplepoint.config.base import read_json
from triplepoint.doctor.agreement import check_agreement
from triplepoint.doctor.check import Check, fold
from triplepoint.doctor.expected import Expected
from triplepoint.doctor.gpus import check_gpus
from triplepoint.doctor.hosts import check_host
from triplepoint.doctor.measure.rows import CollectiveRow, KernelRow, RankRows, write_collectives, write_kernels
from triplepoint.doctor.probe import Report
from triplepoint.doctor.speed import check_fabric, check_gpu_speed
from triplepoint.doctor.together import check_together

_ADVICE = "start the check again"


@dataclass(frozen=True)
class Diagnosis:
    """What a check of some nodes came to.

    Attributes:
        checks: Answers, those that nodes share made one.
        reports: What each node found, by its number.
        collectives: What was measured of the fabric.
        kernels: What was measured of devices.
    """

    checks: list[Check]
    reports: list[Report]
    collectives: list[CollectiveRow]
    kernels: list[KernelRow]

    @property
    def has_failed(self) -> bool:
        """Whether measuring here would fail or be wrong."""
        return any(check.status == "fail" for check in self.checks)


def diagnose(folder: Path, num_nodes: int, expected: Expected) -> Diagnosis:
    """Return what the files of the probes come to.

    Args:
        folder: Folder of the check.
        num_nodes: Nodes that were asked.
        expected: What they should be like.
    """
    reports = [read_json(Report, path, _ADVICE) for path in folder.glob("node*.json")]
    reports.sort(key=lambda report: report.facts.node)
    ranks = [read_json(RankRows, path, _ADVICE) for path in sorted(folder.glob("rank*.json"))]
    collectives = [row for rank in ranks for row in rank.collectives]
    kernels = [row for rank in ranks for row in rank.kernels]
    nodes = [report.facts for report in reports]
    checks = check_together(reports, num_nodes)
    for node in nodes:
        checks += [*check_gpus(node, expected), *check_host(node, expected)]
    if nodes:
        checks += check_agreement(nodes)
    if ranks:
        checks += [check_gpu_speed(kernels), *check_fabric(collectives, expected)]
    return Diagnosis(fold(checks), reports, collectives, kernels)


def write_tables(found: Diagnosis, folder: Path, cluster: str, expected: Expected, source: str) -> list[Path]:
    """Write what was measured as tables to calibrate from, and return their paths; none where nothing was."""
    tables: list[Path] = []
    if found.collectives:
        tables.append(folder / "collectives.csv")
        write_collectives(found.collectives, cluster, source, tables[-1])
    if found.kernels:
        tables.append(folder / "kernels.csv")
        library = {"nvidia": "cublas", "amd": "hipblaslt"}.get(_vendor(found.reports), "cpu")
        write_kernels(found.kernels, expected.gpu.name if expected.gpu else "cpu", library, source, tables[-1])
    return tables


def _vendor(reports: Sequence[Report]) -> str:
    return reports[0].facts.vendor if reports else "none"
