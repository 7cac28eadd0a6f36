"""The aggregate stage: joins the runs of each study into the tables for figures and report."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from triplepoint.aggregate.checks import run_checks, sensor_checks
from triplepoint.aggregate.courses import job_power_rows, step_sample_rows
from triplepoint.aggregate.energy import Sensors, read_sensors
from triplepoint.aggregate.machines import read_machines
from triplepoint.aggregate.nodes import node_rows
from triplepoint.aggregate.points import (
    add_phase_energy,
    finished_row,
    gpu_rows,
    step_energy_rows,
    unfinished_row,
)
from triplepoint.aggregate.power import measure_power
from triplepoint.aggregate.predicted import add_memory_need, add_prediction
from triplepoint.aggregate.samples import Samples
from triplepoint.aggregate.steps import explain, read_outcomes, read_steps
from triplepoint.aggregate.traces import read_timeline, read_traces
from triplepoint.aggregate.traffic import traffic_rows
from triplepoint.config.gpu import GpuConfig
from triplepoint.config.plan import Plan, PlanEntry, PlannedRun
from triplepoint.config.yaml_file import read
from triplepoint.errors import UserError
from triplepoint.files import write_text
from triplepoint.manifest import Manifest
from triplepoint.processes import in_processes
from triplepoint.status import Status
from triplepoint.tables import TELEMETRY
from triplepoint.tables.results import RESULT_TABLES, RUN_TIMELINE
from triplepoint.tables.studies import OVER_ALL, PARQUET_ONLY, PLAN, tables_folder
from triplepoint.tables.variants import find_variants
from triplepoint.verdicts.values import published_values

_Rows = dict[str, list[dict[str, Any]]]
"""Rows by table."""


def aggregate(
    plan: Plan, results: Path, config: Path, progress: Callable[[str], None] = lambda _: None, num_jobs: int = 1
) -> None:
    """Write the tables of each study of a plan. Arguments and errors are those of `aggregate_study`."""
    for study in plan.studies:
        aggregate_study(plan.of_study(study), study, results, config, progress, num_jobs)


def aggregate_study(
    plan: Plan,
    study: str,
    results: Path,
    config: Path,
    progress: Callable[[str], None] = lambda _: None,
    num_jobs: int = 1,
) -> None:
    """Write `results/tables/<study>/*.parquet`, small tables also as `.csv`, and last the plan they belong to.

    All numbers are checked before the first table is written, so an error leaves the old tables in place.

    Args:
        plan: The points of the study, in the order of rows.
        study: Name of the study.
        results: Folder with `runs/` and, optionally, `sensors/`; `tables/` is written below it.
        config: Folder of the configuration, for GPU types and predictions.
        progress: Called with a line per run.
        num_jobs: Number of processes that read runs.

    Raises:
        UserError: If a run is incomplete, was measured for another point, or failed; no such run is omitted silently.
    """
    outcomes = read_outcomes(plan, results / "runs")
    names = {entry.planned.point.cluster.gpu for entry in plan.valid} - {None}
    gpu_types = {name: read(GpuConfig, config / "gpus" / f"{name}.yaml") for name in sorted(map(str, names))}
    rows: _Rows = {name: [] for name in RESULT_TABLES if name not in ("timeline", "published", *OVER_ALL)}
    sensors, timelines = read_sensors(results / "sensors"), []
    variants = find_variants(plan.entries)
    tasks = [
        _Task(entry, outcomes.get(entry.run), results / "runs" / entry.run, gpu_types, sensors, config)
        for entry in plan.entries
    ]
    for number, (rows_of_run, timeline) in enumerate(in_processes(_rows_of, tasks, num_jobs, "reading runs"), 1):
        progress(f"{study} {number}/{len(tasks)} {tasks[number - 1].entry.run}")
        for name, new_rows in rows_of_run.items():
            rows[name].extend(new_rows)
        rows["points"][-1]["variant"] = variants.get(tasks[number - 1].entry.run)
        timelines.extend([timeline] if timeline is not None else [])
    rows["telemetry_checks"].extend(sensor_checks(sensors))
    tables = {name: RESULT_TABLES[name].from_rows(table_rows) for name, table_rows in rows.items()}
    tables["published"] = RESULT_TABLES["published"].from_rows(published_values(config, tables["points"].to_pylist()))
    tables["timeline"] = pa.concat_tables(timelines) if timelines else RUN_TIMELINE.schema().empty_table()
    _write(tables, plan, tables_folder(results, study))


def _write(tables: dict[str, pa.Table], plan: Plan, folder: Path) -> None:
    """Write tables and last their plan; without it the tables do not count as complete."""
    (folder / PLAN).unlink(missing_ok=True)
    for name, table in tables.items():
        RESULT_TABLES[name].write(folder / f"{name}.parquet", table)
        if name not in PARQUET_ONLY:
            RESULT_TABLES[name].write_csv(folder / f"{name}.csv", [table])
    write_text(folder / PLAN, plan.text())


def point_row(planned: PlannedRun, manifest: Manifest, folder: Path, results: Path, config: Path) -> dict[str, Any]:
    """Return the row of a single run in table `points`.

    Args:
        planned: The run.
        manifest: Manifest of the run.
        folder: Folder of the run, with parsed telemetry and traces.
        results: Folder that may have `sensors/`.
        config: Folder of the configuration.

    Raises:
        UserError: If the run is incomplete, or the configuration has no GPU types.
    """
    entry = PlanEntry(run=planned.run, studies=(), invalid_because=None, planned=planned)
    name = planned.point.cluster.gpu
    if name and not (config / "gpus").is_dir():
        raise UserError(
            f"{config / 'gpus'}: no such folder, and the run is on GPUs of type {name}; name Triplepoint's "
            "configuration with --config CLONE/config"
        )
    gpu_types = {name: read(GpuConfig, config / "gpus" / f"{name}.yaml")} if name else {}
    rows, _ = _rows_of(_Task(entry, manifest, folder, gpu_types, read_sensors(results / "sensors"), config))
    (row,) = RESULT_TABLES["points"].from_rows(rows["points"]).to_pylist()
    return dict(row)


class _Task(NamedTuple):
    """One entry of the plan with the sources of its rows; `manifest` is None if the point is invalid."""

    entry: PlanEntry
    manifest: Manifest | None
    folder: Path
    gpu_types: dict[str, GpuConfig]
    sensors: Sensors
    config: Path


def _rows_of(task: _Task) -> tuple[_Rows, pa.Table | None]:
    """Return the rows of one entry by table, and the timeline if the run finished."""
    entry, manifest = task.entry, task.manifest
    if manifest is not None and (manifest.status == Status.OK or _has_steps(task)):
        rows_of_run, timeline = _join(task, manifest)
        add_prediction(entry.planned.point, manifest, rows_of_run["points"][0], rows_of_run["gpus"], task.config)
        add_memory_need(entry.planned.point, rows_of_run["points"][0], task.config)
        if manifest.status != Status.OK:
            rows_of_run["points"][0]["reason"] = explain(manifest)
        return rows_of_run, timeline
    row = unfinished_row(entry, manifest)
    if manifest is not None:
        add_prediction(entry.planned.point, manifest, row, [], task.config)
    add_memory_need(entry.planned.point, row, task.config)
    return {"points": [row]}, None


def _has_steps(task: _Task) -> bool:
    """Return whether a recorded job that failed has steps, which count like those of a successful one."""
    recorded = task.entry.planned.point.recorded
    return recorded is not None and recorded.has_steps


def _join(task: _Task, manifest: Manifest) -> tuple[_Rows, pa.Table]:
    """Return the rows of one finished run by table, and its timeline."""
    entry, folder, sensors = task.entry, task.folder, task.sensors
    point = entry.planned.point
    gpu = task.gpu_types.get(point.cluster.gpu or "")
    machines = read_machines(point.cluster.name, gpu, task.config) if gpu else None
    steps = read_steps(entry, manifest, folder / "raw" / "steps.parquet")
    telemetry = TELEMETRY.read(folder / "telemetry.parquet")
    samples = Samples(manifest, steps, telemetry)
    power = measure_power(entry.run, samples, gpu, sensors)
    traces = read_traces(entry, steps.profiled, folder)
    timeline = read_timeline(entry.run, folder, is_traced=point.steps.profiled > 0)
    add_phase_energy(traces.phases, manifest, steps, power, timeline, gpu)
    rows_of_run = {
        "points": [finished_row(entry, manifest, steps, power, gpu) | traces.totals],
        "gpus": gpu_rows(entry.planned, manifest, steps, power, machines),
        "nodes": node_rows(entry.run, samples, power.device_energy),
        "traffic": traffic_rows(entry.run, samples, machines) if machines else [],
        "telemetry_checks": run_checks(entry.planned, manifest, telemetry, power),
        "step_energy": step_energy_rows(entry.run, manifest, steps, power),
        "step_samples": step_sample_rows(entry.run, samples),
        "job_power": job_power_rows(entry.run, samples),
        "phases": traces.phases,
        "breakdown": traces.breakdown,
        "kernels": traces.kernels,
    }
    return rows_of_run, timeline
