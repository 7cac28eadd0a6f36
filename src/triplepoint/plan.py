"""The plan: which points the selected studies come to, which of them can run, and why the others cannot."""

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
"""Of a simulated pipeline, first and last among them: seconds of kernels by stage are published for up to 32."""

MOST_TRACED_PEERS = 8
"""Of a slow GPU: the odd one is found among five or more (a modified z-score beyond 3.5)."""

_NUMBERS = (1, 2, 3)
"""Columns of the table that are aligned to the right."""


def select(
    config_dir: Path,
    studies: Sequence[str] | None = None,
    clusters: Sequence[str] | None = None,
    simulated: Sequence[str] = (),
    results: Path | None = None,
) -> Plan:
    """Return the points of some studies, checked, without duplicates, and recorded runs in their own studies.

    Args:
        config_dir: Folder of the configuration, with `studies/`, `models/`, `clusters/` and `gpus/`.
        studies: Names of studies. None: all.
        clusters: Names of clusters; points on others are left out. None: all.
        simulated: Names of clusters whose points are simulated, but for those named in `clusters`.
        results: Folder of results, whose recorded runs are taken along, whatever studies and clusters are named. None:
            none of them.

    Raises:
        UserError: If a name is unknown, a file is wrong, or a study has no point or none that can run.
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
        found = _expand_study(catalogue, name, None if clusters is None else set(clusters), set(simulated))
        if studies is not None and not found.entries:
            raise UserError(
                f"{catalogue.path_of_study(name)}: no point on {_names(clusters)}, but on {_names(found.elsewhere)}; "
                "name that with --cluster, or in config.yaml"
            )
        collected.add(name, found)
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
    """Write `point.json` of each valid run and `plan.json`, each only where its content changes.

    Raises:
        OSError: From the file system.
    """
    for entry in plan.valid:
        folder = results / "runs" / entry.run
        write_text_if_changed(folder / "point.json", entry.planned.model_dump_json(indent=2) + "\n")
        _move_unnamed(entry, folder)
    write_text_if_changed(results / "plan.json", plan.text())


def _move_unnamed(entry: PlanEntry, folder: Path) -> None:
    """Move a measurement of this very point here from the folder that version 0.1.0 named by the label alone."""
    if entry.planned.point.engine == "simulated" or (folder / "raw").exists():
        return
    raw = folder.with_name(run_label(entry.planned.point)) / "raw"
    if not raw.is_dir():
        return
    with contextlib.suppress(UserError):  # damaged: stays where it is
        if read_manifest(raw / "manifest.json").digest == entry.planned.digest:
            raw.rename(folder / "raw")


@dataclass(frozen=True)
class Columns:
    """More columns of the table of a plan, before the run id.

    Attributes:
        headings: One per column.
        cells: One per heading, by run; runs that are not there have none.
        notes: What stands below the row of a run.
    """

    headings: tuple[str, ...] = ()
    cells: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)


def render(plan: Plan, more: Columns | None = None) -> str:
    """Return the plan as text: a block per model, cluster and engine, a row per point, a summary at the end.

    A point that cannot run is followed by its reason, on a line of its own since reasons are longer than columns.
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
    """One study: its points by digest, and what was left out."""

    entries: dict[str, PlanEntry] = field(default_factory=dict)
    num_folded: int = 0
    elsewhere: set[str] = field(default_factory=set)


@dataclass
class _Collected:
    """All studies so far: their points by digest."""

    entries: dict[str, PlanEntry] = field(default_factory=dict)
    num_folded: int = 0
    order: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def add(self, study: str, found: _Expanded) -> None:
        """Add the points of a study, joining those that are there already."""
        self.num_folded += found.num_folded
        if found.entries:
            self.order[study] = tuple(entry.run for entry in found.entries.values())
        for digest, entry in found.entries.items():
            if digest in self.entries:
                joined = self.entries[digest].studies + (study,)
                entry = entry.model_copy(update={"studies": joined})
            self.entries[digest] = entry


