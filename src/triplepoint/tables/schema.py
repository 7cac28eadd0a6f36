"""Table schemas: columns with type, unit, kind and bounds, checked when a table is written and when it is read."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from triplepoint.errors import UserError
from triplepoint.files import guarded, whole

if TYPE_CHECKING:  # loaded where used: the sampler, which only needs schemas, is to stay small
    import pyarrow.parquet as pq

_TYPES = {
    "int": pa.int64(),
    "float": pa.float64(),
    "str": pa.string(),
    "bool": pa.bool_(),
    "names": pa.list_(pa.string()),
}

_VERSION = str(import_module(__name__.partition(".")[0]).__version__)
"""Of Triplepoint. Looked up, since the stub of the package imports the library, and so this module."""
_WRITTEN_BY = b"triplepoint"
"""Key of a file's metadata: the version of Triplepoint that wrote it."""

_MOST_NAMED = 5
"""Columns that a message names."""

_UNITS = ("s", "w", "j", "c", "mhz", "ghz", "percent", "bytes")
"""Ends of names of columns that are units."""


class Kind(StrEnum):
    """How the values of a sampled column behave over time."""

    KEY = "key"
    """Says which sample or device a row is of."""
    COUNTER = "counter"
    """Grows from 0 at the first sample of a recording."""
    LIFETIME = "lifetime"
    """Grows from 0 when the driver was loaded: only differences belong to a recording."""
    GAUGE = "gauge"
    """A physical quantity at the time of the sample, or averaged by the driver until then."""
    RATIO = "ratio"
    """Share, 0 to 1, of the time since the previous sample, or of the driver's own window."""
    STATE = "state"
    """A code or a set of bits: it has no mean and no difference."""


@dataclass(frozen=True)
class Column:
    """One column: `type` is a key of `_TYPES`, `unit` is '1' for counts and ratios, '' for text.

    A nullable column that `came_later` is null in a file from before: a measured run is not made again for it. `kind`
    is declared for columns of telemetry.
    """

    name: str
    type: str
    unit: str
    about: str
    nullable: bool = False
    minimum: float | None = None
    maximum: float | None = None
    came_later: bool = False
    kind: Kind | None = None


