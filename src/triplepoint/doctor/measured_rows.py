"""Rows of what is measured: the columns of `config/collectives/measured.csv` and `config/kernels/measured.csv`."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from triplepoint.config.base import Strict
from triplepoint.files import write_text
from triplepoint.units import US_PER_S


class CollectiveRow(Strict):
    """One collective of one group, as its slowest rank saw it."""

    level: str
    """node, for a group within a node, or network."""
    kind: str
    """Of the collective."""
    num_gpus: int
    """Size of the group."""
    num_bytes: int
    """Size of the message as nccl-tests counts it. Unit: byte."""
    time_s: float
    """How long one took. Unit: s."""
    host: str
    """Host of the group's first rank."""


class KernelRow(Strict):
    """One kernel on one device."""

    cls: str
    """Class of kernel: gemm, or copy."""
    precision: str
    """Number format."""
    shape: tuple[int, ...]
    """m, n, k of a matrix product; empty for a copy."""
    flops: float
    """Arithmetic of one run. Unit: FLOP."""
    num_bytes: float
    """Bytes read and written, each operand once. Unit: byte."""
    time_s: float
    """How long one took. Unit: s."""
    host: str
    """Host."""
    device: int
    """Number of the device on its host."""


class RankRows(Strict):
    """What one rank measured: the content of `rank<R>.json`."""

    rank: int
    """Rank."""
    collectives: tuple[CollectiveRow, ...]
    """Of the groups it is first in."""
    kernels: tuple[KernelRow, ...]
    """On its device."""


def write_collectives(rows: Sequence[CollectiveRow], cluster: str, source: str, path: Path) -> None:
    """Write collectives as the table `triplepoint calibrate --collectives` reads.

    Args:
        rows: What was measured.
        cluster: Name of the cluster; with the level it names the fabric.
        source: Short name of the measurement.
        path: The file.
    """
    head = ("fabric", "kind", "num_gpus", "num_bytes", "value", "unit", "read_error", "source", "host")
    lines = [
        (
            f"{cluster}-{row.level}",
            row.kind,
            row.num_gpus,
            row.num_bytes,
            f"{row.time_s * US_PER_S:.6g}",
            "us",
            "",
            source,
            row.host,
        )
        for row in sorted(rows, key=lambda row: (row.level, row.num_gpus, row.kind, row.num_bytes, row.host))
    ]
    _write(path, head, lines)


def write_kernels(rows: Sequence[KernelRow], gpu: str, library: str, source: str, path: Path) -> None:
    """Write kernels as the table `triplepoint calibrate --kernels` reads.

    Args:
        rows: What was measured.
        gpu: GPU type; cpu without one.
        library: Library behind the matrix products.
        source: Short name of the measurement.
        path: The file.
    """
    head = ("gpu", "library", "cls", "kind", "precision", "shape", "is_causal", "flops", "num_bytes", "time_us")
    lines = [
        (
            gpu,
            library,
            row.cls,
            "forward",
            row.precision,
            "x".join(map(str, row.shape)),
            0,
            f"{row.flops:g}",
            f"{row.num_bytes:g}",
            f"{row.time_s * US_PER_S:.6g}",
            source,
            row.host,
            row.device,
        )
        for row in rows
    ]
    _write(path, (*head, "source", "host", "device"), lines)


def _write(path: Path, head: Sequence[str], lines: Sequence[Sequence[object]]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([head, *lines])
    write_text(path, text.getvalue())
