"""Writes one figure: PDF, PNG and the plotted numbers, each file whole or not at all."""

from pathlib import Path

from matplotlib.figure import Figure
from pandas import DataFrame, isna

from triplepoint.figures import NEEDS, FigureModule, Need, load, style
from triplepoint.files import whole, write_text
from triplepoint.tables.results import RESULT_TABLES

PNG_DPI = 200

# Nothing that changes from day to day or machine to machine: the same tables give the same bytes.
_PDF_METADATA = {"CreationDate": None, "ModDate": None, "Creator": "triplepoint", "Producer": "matplotlib"}
_PNG_METADATA = {"Software": "triplepoint"}


@style.styled
def write_figure(name: str, tables_dir: Path, out_dir: Path) -> None:
    """Write `<name>.pdf`, `<name>.png` and `<name>.csv` into `out_dir`.

    Args:
        name: One of `figures.NAMES`.
        tables_dir: Folder of the result tables.
        out_dir: Folder of the figures.

    Raises:
        UserError: If there is no such figure, or a table is missing or damaged.
    """
    module = load(name)
    found = {table: RESULT_TABLES[table].read(tables_dir / f"{table}.parquet").to_pandas() for table in module.TABLES}
    figure, numbers = _draw(module, found, NEEDS[name])
    write_text(out_dir / f"{name}.csv", to_csv(numbers))
    with whole(out_dir / f"{name}.png") as scratch:
        figure.savefig(scratch, dpi=PNG_DPI, metadata=_PNG_METADATA)
    with whole(out_dir / f"{name}.pdf") as scratch:
        figure.savefig(scratch, metadata=_PDF_METADATA)


def _draw(module: FigureModule, tables: dict[str, DataFrame], need: Need) -> tuple[Figure, DataFrame]:
    """Return a figure of the points it can draw: those of other tasks are nothing they could be compared with."""
    points = tables["points"]
    is_drawn = [
        need.admits(task, None if isna(gpu) else gpu) for task, gpu in zip(points["task"], points["gpu"], strict=True)
    ]
    if len(points) and not any(is_drawn):
        page = style.new_page(f"Nothing to draw: {need.nothing}", points, height=1.2)
        style.say(page.axes[0][0], need.nothing)
        return page.finish(), points.loc[is_drawn, ["run"]]
    return module.draw(tables | {"points": points[is_drawn]})


def to_csv(numbers: DataFrame) -> str:
    """Return plotted numbers as CSV, to six digits: more than any figure shows, fewer than rounding disturbs."""
    return str(numbers.to_csv(index=False, float_format="%.6g", lineterminator="\n"))
