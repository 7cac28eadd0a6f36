"""Selection of the figures of a plan: those of the catalogue, and those of a user's own studies."""

from collections.abc import Iterable
from pathlib import Path

from triplepoint.config.plan import Plan
from triplepoint.errors import UserError, nearest
from triplepoint.figures import FIGURES, FigureSpec, spec_of

_CATALOGUE_STUDIES = frozenset(study for spec in FIGURES.values() for study in spec.studies)
"""Studies of the figures of the catalogue."""


def figures_of(plan: Plan, is_alone: bool = False) -> list[str]:
    """Return the names of all figures of a plan in the order of the report: `NAME` or `STUDY/NAME`.

    Args:
        plan: The selected studies and points.
        is_alone: Whether the user named the studies. Figures of tables over all studies are then left out.

    Raises:
        UserError: If a study names an unknown figure.
    """
    shared = [spec.name for spec in FIGURES.values() if has_points(spec, plan)]
    if is_alone:
        from triplepoint.tables.studies import OVER_ALL  # slow: it takes a tenth of a second

        shared = [name for name in shared if not set(FIGURES[name].tables) & set(OVER_ALL)]
    return shared + [f"{study}/{name}" for study in plan.studies for name in own_figures(study, plan)]


def has_points(spec: FigureSpec, plan: Plan) -> bool:
    """Return whether a plan has all studies of a figure and a point that the figure can draw."""
    if not set(spec.studies) <= set(plan.studies):
        return False
    points = [entry.planned.point for entry in plan.valid if set(entry.studies) & set(spec.studies)]
    drawn = spec.need.drawn(points)
    if spec.cluster and not spec.is_general:
        drawn = [point for point in drawn if point.cluster.name == spec.cluster]
    return not spec.studies or bool(drawn)


def own_figures(study: str, plan: Plan) -> list[str]:
    """Return the figures of a single study: those that its file names, else all that fit.

    A study of the catalogue has none unless its file names them.

    Raises:
        UserError: If the file of the study names an unknown figure.
    """
    if study not in plan.figures:
        return [] if study in _CATALOGUE_STUDIES else fitting_figures(study, plan)
    for name in plan.figures[study]:
        if name not in FIGURES:
            raise UserError(f"study {study}: figures: no figure {name!r}{nearest(name, FIGURES)}")
        spec_of(f"{study}/{name}")
    return list(plan.figures[study])


def fitting_figures(study: str, plan: Plan) -> list[str]:
    """Return the general figures whose requirements the points of a study meet."""
    points = [entry.planned.point for entry in plan.valid if study in entry.studies]
    general = [spec for spec in FIGURES.values() if spec.is_general and not spec.simulated]
    return [spec.name for spec in general if spec.need.fits(points)]


def require_selected(names: Iterable[str], plan: Plan, config: Path) -> None:
    """Raise an error if a plan lacks a study of a figure.

    Args:
        names: Figures, `NAME` or `STUDY/NAME`.
        plan: The selected studies and points.
        config: Folder of the configuration.

    Raises:
        UserError: With the figure, its studies and the command that draws it.
    """
    for name in names:
        spec = spec_of(name)
        if spec.simulated:  # such a figure needs no runs
            continue
        missing = [study for study in spec.studies if study not in plan.studies]
        known = sorted(path.stem for path in (config / "studies").glob("*.yaml"))
        for study in missing:
            if study not in known:
                raise UserError(f"figs/{name}: no study {study!r} in {config / 'studies'}{nearest(study, known)}")
        if missing:
            command = f"'snakemake figs/{name}.pdf --config studies=[{','.join(spec.studies)}]'"
            raise UserError(
                f"figs/{name}: draws study {', '.join(missing)}, of which config.yaml selects nothing; make it with "
                f"{command}, and where that is not enough with a cluster of the study in clusters or simulated"
            )
