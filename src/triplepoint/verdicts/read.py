"""Reading of `config/published/claims.yaml` and of the figures that it names."""

import csv
from pathlib import Path

from triplepoint.config.yaml_file import read
from triplepoint.errors import UserError, nearest
from triplepoint.verdicts.file import FIGURES, FILE, Cell, Cells, Claims, Figure, read_number


class Published:
    """Published claims, with the figures that they name, which are read on first use."""

    def __init__(self, content: Claims, folder: Path) -> None:
        """Use the claims of a file.

        Args:
            content: Content of the file.
            folder: Folder of the figures.
        """
        self.content = content
        self._folder = folder
        self._rows: dict[str, list[Cells]] = {}

    def figure(self, name: str) -> Figure:
        """Return a figure. Raises `UserError` if its name is unknown."""
        if name not in self.content.figures:
            raise UserError(f"{FILE}: no figure {name!r}{nearest(name, self.content.figures)}")
        return self.content.figures[name]

    def rows(self, name: str) -> list[Cells]:
        """Return the rows of a figure that its `where` selects. Raises `UserError` if its file is missing."""
        if name not in self._rows:
            figure = self.figure(name)
            rows = _read_csv(self._folder / f"{figure.file}.csv")
            self._rows[name] = [
                cells for cells in rows if all(cells.get(column) == text for column, text in figure.where.items())
            ]
        return self._rows[name]

    def cell(self, cell: Cell) -> tuple[float, str]:
        """Return a number of a figure, and the name of its row. Raises `UserError` unless it occurs exactly once."""
        rows = [
            cells
            for cells in self.rows(cell.figure)
            if all(cells.get(column) == text for column, text in cell.row.items())
        ]
        numbers = [read_number(cells.get(cell.column, "")) for cells in rows]
        if len(numbers) != 1 or numbers[0] is None:
            row = ", ".join(f"{column} {text}" for column, text in cell.row.items())
            raise UserError(
                f"{FILE}: {cell.figure}: {len(numbers)} rows of {row} with a number in {cell.column!r}, expected 1"
            )
        return numbers[0][0], self.figure(cell.figure).name.format(**rows[0])


def read_claims(config: Path) -> Published | None:
    """Read the published claims of a configuration folder; None where it has none.

    Raises:
        UserError: If the file is invalid, or two claims have one id.
    """
    if not (config / FILE).is_file():
        return None
    content = read(Claims, config / FILE)
    ids = [claim.id for claim in content.claims]
    if twice := next((id_ for id_ in ids if ids.count(id_) > 1), None):
        raise UserError(f"{config / FILE}: two claims have the id {twice!r}; change one")
    return Published(content, config / FIGURES)


def _read_csv(path: Path) -> list[Cells]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; a figure of {FILE} names it") from None
