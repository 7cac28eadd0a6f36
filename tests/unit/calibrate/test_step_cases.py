"""Rows of a table of measured step times that calibration refuses or leaves out."""

from pathlib import Path

import pytest

from triplepoint.calibrate.step_cases import read_cases
from triplepoint.errors import UserError

CONFIG = Path("config")
HEAD = "id,model,gpu,n_gpus,tp,dp,mbs,gbs,precision,step_time_s\n"
ROW = "{id},Llama3-8B,H100,8,8,1,1,8,bf16,{time}\n"


@pytest.mark.parametrize("time", ["1e18", "1e-300", "0"])
def test_step_time_that_cannot_be_is_left_out_with_the_reason(tmp_path: Path, time: str) -> None:
    (tmp_path / "t.csv").write_text(HEAD + ROW.format(id="a", time=time))
    said: list[str] = []
    assert read_cases(tmp_path / "t.csv", CONFIG, said.append) == []
    assert "a left out: step_time_s is" in said[0] and "expected 1e-06 to 86,400 s" in said[0]


def test_two_rows_of_one_id_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(HEAD + 2 * ROW.format(id="a", time="0"))
    with pytest.raises(UserError, match=r"t.csv: row 2: id 'a' is that of another row too; change one"):
        read_cases(tmp_path / "t.csv", CONFIG)
