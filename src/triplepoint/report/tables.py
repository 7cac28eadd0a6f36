"""Result tables as the report reads them."""

from pathlib import Path

import pyarrow as pa

from triplepoint.tables.results import RESULT_TABLES


def read_table(results: Path, name: str) -> pa.Table:
    """Return a table over all studies of the results. Raises `UserError` if it is missing or damaged."""
    return RESULT_TABLES[name].read(results / "tables" / f"{name}.parquet")
