"""Tables of operations with times that no job has."""

import math
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from triplepoint.cli import main


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"duration": math.inf}, "row 2: duration is inf, expected 0 to 1e+15 s"),
        ({"duration": -1.0}, "row 2: duration is -1, expected 0 to 1e+15 s"),
        ({"duration": math.nan}, "row 2: duration is nan, expected 0 to 1e+15 s"),
        ({"start_ts": -math.inf}, "row 2: start_ts is -inf, expected -1e+15 to 1e+15 s"),
        ({"start_ts": 1e16}, "row 2: start_ts is 1e+16, expected -1e+15 to 1e+15 s"),
        ({"duration": 0.0, "step": 7}, "step 7: every duration is 0; leave the step out"),
    ],
)
def test_time_that_no_job_has_is_refused(
    change: dict[str, float], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"dp_rank": 0, "stage": 0, "rank": 0, "step": 0, "optype": "forward", "start_ts": 0.0, "duration": 1.0}
    rows = [row | {"seq_id": 0}, row | {"seq_id": 1} | change]
    path = tmp_path / "table.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    assert main(["why", str(path)]) == 2
    assert capsys.readouterr().err == f"triplepoint: {path}: {said}\n"
