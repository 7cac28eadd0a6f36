"""What a recording can have wrong: one line that says what, where, and what to do, or a note and what is whole."""

import gzip
import io
import os
import re
import tarfile
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from tests.importing import SAMPLES, part, read, values
from triplepoint.cli import main
from triplepoint.errors import UserError
from triplepoint.importers import prometheus_json
from triplepoint.importers.declaration import ReadOptions
from triplepoint.importers.folder import ImportOptions, list_folder
from triplepoint.importers.hosts import parse_offsets
from triplepoint.importers.run import _longest_stretch
from triplepoint.importers.text import read_content
from triplepoint.importers.work import read_steps
from triplepoint.manifest import read_manifest
from triplepoint.units import NS_PER_S

HEADER = "timestamp, index, power.draw [W], temperature.gpu"
UTC = ImportOptions(timezone="UTC")


def smi(tmp_path: Path, *lines: str, end: str = "\n", header: str = HEADER) -> Path:
    (tmp_path / "smi.csv").write_text("\n".join([header, *lines]) + end)
    return tmp_path


def line(second: int, power: str = "300.00 W", index: int = 0, temp: str = "60") -> str:
    return f"2026/05/01 10:{second // 60:02}:{second % 60:02}.000, {index}, {power}, {temp}"


def test_half_line_at_the_end_is_left_out_and_said(tmp_path: Path) -> None:
    found = read(smi(tmp_path, *(line(n) for n in range(149)), "2026/05/01 10:02:29.000, 0, 30", end=""), UTC)
    assert len(part(found).t_ns) == 149
    assert found.notes == ["smi.csv: line 151, the last, has no line end and is left out: it may be half of one"]


def test_half_line_with_its_end_is_left_out_too(tmp_path: Path) -> None:
    found = read(smi(tmp_path, line(0), line(1), "2026/05/01 10:00:02"), UTC)
    assert len(part(found).t_ns) == 2 and "line 4, the last, is half a line" in found.notes[0]


def test_zeros_of_a_crashed_node_are_the_end(tmp_path: Path) -> None:
    path = smi(tmp_path, line(0), line(1), line(2))
    (path / "smi.csv").write_bytes((path / "smi.csv").read_bytes()[:-3] + b"\0" * 512)
    assert len(part(read(path, UTC)).t_ns) == 2


def test_line_with_too_few_cells_in_the_middle_is_refused_or_skipped(tmp_path: Path) -> None:
    path = smi(tmp_path, line(0), "2026/05/01 10:00:01.000, 0", line(2))
    with pytest.raises(UserError, match=r"smi.csv:3: 2 cells, expected 4 as in the header; .*--skip-bad") as refused:
        read(path, UTC)
    assert "\n" not in str(refused.value)
    found = read(path, ImportOptions(timezone="UTC", read_options=ReadOptions(skip_bad=True)))
    assert len(part(found).t_ns) == 2 and "1 lines with another number of cells left out" in found.notes[0]


def test_words_for_no_value_are_gaps(tmp_path: Path) -> None:
    found = read(
        smi(tmp_path, line(0), line(1, "[N/A]"), line(2, "ERR!"), line(3, "nan", temp="[Unknown Error]"), line(4)), UTC
    )
    power_w = values(part(found), "gpu_power_average_w")
    assert np.isnan(power_w[1:3]).all() and len(power_w) == 4, "a line without any value is no sample"


def test_cell_that_is_no_number_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"column power.draw: '3x0 W' is not a number; correct the cell"):
        read(smi(tmp_path, line(0), line(1, "3x0 W")), UTC)


def test_unit_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"the unit 'MHz' does not fit gpu_power_average_w; expected W"):
        read(smi(tmp_path, line(0, "300 MHz")), UTC)


def test_messages_of_the_tool_in_between_are_said(tmp_path: Path) -> None:
    found = read(
        smi(tmp_path, line(0), "Unable to determine the device handle for GPU 0000:1B:00.0: GPU is lost.", line(9)), UTC
    )
    assert len(part(found).t_ns) == 2
    assert "1 lines of error messages, the first in line 3: 'Unable to determine" in found.notes[0]


