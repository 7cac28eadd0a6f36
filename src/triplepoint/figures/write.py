"""Writes one figure: PDF, PNG and the plotted numbers, each file whole or not at all."""

from pathlib import Path

from matplotlib.figure import Figure
from pandas import DataFrame

from triplepoint.figures import FigureModule, load, style
from triplepoint.figures.canvas import Canvas
from triplepoint.files import whole, write_text
from triplepoint.tables import RESULT_TABLES

PNG_DPI = 200

OF_INFERENCE = frozenset({"inference_batch"})
"""Figures of batches of inference; the others are of training."""

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
    figure, numbers = _draw_training(module, found) if name not in OF_INFERENCE else module.draw(found)
    write_text(out_dir / f"{name}.csv", to_csv(numbers))
    with whole(out_dir / f"{name}.png") as scratch:
        figure.savefig(scratch, dpi=PNG_DPI, metadata=_PNG_METADATA)
    with whole(out_dir / f"{name}.pdf") as scratch:
        figure.savefig(scratch, metadata=_PDF_METADATA)


def _draw_training(module: FigureModule, tables: dict[str, DataFrame]) -> tuple[Figure, DataFrame]:
    """Return a figure of training: a batch of inference is no step that it could be compared with."""
    points = tables["points"]
    trained = points[points["task"] != "inference"]
    if trained.empty and len(points):
        canvas = Canvas.make(style.COLUMN_WIDTH_IN, 0.8)
        canvas.stamp(points)
        canvas.text(style.COLUMN_WIDTH_IN / 2, 0.5, "no point of training", ha="center", va="center")
        return canvas.figure, trained[["run"]]
    return module.draw(tables | {"points": trained})


def to_csv(numbers: DataFrame) -> str:
    """Return plotted numbers as CSV, to six digits: more than any figure shows, fewer than rounding disturbs."""
    return str(numbers.to_csv(index=False, float_format="%.6g", lineterminator="\n"))
