"""Tables that have grown: a measured run is not made again for a column that came later."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from triplepoint.errors import UserError
from triplepoint.tables import STEPS

ROW = {"rank": 0, "step": 0, "kind": "measured", "t_start_ns": 1, "t_end_ns": 2, "num_tokens": 8}


def test_read_file_from_before_a_column_came_has_nulls_there(tmp_path: Path) -> None:
    table = STEPS.from_rows([ROW]).drop_columns(["reserved_memory_bytes", "t_first_token_ns"])
    pq.write_table(table, tmp_path / "steps.parquet")
    (row,) = STEPS.read(tmp_path / "steps.parquet").to_pylist()
    assert row == {name: ROW.get(name) for name in (column.name for column in STEPS.columns)}


def test_read_file_without_a_column_of_old_is_refused(tmp_path: Path) -> None:
    pq.write_table(STEPS.from_rows([ROW]).drop_columns(["loss"]), tmp_path / "steps.parquet")
    with pytest.raises(UserError, match="missing columns"):
        STEPS.read(tmp_path / "steps.parquet")
