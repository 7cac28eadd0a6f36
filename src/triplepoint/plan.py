"""The plan: points of the selected studies, their validity, and their table in `triplepoint plan`."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from triplepoint.config.catalogue import Catalogue
from triplepoint.config.cluster import ClusterConfig
from triplepoint.config.contents import with_contents
from triplepoint.config.mesh import Place, RankMesh, ranks_at_boundary
from triplepoint.config.plan import Limits, Plan, PlanEntry, PlannedRun, layout_label, run_id, run_label
from triplepoint.config.point import Engine, Point
from triplepoint.config.rules import Rule, fold, refusal, without_effect
from triplepoint.config.study import Settings, expand, make_points
from triplepoint.errors import Problems, UserError
from triplepoint.files import write_text_if_changed
from triplepoint.launch.engines import get_engine
from triplepoint.manifest import read_manifest
from triplepoint.recorded.studies import RECORDED, read_recorded

_HEADINGS = ("layout", "mbs", "gbs", "micro-batches", "recompute", "overlap", "state", "run")
MOST_TRACED_STAGES = 32
"""Most traced stages of a simulated pipeline, first and last included: published kernel times by stage have up to 32.
"""

MOST_TRACED_PEERS = 8
"""Most traced data parallel peers of a slow GPU; an outlier is detectable among five or more (modified z-score > 3.5).
"""

_RIGHT_ALIGNED = (1, 2, 3)
"""Indices of the right-aligned columns of the table."""


def select(
    config_dir: Path,
    studies: Sequence[str] | None = None,
    clusters: Sequence[str] | None = None,
    simulated: Sequence[str] = (),
    results: Path | None = None,
) -> Plan:
    """Return the plan of the selected studies and clusters, with the studies of recorded runs.

    Args:
        config_dir: Folder of the configuration, with `studies/`, `models/`, `clusters/` and `gpus/`.
        studies: Names of studies. None: all.
        clusters: Names of clusters; points on others are omitted. None: all.
        simulated: Names of clusters to simulate, except those in `clusters`.
        results: Folder of results; the plan includes all its recorded runs. None: no recorded runs.

    Raises:
        UserError: If a name is unknown, a file is invalid, or a study has no point or no valid one.
    """
    catalogue = Catalogue(Path(config_dir))
    for name in (*(clusters or ()), *simulated):
        catalogue.cluster(name)
    if clusters is not None:
        simulated = [name for name in simulated if name not in clusters]
        clusters = (*clusters, *simulated)
    collected, recorded = _Collected(), Plan(entries=()) if results is None else read_recorded(results)
    for name in dict.fromkeys(catalogue.studies if studies is None else studies):
        if name in recorded.studies:
            continue
        expanded = _expand_study(catalogue, name, None if clusters is None else set(clusters), set(simulated))
        if studies is not None and not expanded.entries:
            raise UserError(
                f"{catalogue.path_of_study(name)}: no point on {_names(clusters)}, but on "
                f"{_names(expanded.other_clusters)}; name that with --cluster, or in config.yaml"
            )
        collected.add(name, expanded)
    if not (collected.entries or recorded.entries):
        raise UserError(f"{Path(config_dir) / 'studies'}: no study has a point on {_names(clusters)}")
    if both := set(collected.order) & set(recorded.order):
        name = min(both)
        raise UserError(
            f"{catalogue.path_of_study(name)}: {results}/{RECORDED}/{name}.json is a study of recorded runs of the "
            "same name; rename one of the two files"
        )
    named = {study: catalogue.study(study).figures for study in collected.order}
    return Plan(
        entries=(*collected.entries.values(), *recorded.entries),
        num_folded=collected.num_folded,
        figures={study: figures for study, figures in named.items() if figures is not None},
        order=collected.order | recorded.order,
    )


def write_plan(plan: Plan, results: Path) -> None:
    """Write `plan.json` and the `point.json` of each valid run, each only if its content changes.

    Raises:
        OSError: From the file system.
    """
    for entry in plan.valid:
        folder = results / "runs" / entry.run
        write_text_if_changed(folder / "point.json", entry.planned.model_dump_json(indent=2) + "\n")
        _move_unnamed(entry, folder)
    write_text_if_changed(results / "plan.json", plan.text())


def _move_unnamed(entry: PlanEntry, folder: Path) -> None:
    """Move a measurement of this point here from a folder named without digest, as version 0.1.0 did."""
    if entry.planned.point.engine == "simulated" or (folder / "raw").exists():
        return
    raw = folder.with_name(run_label(entry.planned.point)) / "raw"
    if not raw.is_dir():
        return
    with contextlib.suppress(UserError):  # a damaged one stays in its folder
        if read_manifest(raw / "manifest.json").digest == entry.planned.digest:
            raw.rename(folder / "raw")


@dataclass(frozen=True)
class Columns:
    """Additional columns of the table of a plan, inserted before the run id.

    Attributes:
        headings: Heading of each column.
        cells: Cells by run, one per heading; missing runs get dashes.
        notes: Lines to print below the row of a run.
    """

    headings: tuple[str, ...] = ()
    cells: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)


def render(plan: Plan, more: Columns | None = None) -> str:
    """Return the plan as text: a block per model, cluster and engine, a row per point, and a summary.

    The reason of an invalid point is on the line below its row.
    """
    more = more or Columns()
    empty = ("-",) * len(more.headings)
    rows = {entry.run: _insert(_cells(entry), more.cells.get(entry.run, empty)) for entry in plan.entries}
    headings = _insert(_HEADINGS, more.headings)
    widths = [max(map(len, column)) for column in zip(headings, *rows.values(), strict=True)]
    lines = [_line(headings, widths)]
    blocks: dict[str, list[PlanEntry]] = {}
    for entry in plan.entries:
        blocks.setdefault(_title(entry), []).append(entry)
    for title, block in blocks.items():
        lines += ["", title]
        for entry in block:
            lines.append(_line(rows[entry.run], widths))
            if entry.invalid_because is not None:
                lines.append(f"    invalid: {entry.invalid_because}")
            if entry.run in more.notes:
                lines.append(f"    {more.notes[entry.run]}")
    return "\n".join([*lines, "", _summary(plan)])


@dataclass
class _Expanded:
    """The points of one study.

    Attributes:
        entries: Points by digest.
        num_folded: Points that became equal to another one by folding.
        other_clusters: Clusters of the points that were omitted because their cluster is not selected.
    """

    entries: dict[str, PlanEntry] = field(default_factory=dict)
    num_folded: int = 0
    other_clusters: set[str] = field(default_factory=set)


@dataclass
class _Collected:
    """The points of all studies so far.

    Attributes:
        entries: Points by digest.
        num_folded: Points that became equal to another one of their study by folding.
        order: Run ids by study.
    """

    entries: dict[str, PlanEntry] = field(default_factory=dict)
    num_folded: int = 0
    order: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def add(self, study: str, expanded: _Expanded) -> None:
        """Add the points of a study; a point of an earlier study gets this study's name too."""
        self.num_folded += expanded.num_folded
        if expanded.entries:
            self.order[study] = tuple(entry.run for entry in expanded.entries.values())
        for digest, entry in expanded.entries.items():
            if digest in self.entries:
                joined = self.entries[digest].studies + (study,)
                entry = entry.model_copy(update={"studies": joined})
            self.entries[digest] = entry


