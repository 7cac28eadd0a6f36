"""Ranges of NVTX and ROCTX where there is no torch: real shared libraries that write down what is called."""

import ctypes
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from triplepoint.recorded.finish import _not_profiled
from triplepoint.recorded.marks import RANGES, REQUEST, Marks
from triplepoint.recorded.ranges import find_ranges

_STUB = """
#include <stdio.h>
static void note(const char *what, const char *name) {{
  FILE *f = fopen("{log}", "a"); fprintf(f, "%s%s\\n", what, name); fclose(f);
}}
int {prefix}RangePushA(const char *name) {{ note("push ", name); return 0; }}
int {prefix}RangePop(void) {{ note("pop", ""); return 0; }}
int cudaProfilerStart(void) {{ note("start", ""); return 0; }}
int cudaProfilerStop(void) {{ note("stop", ""); return 0; }}
int roctxProfilerResume(unsigned long t) {{ note("start", ""); return 0; }}
int roctxProfilerPause(unsigned long t) {{ note("stop", ""); return 0; }}
"""
_SEQUENCE = ["start", "push iteration 2", "pop", "push iteration 3", "pop", "stop"]


def stub(folder: Path, prefix: str, *names: str) -> Callable[[str], Any]:
    """Return what loads a library that notes its calls, under some names alone."""
    source, library = folder / "stub.c", folder / "stub.so"
    source.write_text(_STUB.format(log=folder / "calls", prefix=prefix))
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)

    loaded = ctypes.CDLL(str(library))

    def load(name: str) -> Any:
        if name not in names:
            raise OSError(name)
        return loaded

    return load


@pytest.mark.parametrize(
    ("name", "prefix", "files"),
    [
        ("NVTX", "nvtx", ("libnvToolsExt.so.1", "libcudart.so.12")),
        ("ROCTX", "roctx", ("librocprofiler-sdk-roctx.so",)),
    ],
)
def test_window_without_torch_is_in_ranges(
    name: str, prefix: str, files: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    load = stub(tmp_path, prefix, *files)
    monkeypatch.setattr(ctypes, "CDLL", load)
    (tmp_path / REQUEST).write_text(json.dumps({"first": 2, "num": 2, "ranks": None}))
    marks = Marks(tmp_path, 0, "calls")
    marks.begin()
    for _ in range(6):
        marks.mark("calls")
    marks.end()
    assert (tmp_path / "calls").read_text().splitlines() == _SEQUENCE
    rows = [json.loads(line) for line in (tmp_path / "steps" / "rank0.jsonl").read_text().splitlines()]
    assert [row["kind"] for row in rows] == ["measured", "measured", "profiled", "profiled", "warmup", "measured"]
    assert (tmp_path / RANGES / "rank0").read_text() == name
    said = _not_profiled(tmp_path, rows, 0)["not_profiled"]
    assert said.startswith(f"steps 2 to 3 are in ranges 'iteration N' of {name}")


def test_no_library_is_no_window(tmp_path: Path) -> None:
    assert find_ranges(stub(tmp_path, "nvtx")) is None


def test_ranges_without_a_way_to_start_the_profiler_still_mark(tmp_path: Path) -> None:
    ranges = find_ranges(stub(tmp_path, "nvtx", "libnvToolsExt.so"))
    assert ranges is not None
    ranges.start()
    ranges.push(b"iteration 1")
    ranges.pop()
    ranges.stop()
    assert (tmp_path / "calls").read_text().splitlines() == ["push iteration 1", "pop"]
