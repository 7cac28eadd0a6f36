"""Notes of an import: one line for each kind of note, with the number of files or GPUs it concerns."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

from triplepoint.tables.telemetry import METRICS

_METRIC = re.compile(rf"\b(?:{'|'.join(METRICS)})\b")
_GPU = re.compile(r"^gpu\d+(?=: )")
_VARIES = re.compile(rf"(?:gpu\d+(?:, )?)+|{_METRIC.pattern}|'.*'|\d+(?:\.\d+)?(?:e[+-]?\d+)?")
"""Parts of a note that may differ between notes of one kind: devices, metrics, quoted text and numbers."""


def sum_up_file_notes(notes: Iterable[tuple[str, str]]) -> list[str]:
    """Return a line for each kind of note: its first note, and the number of files that have one.

    Args:
        notes: Pairs of file name and note.
    """
    return [
        f"{group[0][0]}: {group[0][1]}" + (f" (in all {len(group)} files)" if len(group) > 1 else "")
        for group in _by_kind(notes)
    ]


def sum_up_host_notes(notes: Iterable[tuple[str, str]]) -> list[str]:
    """Return a line for each kind of note: its first note, and the number of columns, GPUs and hosts that have one.

    Args:
        notes: Pairs of host and note. A note on a device begins with its name: `gpu3: ...`.
    """
    lines = []
    for group in _by_kind(notes):
        hosts = {host for host, _ in group}
        gpus = {(host, gpu[0]) for host, note in group if (gpu := _GPU.match(note))}
        metrics = {name for _, note in group for name in _METRIC.findall(note)}
        counts = [(len(metrics), "columns"), (len(gpus), "GPUs"), (len(hosts), "hosts")]
        total = " of ".join(f"{num} {things}" for num, things in counts if num > 1)
        lines.append(f"{group[0][0]}: {group[0][1]}" + (f" (in all {total})" if total else ""))
    return lines


def _by_kind(notes: Iterable[tuple[str, str]]) -> Iterable[Sequence[tuple[str, str]]]:
    """Return groups of notes that differ only in devices, metrics, quoted text and numbers."""
    groups: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for source, note in notes:
        groups[_VARIES.sub("#", note)].append((source, note))
    return groups.values()