def test_header_again_in_the_middle_is_a_log_that_was_appended_to(tmp_path: Path) -> None:
    assert len(part(read(smi(tmp_path, line(0), HEADER, line(1)), UTC)).t_ns) == 2


def test_doubled_and_unsorted_lines_are_put_right_and_said(tmp_path: Path) -> None:
    found = read(
        smi(tmp_path, line(2, "302 W"), line(0, "300 W"), line(1, "301 W"), line(1, "301 W"), line(2, "9 W")), UTC
    )
    assert values(part(found), "gpu_power_average_w").tolist() == [300, 301, 302]
    assert "2 times come twice for gpu_power_average_w, 1 of them with another value" in found.notes[0]


def test_values_that_cannot_be_are_left_out_and_said(tmp_path: Path) -> None:
    found = read(smi(tmp_path, line(0), line(1, temp="65535")), UTC)
    assert np.isnan(values(part(found), "gpu_temp_c")[1])
    assert "1 values of gpu_temp_c outside of -60 to 150 degC left out, the first is 65535" in found.notes[0]


def test_gpus_that_nothing_tells_apart_are_refused(tmp_path: Path) -> None:
    lines = [f"2026/05/01 10:00:{n:02}.{gpu:03}, 300 W" for n in range(5) for gpu in range(8)]
    with pytest.raises(UserError, match="no column that tells the GPUs apart; record one of gpu, index, uuid"):
        read(smi(tmp_path, *lines, header="timestamp, power.draw [W]"), UTC)


def test_misspelt_columns_are_named_with_the_nearest(tmp_path: Path) -> None:
    found = read(
        smi(tmp_path, "2026/05/01 10:00:00.000, 0, 60, 300", header="timestamp, index, temperature.gpu, power.drw"), UTC
    )
    assert found.left_out == {"power.drw": "not known (did you mean 'power.draw'?)"}
    with pytest.raises(
        UserError, match=r"no column of nvidia-smi CSV is known among .* \(did you mean 'power.draw'\?\)"
    ):
        read(smi(tmp_path, "2026/05/01 10:00:00.000, 0, 300", header="timestamp, index, power.drw [W]"), UTC)


def test_counters_that_wrap_and_restart_go_on(tmp_path: Path) -> None:
    header = "# timestamp reading-time[ns] cpu-0[uJ]\n"
    raw = [262143328000, 262143328850 - 850, 150, 1000150]
    (tmp_path / "rapl.log").write_text(
        header + "".join(f"  2026-05-01_10:00:0{n}.0 9 {x}\n" for n, x in enumerate(raw))
    )
    assert values(part(read(tmp_path, UTC), "host"), "cpu_energy_j") == pytest.approx([0, 0, 1e-3, 1.001], abs=1e-6)
    (tmp_path / "rapl.log").unlink()
    (tmp_path / "dcgm.log").write_text(
        "#Entity   TOTEC\nID        mJ\nGPU 0     9000000\nGPU 0     9500000\nGPU 0     100000\nGPU 0     400000\n"
    )
    found = read(tmp_path, ImportOptions(start="2026-05-01 10:00:00", period_s=1))
    assert values(part(found), "gpu_energy_j") == pytest.approx([0, 500, 500, 800]), "a driver that was loaded again"


def test_counter_that_counts_no_joules_is_left_out_and_said(tmp_path: Path) -> None:
    """That of MI100 counts 0.006 J in ten seconds at 35 W: issue 38 of ROCm/amdsmi."""
    rows = ["1722967684,0,35,0.861", "1722967689,0,36,0.864", "1722967694,0,34,0.867"]
    (tmp_path / "smi.csv").write_text("timestamp,gpu,socket_power,total_energy_consumption\n" + "\n".join(rows) + "\n")
    found = read(tmp_path)
    assert "gpu_energy_j" not in part(found).columns
    assert found.notes == ["node0: gpu0: gpu_energy_j rises by 0.0006 W and is left out; the power read is 35 W"]
    (tmp_path / "smi.csv").write_text(
        "timestamp,gpu,socket_power,total_energy_consumption\n1722967684,0,35,1\n1722967694,0,35,351\n"
    )
    assert values(part(read(tmp_path)), "gpu_energy_j").tolist() == [0, 350]