def _expand_study(catalogue: Catalogue, name: str, clusters: set[str] | None, simulated: set[str]) -> _Expanded:
    """Return the checked points of a study on the selected clusters.

    Raises:
        UserError: If a setting is invalid, no point can run, or a setting has no effect in any point that has it.
    """
    where, expanded = catalogue.path_of_study(name), _Expanded()
    without_effect_so_far: dict[str, str] = {}
    with_effect: set[str] = set()
    problems = Problems(where)
    for settings in expand(catalogue.study(name), where):
        cluster = problems.call(catalogue.cluster, settings.cluster, where)
        if cluster and clusters is not None and cluster.name not in clusters:
            expanded.other_clusters.add(cluster.name)
            continue
        if not problems.call(catalogue.model, settings.model, where) or not cluster:
            continue
        chosen = settings.chosen()
        for point in points_of(settings, catalogue, where, cluster.name in simulated):
            messages = without_effect(point, chosen)
            without_effect_so_far |= messages
            with_effect |= chosen.keys() - messages.keys()
            entry = _make_entry(point, cluster, catalogue, name)
            if entry.planned.digest in expanded.entries:
                expanded.num_folded += 1
            else:
                expanded.entries[entry.planned.digest] = entry
    problems.refuse()
    reasons = [f"{entry.run}: {entry.invalid_because}" for entry in expanded.entries.values()]
    if reasons and all(entry.invalid_because for entry in expanded.entries.values()):
        raise UserError(f"{where}: none of its {len(reasons)} points can run; {reasons[0]}")
    # A setting may lack an effect in some points of a study, where it is folded, but not in all.
    if never := next((reason for name, reason in without_effect_so_far.items() if name not in with_effect), None):
        raise UserError(f"{where}: {never}")
    return expanded


def points_of(
    settings: Settings, catalogue: Catalogue, where: str | Path, is_simulated: bool = False
) -> Iterator[Point]:
    """Yield the folded but unchecked point of each repeat of settings.

    Args:
        settings: Settings of a study.
        catalogue: The configuration.
        where: File or row of the settings, for errors.
        is_simulated: Whether to simulate the point instead of launching its engine.

    Raises:
        UserError: If the model or the cluster is unknown or its file is invalid.
    """
    cluster = catalogue.cluster(settings.cluster, where)
    model = settings.apply(catalogue.model(settings.model, where))
    rows = _airflow_rows(cluster.name, catalogue) if settings.trace_ranks == "roles" else None
    for point in make_points(settings, model, cluster, rows):
        if is_simulated or point.engine == "simulated":
            point = as_simulated(point, cluster)
        yield with_contents(fold(point), catalogue.digests)


