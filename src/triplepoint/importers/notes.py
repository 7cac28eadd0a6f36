"""Notes of an import: one line for each kind, with how many files or GPUs it concerns."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

from triplepoint.tables.telemetry import METRICS

_METRIC = re.compile(rf"\b(?:{'|'.join(METRICS)})\b")
_GPU = re.compile(r"^gpu\d+(?=: )")
_VARIES = re.compile(rf"(?:gpu\d+(?:, )?)+|{_METRIC.pattern}|'.*'|\d+(?:\.\d+)?(?:e[+-]?\d+)?")
"""What sets notes of one kind apart: devices, metrics, quoted text and numbers."""


def of_files(notes: Iterable[tuple[str, str]]) -> list[str]:
    """Return notes on files, given as name and note, one line a kind: the first, and how many files have such a one."""
    return [
        f"{alike[0][0]}: {alike[0][1]}" + (f" (in all {len(alike)} files)" if len(alike) > 1 else "")
        for alike in _by_kind(notes)
    ]


def of_hosts(notes: Iterable[tuple[str, str]]) -> list[str]:
    """Return notes on hosts or their devices, given as host and note, one line a kind: the first, and how many others.

    A note on a device begins with it: `gpu3: ...`.
    """
    lines = []
    for alike in _by_kind(notes):
        hosts = {host for host, _ in alike}
        gpus = {(host, found[0]) for host, note in alike if (found := _GPU.match(note))}
        metrics = {name for _, note in alike for name in _METRIC.findall(note)}
        parts = [(len(metrics), "columns"), (len(gpus), "GPUs"), (len(hosts), "hosts")]
        told = " of ".join(f"{num} {things}" for num, things in parts if num > 1)
        lines.append(f"{alike[0][0]}: {alike[0][1]}" + (f" (in all {told})" if told else ""))
    return lines


def _by_kind(notes: Iterable[tuple[str, str]]) -> Iterable[Sequence[tuple[str, str]]]:
    groups: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for where, note in notes:
        groups[_VARIES.sub("#", note)].append((where, note))
    return groups.values()
