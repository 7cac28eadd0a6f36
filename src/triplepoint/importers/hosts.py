"""Hosts of files that do not say theirs: by folder, or by what their names do not share."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from triplepoint.errors import UserError

ONLY = "node0"
"""Host where there is one file, or one set of files, and no name."""
_WORDS = re.compile(
    r"^(nvidia|smi|nvml|rapl|dcgm|dcgmi|dmon|rocm|amd|gpu|gpus|power|metrics?|telemetry|usage|stats?|log|logs|monitor|"
    r"wattameter|zeus|omnistat|prometheus|scrape|query|\d{8,14}|\d{4}|\d\d)$",
    re.IGNORECASE,
)
"""Words of file names that are no hosts."""
_HOST = re.compile(r"[A-Za-z][A-Za-z-]*\d[\w.-]*")
"""What a host is called where nothing else tells: letters, then a number."""


def name_hosts(paths: Sequence[Path], folder: Path, pattern: str | None) -> dict[Path, str]:
    """Return the host of each file.

    Args:
        paths: Files that do not say their host.
        folder: The folder that is imported.
        pattern: Regular expression with a group for the host, searched in the path below the folder; None to find it.

    Raises:
        UserError: If the pattern is wrong or not found in a path.
    """
    below = {path: path.relative_to(folder) if path.is_relative_to(folder) else Path(path.name) for path in paths}
    if pattern is not None:
        return {path: _by_pattern(str(relative), pattern) for path, relative in below.items()}
    folders = {relative.parent for relative in below.values()}
    if len(folders) > 1:
        shared = Path(os.path.commonpath([str(each) for each in folders]) if all(map(str, folders)) else "")
        named = {path: _first_part(relative.parent, shared) for path, relative in below.items()}
        if len(set(named.values())) > 1:
            return {path: host or ONLY for path, host in named.items()}
    found = {path: "-".join(_words(path.name)) for path in paths}
    if len(set(found.values())) == 1:  # nothing tells files apart: what they share is a host only if it looks like one
        found = {path: host if _HOST.fullmatch(host) else "" for path, host in found.items()}
    return {path: host or ONLY for path, host in found.items()}


def _first_part(parent: Path, shared: Path) -> str:
    parts = parent.parts[len(shared.parts) :] if shared != Path() else parent.parts
    return parts[0] if parts else ""


def _words(name: str) -> list[str]:
    """Return what of a file name may be a host: without words of tools, numbers of GPUs and suffixes."""
    stem = name.split(".")[0]
    words = (word for word in re.split(r"[_\s]+", stem) if not re.match(r"(gpu|card|rank)-?\d+$", word, re.IGNORECASE))
    return [word for word in words if not all(_WORDS.match(part) for part in word.split("-") if part)]


def _by_pattern(text: str, pattern: str) -> str:
    try:
        match = re.search(pattern, text)
    except re.error as error:
        raise UserError(
            f"--host-pattern {pattern!r}: {error}; expected a regular expression such as 'logs/(node\\d+)/'"
        ) from None
    if match is None or not match.groups():
        raise UserError(f"--host-pattern {pattern!r} does not match {text}, or has no group for the host; correct it")
    return match[1]


def natural(host: str) -> list[tuple[bool, int, str]]:
    """Return what hosts are sorted by: node2 comes before node10."""
    return [(not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.findall(r"\d+|\D+", host)]


def in_order(hosts: Sequence[str], asked: Sequence[str]) -> list[str]:
    """Return hosts in the order of their ranks.

    Args:
        hosts: Those found.
        asked: Those the user named, in order; empty for the order of their names.

    Raises:
        UserError: If one that was named is not there.
    """
    if not asked:
        return sorted(hosts, key=natural)
    if missing := [host for host in asked if host not in hosts]:
        raise UserError(f"--hosts: no telemetry of {missing[0]}; found {', '.join(sorted(hosts, key=natural))}")
    return list(asked)


def offsets_of(texts: Sequence[str]) -> Mapping[str, float]:
    """Return seconds to add to the clock of each host, by its name; of all under the empty name.

    Raises:
        UserError: If one is not `HOST=SECONDS` or `SECONDS`.
    """
    found: dict[str, float] = {}
    for text in texts:
        host, _, seconds = text.rpartition("=")
        try:
            found[host] = float(seconds)
        except ValueError:
            raise UserError(f"--offset {text}: expected SECONDS, or HOST=SECONDS such as node3=-182.5") from None
    return found
