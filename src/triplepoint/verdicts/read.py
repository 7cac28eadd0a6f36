"""Reads `config/published/claims.yaml` and the figures it names."""

import csv
from pathlib import Path

from triplepoint.config.yaml_file import read
from triplepoint.errors import UserError, nearest
from triplepoint.verdicts.file import FIGURES, FILE, Cell, Cells, Claims, Figure, read_number


class Published:
    """Claims and the figures they name, read and checked."""

    def __init__(self, content: Claims, folder: Path) -> None:
        """Use the claims of a file whose figures are in `folder`."""
        self.content = content
        self._folder = folder
        self._rows: dict[str, list[Cells]] = {}

    def figure(self, name: str) -> Figure:
        """Return a figure. Raises `UserError` if there is none of the name."""
        if name not in self.content.figures:
            raise UserError(f"{FILE}: no figure {name!r}{nearest(name, self.content.figures)}")
        return self.content.figures[name]

    def rows(self, name: str) -> list[Cells]:
        """Return the rows of a figure that are meant. Raises `UserError` if its file cannot be read."""
        if name not in self._rows:
            figure = self.figure(name)
            rows = _read_csv(self._folder / f"{figure.file}.csv")
            self._rows[name] = [
                cells for cells in rows if all(cells.get(column) == text for column, text in figure.where.items())
            ]
        return self._rows[name]

    def cell(self, cell: Cell) -> tuple[float, str]:
        """Return a number of a figure, and what its row is called. Raises `UserError` if it is not there once."""
        found = [
            cells
            for cells in self.rows(cell.figure)
            if all(cells.get(column) == text for column, text in cell.row.items())
        ]
        numbers = [read_number(cells.get(cell.column, "")) for cells in found]
        if len(numbers) != 1 or numbers[0] is None:
            row = ", ".join(f"{column} {text}" for column, text in cell.row.items())
            raise UserError(
                f"{FILE}: {cell.figure}: {len(numbers)} rows of {row} with a number in {cell.column!r}, expected 1"
            )
        return numbers[0][0], self.figure(cell.figure).name.format(**found[0])


def read_claims(config: Path) -> Published | None:
    """Return the published claims in a configuration folder; None where it has none.

    Raises:
        UserError: If the file is wrong, or two claims have one id.
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