def refusal_of(point: Point, catalogue: Catalogue) -> str | None:
    """Return why a folded point cannot run on its cluster with its engine, in one line; None if it can."""
    cluster = catalogue.cluster(point.cluster.name)
    return refusal(point, cluster, catalogue.gpu_of(cluster), _limits(point.engine))


@lru_cache(maxsize=64)
def _airflow_rows(name: str, catalogue: Catalogue) -> list[list[int]] | None:
    """Return the devices of a cluster's nodes by row of their airflow; None if it is not known, as on cpu."""
    from triplepoint.simulate.heat.nodes import airflow_of, is_known

    cluster = catalogue.cluster(name)
    gpu = catalogue.gpu_of(cluster)
    if gpu is None or not is_known(gpu, catalogue.folder):
        return None
    return airflow_of(cluster.conditions.airflow, gpu, cluster.gpus_per_node, catalogue.folder).rows


def as_simulated(point: Point, cluster: ClusterConfig) -> Point:
    """Return a point with engine `simulated` that traces only the ranks that differ.

    These are one rank of each pipeline stage, the two ranks at the first node boundary of a stage on several nodes, and
    each slow GPU of the cluster with its data parallel peers.
    """
    layout = point.layout
    last = layout.pp - 1
    num_traced = min(layout.pp, MOST_TRACED_STAGES)
    stages = [round(index * last / max(num_traced - 1, 1)) for index in range(num_traced)]
    mesh = RankMesh(layout)
    ranks = {mesh.rank(Place(pp=stage)) for stage in stages}
    ranks.update(rank for stage in stages for rank in ranks_at_boundary(mesh.stage(stage), cluster.gpus_per_node))
    for node, gpu in cluster.speeds:
        slow = node * cluster.gpus_per_node + gpu
        if slow < point.num_gpus:
            ranks |= {slow, *mesh.group("dp").ranks(slow)[:MOST_TRACED_PEERS]}
    changes: dict[str, Any] = {"engine": "simulated", "trace_ranks": tuple(sorted(ranks))}
    if point.task == "inference":
        # Simulated inference writes no trace.
        changes["steps"] = point.steps.model_copy(update={"profiled": 0})
    return point.model_copy(update=changes)


def plan_point(point: Point, cluster: ClusterConfig) -> PlannedRun:
    """Return the run of a point with the launch parameters of its cluster."""
    limits = Limits(
        executor=cluster.executor,
        time_limit_s=cluster.time_limit_s,
        hang_timeout_s=cluster.hang_timeout_s,
        fast_telemetry_period_s=cluster.fast_telemetry_period_s,
        slots=cluster.slots,
    )
    digest = point.digest()
    return PlannedRun(run=run_id(point, digest), digest=digest, point=point, limits=limits)


def _make_entry(point: Point, cluster: ClusterConfig, catalogue: Catalogue, study: str) -> PlanEntry:
    planned = plan_point(point, cluster)
    return PlanEntry(run=planned.run, studies=(study,), invalid_because=refusal_of(point, catalogue), planned=planned)


def _limits(engine: Engine) -> tuple[Rule, ...]:
    """Return the validity rules of an engine."""
    if engine == "simulated":
        from triplepoint.simulate.limits import LIMITS

        return LIMITS
    return get_engine(engine).LIMITS


def _names(names: Iterable[str] | None) -> str:
    return ", ".join(sorted(names)) if names else "any cluster"


def _title(entry: PlanEntry) -> str:
    point = entry.planned.point
    return f"{point.model.name} on {point.cluster.name}, {point.engine}"


def _cells(entry: PlanEntry) -> tuple[str, ...]:
    """Return the cells of a point below `_HEADINGS`."""
    point = entry.planned.point
    is_divisible = point.global_batch_size % (point.micro_batch_size * point.layout.dp) == 0
    return (
        layout_label(point),
        str(point.micro_batch_size),
        str(point.global_batch_size),
        str(point.num_microbatches) if is_divisible else "-",
        f"{point.recompute} {point.recompute_layers or ''}".rstrip(),
        ",".join(point.overlap) or "none",
        "valid" if entry.invalid_because is None else "invalid",
        entry.run,
    )


def _insert(cells: tuple[str, ...], more: tuple[str, ...]) -> tuple[str, ...]:
    """Insert additional cells before the last one, the run id."""
    return (*cells[:-1], *more, cells[-1])


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    """Return the aligned text of a row; the additional columns are right-aligned."""
    first_more, last = len(_HEADINGS) - 1, len(cells) - 1
    padded = [
        cell.rjust(width) if index in _RIGHT_ALIGNED or first_more <= index < last else cell.ljust(width)
        for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  ".join(padded).rstrip()


def _summary(plan: Plan) -> str:
    total, valid = len(plan.entries), len(plan.valid)
    shared = sum(len(entry.studies) > 1 for entry in plan.entries)
    return (
        f"{total} points: {valid} valid, {total - valid} invalid; {plan.num_folded} folded into an equal point of "
        f"their study, {shared} shared by studies"
    )
