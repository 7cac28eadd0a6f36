"""Results that are out of date although Snakemake would take them for up to date.

Snakemake compares times, parameters and checksums of files that are there, and makes missing files only where they are
targets or where a job that runs needs them. Behind a figure that is there it does not see that a table is missing; it
takes an empty file for a result; and once its own records are lost it cannot tell that anything has changed.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from triplepoint.config.plan import TABLES_DIGEST, Plan

_RECORDS = Path(".snakemake/metadata")
"""Where Snakemake keeps what it made each file with."""


def outdated_files(
    plan: Plan, results: Path, products: Sequence[str], aggregated: Sequence[str], tables: Sequence[str]
) -> set[str]:
    """Return the files to be made again, as the rules name them.

    Args:
        plan: What is asked for.
        results: Folder of results.
        products: Files that every run comes to, below its folder.
        aggregated: Those of them that the tables are made of.
        tables: Files that `aggregate` writes.
    """
    folders = {entry.run: results / "runs" / entry.run for entry in plan.valid}
    manifests = {run: folder / "raw" / "manifest.json" for run, folder in folders.items()}
    found = {folder / product for folder in folders.values() for product in products if _is_empty(folder / product)}
    found |= {manifests[entry.run] for entry in plan.valid if _is_damaged(manifests[entry.run], entry.planned.digest)}
    behind = [folder / product for folder in folders.values() for product in aggregated]
    if _digest_in(results) != plan.digest() or not all(path.is_file() for path in (*map(Path, tables), *behind)):
        found |= set(map(Path, tables))
    return set(map(str, found))


def are_records_lost(tables: Sequence[str]) -> bool:
    """Return whether there are tables and no record of what they were made with: then all but launches is outdated."""
    return not any(_RECORDS.glob("*")) and any(Path(path).exists() for path in tables)


def _is_empty(path: Path) -> bool:
    """Return whether a file is there and holds nothing, as a full disk leaves it."""
    try:
        return path.stat().st_size == 0
    except OSError:
        return False


def _is_damaged(path: Path, digest: str) -> bool:
    """Return whether a manifest is there and not whole, or of another point."""
    try:
        return json.loads(path.read_bytes()).get("digest") != digest  # type: ignore[no-any-return]
    except FileNotFoundError:
        return False
    except (OSError, ValueError, AttributeError):
        return True


def _digest_in(results: Path) -> str:
    """Return which plan the tables are of; empty where they do not say."""
    try:
        return (results / "tables" / TABLES_DIGEST).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""
