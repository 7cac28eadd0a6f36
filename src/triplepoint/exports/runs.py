"""Read the runs of a study for export: settings, results and measured steps."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from triplepoint.config.plan import read_plan
from triplepoint.errors import UserError, nearest
from triplepoint.manifest import Manifest, read_manifest
from triplepoint.tables import STEPS
from triplepoint.tables.results import SETTINGS_OF_POINT
from triplepoint.tables.studies import PLAN, read_joined, require_tables, tables_folder
from triplepoint.units import NS_PER_S

_TAGS = ("status", "reason", "origin", "stack", "host", "git_commit", "torch_version", "gpu_power_source")
"""Columns of table `points` that are exported as text: neither settings nor numbers."""


@dataclass(frozen=True)
class StepValues:
    """One measured step.

    Attributes:
        step: Step number, counted from the first warm-up step.
        t_ns: End of the step since 1970 UTC. Unit: ns.
        step_time_s: Time of the slowest rank. Unit: s.
        loss: Mean loss of the global batch; None in inference. Unit: nat.
    """

    step: int
    t_ns: int
    step_time_s: float
    loss: float | None


@dataclass(frozen=True)
class ExportedRun:
    """One run of a study.

    Attributes:
        run: Run id.
        settings: Settings of the point by name, as text; settings without a value are left out.
        results: Numbers of table `points` by column, in the table's unit; nulls are left out.
        tags: Other columns of the table, as text.
        started_ns: Start since 1970 UTC; None if nothing was launched. Unit: ns.
        ended_ns: End since 1970 UTC; None if nothing was launched. Unit: ns.
        steps: Measured steps in order; empty if there are none.
    """

    run: str
    settings: dict[str, str]
    results: dict[str, float]
    tags: dict[str, str]
    started_ns: int | None
    ended_ns: int | None
    steps: tuple[StepValues, ...]

    @property
    def is_ok(self) -> bool:
        """Whether the run has a result."""
        return self.tags["status"] == "ok"


def has_tables(study: str, results: Path) -> bool:
    """Return whether there are tables of a study with this name."""
    return (tables_folder(results, study) / PLAN).is_file()


def read_run(run: str, results: Path) -> tuple[str, list[ExportedRun]]:
    """Return a study whose tables have a run, and the run alone, as `read_runs` has it.

    Raises:
        UserError: If no study with tables has the run, or a table or the manifest is damaged.
    """
    for path in sorted(results.glob(f"tables/*/{PLAN}")):
        study = path.parent.name
        if not (path.parent / "points.parquet").is_file():
            continue
        for row in read_joined(results, (study,), "points").to_pylist():
            if row["run"] == run:
                return study, [_read_run(row, results)]
    raise UserError(f"{results}: no table has run {run!r}; make those of its study with 'snakemake' first")


def read_runs(study: str, results: Path) -> list[ExportedRun]:
    """Return the runs of a study, in the study's order.

    Args:
        study: Name of a study that has tables.
        results: Folder of runs and tables.

    Raises:
        UserError: If there is no such study, it has no tables, or a table or a manifest is damaged.
    """
    if not has_tables(study, results):
        known = sorted(path.parent.name for path in results.glob(f"tables/*/{PLAN}"))
        hint = nearest(study, known) if known else "; make it with 'snakemake' first"
        raise UserError(f"{results}: no tables of a study {study!r}{hint}")
    read_plan(tables_folder(results, study) / PLAN)
    require_tables(results, (study,), "export", f"snakemake results/tables/{study}/points.parquet")
    return [_read_run(row, results) for row in read_joined(results, (study,), "points").to_pylist()]


def _read_run(row: dict[str, Any], results: Path) -> ExportedRun:
    raw = results / "runs" / row["run"] / "raw"
    manifest = read_manifest(raw / "manifest.json") if (raw / "manifest.json").is_file() else None
    settings = {name: _text(row[name]) for name in SETTINGS_OF_POINT if row[name] not in (None, [], "")}
    numbers = {name: value for name, value in row.items() if name not in SETTINGS_OF_POINT}
    has_steps = manifest is not None and (raw / "steps.parquet").is_file()
    return ExportedRun(
        run=row["run"],
        settings=settings,
        results={name: float(value) for name, value in numbers.items() if _is_number(value)},
        tags={name: str(row[name]) for name in _TAGS if row[name]},
        started_ns=_ns(manifest.started_at) if manifest else None,
        ended_ns=_ns(manifest.ended_at) if manifest else None,
        steps=_read_steps(manifest, raw / "steps.parquet") if manifest and has_steps else (),
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _ns(time: str) -> int:
    return round(datetime.fromisoformat(time).timestamp() * NS_PER_S)


def _read_steps(manifest: Manifest, path: Path) -> tuple[StepValues, ...]:
    """Return the measured steps. Their ends are those of the first node's ranks, on its wall clock."""
    steps = STEPS.read(path)
    steps = steps.filter(pc.equal(steps["kind"], "measured"))
    steps = steps.append_column("time", pc.subtract(steps["t_end_ns"], steps["t_start_ns"]))
    grouped = steps.group_by("step").aggregate([("time", "max"), ("loss", "max")]).sort_by("step")
    first_node = manifest.nodes[0] if manifest.nodes else None
    ranks = [device.rank for device in first_node.devices] if first_node else []
    on_first_node = steps.filter(pc.is_in(steps["rank"], pa.array(ranks, pa.int64())))
    last_ends = on_first_node.group_by("step").aggregate([("t_end_ns", "max")]).to_pylist()
    ends_ns = {row["step"]: row["t_end_ns_max"] for row in last_ends}
    if first_node is None or not ends_ns:
        return ()
    offset_ns = first_node.wall_ns - first_node.monotonic_ns
    return tuple(
        StepValues(row["step"], ends_ns[row["step"]] + offset_ns, row["time_max"] / NS_PER_S, row["loss_max"])
        for row in grouped.to_pylist()
        if row["step"] in ends_ns
    )