def _expand_study(catalogue: Catalogue, name: str, clusters: set[str] | None, simulated: set[str]) -> _Expanded:
    where, found = catalogue.path_of_study(name), _Expanded()
    idle: dict[str, str] = {}
    useful: set[str] = set()
    problems = Problems(where)
    for settings in expand(catalogue.study(name), where):
        cluster = problems.call(catalogue.cluster, settings.cluster, where)
        if cluster and clusters is not None and cluster.name not in clusters:
            found.elsewhere.add(cluster.name)
            continue
        if not problems.call(catalogue.model, settings.model, where) or not cluster:
            continue
        chosen = settings.chosen()
        for point in points_of(settings, catalogue, where, cluster.name in simulated):
            reasons_by_name = without_effect(point, chosen)
            idle |= reasons_by_name
            useful |= chosen.keys() - reasons_by_name.keys()
            entry = _make_entry(point, cluster, catalogue, name)
            if entry.planned.digest in found.entries:
                found.num_folded += 1
            else:
                found.entries[entry.planned.digest] = entry
    problems.refuse()
    reasons = [f"{entry.run}: {entry.invalid_because}" for entry in found.entries.values()]
    if reasons and all(entry.invalid_because for entry in found.entries.values()):
        raise UserError(f"{where}: none of its {len(reasons)} points can run; {reasons[0]}")
    # On an axis beside points that it is of, a setting is folded where it has no effect.
    if never := next((reason for name, reason in idle.items() if name not in useful), None):
        raise UserError(f"{where}: {never}")
    return found


def points_of(
    settings: Settings, catalogue: Catalogue, where: str | Path, is_simulated: bool = False
) -> Iterator[Point]:
    """Yield the point of each repeat of some settings, folded but not checked.

    Args:
        settings: What a study says.
        catalogue: The configuration.
        where: Place the settings stand at, named in errors.
        is_simulated: Whether the simulator takes the place of the engine, where that is another one.

    Raises:
        UserError: If the model or the cluster is unknown or its file is wrong.
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
    """Return the devices of a cluster's nodes by row of their airflow; None where it is not known, as on cpu."""
    from triplepoint.simulate.heat.nodes import airflow_of, is_known

    cluster = catalogue.cluster(name)
    gpu = catalogue.gpu_of(cluster)
    if gpu is None or not is_known(gpu, catalogue.folder):
        return None
    return airflow_of(cluster.conditions.airflow, gpu, cluster.gpus_per_node, catalogue.folder).rows


def as_simulated(point: Point, cluster: ClusterConfig) -> Point:
    """Return a point as it is simulated: one rank of a pipeline stage traced, since the others do the same.

    Of a stage on several nodes also the ranks next to a border between them; of one with a slow GPU also that rank and
    its peers in the other replicas, since they do not.
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
    changed: dict[str, Any] = {"engine": "simulated", "trace_ranks": tuple(sorted(ranks))}
    if point.task == "inference":
        # Nothing is traced of it.
        changed["steps"] = point.steps.model_copy(update={"profiled": 0})
    return point.model_copy(update=changed)


def plan_point(point: Point, cluster: ClusterConfig) -> PlannedRun:
    """Return the run of a point, with the limits of its cluster."""
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
    point = entry.planned.point
    whole = point.global_batch_size % (point.micro_batch_size * point.layout.dp) == 0
    return (
        layout_label(point),
        str(point.micro_batch_size),
        str(point.global_batch_size),
        str(point.num_microbatches) if whole else "-",
        f"{point.recompute} {point.recompute_layers or ''}".rstrip(),
        ",".join(point.overlap) or "none",
        "valid" if entry.invalid_because is None else "invalid",
        entry.run,
    )


def _insert(cells: tuple[str, ...], more: tuple[str, ...]) -> tuple[str, ...]:
    return (*cells[:-1], *more, cells[-1])


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    first_more, last = len(_HEADINGS) - 1, len(cells) - 1
    padded = [
        cell.rjust(width) if number in _NUMBERS or first_more <= number < last else cell.ljust(width)
        for number, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  ".join(padded).rstrip()


def _summary(plan: Plan) -> str:
    total, valid = len(plan.entries), len(plan.valid)
    shared = sum(len(entry.studies) > 1 for entry in plan.entries)
    return (
        f"{total} points: {valid} valid, {total - valid} invalid; {plan.num_folded} folded into an equal point of "
        f"their study, {shared} shared by studies"
    )