def test_header_of_another_query_is_no_line_of_the_first(tmp_path: Path) -> None:
    path = smi(
        tmp_path,
        line(0),
        "timestamp, index, temperature.gpu, power.draw [W]",
        "2026/05/01 10:00:01.000, 0, 60, 300.00 W",
    )
    with pytest.raises(UserError, match="smi.csv:3: a header other than the first line, .*; split the file there"):
        read(path, UTC)
    assert len(part(read(smi(tmp_path, line(0), HEADER, line(1)), UTC)).t_ns) == 2, "a log that was appended to"


def test_seconds_with_a_decimal_comma_are_one_cell(tmp_path: Path) -> None:
    """As `date --iso-8601=ns` prints them before the cells of nvidia-smi."""
    rows = [f"2026-01-03T15:36:5{n},123456789+01:00, 300.20 W" for n in range(3)]
    (tmp_path / "smi.csv").write_text("timestamp,power.draw\n" + "\n".join(rows) + "\n")
    assert part(read(tmp_path)).t_ns[0] == 1767451010123456789


SCREEN = "Mon Jan  5 10:00:00 2026\n+-----+\n| NVIDIA-SMI 550.54.15   Driver Version: 550.54.15 |\n"
LOGGER = (
    "timestamp,gpu_index,temperature_C,utilization_gpu_percent,power_W\n2025-09-24T03:48:33.493Z,0, 38, 100, 387.26\n"
)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (SCREEN, "the table that nvidia-smi shows on a screen; record with: nvidia-smi --query-gpu="),
        ("==============NVSMI LOG==============\n", "the report of nvidia-smi -q; record with"),
        ("GPU: 0\n    POWER:\n        SOCKET_POWER: 10 W\n", "the list that amd-smi shows on a screen"),
        ("timestamp,emissions,emissions_rate,gpu_power\n2026-01-05T10:00:00,0.1,0.1,300\n", "CodeCarbon's sums"),
        (LOGGER, "a CSV of a tool that is not known; write what its columns are into a YAML file"),
    ],
)
def test_what_is_no_recording_says_what_it_is_and_what_to_record(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "found.csv").write_text(content)
    with pytest.raises(UserError) as refused:
        read(tmp_path, UTC)
    assert f"{tmp_path / 'found.csv'}: {said}" in str(refused.value) and "\n" not in str(refused.value)


