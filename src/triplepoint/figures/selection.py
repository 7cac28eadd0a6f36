"""Figures of a plan: those of the catalogue whose studies it has, and those of studies of one's own."""

from collections.abc import Iterable
from pathlib import Path

from triplepoint.config.plan import Plan
from triplepoint.errors import UserError, nearest
from triplepoint.figures import FIGURES, FigureSpec, spec_of

_NAMED = frozenset(study for spec in FIGURES.values() for study in spec.studies)
"""Studies that figures of the catalogue name."""


def figures_of(plan: Plan, is_alone: bool = False) -> list[str]:
    """Return the names of all figures of a plan, in the order of the report: `NAME`, or `STUDY/NAME`.

    Args:
        plan: What is selected.
        is_alone: Whether studies are named: what is drawn of all studies together is left as it is.

    Raises:
        UserError: If a study names a figure that there is not.
    """
    shared = [spec.name for spec in FIGURES.values() if has_points(spec, plan)]
    if is_alone:
        from triplepoint.tables.studies import OVER_ALL  # tables take a tenth of a second to import

        shared = [name for name in shared if not set(FIGURES[name].tables) & set(OVER_ALL)]
    return shared + [f"{study}/{name}" for study in plan.studies for name in own_figures(study, plan)]


def has_points(spec: FigureSpec, plan: Plan) -> bool:
    """Return whether a plan has all studies of a figure, and a point it can draw."""
    if not set(spec.studies) <= set(plan.studies):
        return False
    points = [entry.planned.point for entry in plan.valid if set(entry.studies) & set(spec.studies)]
    drawn = spec.need.drawn(points)
    if spec.cluster and not spec.is_general:
        drawn = [point for point in drawn if point.cluster.name == spec.cluster]
    return not spec.studies or bool(drawn)


def own_figures(study: str, plan: Plan) -> list[str]:
    """Return the figures that are drawn of one study alone: what its file says, else those that fit it.

    A study that the catalogue draws has none unless its file names them.

    Raises:
        UserError: If its file names a figure that there is not.
    """
    if study not in plan.figures:
        return [] if study in _NAMED else fitting(study, plan)
    for name in plan.figures[study]:
        if name not in FIGURES:
            raise UserError(f"study {study}: figures: no figure {name!r}{nearest(name, FIGURES)}")
        spec_of(f"{study}/{name}")
    return list(plan.figures[study])


def fitting(study: str, plan: Plan) -> list[str]:
    """Return the figures that say anything of a study alone."""
    points = [entry.planned.point for entry in plan.valid if study in entry.studies]
    general = [spec for spec in FIGURES.values() if spec.is_general and not spec.simulated]
    return [spec.name for spec in general if spec.need.fits(points)]


def require_selected(names: Iterable[str], plan: Plan, config: Path) -> None:
    """Refuse figures of studies that are not in a plan.

    Args:
        names: Figures, `NAME` or `STUDY/NAME`.
        plan: What is selected.
        config: Folder of the configuration.

    Raises:
        UserError: One line with the figure, its studies and the command that makes it.
    """
    for name in names:
        spec = spec_of(name)
        if spec.simulated:  # it draws no run
            continue
        absent = [study for study in spec.studies if study not in plan.studies]
        known = sorted(path.stem for path in (config / "studies").glob("*.yaml"))
        for study in absent:
            if study not in known:
                raise UserError(f"figs/{name}: no study {study!r} in {config / 'studies'}{nearest(study, known)}")
        if absent:
            chosen = f"'snakemake figs/{name}.pdf --config studies=[{','.join(spec.studies)}]'"
            raise UserError(
                f"figs/{name}: draws study {', '.join(absent)}, of which config.yaml selects nothing; make it with "
                f"{chosen}, and where that is not enough with a cluster of the study in clusters or simulated"
            )
