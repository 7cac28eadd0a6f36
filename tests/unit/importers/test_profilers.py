"""Import of traces of other profilers: what belongs to a trace goes with it, and the run is parsed like any other."""

from pathlib import Path

import pytest

from tests.unit.trace.profilers.recordings import read_recording, write_nsight, write_rocprofv3
from triplepoint.cli import main
from triplepoint.tables import KERNELS
from triplepoint.trace.run_traces import trace_run
from triplepoint.trace.taxonomy import load_scheme

KINETO = Path(__file__).parents[2] / "data" / "traces" / "dlrm_v100_rank0.json.gz"


def imported(folder: Path, results: Path, name: str) -> Path:
    assert main(["import", str(folder), "--results", str(results), "--study", name]) == 0
    (run,) = (results / "runs").iterdir()
    return run


def test_import_of_rocprofv3_takes_markers_along(tmp_path: Path) -> None:
    write_rocprofv3(tmp_path / "in", read_recording(KINETO))
    run = imported(tmp_path / "in", tmp_path / "results", "amd")
    kinds = ("agent_info", "hip_api_trace", "kernel_trace", "marker_api_trace", "memory_copy_trace")
    assert sorted(path.name for path in (run / "raw" / "traces").iterdir()) == [f"rank0_{kind}.csv" for kind in kinds]


@pytest.mark.parametrize("profiler", ["nsight", "rocprofv3"])
def test_imported_trace_is_parsed_with_its_steps(tmp_path: Path, profiler: str) -> None:
    (tmp_path / "in").mkdir()
    recording = read_recording(KINETO)
    if profiler == "nsight":
        write_nsight(tmp_path / "in" / "report.sqlite", recording)
    else:
        write_rocprofv3(tmp_path / "in", recording)
    run = imported(tmp_path / "in", tmp_path / "results", "foreign")
    assert main(["telemetry", run.name, "--results", str(tmp_path / "results")]) == 0
    trace_run(run, load_scheme(), lambda line: None, 1)
    rows = KERNELS.read(run / "kernels.parquet").to_pylist()
    assert {row["step"] for row in rows} == {10}
    assert sum(row["count"] for row in rows) == len(recording.kernels) + len(recording.copies)
