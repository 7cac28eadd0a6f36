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
from triplepoint.files import atomic_file, guarded

if TYPE_CHECKING:  # imported in the functions that use it, to keep the sampler's memory small
    import pyarrow.parquet as pq

_TYPES = {
    "int": pa.int64(),
    "float": pa.float64(),
    "str": pa.string(),
    "bool": pa.bool_(),
    "names": pa.list_(pa.string()),
}

_VERSION = str(import_module(__name__.partition(".")[0]).__version__)
"""Version of Triplepoint. A plain import would be circular for the type checker: the stub of the package imports this.
"""
_WRITTEN_BY = b"triplepoint"
"""Metadata key of a file with the version of Triplepoint that wrote it."""

_MOST_NAMED = 5
"""Most columns that an error names."""

_UNITS = ("s", "w", "j", "c", "mhz", "ghz", "percent", "bytes")
"""Suffixes of column names that are units."""


class Kind(StrEnum):
    """Behaviour of a sampled column over time."""

    KEY = "key"
    """Identifies the sample or device of a row."""
    COUNTER = "counter"
    """Grows from 0 at the first sample of a recording."""
    LIFETIME = "lifetime"
    """Grows from 0 since the driver was loaded, so only differences describe a recording."""
    GAUGE = "gauge"
    """A physical quantity at the time of the sample, or the driver's average up to it."""
    RATIO = "ratio"
    """Share, 0 to 1, of the time since the previous sample, or of the driver's own window."""
    STATE = "state"
    """A code or a set of bits, without mean or difference."""


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes:
        name: Name, which ends in the unit if there is one.
        type: A key of `_TYPES`.
        unit: Unit; `1` for counts and ratios, empty for text.
        about: Description for users.
        nullable: Whether values may be null.
        minimum: Lowest allowed value; None for no limit.
        maximum: Highest allowed value; None for no limit.
        came_later: Whether the column may be missing in older files and is null there, so that measured runs stay
            readable.
        kind: Behaviour over time, for columns of telemetry.
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
    """The schema of one table.

    Attributes:
        name: Name of the table.
        row: Meaning of a row, such as `one row per (rank, step)`.
        columns: Columns in order.
        null: Meaning of null in the columns whose description does not state it.
    """

    name: str
    row: str
    columns: tuple[Column, ...]
    null: str = ""

    def schema(self) -> pa.Schema:
        """Return the Arrow schema, with unit and description of each column in its metadata."""
        return self._schema

    @cached_property
    def _schema(self) -> pa.Schema:
        return pa.schema(
            [
                pa.field(
                    column.name,
                    _TYPES[column.type],
                    column.nullable,
                    metadata={"unit": column.unit, "about": column.about},
                )
                for column in self.columns
            ],
            metadata={"table": self.name, "row": self.row},
        )

    def from_rows(self, rows: Iterable[Mapping[str, Any]]) -> pa.Table:
        """Return rows as a checked Arrow table; columns missing in a row are null."""
        return self.check(pa.Table.from_pylist([dict(row) for row in rows], self.schema()), "rows")

    def check(self, table: pa.Table, where: str | Path) -> pa.Table:
        """Return an Arrow table with the column order and types of this schema.

        Args:
            table: The table to check.
            where: File or other origin of the table, for the error.

        Raises:
            UserError: If a column is missing, unknown, of another type or out of bounds, or has forbidden nulls.
        """
        for column in self.columns:
            if column.came_later and column.name not in table.column_names:
                table = table.append_column(column.name, pa.nulls(len(table), _TYPES[column.type]))
        unknown = sorted(set(table.column_names) - {c.name for c in self.columns})
        missing = sorted({c.name for c in self.columns} - set(table.column_names))
        if unknown or missing:
            raise UserError(f"{where}: table {self.name}: unknown columns {unknown}, missing columns {missing}")
        schema, columns = self.schema(), [table[column.name] for column in self.columns]
        for index, field in enumerate(schema):
            if columns[index].type != field.type:
                try:
                    columns[index] = columns[index].cast(field.type)
                except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
                    raise UserError(f"{where}: table {self.name}: {' '.join(str(error).split())}") from None
        for column, values in zip(self.columns, columns, strict=True):
            _check_column(column, values, f"{where}: table {self.name}")
        return pa.Table.from_arrays(columns, schema=schema)

    def write(self, path: Path, table: pa.Table) -> None:
        """Check a table and write it atomically to a Parquet file."""
        checked = self.check(table, path)
        with atomic_file(path) as scratch, self._file(scratch) as file:
            file.write_table(checked)

    @contextlib.contextmanager
    def writer(self, path: Path) -> Iterator[Callable[[pa.Table], None]]:
        """Yield a function that checks and appends rows; the file appears atomically when the block succeeds."""
        with atomic_file(path) as scratch, self._file(scratch) as file:
            yield lambda rows: file.write_table(self.check(rows, path))

    def _file(self, path: Path) -> "pq.ParquetWriter":
        """Return an open Parquet writer for this table."""
        import pyarrow.parquet as pq

        # Dictionaries for text only: numbers rarely repeat, and building their dictionaries is slower than writing.
        texts = [column.name for column in self.columns if column.type in ("str", "names")]
        schema = self.schema().with_metadata({**(self.schema().metadata or {}), _WRITTEN_BY: _VERSION})
        return pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=texts, write_page_checksum=True)

    def read(self, path: Path) -> pa.Table:
        """Return the checked table of a Parquet file.

        Raises:
            UserError: If the file is missing, damaged, or of another table.
        """
        # `pyarrow.parquet.read_table` would import `pyarrow.dataset`, which takes 0.4 s of CPU.
        with self._opened(path) as file:
            table = file.read()
        return self.check(table, path)

    def read_parts(self, path: Path) -> Iterator[pa.Table]:
        """Yield the checked row groups of a file, one at a time in memory. Raises `UserError` as `read`."""
        with self._opened(path) as file:
            for index in range(file.num_row_groups):
                yield self.check(file.read_row_group(index), path)

    def read_rows(self, path: Path, column: str, values: Iterable[str]) -> pa.Table:
        """Return the checked rows of a file with one of the given values in a column; only they are kept in memory.

        Raises:
            UserError: As `read`.
        """
        import pyarrow.compute as pc

        wanted = pa.array(values, pa.string())
        with self._opened(path) as file:
            parts = (pa.Table.from_batches([batch]) for batch in file.iter_batches(use_threads=False))
            filtered = [part.filter(pc.is_in(part[column], value_set=wanted)) for part in parts]
        return self.check(pa.concat_tables([file.schema_arrow.empty_table(), *filtered]), path)

    def read_values(self, path: Path, column: str) -> set[Any]:
        """Return the distinct values of one column of a file; only this column is read. Raises as `read`."""
        with self._opened(path) as file:
            return set(file.read([column])[column].unique().to_pylist())

    @contextlib.contextmanager
    def _opened(self, path: Path) -> "Iterator[pq.ParquetFile]":
        """Open a file of this table; errors in reading it become a `UserError`."""
        import pyarrow.parquet as pq

        try:
            with pq.ParquetFile(path, page_checksum_verification=True) as file:
                self._check_version(file.schema_arrow, path)
                yield file
        except FileNotFoundError:
            raise self._missing(path) from None
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeDecodeError, OSError) as error:
            raise self._damaged(path, error) from None

    def write_rows(self, path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write rows atomically to a Parquet or CSV file, as the name ends: .parquet or .csv."""
        table = self.from_rows(rows)
        if path.suffix == ".csv":
            self.write_csv(path, [table])
        else:
            self.write(path, table)

    def write_csv(self, path: Path, parts: Iterable[pa.Table]) -> None:
        """Write the rows of several tables atomically to a CSV file; lists of names are joined by semicolons.

        Text that a spreadsheet would execute as a formula is guarded, see `files.guarded`.
        """
        from pyarrow.csv import CSVWriter

        with (
            atomic_file(path) as scratch,
            CSVWriter(scratch, self._flat(self.schema().empty_table()).schema) as file,
        ):
            for part in parts:
                file.write_table(self._flat(self.check(part, path)))

    def _flat(self, table: pa.Table) -> pa.Table:
        """Return a table with lists joined to text and text guarded against formulas."""
        import pyarrow.compute as pc

        for index, column in enumerate(self.columns):
            if column.type == "names":
                table = table.set_column(index, column.name, pc.binary_join(table[column.name], ";"))
            if column.type in ("names", "str"):
                encoded = table[column.name].combine_chunks().dictionary_encode()
                texts = pa.array([text if text is None else guarded(text) for text in encoded.dictionary.to_pylist()])
                table = table.set_column(index, column.name, texts.cast(pa.string()).take(encoded.indices))
        return table

    def _check_version(self, schema: pa.Schema, path: Path) -> None:
        """Raise `UserError` if a file has another version of this table: other columns, or another unit of one."""
        known = {column.name: column for column in self.columns}
        missing = [name for name, column in known.items() if name not in schema.names and not column.came_later]
        unknown = [name for name in schema.names if name not in known]
        other_unit = [
            name
            for name in schema.names
            if name in known and _unit_of(schema.field(name)) not in (None, known[name].unit)
        ]
        differences = [("without", missing), ("with unknown", unknown), ("in another unit", other_unit)]
        if not any(names for _, names in differences):
            return
        text = ", ".join(f"{words} {_listed(names)}" for words, names in differences if names)
        writer = (schema.metadata or {}).get(_WRITTEN_BY, b"before files said of which").decode()
        raise UserError(
            f"{path}: table {self.name} of another version (written: {writer}, this is {_VERSION}): {text}; "
            f"make it again with {_maker(path)}"
        )

    def _missing(self, path: Path) -> UserError:
        return UserError(f"{path}: no such file; make table {self.name} with {_maker(path)}")

    def _damaged(self, path: Path, error: Exception) -> UserError:
        remedy = f"make it again with {_maker(path)}"
        if path.parent.name == "raw":
            run = path.parents[1]
            remedy = (
                "measurements cannot be made again: restore it from a copy, or measure anew with 'triplepoint launch "
                f"{run.name} --force --results {run.parents[1]}', which keeps the damaged ones"
            )
        return UserError(f"{path}: not a whole Parquet file ({' '.join(str(error).split())}); {remedy}")


def _unit_of(field: pa.Field) -> str | None:
    """Return the unit in the metadata of a field; None if it has none."""
    unit = (field.metadata or {}).get(b"unit")
    return None if unit is None else unit.decode()


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_MOST_NAMED]) + (
        f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    )


def _maker(path: Path) -> str:
    """Return the command that makes a table, which depends on its folder."""
    folder = path.parent
    results = f"--results {folder.parent.parent}"
    if folder.parent.name == "tables":
        return f"'triplepoint aggregate {folder.name} {results}'"
    if folder.parent.name == "runs" and path.name == "telemetry.parquet":
        return f"'triplepoint telemetry {folder.name} {results}'"
    if folder.parent.name == "runs":
        return f"'triplepoint trace --run {folder.name} --parse {results}'"
    return "the command that wrote it, or with 'snakemake all'"


def _check_column(column: Column, values: pa.ChunkedArray, where: str) -> None:
    """Raise `UserError` if values of a column are null or out of bounds."""
    if values.null_count and not column.nullable:
        raise UserError(f"{where}: column {column.name} has {values.null_count} nulls, expected none")
    if column.minimum is None and column.maximum is None:
        return
    low, high = _extremes(values)
    if low is not None and column.minimum is not None and low < column.minimum:
        raise UserError(f"{where}: column {column.name} holds {low}, below its minimum {column.minimum} {column.unit}")
    if high is not None and column.maximum is not None and high > column.maximum:
        raise UserError(f"{where}: column {column.name} holds {high}, above its maximum {column.maximum} {column.unit}")


def _extremes(values: pa.ChunkedArray) -> tuple[float | None, float | None]:
    """Return the least and the greatest number of a column, without nulls and NaN; None if there is none."""
    if values.null_count == len(values):
        return None, None
    if not values.null_count:  # NumPy takes a twentieth of the time for many floats
        numbers = values.to_numpy()
        low, high = numbers.min().item(), numbers.max().item()
        if low == low:  # not NaN
            return low, high
    import pyarrow.compute as pc

    limits = pc.min_max(values).as_py()
    return limits["min"], limits["max"]


def count(name: str, about: str, nullable: bool = False, kind: Kind | None = None) -> Column:
    """Return a column of non-negative integers."""
    return Column(name, "int", "1", about, nullable, minimum=0, kind=kind)


def text(name: str, about: str, nullable: bool = False) -> Column:
    """Return a column of text."""
    return Column(name, "str", "", about, nullable)


def amount(
    name: str, unit: str, about: str, nullable: bool = True, kind: Kind | None = None, maximum: float | None = None
) -> Column:
    """Return a column of non-negative numbers in a unit, up to a maximum if there is one, null where not measured."""
    return Column(name, "float", unit, about, nullable, minimum=0.0, maximum=maximum, kind=kind)


def signed(name: str, about: str) -> Column:
    """Return a column of numbers of either sign, whose unit another column or `about` gives; null where unknown."""
    return Column(name, "float", "", about, nullable=True)


def ratio(name: str, about: str) -> Column:
    """Return a column of ratios from 0 to 1, null where not measured."""
    return Column(name, "float", "1", about, nullable=True, minimum=0.0, maximum=1.0, kind=Kind.RATIO)


def duration(name: str, about: str, nullable: bool = False, kind: Kind | None = None) -> Column:
    """Return a column of integer nanoseconds."""
    return Column(name, "int", "ns", about, nullable, minimum=0, kind=kind)


def column_of(quantity: str, statistic: str) -> str:
    """Return the column for a statistic of a quantity: `gpu_power_w` and `p10` give `gpu_power_p10_w`."""
    name, _, unit = quantity.rpartition("_")
    if not statistic:
        return quantity
    # `tokens_per_s` has its unit in the whole name, not in a suffix.
    has_unit = unit in _UNITS and not name.endswith("_per")
    return f"{name}_{statistic}_{unit}" if has_unit else f"{quantity}_{statistic}"
