"""Recordings: what is flushed can be read, whatever happened to the writer."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.recordings import SampleRecorder
from triplepoint.errors import UserError
from triplepoint.recording import NEVER, Part, read_recording
from triplepoint.tables.telemetry import METRICS
from triplepoint.units import NS_PER_S


def record(path: Path, num_batches: int, close: bool = True) -> SampleRecorder:
    recorder = SampleRecorder(path, 0.1, {"cpu_energy_j": "this host has no RAPL"}, columns=("cpu_utilisation",))
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
    assert set(found.absent) == set(METRICS) - set(found.measured)
    assert {metric: why for metric, why in found.absent.items() if why != NEVER} == {
        "cpu_energy_j": "this host has no RAPL"
    }
    assert found.measured == ("cpu_utilisation",)


def test_read_recording_never_closed_keeps_what_was_flushed(tmp_path: Path) -> None:
    record(tmp_path / "node0.arrow", 4, close=False)
    assert read_recording(tmp_path / "node0.arrow").samples.num_rows == 4


def test_read_recording_every_truncation_keeps_whole_batches(tmp_path: Path) -> None:
    path = tmp_path / "node0.arrow"
    record(path, 3, close=False)
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


def test_read_recording_damaged_anywhere_is_read_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "node0.arrow"
    record(path, 2)
    whole = path.read_bytes()
    said = set()
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 64
        path.write_bytes(damaged)
        try:
            read_recording(path)
        except UserError as error:
            assert "\n" not in str(error)
            said.add(str(error).partition(": ")[2].partition(" (")[0])
        except MemoryError:  # a length of the header; commands say so in one line
            pass
    assert "damaged" in said


def test_recording_of_many_seconds_is_plain_columns_in_few_batches(tmp_path: Path) -> None:
    path = tmp_path / "node0.arrow"
    recorder = SampleRecorder(path, 1.0, {}, columns=("gpu_temp_c",))
    for second in range(35):
        recorder.add(second * NS_PER_S, 5, "gpu0", {"gpu_temp_c": 40.0 + second})
        recorder.flush()
    with path.open("rb") as file, pa.ipc.open_stream(file) as stream:
        batches = list(stream)
    # The first one, three times those of ten seconds, and four since.
    assert [batch.num_rows for batch in batches] == [1, 10, 10, 10, 1, 1, 1, 1]
    rows = pa.Table.from_batches(batches).to_pylist()
    assert rows[34] == {"t_ns": 34 * NS_PER_S, "read_latency_ns": 5, "device": "gpu0", "gpu_temp_c": 74.0}
    recorder.close()
    assert read_recording(path).samples["gpu_temp_c"].to_pylist() == [40.0 + second for second in range(35)]


def test_read_recording_killed_while_merging_keeps_what_stands_before(tmp_path: Path) -> None:
    path = tmp_path / "node0.arrow"
    recorder = SampleRecorder(path, 1.0, {}, columns=("gpu_temp_c",))
    for second in range(10):
        recorder.add(second * NS_PER_S, 5, "gpu0", {"gpu_temp_c": 40.0})
        recorder.flush()
    before = path.read_bytes()
    recorder.add(10 * NS_PER_S, 5, "gpu0", {"gpu_temp_c": 40.0})
    recorder.flush()
    merged = path.read_bytes()
    # The merged batch stands, what it replaces is not cut off yet.
    path.write_bytes(merged + before[len(merged) :])
    assert read_recording(path).samples.num_rows == 11


def test_read_recording_of_an_earlier_version_names_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "node0.arrow"
    account = {"period_s": "0.1", "absent": "{}", "facts": "{}"}
    schema = pa.schema([pa.field("device", pa.string()), pa.field("change", pa.list_(pa.int64()))], account)
    with pa.ipc.new_stream(path, schema) as stream:
        stream.write_table(schema.empty_table())
    with pytest.raises(UserError, match="recorded by an earlier version.*launch the run again with --force"):
        read_recording(path)


@pytest.mark.parametrize("content", [b"", b"not arrow at all", b"\x00" * 64])
def test_read_recording_foreign_file_is_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "node0.arrow"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        read_recording(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_read_recording_restores_counters_levels_and_gaps(tmp_path: Path) -> None:
    path = tmp_path / "node0.arrow"
    recorder = SampleRecorder(path, 0.1, {}, columns=("gpu_energy_j", "gpu_temp_c", "gpu_throttle_reasons"))
    nan = float("nan")
    energy = [[0.0, 1.5, nan, 4.25], [4.25, 5.0, nan, 6.0]]
    temperature = [[40.0, nan, 42.0, 41.0], [nan, 40.0, 40.0, 39.0]]
    for batch in range(2):
        parts = []
        for device, shift in (("gpu0", 0.0), ("gpu1", 10.0)):
            values = np.array([np.array(energy[batch]) + shift, temperature[batch], [4.0, 4.0, 0.0, nan]]).T
            t_ns = np.arange(4) * 7 + batch * 100 + 2**60 + (1 if shift else 0)
            parts.append(
                Part(device, t_ns, np.full(4, 9), ("gpu_energy_j", "gpu_temp_c", "gpu_throttle_reasons"), values)
            )
        recorder.write(parts)
    recorder.close()
    found = read_recording(path).samples.to_pandas()
    second = found[found["device"] == "gpu1"]
    assert second["t_ns"].tolist() == [2**60 + 1 + t for t in (0, 7, 14, 21, 100, 107, 114, 121)]
    assert second["gpu_energy_j"].fillna(-1).tolist() == [10.0, 11.5, -1, 14.25, 14.25, 15.0, -1, 16.0]
    assert second["gpu_temp_c"].fillna(-1).tolist() == [40.0, -1, 42.0, 41.0, -1, 40.0, 40.0, 39.0]
    assert second["gpu_throttle_reasons"].fillna(-1).tolist() == [4, 4, 0, -1, 4, 4, 0, -1]


def test_write_full_disk_is_one_line() -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    recorder = SampleRecorder(full, 0.1, {}, columns=("gpu_temp_c",))
    recorder.add(1, 1, "gpu0", {"gpu_temp_c": 40.0})
    with pytest.raises(UserError, match="No space left on device; sampling ends here"):
        recorder.flush()
    recorder.close()


def test_stale_counts_samples_of_a_counter_that_stands_still(tmp_path: Path) -> None:
    path = tmp_path / "node0.arrow"
    recorder = SampleRecorder(path, 0.5, {}, columns=("gpu_energy_j",))
    for tick in range(10):
        recorder.add(tick * 500_000_000, 1, "gpu0", {"gpu_energy_j": float(tick)})
        recorder.add(tick * 500_000_000, 1, "gpu1", {"gpu_energy_j": float(min(tick, 4))})
    recorder.close()
    # gpu1 moves last at 2.0 s; the samples at 3.5, 4.0 and 4.5 s are over a second later.
    assert read_recording(path).stale == {"gpu_energy_j": 3}


def test_times_of_devices_read_in_turns_are_restored(tmp_path: Path) -> None:
    path = tmp_path / "node0.arrow"
    recorder = SampleRecorder(path, 0.1, {}, columns=("gpu_temp_c",))
    chooser = np.random.default_rng(3)
    begun = 2**60 + np.cumsum(chooser.integers(50, 90_000, (5, 4, 3)).ravel()).reshape(5, 4, 3)
    latencies = chooser.integers(1, 40, begun.shape)  # batch, sample, device
    for batch in range(5):
        # The last device is not read in the second batch.
        present = range(2 if batch == 1 else 3)
        recorder.write(
            Part(f"gpu{d}", begun[batch, :, d], latencies[batch, :, d], ("gpu_temp_c",), np.full((4, 1), 40.0 + d))
            for d in present
        )
    recorder.close()
    found = read_recording(path).samples.to_pandas()
    for device in range(3):
        mine = found[found["device"] == f"gpu{device}"]
        kept = [batch for batch in range(5) if device < 2 or batch != 1]
        assert mine["t_ns"].tolist() == begun[kept, :, device].ravel().tolist()
        assert mine["read_latency_ns"].tolist() == latencies[kept, :, device].ravel().tolist()
        assert set(mine["gpu_temp_c"]) == {40.0 + device}
    assert (np.diff(found["t_ns"]) > 0).all()
