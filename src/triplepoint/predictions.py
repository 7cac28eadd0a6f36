"""Predictions of configurations written in a study's words: CSV, YAML or JSON, or a study."""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triplepoint.config.base import parse
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.point import Engine, Point
from triplepoint.config.runid import run_id
from triplepoint.config.settings import Settings
from triplepoint.config.study import Study, expand
from triplepoint.config.yaml_file import load, read_any
from triplepoint.errors import UserError
from triplepoint.plan import points_of, refusal_of
from triplepoint.simulate.predict.point import STACKS, predict_point
from triplepoint.simulate.predict.prediction import Prediction, read_calibrations
from triplepoint.simulate.stacks import find_stack, read_stacks
from triplepoint.status import PredictionStatus


class Configuration(Settings):
    """One configuration to predict: the settings of a study, and what only a prediction has."""

    engine: Engine = "simulated"
    """What trains; `simulated` is predicted as the software of the published study."""
    id: str | int | None = None
    """Key of the row in the output. None: its number."""
    stack: str | None = None
    """Software stack and version, such as `NeMo dgxc v25.04`. None: that of the engine."""


@dataclass(frozen=True)
class Request:
    """One point to predict.

    Attributes:
        id: Key of its row in the output.
        point: The point, folded.
        stack: Software stack and version; None for that of its engine.
        invalid_because: Why it cannot run; None if it can.
    """

    id: str
    point: Point
    stack: str | None
    invalid_because: str | None

    def predict(self, config: Path) -> Prediction:
        """Return its prediction."""
        if self.invalid_because:
            return Prediction(PredictionStatus.INVALID, self.invalid_because)
        return predict_point(self.point, config, self.stack)


def predict_file(source: Path, config: Path) -> list[tuple[str, str, Prediction]]:
    """Return the prediction of each point of a file by its id and run id, repeats once.

    Args:
        source: CSV with a setting in each column, YAML or JSON with one configuration or a list of them, or a study.
        config: Folder of the configuration.

    Raises:
        UserError: If the file cannot be read, a key or a value in it is no setting, or the configuration is wrong.
    """
    read_calibrations(config)
    return [(request.id, run_id(request.point), request.predict(config)) for request in read_points(source, config)]


def read_points(source: Path, config: Path) -> list[Request]:
    """Return the points of a file, checked as a plan checks them. Raises `UserError` as `predict_file` does."""
    catalogue, points = Catalogue(config), []
    for number, (where, settings) in enumerate(_read_settings(source), 1):
        name, stack = str(number), None
        if isinstance(settings, Configuration):
            name, stack = str(number if settings.id is None else settings.id), settings.stack
        if stack:
            _check_stack(stack, where, config)
        (point,) = points_of(settings.model_copy(update={"repeats": 1}), catalogue, where)
        points.append(Request(name, point, stack, refusal_of(point, catalogue)))
    if not points:
        raise UserError(f"{source}: no configuration in it; give at least model, cluster and global_batch_size of one")
    return points


def _read_settings(source: Path) -> Iterator[tuple[str | Path, Settings]]:
    """Yield the settings of each configuration with the place they stand at, for errors."""
    if source.suffix == ".csv":
        content: Any = list(_read_csv(source))
    else:
        content = read_any(source)
    if isinstance(content, dict) and "sweeps" in content:
        for settings in expand(parse(Study, content, source), source):
            yield source, settings
        return
    for number, one in enumerate(content if isinstance(content, list) else [content], 1):
        where = f"{source}: row {number}" if isinstance(content, list) else source
        if not isinstance(one, dict):
            raise UserError(f"{where}: expected a mapping of keys to values, found {type(one).__name__}")
        yield where, parse(Configuration, one, where)


def _read_csv(source: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a CSV, each cell read as YAML; a blank one leaves its key out."""
    cells: dict[str, Any] = {}
    try:
        with source.open(encoding="utf-8-sig", newline="") as lines:
            rows = [row for row in csv.reader(lines) if any(cell.strip() for cell in row)]
    except FileNotFoundError:
        raise UserError(f"{source}: no such file") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{source}: not readable as CSV: {error}") from None
    header = [name.strip() for name in rows[0]] if rows else []
    if twice := next((name for name in header if header.count(name) > 1), None):
        raise UserError(f"{source}: column {twice!r} stands {header.count(twice)} times; keep one")
    if "gpu" in header and "cluster" not in header:
        raise UserError(f"{source}: column 'gpu' and no 'cluster': a table in others' words needs --published")
    for number, row in enumerate(rows[1:], 1):
        where = f"{source}: row {number}"
        if len(row) != len(header):
            raise UserError(f"{where}: {len(row)} cells, the header has {len(header)}; write [3, 5] within quotes")
        for text in row:
            if text not in cells:
                cells[text] = load(text, where)
        yield {name: cells[text] for name, text in zip(header, row, strict=True) if cells[text] is not None}


def _check_stack(stack: str, where: str | Path, config: Path) -> None:
    if not find_stack(stack, config).match and stack not in STACKS.values():
        known = ", ".join([*STACKS.values(), *(" ".join(known.match) for known in read_stacks(config) if known.match)])
        raise UserError(
            f"{where}: stack: no known software in {stack!r}; expected a name with the words of one: {known}"
        )