@dataclass(frozen=True)
class Table:
    """One table: what a row is, its columns in order, and what null means in those that do not say it themselves."""

    name: str
    row: str
    columns: tuple[Column, ...]
    null: str = ""

    def schema(self) -> pa.Schema:
        """Return the Arrow schema, with unit and meaning of each column in its metadata."""
        return self._schema

    @cached_property
    def _schema(self) -> pa.Schema:
        return pa.schema(
            [
                pa.field(c.name, _TYPES[c.type], c.nullable, metadata={"unit": c.unit, "about": c.about})
                for c in self.columns
            ],
            metadata={"table": self.name, "row": self.row},
        )

    def from_rows(self, rows: Iterable[Mapping[str, Any]]) -> pa.Table:
        """Return rows as a checked Arrow table; a column a row lacks is null."""
        return self.check(pa.Table.from_pylist([dict(row) for row in rows], self.schema()), "rows")

    def check(self, table: pa.Table, where: str | Path) -> pa.Table:
        """Return `table` in this table's column order and types.

        Raises:
            UserError: If a column is missing or unknown, of another type, out of bounds, or holds a null it must not.
        """
        for column in self.columns:
            if column.came_later and column.name not in table.column_names:
                table = table.append_column(column.name, pa.nulls(len(table), _TYPES[column.type]))
        unknown = sorted(set(table.column_names) - {c.name for c in self.columns})
        missing = sorted({c.name for c in self.columns} - set(table.column_names))
        if unknown or missing:
            raise UserError(f"{where}: table {self.name}: unknown columns {unknown}, missing columns {missing}")
        try:
            cast = table.select([c.name for c in self.columns]).cast(self.schema())
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
            raise UserError(f"{where}: table {self.name}: {' '.join(str(error).split())}") from None
        for column in self.columns:
            _check_column(column, cast[column.name], f"{where}: table {self.name}")
        return cast

    def write(self, path: Path, table: pa.Table) -> None:
        """Check `table` and write it to `path` (Parquet, zstd) in one piece."""
        checked = self.check(table, path)
        with whole(path) as scratch, self._file(scratch) as file:
            file.write_table(checked)

    @contextlib.contextmanager
    def writer(self, path: Path, compression: str = "zstd") -> Iterator[Callable[[pa.Table], None]]:
        """Yield a function that checks and appends rows; the file is there in one piece once the block succeeds."""
        with whole(path) as scratch, self._file(scratch, compression) as file:
            yield lambda rows: file.write_table(self.check(rows, path))

    def _file(self, path: Path, compression: str = "zstd") -> "pq.ParquetWriter":
        import pyarrow.parquet as pq

        # Text repeats itself, times do not: looking for repetitions costs more than writing them.
        texts = [column.name for column in self.columns if column.type in ("str", "names")]
        schema = self.schema().with_metadata({**(self.schema().metadata or {}), _WRITTEN_BY: _VERSION})
        return pq.ParquetWriter(path, schema, compression=compression, use_dictionary=texts)

    def read(self, path: Path) -> pa.Table:
        """Return the checked table in `path`.

        Raises:
            UserError: If the file is missing, damaged, or not this table.
        """
        # Not `read_table`: it imports `pyarrow.dataset`, which takes 0.4 s of CPU.
        with self._opened(path) as file:
            table = file.read()
        return self.check(table, path)

    def read_parts(self, path: Path) -> Iterator[pa.Table]:
        """Yield the checked row groups of `path`, one at a time in memory. Raises UserError as `read` does."""
        with self._opened(path) as file:
            for index in range(file.num_row_groups):
                yield self.check(file.read_row_group(index), path)

    def read_rows(self, path: Path, column: str, values: Iterable[str]) -> pa.Table:
        """Return the checked rows of `path` that have one of some values in a column; no others are kept in memory.

        Raises:
            UserError: As `read` does.
        """
        import pyarrow.compute as pc

        meant = pa.array(values, pa.string())
        with self._opened(path) as file:
            parts = (pa.Table.from_batches([batch]) for batch in file.iter_batches(use_threads=False))
            kept = [part.filter(pc.is_in(part[column], value_set=meant)) for part in parts]
        return self.check(pa.concat_tables([file.schema_arrow.empty_table(), *kept]), path)

    def read_values(self, path: Path, column: str) -> set[Any]:
        """Return the different values of one column of `path`, the only one that is read. Raises as `read` does."""
        with self._opened(path) as file:
            return set(file.read([column])[column].unique().to_pylist())

    @contextlib.contextmanager
    def _opened(self, path: Path) -> "Iterator[pq.ParquetFile]":
        """Open a file of this table; an error in reading it becomes one line."""
        import pyarrow.parquet as pq

        try:
            with pq.ParquetFile(path) as file:
                self._check_version(file.schema_arrow, path)
                yield file
        except FileNotFoundError:
            raise self._missing(path) from None
        except (pa.ArrowInvalid, OSError) as error:
            raise self._damaged(path, error) from None

    def write_csv(self, path: Path, parts: Iterable[pa.Table]) -> None:
        """Write the rows of `parts` to `path` as CSV in one piece; lists of names are joined with semicolons.

        Text that a spreadsheet would take for a formula is guarded, see `files.guarded`.
        """
        from pyarrow.csv import CSVWriter

        with (
            whole(path) as scratch,
            CSVWriter(scratch, self._flat(self.schema().empty_table()).schema) as file,
        ):
            for part in parts:
                file.write_table(self._flat(self.check(part, path)))

    def _flat(self, table: pa.Table) -> pa.Table:
        import pyarrow.compute as pc

        for index, column in enumerate(self.columns):
            if column.type == "names":
                table = table.set_column(index, column.name, pc.binary_join(table[column.name], ";"))
            if column.type in ("names", "str"):
                found = table[column.name].combine_chunks().dictionary_encode()
                safe = pa.array([text if text is None else guarded(text) for text in found.dictionary.to_pylist()])
                table = table.set_column(index, column.name, safe.cast(pa.string()).take(found.indices))
        return table

    def _check_version(self, found: pa.Schema, path: Path) -> None:
        """Refuse a file of another version of this table: other columns, or a column in another unit."""
        known = {column.name: column for column in self.columns}
        lacking = [name for name, one in known.items() if name not in found.names and not one.came_later]
        strange = [name for name in found.names if name not in known]
        moved = [
            name
            for name in found.names
            if name in known and _unit_of(found.field(name)) not in (None, known[name].unit)
        ]
        parts = [("without", lacking), ("with unknown", strange), ("in another unit", moved)]
        if not any(names for _, names in parts):
            return
        said = ", ".join(f"{words} {_listed(names)}" for words, names in parts if names)
        by = (found.metadata or {}).get(_WRITTEN_BY, b"before files said of which").decode()
        raise UserError(
            f"{path}: table {self.name} of another version (written: {by}, this is {_VERSION}): {said}; "
            f"{_make_again(path)}"
        )

    def _missing(self, path: Path) -> UserError:
        return UserError(f"{path}: no such file; the stage that writes table {self.name} has not run")

    def _damaged(self, path: Path, error: Exception) -> UserError:
        return UserError(f"{path}: not a whole Parquet file ({error}); delete it and run again")


