"""Pages of runs: facts, telemetry, timeline, kernels and manifest of each run, with its data in a script."""

import json
import os
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import pyarrow.compute as pc

from triplepoint.files import write_text_if_changed
from triplepoint.manifest import Manifest, read_manifest
from triplepoint.processes import in_processes
from triplepoint.report.lanes import LEVELS, describe_lanes
from triplepoint.report.machines import describe_provenance
from triplepoint.report.payload import pack_largest
from triplepoint.report.runs import Words, compared, interval, page_name
from triplepoint.report.telemetry import describe_telemetry, num_samples
from triplepoint.report.why import describe_why
from triplepoint.status import Status
from triplepoint.tables.shown import shown_value
from triplepoint.tables.traces import KERNELS
from triplepoint.trace.perfetto import FILE_NAME
from triplepoint.units import NS_PER_S

Row = Mapping[str, Any]

_MOST_KERNELS = 2000
"""Largest number of rows of the table of kernels. Template arguments give some traces many more kernel names."""
_MANY_SAMPLES = 400_000
"""Number of rows of telemetry that a page shows at most before samples are averaged."""


def write_run_pages(points: Sequence[Row], words: Mapping[str, Words], results: Path, folder: Path,
                    front: str, template: jinja2.Template, num_jobs: int) -> None:  # fmt: skip
    """Write `<run>.html` and `<run>.js` of every run; unchanged files are not written.

    Args:
        points: Rows of table `points`.
        words: Layout and setting of each run.
        results: Folder of the results.
        folder: Folder of the pages.
        front: Link to the front page.
        template: Template of the page.
        num_jobs: Number of processes.

    Raises:
        UserError: If a table or a manifest is damaged.
    """
    tasks = [_Task(results / "runs" / point["run"], folder, page_name(point["run"])) for point in points]
    written = in_processes(_write_data, tasks, num_jobs, "writing pages of runs")
    for point, task, (has_data, why) in zip(points, tasks, written, strict=True):
        facts = {"why": why} | _facts(point, words, _manifest(task.run), task.run, folder)
        page = template.render(front=front, data=f"{task.name}.js" if has_data else "", **facts)
        write_text_if_changed(folder / f"{task.name}.html", page)


class _Task(NamedTuple):
    """Page of one run to write.

    Attributes:
        run: Folder of the run.
        folder: Folder of the page.
        name: Name of the page without its suffix.
    """

    run: Path
    folder: Path
    name: str


def _manifest(run: Path) -> Manifest | None:
    """Return the manifest of a run; None if it was never launched."""
    path = run / "raw" / "manifest.json"
    return read_manifest(path) if path.is_file() else None


def _write_data(task: _Task) -> tuple[bool, dict[str, Any] | None]:
    """Write the data of a run; return whether it has any, and the section on why it is slow."""
    manifest = _manifest(task.run)
    data = "" if manifest is None else _data(task.run, manifest)
    if data:
        write_text_if_changed(task.folder / f"{task.name}.js", data)
    has_steps = manifest is not None and manifest.status is Status.OK
    return bool(data), describe_why(task.run) if has_steps else None


def _data(folder: Path, manifest: Manifest) -> str:
    """Return the script with the recordings of a run; '' if it has none."""
    kernels, telemetry = _kernels(folder / "kernels.parquet"), describe_telemetry(folder, manifest)
    lanes = describe_lanes(folder / "timeline.parquet")
    if not (kernels or telemetry["panels"] or lanes):
        return ""

    def content_at(num_cells: int | None, window: int) -> Callable[[], dict[str, Any]]:
        def make() -> dict[str, Any]:
            is_full = num_cells is None and window == 1
            return {
                "run": manifest.run,
                "kernels": kernels,
                "telemetry": telemetry if is_full else describe_telemetry(folder, manifest, window),
                "lanes": lanes if num_cells is None else describe_lanes(folder / "timeline.parquet", num_cells),
            }

        return make

    return pack_largest(content_at(num_cells, window) for num_cells, window in _levels(folder))