def test_draft_of_a_mapping_reads_the_file_it_is_of(tmp_path: Path) -> None:
    (tmp_path / "gpu_metrics.csv").write_text(LOGGER)
    with pytest.raises(UserError) as refused:
        read(tmp_path)
    draft = tmp_path / "map.yaml"
    draft.write_text(str(refused.value).partition("you should check: ")[2])
    gpu = part(read(tmp_path, ImportOptions(mapping=draft)))
    assert values(gpu, "gpu_power_w").tolist() == [387.26] and values(gpu, "gpu_temp_c").tolist() == [38]
    assert values(gpu, "gpu_utilisation").tolist() == [1]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("notes.txt", "nothing of use\n", "no telemetry and no traces; found notes.txt; known are nvidia-smi CSV, "),
        ("empty.csv", HEADER + "\n", "a header and no whole line below it"),
        ("a.json", '{"data":{"result":[{"metric":{"x":"1"},"values":[[1,"2"]]}]}}', "a series has no __name__"),
        ("a.json", '{"data":{"result":[{"metric":{"__name__":"up"},"values":[[1e9,"2"]]}]}}', "metrics is known: up"),
        ("smi.csv", HEADER + "\nyesterday, 0, 300, 60\n", "column timestamp: 'yesterday' is not a time; expected 2026"),
        ("smi.csv", HEADER + "\n2026/02/31 10:00:00.000, 0, 300, 60\n", "no such date"),
    ],
)  # fmt: skip
def test_files_that_hold_nothing_are_refused(tmp_path: Path, name: str, content: str, said: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError) as refused:
        read(tmp_path, UTC)
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_packed_and_utf16_files_are_read(tmp_path: Path) -> None:
    text = "\n".join([HEADER, line(0), line(1)]) + "\n"
    (tmp_path / "smi_n1.csv.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "smi_n2.csv").write_bytes(text.encode("utf-16"))
    found = read(tmp_path, UTC)
    assert [len(part(found, host=host).t_ns) for host in ("n1", "n2")] == [2, 2]


def test_files_of_other_kinds_are_named_and_not_read(tmp_path: Path) -> None:
    smi(tmp_path, line(0), line(1))
    (tmp_path / "model.pt").write_bytes(b"PK\x03\x04" + bytes(range(256)) * 40)
    (tmp_path / "not_packed.csv.gz").write_text("hello\n")
    (tmp_path / "run.db").write_bytes(b"SQLite format 3\0" + b"\0" * 100)
    (tmp_path / "config.json").write_text('{"hidden_size": 4096}')
    listing = list_folder(tmp_path)
    assert [path.name for path, _ in listing.telemetry] == ["smi.csv"] and not listing.traces
    assert {path.name for path in listing.others} == {"model.pt", "not_packed.csv.gz", "run.db", "config.json"}


def test_results_within_the_folder_are_not_read_again(tmp_path: Path) -> None:
    smi(tmp_path, line(0), line(1))
    (tmp_path / "results").mkdir()
    smi(tmp_path / "results", line(0))
    assert len(list_folder(tmp_path, skipped=[tmp_path / "results"]).telemetry) == 1


def test_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere: no such folder; expected one with recordings"):
        read(tmp_path / "nowhere")


def mapped(tmp_path: Path, text: str) -> ImportOptions:
    (tmp_path / "map.yaml").write_text(text)
    (tmp_path / "rack7.csv").write_text("when;dev;Watt;Temp\n01.05.2026 10:00:00;a;0,5;60\n")
    (tmp_path / "rack7.csv").write_text(
        "when;dev;Watt;Temp\n01.05.2026 10:00:00;a;0.5;60\n01.05.2026 10:00:01;b;0.6;61\n"
    )
    return ImportOptions(mapping=tmp_path / "map.yaml", timezone="UTC")


MAP = """
separator: ";"
time: when
time_format: "%d.%m.%Y %H:%M:%S"
device: dev
columns:
  gpu_power_w: {column: Watt, unit: kW}
"""


def test_map_reads_a_csv_of_any_tool(tmp_path: Path) -> None:
    found = read(tmp_path, mapped(tmp_path, MAP))
    assert list(found.hosts) == ["rack7"] and found.left_out == {"temp": "not mapped"}
    assert values(part(found, "gpu1"), "gpu_power_w").tolist() == [600.0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("gpu_power_w", "gpu_powr_w"), "gpu_powr_w is not a column of telemetry (did you mean 'gpu_power_w'?)"),
        (("kW", "MHz"), "the unit 'MHz' does not fit gpu_power_w"),
        (("column: Watt", "column: Wat"), "no column 'Wat', which --map names (did you mean 'watt'?)"),
        (("%d.%m.%Y", "%m-%d-%Y"), "'01.05.2026 10:00:00' is not a time of the format"),
        (("time: when", "tim: when"), "tim"),
    ],
)
def test_map_with_a_mistake_is_refused(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    with pytest.raises(UserError) as refused:
        read(tmp_path, mapped(tmp_path, MAP.replace(*change)))
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_gzip_that_unpacks_to_more_than_memory_is_refused_before_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "smi.csv.gz").write_bytes(gzip.compress(f"{HEADER}\n".encode() + b" " * 20_000_000))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=150_000_000))
    with pytest.raises(UserError, match=r"smi.csv.gz: more than 10 MB of text, .* has memory for; split it by time"):
        read(tmp_path, UTC)


