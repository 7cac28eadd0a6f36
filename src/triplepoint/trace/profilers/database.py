"""A SQLite file of a profiler, read by columns of integers, a batch of rows at a time."""

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
_BATCH = 1 << 15
"""Rows at once: their Python objects stay in the processor's cache."""


class Database:
    """An open file.

    Attributes:
        path: Where it is.
        tables: Names of its tables and views.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection
        found = connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
        self.tables = frozenset(name for (name,) in found)

    def columns(self, table: str) -> frozenset[str]:
        """Return the columns of a table; none where there is no such table."""
        return frozenset(row[1] for row in self._connection.execute(f"PRAGMA table_info({_quoted(table)})"))

    def rows(self, query: str, *values: int | str) -> list[tuple[int | str | None, ...]]:
        """Return the rows of a small result."""
        return self._connection.execute(query, values).fetchall()

    def texts(self, query: str, *values: int | str) -> dict[int, str]:
        """Return texts by their number."""
        return {int(number): str(text) for number, text in self._connection.execute(query, values)}

    def batches(self, query: str, *values: int | str) -> Iterator[Int64]:
        """Yield a result of integers, shape (num_rows, num_columns) each; every column must be one and never null."""
        cursor = self._connection.execute(query, values)
        width = len(cursor.description)
        while batch := cursor.fetchmany(_BATCH):
            yield _integers(chain.from_iterable(batch), len(batch) * width).reshape(-1, width)

    def columns_of(self, query: str, num_integers: int, *values: int | str) -> Iterator[list[Any]]:
        """Yield a result by columns, a batch of rows at a time: first those of integers, then tuples of texts."""
        cursor = self._connection.execute(query, values)
        while batch := cursor.fetchmany(_BATCH):
            columns = list(zip(*batch, strict=True))
            yield [*(_integers(one, len(batch)) for one in columns[:num_integers]), *columns[num_integers:]]

    def select(self, table: str, wanted: Sequence[str], known: frozenset[str] | None = None) -> str:
        """Return `SELECT` of columns as integers, -1 where null or where the table has none of that name."""
        known = self.columns(table) if known is None else known
        parts = [f"ifnull({_quoted(one)}, -1)" if one in known else "-1" for one in wanted]
        return f"SELECT {', '.join(parts)} FROM {_quoted(table)}"


def _integers(values: Iterable[Any], count: int) -> Int64:
    try:
        return np.fromiter(values, dtype=np.int64, count=count)
    except (ValueError, TypeError, OverflowError) as error:
        raise sqlite3.DatabaseError(f"a column of integers holds something else: {error}") from None


class Texts:
    """Texts that a file keeps apart, by the number that refers to them, each looked up once."""

    def __init__(self, database: Database, query: str, number_of: Callable[[str], int]) -> None:
        """Start with none.

        Args:
            database: The file.
            query: Returns the text of a number, given as `?`.
            number_of: Returns what number a text gets here.
        """
        self._database = database
        self._query = query
        self._number_of = number_of
        self._known: dict[int, int] = {}

    def numbers(self, references: Int64) -> Int64:
        """Return the numbers the texts got here; a reference to no text is to the empty one."""
        distinct, which = np.unique(references, return_inverse=True)
        return np.array([self._number(reference) for reference in distinct.tolist()], dtype=np.int64)[which]

    def _number(self, reference: int) -> int:
        if reference not in self._known:
            rows = self._database.rows(self._query, reference)
            self._known[reference] = self._number_of(str(rows[0][0]) if rows and rows[0][0] is not None else "")
        return self._known[reference]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@contextmanager
def opened(path: Path) -> Iterator[Database]:
    """Open a database for reading.

    Raises:
        UserError: If it is damaged or is written to right now, here or in the block.
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