def _levels(folder: Path) -> Iterator[tuple[int | None, int]]:
    """Yield numbers of cells of a lane and of samples per window, the most detailed first."""
    yield None, 1
    window = max(num_samples(folder) // _MANY_SAMPLES, 1)
    for num_cells in LEVELS[1:]:
        yield num_cells, window
        window *= 2
    while window < num_samples(folder):
        window *= 4
        yield LEVELS[-1], window


def _kernels(path: Path) -> list[dict[str, Any]]:
    """Return the kernels of profiled steps by name, with means over ranks and steps, the longest total first."""
    if not path.is_file():
        return []
    table = KERNELS.read(path)
    table = table.filter(pc.is_valid(table["step"]))
    num = len({(rank, step) for rank, step in zip(table["rank"].to_pylist(), table["step"].to_pylist(), strict=True)})
    keys = ["name", "class", "kind", "group"]
    joined = table.group_by(keys).aggregate([("count", "sum"), ("sum_ns", "sum"), ("min_ns", "min"), ("max_ns", "max")])
    rows = joined.sort_by([("sum_ns_sum", "descending")]).slice(0, _MOST_KERNELS).to_pylist()
    total = pc.sum(table["sum_ns"]).as_py() or 1
    return [
        {
            **{key: row[key] or "" for key in keys},
            "count": _short(row["count_sum"] / num),
            "ms": _short(row["sum_ns_sum"] / num / NS_PER_S * 1e3),
            "share": _short(row["sum_ns_sum"] / total * 100),
            "mean_us": _short(row["sum_ns_sum"] / max(row["count_sum"], 1) / 1e3),
            "min_us": _short(row["min_ns_min"] / 1e3),
            "max_us": _short(row["max_ns_max"] / 1e3),
        }
        for row in rows
    ]


def _short(value: float) -> float:
    """Return a value with five significant digits."""
    return float(f"{value:.5g}")


def _facts(point: Row, words: Mapping[str, Words], manifest: Manifest | None, run_folder: Path,
           folder: Path) -> dict[str, Any]:  # fmt: skip
    """Return the variables of the template of a page.

    Args:
        point: Row of table `points`.
        words: Layout and setting of each run.
        manifest: Manifest of the run; None if it was never launched.
        run_folder: Folder of the run.
        folder: Folder of the page.
    """
    layout, setting, _ = words[point["run"]]
    quantities = []
    for quantity in compared([point]):
        name = quantity["name"]
        low, high = (shown_value(name, end) for end in interval(point, name))
        value = shown_value(name, point[name])
        quantities.append(quantity | {"value": _number(value), "low": _number(low), "high": _number(high)})
    return {
        "run": point["run"],
        "title": f"{point['model']} {layout}",
        "layout": layout,
        "setting": setting,
        "point": point,
        "status": Status(point["status"]).label,
        "quantities": quantities,
        "provenance": describe_provenance([manifest], str(run_folder)) if manifest else [],
        "manifest": json.dumps(manifest.model_dump(mode="json"), indent=1) if manifest else "",
        "files": list(_files(run_folder, folder)),
        "trace": next((link for name, link in _files(run_folder, folder) if name == FILE_NAME), ""),
    }


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def _files(run_folder: Path, folder: Path) -> Iterator[tuple[str, str]]:
    """Yield name and link of each existing file of a run."""
    names = (
        "raw/manifest.json",
        FILE_NAME,
        "telemetry.parquet",
        "kernels.parquet",
        "timeline.parquet",
        "raw/steps.parquet",
    )
    for name in names:
        if (run_folder / name).is_file():
            yield name, link_to(run_folder / name, folder)


def link_to(path: Path, folder: Path) -> str:
    """Return the link from a page in a folder to a file; special characters are quoted."""
    return urllib.parse.quote(Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix())
