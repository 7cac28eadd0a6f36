"""Read the SQLite file of a profiler as columns of integers, in batches of rows."""

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from triplepoint.errors import UserError
from triplepoint.trace import Int64

MAGIC = b"SQLite format 3\0"
"""First bytes of a SQLite file."""
_BATCH = 1 << 15
"""Rows of a batch: few enough that their Python objects are in the processor's cache."""


class Database:
    """An open SQLite file.

    Attributes:
        path: The file.
        tables: Names of its tables and views.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection
        rows = connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
        self.tables = frozenset(name for (name,) in rows)

    def columns(self, table: str) -> frozenset[str]:
        """Return the columns of a table; empty if there is no such table."""
        return frozenset(row[1] for row in self._connection.execute(f"PRAGMA table_info({_quoted(table)})"))

    def rows(self, query: str, *values: int | str) -> list[tuple[int | str | None, ...]]:
        """Return all rows of a small result."""
        return self._connection.execute(query, values).fetchall()

    def batches(self, query: str, *values: int | str) -> Iterator[Int64]:
        """Yield a result of integers without nulls in batches, shape (num_rows, num_columns)."""
        cursor = self._connection.execute(query, values)
        width = len(cursor.description)
        while batch := cursor.fetchmany(_BATCH):
            yield _integers(chain.from_iterable(batch), len(batch) * width).reshape(-1, width)

    def columns_of(self, query: str, num_integers: int, *values: int | str) -> Iterator[list[Any]]:
        """Yield a result in batches of columns: `num_integers` arrays of integers, followed by tuples of texts."""
        cursor = self._connection.execute(query, values)
        while batch := cursor.fetchmany(_BATCH):
            columns = list(zip(*batch, strict=True))
            yield [*(_integers(column, len(batch)) for column in columns[:num_integers]), *columns[num_integers:]]

    def select(self, table: str, columns: Sequence[str], existing: frozenset[str] | None = None) -> str:
        """Return a `SELECT` of columns as integers, with -1 for null and for columns that the table does not have.

        Args:
            table: Name of the table.
            columns: Names of the columns.
            existing: Columns of the table, if they are known already.
        """
        existing = self.columns(table) if existing is None else existing
        parts = [f"ifnull({_quoted(column)}, -1)" if column in existing else "-1" for column in columns]
        return f"SELECT {', '.join(parts)} FROM {_quoted(table)}"


def _integers(values: Iterable[Any], count: int) -> Int64:
    try:
        return np.fromiter(values, dtype=np.int64, count=count)
    except (ValueError, TypeError, OverflowError) as error:
        raise sqlite3.DatabaseError(f"a column of integers holds something else: {error}") from None


class StringTable:
    """Translates a file's references to texts into numbers of texts; each text is looked up once."""

    def __init__(self, database: Database, query: str, number_of: Callable[[str], int]) -> None:
        """Start with no texts.

        Args:
            database: The file.
            query: Query for the text of a reference, given as `?`.
            number_of: Returns the number of a text.
        """
        self._database = database
        self._query = query
        self._number_of = number_of
        self._number_by_reference: dict[int, int] = {}

    def numbers(self, references: Int64) -> Int64:
        """Return the numbers of the texts; a reference without a text counts as the empty text."""
        distinct, index = np.unique(references, return_inverse=True)
        return np.array([self._number(reference) for reference in distinct.tolist()], dtype=np.int64)[index]

    def _number(self, reference: int) -> int:
        if reference not in self._number_by_reference:
            rows = self._database.rows(self._query, reference)
            text = str(rows[0][0]) if rows and rows[0][0] is not None else ""
            self._number_by_reference[reference] = self._number_of(text)
        return self._number_by_reference[reference]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@contextmanager
def open_database(path: Path) -> Iterator[Database]:
    """Open a database for reading.

    Raises:
        UserError: If the file is damaged or is being written; also for errors inside the block.
    """
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        try:
            yield Database(path, connection)
        finally:
            connection.close()
    except sqlite3.OperationalError as error:
        raise UserError(f"{path.name}: cannot be read ({error}); is the profiler still writing it?") from None
    except sqlite3.DatabaseError as error:
        raise UserError(f"{path.name}: damaged database ({error}); export it again") from None