@pytest.mark.parametrize("cut", [20, 60, 200])
def test_folder_of_one_gzip_that_is_cut_off_is_refused(tmp_path: Path, cut: int) -> None:
    packed = gzip.compress("\n".join([HEADER, *(line(n) for n in range(3000))]).encode())
    (tmp_path / "smi.csv.gz").write_bytes(packed[:cut])
    with pytest.raises(UserError, match=r"smi.csv.gz: damaged \(.+\); unpack it by hand and import what is whole$"):
        list_folder(tmp_path)


def test_gzip_damaged_in_the_middle_is_refused(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress("\n".join([HEADER, *(line(n) for n in range(3000))]).encode()))
    packed[len(packed) // 2 :] = b"\xff" * (len(packed) - len(packed) // 2)
    (tmp_path / "smi.csv.gz").write_bytes(packed)
    with pytest.raises(UserError, match=r"smi.csv.gz: damaged"):
        read(tmp_path, UTC)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            '{"metric": {"__name__": "DCGM_FI_DEV_POWER_USAGE"}, "values": [[1e18, "300"]]}',
            "'1e.18' is not a time from",
        ),
        ("[" * 100_000 + '"metric" "values"', "damaged JSON"),
        ('[[{"metric": {}, "values": []}]]', "not an answer of Prometheus"),
    ],
    ids=["time far off", "nested deeply", "list in a list"],
)
def test_damaged_answer_of_prometheus_is_one_line(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "range.json"
    path.write_text(content)
    with pytest.raises(UserError, match=said):
        prometheus_json.FORMAT.read(read_content(path), ReadOptions())


@pytest.mark.parametrize("is_fifo", [True, False])
def test_log_through_a_pipe_is_imported(tmp_path: Path, is_fifo: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    log = (SAMPLES / "nvidia_smi_8gpus.csv").read_bytes()
    source = "-"
    if is_fifo:
        source = str(tmp_path / "fifo")
        os.mkfifo(source)
        threading.Thread(target=Path(source).write_bytes, args=(log,), daemon=True).start()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(log)))
    assert main(["import", source, "--results", str(tmp_path / "results")]) == 0
    (manifest,) = (tmp_path / "results").glob("runs/*/raw/manifest.json")
    assert len(read_manifest(manifest).nodes[0].devices) == 8


