"""Writes a figure as PDF, SVG and PNG, and its plotted numbers as CSV. Files are written atomically."""

from collections.abc import Mapping
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure
from pandas import DataFrame
from pandas.api.types import is_numeric_dtype

from triplepoint.errors import UserError
from triplepoint.figures import Need, load, module_of_one_run, spec_of, style
from triplepoint.files import atomic_file, guarded, write_text
from triplepoint.tables.projection import PROJECTION
from triplepoint.tables.studies import read_joined, require_tables, runs_of
from triplepoint.tables.whatif import WHATIF

PNG_DPI = 200

_METADATA: Mapping[str, Mapping[str, str | None]] = {
    ".png": {"Software": "triplepoint"},
    ".pdf": {"CreationDate": None, "ModDate": None, "Creator": "triplepoint", "Producer": "matplotlib"},
    ".svg": {"Date": None, "Creator": "triplepoint"},
}
"""Metadata by file type, without dates and host names: the same tables give the same bytes."""


@style.styled
def write_figure(name: str, results: Path, out_dir: Path) -> None:
    """Write `<name>.pdf`, `<name>.svg`, `<name>.png` and `<name>.csv` into `out_dir`.

    Args:
        name: One of `figures.NAMES`, or `STUDY/NAME` for the figure of one study.
        results: Folder of runs and tables.
        out_dir: Folder of the figures.

    Raises:
        UserError: If there is no such figure, a study has no results or no point for it, or a table is damaged.
    """
    spec, module = spec_of(name), load(name)
    if spec.simulated:
        path = results / f"{spec.simulated}.parquet"
        if not path.is_file():
            raise UserError(f"figure {name}: no {path}; make it with 'snakemake figs/{name}.pdf'")
        table = PROJECTION if spec.simulated.startswith("projection/") else WHATIF
        tables = {table.name: table.read(path).to_pandas()}
    else:
        require_tables(results, spec.studies, f"figure {name}", f"snakemake figs/{name}.pdf")
        tables = _read_tables(name, results)
    figure, numbers = module.draw(tables)
    write_text(out_dir / f"{name}.csv", to_csv(numbers))
    for kind in _METADATA:
        save(figure, out_dir / f"{name}{kind}")


def _read_tables(name: str, results: Path) -> dict[str, DataFrame]:
    """Return the tables of a figure by name.

    `points` has only the rows that the figure draws. If the figure draws a single run, the other tables have only the
    rows of that run.
    """
    spec = spec_of(name)
    tables, runs = {}, None
    if "points" in spec.tables:
        points = read_joined(results, spec.studies, "points").to_pandas()
        tables["points"] = on_cluster(_drawable(points, spec.need, name), name)
    if spec.is_of_one_run:
        traced = runs_of(results, spec.studies, "timeline")
        runs = module_of_one_run(name).runs_to_draw(tables["points"], traced)
    others = [table for table in spec.tables if table not in tables]
    return tables | {table: read_joined(results, spec.studies, table, runs).to_pandas() for table in others}


def save(figure: Figure, path: Path) -> None:
    """Write a figure atomically, in the format of the suffix: .pdf, .png or .svg."""
    metadata: dict[str, str | None] = dict(_METADATA[path.suffix])
    if path.suffix == ".svg":  # the report reads the title of the figure and its findings from there
        metadata["Title"] = str(figure.get_label())
        metadata["Description"] = getattr(figure, "statements", "") or None
    with atomic_file(path) as scratch, rc_context({"svg.fonttype": "none", "svg.hashsalt": "triplepoint"}):
        figure.savefig(scratch, dpi=PNG_DPI if path.suffix == ".png" else "figure", metadata=metadata)


def on_cluster(points: DataFrame, name: str) -> DataFrame:
    """Return the points on the cluster of a figure; all points if none is there, or for a figure of one study."""
    spec = spec_of(name)
    of_cluster = points[points["cluster"] == spec.cluster]
    return points if of_cluster.empty or ("/" in name and spec.is_general) else of_cluster


def _drawable(points: DataFrame, need: Need, name: str) -> DataFrame:
    """Return the points with a task and a device type that the figure draws. Raises `UserError` if there are none."""
    is_drawn = [need.admits(*row) for row in zip(points["task"], points["device_type"], strict=True)]
    if not any(is_drawn):
        raise UserError(f"figure {name}: {need.nothing} in what it draws; draw another figure of it, or other studies")
    return points[is_drawn]


def to_csv(numbers: DataFrame) -> str:
    """Return plotted numbers as CSV with six digits, which hide differences of rounding between machines.

    Text that a spreadsheet would take for a formula is escaped by `files.guarded`.
    """
    texts = {
        str(name): numbers[name].map(lambda cell: guarded(cell) if isinstance(cell, str) else cell)
        for name in numbers
        if not is_numeric_dtype(numbers[name])
    }
    numbers = numbers.assign(**texts)
    return str(numbers.to_csv(index=False, float_format="%.6g", lineterminator="\n"))
