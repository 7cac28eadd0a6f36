"""Recordings: what is flushed can be read, whatever happened to the writer."""

from pathlib import Path

import pytest

from triplepoint.errors import UserError
from triplepoint.recording import Recorder, read_recording


def record(path: Path, num_batches: int, close: bool = True) -> Recorder:
    recorder = Recorder(path, 0.1, {"cpu_energy_j": "this host has no RAPL"}, columns=("cpu_utilisation",))
    for t in range(num_batches):
        recorder.add(t * 100, 5, "host", {"cpu_utilisation": 0.5})
        recorder.flush()
    if close:
        recorder.close()
    return recorder


def test_read_recording_returns_samples_and_account(tmp_path: Path) -> None:
    record(tmp_path / "node0.arrow", 3)
    found = read_recording(tmp_path / "node0.arrow")
    assert found.samples["t_ns"].to_pylist() == [0, 100, 200]
    assert found.period_s == 0.1
    assert found.absent == {"cpu_energy_j": "this host has no RAPL"}
    assert found.measured == ("cpu_utilisation",)


def test_read_recording_never_closed_keeps_what_was_flushed(tmp_path: Path) -> None:
    record(tmp_path / "node0.arrow", 4, close=False)
    assert read_recording(tmp_path / "node0.arrow").samples.num_rows == 4


def test_read_recording_every_truncation_keeps_whole_batches(tmp_path: Path) -> None:
    path = tmp_path / "node0.arrow"
    record(path, 3)
    whole = path.read_bytes()
    rows = []
    for length in [*range(0, len(whole), 7), len(whole)]:
        path.write_bytes(whole[:length])
        try:
            rows.append(read_recording(path).samples.num_rows)
        except UserError:
            rows.append(-1)
    assert rows == sorted(rows), "a longer file never holds fewer samples"
    assert rows[-1] == 3
    assert {0, 1, 2, 3} <= set(rows)


@pytest.mark.parametrize("content", [b"", b"not arrow at all", b"\x00" * 64])
def test_read_recording_foreign_file_is_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "node0.arrow"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        read_recording(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
