"""Find the hosts of files that do not name one: by folder, or by the words in which file names differ."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from triplepoint.errors import UserError

ONLY = "node0"
"""Name of the only host, if no name is found."""
_WORDS = re.compile(
    r"^(nvidia|smi|nvml|rapl|dcgm|dcgmi|dmon|rocm|amd|gpu|gpus|power|metrics?|telemetry|usage|stats?|log|logs|monitor|"
    r"wattameter|zeus|omnistat|prometheus|scrape|query|\d{8,14}|\d{4}|\d\d)$",
    re.IGNORECASE,
)
"""Words of file names that are not hosts."""
_HOST = re.compile(r"[A-Za-z][A-Za-z-]*\d[\w.-]*")
"""Usual form of a host name: letters, then a number."""

_MOST_OFFSET_S = 3e9
"""Largest offset of a clock: more than one that starts in 1970 can be off. Unit: s."""


def name_hosts(paths: Sequence[Path], folder: Path, pattern: str | None) -> dict[Path, str]:
    """Return the host of each file.

    Args:
        paths: Files that do not name their host.
        folder: The imported folder.
        pattern: Regular expression with a group for the host, searched in the path below the folder; None without one.

    Raises:
        UserError: If the pattern is wrong or not found in a path.
    """
    below = {path: path.relative_to(folder) if path.is_relative_to(folder) else Path(path.name) for path in paths}
    if pattern is not None:
        return {path: _by_pattern(str(relative), pattern) for path, relative in below.items()}
    folders = {relative.parent for relative in below.values()}
    if len(folders) > 1:
        common = Path(os.path.commonpath([str(path) for path in folders]) if all(map(str, folders)) else "")
        hosts = {path: _first_part(relative.parent, common) for path, relative in below.items()}
        if len(set(hosts.values())) > 1:
            return {path: host or ONLY for path, host in hosts.items()}
    hosts = {path: "-".join(_words(path.name)) for path in paths}
    if len(set(hosts.values())) == 1:  # words that all names share are a host only if they look like one
        hosts = {path: host if _HOST.fullmatch(host) else "" for path, host in hosts.items()}
    return {path: host or ONLY for path, host in hosts.items()}


def _first_part(parent: Path, common: Path) -> str:
    """Return the first folder of a path below a common one; empty if there is none."""
    parts = parent.parts[len(common.parts) :] if common != Path() else parent.parts
    return parts[0] if parts else ""


def _words(name: str) -> list[str]:
    """Return the words of a file name that may be a host: without words of tools, numbers of GPUs and suffixes."""
    stem = name.split(".")[0]
    words = (word for word in re.split(r"[_\s]+", stem) if not re.match(r"(gpu|card|rank)-?\d+$", word, re.IGNORECASE))
    return [word for word in words if not all(_WORDS.match(part) for part in word.split("-") if part)]


def _by_pattern(text: str, pattern: str) -> str:
    """Return the host that a pattern finds in a path. Raises `UserError` if it finds none."""
    try:
        match = re.search(pattern, text)
    except re.error as error:
        raise UserError(
            f"--host-pattern {pattern!r}: {error}; expected a regular expression such as 'logs/(node\\d+)/'"
        ) from None
    if match is None or not match.groups():
        raise UserError(f"--host-pattern {pattern!r} does not match {text}, or has no group for the host; correct it")
    return match[1]


def _natural_key(host: str) -> list[tuple[bool, int, str]]:
    """Return the sort key with which node2 comes before node10."""
    return [(not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.findall(r"\d+|\D+", host)]


def order_hosts(hosts: Sequence[str], named: Sequence[str]) -> list[str]:
    """Return hosts in the order of their ranks.

    Args:
        hosts: Hosts with telemetry.
        named: Hosts that the user named, in order; empty for the order of their names.

    Raises:
        UserError: If a named host has no telemetry.
    """
    if not named:
        return sorted(hosts, key=_natural_key)
    if missing := [host for host in named if host not in hosts]:
        raise UserError(f"--hosts: no telemetry of {missing[0]}; found {', '.join(sorted(hosts, key=_natural_key))}")
    return list(named)


def parse_offsets(texts: Sequence[str]) -> Mapping[str, float]:
    """Return the offsets of `--offset` by host; the empty name is for all hosts. Unit: s.

    Raises:
        UserError: If a text is neither `HOST=SECONDS` nor `SECONDS`.
    """
    offsets: dict[str, float] = {}
    for text in texts:
        host, _, seconds = text.rpartition("=")
        try:
            offsets[host] = float(seconds)
        except ValueError:
            raise UserError(f"--offset {text}: expected SECONDS, or HOST=SECONDS such as node3=-182.5") from None
        if not abs(offsets[host]) <= _MOST_OFFSET_S:
            raise UserError(
                f"--offset {text}: expected at most {_MOST_OFFSET_S:g} s, about 95 years, in either direction"
            )
    return offsets