def _unit_of(field: pa.Field) -> str | None:
    unit = (field.metadata or {}).get(b"unit")
    return None if unit is None else unit.decode()


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_MOST_NAMED]) + (
        f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    )


def _make_again(path: Path) -> str:
    """Return what remakes a table, by where it stands: that of a study or of a run, which is made from what is raw."""
    folder = path.parent
    results = f"--results {folder.parent.parent}"
    if folder.parent.name == "tables":
        return f"make it again with 'triplepoint aggregate {folder.name} {results}'"
    if folder.parent.name == "runs" and path.name == "telemetry.parquet":
        return f"make it again with 'triplepoint telemetry {folder.name} {results}'"
    if folder.parent.name == "runs":
        return f"make it again with 'triplepoint trace --run {folder.name} --parse {results}'"
    return "make it again with the command that wrote it, or with 'snakemake all'"


def _check_column(column: Column, values: pa.ChunkedArray, where: str) -> None:
    if values.null_count and not column.nullable:
        raise UserError(f"{where}: column {column.name} has {values.null_count} nulls, none are allowed")
    if column.minimum is None and column.maximum is None:
        return
    import pyarrow.compute as pc

    limits = pc.min_max(values).as_py()
    low, high = limits["min"], limits["max"]
    if low is not None and column.minimum is not None and low < column.minimum:
        raise UserError(f"{where}: column {column.name} holds {low}, below its minimum {column.minimum} {column.unit}")
    if high is not None and column.maximum is not None and high > column.maximum:
        raise UserError(f"{where}: column {column.name} holds {high}, above its maximum {column.maximum} {column.unit}")


def count(name: str, about: str, nullable: bool = False, kind: Kind | None = None) -> Column:
    """Return a column of whole numbers from 0."""
    return Column(name, "int", "1", about, nullable, minimum=0, kind=kind)


def text(name: str, about: str, nullable: bool = False) -> Column:
    """Return a column of text."""
    return Column(name, "str", "", about, nullable)


def amount(name: str, unit: str, about: str, nullable: bool = True, kind: Kind | None = None) -> Column:
    """Return a column of non-negative numbers in a unit, null where not measured unless said otherwise."""
    return Column(name, "float", unit, about, nullable, minimum=0.0, kind=kind)


def signed(name: str, about: str) -> Column:
    """Return a column of numbers of either sign, in a unit that another column or `about` gives; null where unknown."""
    return Column(name, "float", "", about, nullable=True)


def ratio(name: str, about: str) -> Column:
    """Return a column of shares from 0 to 1, null where not measured."""
    return Column(name, "float", "1", about, nullable=True, minimum=0.0, maximum=1.0, kind=Kind.RATIO)


def duration(name: str, about: str, nullable: bool = False, kind: Kind | None = None) -> Column:
    """Return a column of integer nanoseconds."""
    return Column(name, "int", "ns", about, nullable, minimum=0, kind=kind)


def column_of(quantity: str, statistic: str) -> str:
    """Return the column of a statistic of a quantity: `gpu_power_w` and `p10` give `gpu_power_p10_w`."""
    name, _, unit = quantity.rpartition("_")
    if not statistic:
        return quantity
    # Token/s has no unit at its end: the name says it all.
    has_unit = unit in _UNITS and not name.endswith("_per")
    return f"{name}_{statistic}_{unit}" if has_unit else f"{quantity}_{statistic}"
