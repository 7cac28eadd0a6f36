"""Comparison of all tables of two results folders, value by value, to find changed results.

`python -m tests.benchmarks.same_tables BEFORE AFTER`, after `snakemake all` with the code before and after on copies of
one project, so that launches are the same and all else was made again. Prints each column that differs, with the
largest difference; exit status 1 if any does. Columns of versions and commits are left out.
"""

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

OF_THE_CODE = {"git_commit", "git_dirty"}


def main(before: Path, after: Path) -> int:
    """Print the differences and return the exit status."""
    paths = {folder: {path.relative_to(folder) for path in _tables(folder)} for folder in (before, after)}
    lines = [f"{path}: only {where}" for where, path in _lone(paths[before], paths[after])]
    common = sorted(paths[before] & paths[after])
    for path in common:
        lines += [f"{path}: {line}" for line in _differences(pq.read_table(before / path), pq.read_table(after / path))]
    print("\n".join(lines[:200]))
    print(f"{len(common)} tables compared, {len(lines)} differences")
    return int(bool(lines))


def _tables(folder: Path) -> list[Path]:
    return [*folder.glob("tables/*.parquet"), *folder.glob("runs/*/*.parquet"), *folder.glob("runs/*/raw/*.parquet")]


def _lone(before: set[Path], after: set[Path]) -> list[tuple[str, Path]]:
    return [("before", path) for path in sorted(before - after)] + [("after", path) for path in sorted(after - before)]


def _differences(before: pa.Table, after: pa.Table) -> list[str]:
    if before.num_rows != after.num_rows:
        return [f"{before.num_rows} rows before, {after.num_rows} after"]
    names = {*before.column_names} ^ {*after.column_names}
    lines = [f"column {name} only {'before' if name in before.column_names else 'after'}" for name in sorted(names)]
    for name in before.column_names:
        if name in names | OF_THE_CODE or before[name].equals(after[name]):
            continue
        lines.append(f"column {name} differs{_size(before[name], after[name])}")
    return lines


def _size(before: pa.ChunkedArray, after: pa.ChunkedArray) -> str:
    """Return the differences of numbers; none for other values or if one side is null."""
    if not (pa.types.is_floating(before.type) or pa.types.is_integer(before.type)):
        return ""
    one, other = (np.asarray(column.to_numpy(), float) for column in (before, after))
    if not np.array_equal(np.isnan(one), np.isnan(other)):
        return " in what is null"
    scale = np.maximum(np.abs(one), np.abs(other))
    apart = np.abs(one - other) / np.where(scale > 0, scale, 1)
    return f" by {np.nanmax(apart):.3g} of the value at most, in {int((apart > 0).sum())} of {len(one)} rows"


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
