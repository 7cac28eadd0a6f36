"""Recordings that are damaged, foreign or of something else are refused in one line, and nothing is written."""

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.unit.calibrate.test_power_and_cooling import record
from tests.unit.simulate.heat.machines import CONFIG
from triplepoint.calibrate.recording import Peaks, kernel_activity
from triplepoint.cli import main

Row = dict[str, Any]
FILES = ("samples", "kernels", "windows")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    record(folder)
    return folder


@pytest.fixture
def recording(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "recording"))


@pytest.fixture
def config(tmp_path: Path) -> Path:
    for part in ("gpus", "power", "heat"):
        shutil.copytree(CONFIG / part, tmp_path / "config" / part)
    return tmp_path / "config"


def refused(recording: Path, config: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Calibrate, and return the one line that says why it was refused."""
    before = {path: path.read_bytes() for path in config.rglob("*.yaml")}
    assert main(["calibrate", "--power", str(recording), "--gpu", "h200", "--config", str(config)]) == 2
    assert {path: path.read_bytes() for path in config.rglob("*.yaml")} == before
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert str(recording) in line
    return line


def change(recording: Path, name: str, each: Callable[[Row], Row | None]) -> None:
    path = recording / f"{name}.parquet"
    rows = [row for old in pq.read_table(path).to_pylist() if (row := each(old)) is not None]
    pq.write_table(pa.Table.from_pylist(rows), path)


def overwritten(**values: Any) -> Callable[[Row], Row]:
    return lambda row: row | values


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", [b"", b"hello", None], ids=["empty", "text", "cut"])
def test_damaged_files(
    name: str, damage: bytes | None, recording: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = recording / f"{name}.parquet"
    path.write_bytes(path.read_bytes()[:-100] if damage is None else damage)
    assert f"{name}.parquet: not a whole Parquet file" in refused(recording, config, capsys)


@pytest.mark.parametrize(("name", "column"), [
    ("samples", "recording"), ("samples", "device"), ("samples", "sm_clock_mhz"),
    ("kernels", "error"), ("kernels", "flops"), ("windows", "stage"),
])  # fmt: skip
def test_missing_columns(
    name: str, column: str, recording: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = recording / f"{name}.parquet"
    pq.write_table(pq.read_table(path).drop_columns([column]), path)
    assert f"columns {column} are missing" in refused(recording, config, capsys)


@pytest.mark.parametrize(("values", "said"), [
    ({"gpu_temp_c": math.nan}, "no sample of gpu0 with power, temperature and clock"),
    ({"gpu_temp_c": None}, "no sample of gpu0 with power, temperature and clock"),
    ({"gpu_temp_c": math.inf}, "above its maximum 150"),
    ({"sm_clock_mhz": None}, "no sample of gpu0"),
    ({"device": "gpu1"}, "no sample of gpu0"),
    ({"gpu_power_w": 0.0}, "holds 0 W at most"),
    ({"gpu_power_w": 650_000.0}, "power limit is 700 W"),
    ({"gpu_power_w": "much"}, "table samples"),
    ({"gpu_temp_c": 40.0}, "temperature by 0 K"),
])  # fmt: skip
def test_samples_that_are_none(
    values: Row, said: str, recording: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(recording, "samples", overwritten(**values))
    assert said in refused(recording, config, capsys)


def test_samples_without_a_value_here_and_there_are_left_out(recording: Path, config: Path) -> None:
    count = iter(range(10**9))
    change(recording, "samples", lambda row: row | ({"gpu_temp_c": None} if next(count) % 50 == 0 else {}))
    assert main(["calibrate", "--power", str(recording), "--gpu", "h200", "--config", str(config)]) == 0


def test_stages_count_by_their_names(recording: Path, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(recording, "windows", lambda row: row | ({"stage": "heating"} if row["stage"] == "cooling" else {}))
    assert "no stage cooling" in refused(recording, config, capsys)


def test_kernels_that_no_gpu_makes_are_not_believed(
    recording: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = pq.read_table(recording / "kernels.parquet").to_pylist()
    # Every kernel said to be another one.
    others = iter(np.random.default_rng(0).permutation(rows))
    change(recording, "kernels", lambda row: next(others) | {key: row[key] for key in ("t_start_ns", "t_end_ns")})
    assert "nothing is written" in refused(recording, config, capsys)


def test_out_is_for_tables(recording: Path, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["calibrate", "--power", str(recording), "--gpu", "h200", "--config", str(config), "--out", "x.yaml"]
    assert main(command) == 2
    assert "--out takes only constants fitted to tables" in capsys.readouterr().err


def test_kernel_activity_by_hand() -> None:
    """A GEMM at 0.8 of peak with a tenth of the bandwidth; a copy at 0.9 of the bandwidth."""
    peaks = Peaks(tensor_flops=1e15, sm_flops=5e13, hbm=4e12)
    found = kernel_activity([1, 0], np.array([8e11, 0]), np.array([4e8, 3.6e9]), 1e-3, peaks)
    assert np.asarray(found.awake).tolist() == [1, 1]
    assert np.asarray(found.tensor) == pytest.approx([0.8, 0])
    assert np.asarray(found.hbm) == pytest.approx([0.1, 0.9])
    assert np.asarray(found.clock_bound) == pytest.approx([0.8**3 / (0.8**3 + 0.1**3), 0])