def test_pipe_of_something_else_is_named_as_the_user_named_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"hello\n")))
    assert main(["import", "-", "--results", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        "triplepoint: -: no telemetry and no traces; found a file of another format; known are nvidia-smi CSV"
    )


def test_archive_on_a_pipe_says_that_it_is_to_be_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        archive.add(__file__)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(made.getvalue())))
    assert main(["import", "-", "--results", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "triplepoint: -: an archive; unpack it, and import the folder that it makes"


def with_times(tmp_path: Path, *days: str) -> Path:
    return smi(tmp_path, *(line(n).replace("2026/05/01", day) for n, day in enumerate(days)))


@pytest.mark.parametrize(
    ("year", "said"),
    [
        (
            "2036",
            r"smi\.csv:4: column timestamp: the time is 2036-05-01 10:00:02 UTC, .* other one, 2026-05-01 10:00:04 UTC",
        ),
        ("9999", r"smi\.csv:4: column timestamp: '9999/05/01 10:00:02\.000' is not a time from 1970 to 2199"),
        ("0001", r"smi\.csv:4: column timestamp: '0001/05/01 10:00:02\.000' is not a time from 1970 to 2199"),
    ],
)
def test_wrong_clock_in_one_line_is_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], year: str, said: str
) -> None:
    days = ["2026/05/01"] * 5
    days[2] = f"{year}/05/01"
    (tmp_path / "in").mkdir()
    words = ["import", str(with_times(tmp_path / "in", *days)), "--results", str(tmp_path / "results")]
    assert main([*words, "--config", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert re.search(said, err) and err.count("\n") == 1 and not (tmp_path / "results" / "runs").exists()


def test_files_of_one_host_years_apart_are_refused(tmp_path: Path) -> None:
    smi(tmp_path, line(0) + ", a", line(1) + ", a", header=HEADER + ", hostname")
    (tmp_path / "old.csv").write_text((tmp_path / "smi.csv").read_text().replace("2026", "2024"))
    with pytest.raises(UserError, match=r"(old|smi)\.csv: the time is .*import the recordings of one job alone"):
        read(tmp_path, UTC)


def test_infinite_and_overlong_epochs_are_refused(tmp_path: Path) -> None:
    for cell in ("inf", "1e30"):
        (tmp_path / "smi.csv").write_text(f"{HEADER}\n1777644000, 0, 300, 60\n{cell}, 0, 300, 60\n")
        with pytest.raises(UserError, match=rf"smi\.csv:3: column timestamp: '{cell}' is not a time"):
            read(tmp_path, UTC)


def test_update_period_is_found_in_a_part_of_a_long_recording() -> None:
    t_ns = np.arange(100_000) * NS_PER_S
    t_ns[30_000:] += 1_000_000 * NS_PER_S
    chosen = _longest_stretch(t_ns)
    assert chosen.stop - chosen.start == 2000 and chosen.start >= 30_000


@pytest.mark.parametrize("cell", ["1e18 W", "-5 W", "1e400"])
def test_power_that_no_gpu_draws_is_left_out_and_said(tmp_path: Path, cell: str) -> None:
    found = read(smi(tmp_path, line(0), line(1, cell), line(2)), UTC)
    assert np.nanmax(values(part(found), "gpu_power_average_w")) == 300
    assert "1 values of gpu_power_average_w outside of 0 to 5000 W left out" in found.notes[0]


def test_infinite_cell_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"column power.draw: 'inf' is not a number; correct the cell"):
        read(smi(tmp_path, line(0, "300"), line(1, "inf")), UTC)


def test_column_without_any_value_is_not_found(tmp_path: Path) -> None:
    found = read(smi(tmp_path, line(0, "nan"), line(1, "nan")), UTC)
    assert part(found).columns == ["gpu_temp_c"]
    assert "gpu_power_average_w has no value in the whole recording and is left out" in found.notes[0]


@pytest.mark.parametrize("index", ["-1", "1e18", "0.5"])
def test_index_that_is_no_gpu_is_refused(tmp_path: Path, index: str) -> None:
    smi(tmp_path, line(0), line(1), line(1).replace(" 0,", f" {index},"))
    with pytest.raises(UserError, match=rf"smi\.csv:4: column index: '{index}' is not the number of a GPU"):
        read(tmp_path, UTC)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (("1,1777629600,1777629604", "1,1777629604,1777629608"), "steps.csv:3: step 1 of rank 0 is in line 2 too"),
        (
            ("1,1777629600,1777629604", "2,1777629601,1777629605"),
            "steps.csv:3: step 2 begins before step 1 of line 2 ends",
        ),
        (("1e18,1777629600,1777629604",), "steps.csv:2: column step: '1e18', expected a whole number from 0"),
        (("-1,1777629600,1777629604",), "steps.csv:2: column step: '-1', expected a whole number from 0"),
        (("1.5,1777629600,1777629604",), "steps.csv:2: column step: '1.5', expected a whole number from 0"),
        (("nan,1777629600,1777629604",), "steps.csv:2: column step: 'nan' is not a number"),
    ],
)
def test_steps_that_cannot_be_are_refused(tmp_path: Path, rows: tuple[str, ...], said: str) -> None:
    (tmp_path / "steps.csv").write_text("\n".join(["step,start,end", *rows]) + "\n")
    with pytest.raises(UserError, match=said):
        read_steps(tmp_path / "steps.csv")
    (tmp_path / "steps.csv").write_text("step,start,duration_s\n1,1777629600,1e18\n")
    with pytest.raises(UserError, match=r"steps.csv:2: column duration_s: '1e18', expected 1e-06 to 86,400 s"):
        read_steps(tmp_path / "steps.csv")


@pytest.mark.parametrize("text", ["nan", "inf", "1e18", "node3=-1e18"])
def test_offset_that_no_clock_has_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=rf"--offset {text}: expected at most 3e\+09 s, about 95 years"):
        parse_offsets([text])
