"""Predictions of configurations given with the settings of a study: as CSV, YAML, JSON, Python mappings or a study."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triplepoint.config.base import parse
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.plan import run_id
from triplepoint.config.point import Engine, Point
from triplepoint.config.rules import without_effect
from triplepoint.config.study import Settings, Study, expand
from triplepoint.config.yaml_file import STANDARD_INPUT, Rows, load, parse_csv, read_any, read_csv, read_text
from triplepoint.errors import Problems, UserError, kind_of, not_utf8
from triplepoint.plan import points_of, refusal_of
from triplepoint.processes import on_all_cores
from triplepoint.ranking import rank
from triplepoint.simulate.predict.point import MANY_POINTS, predict_point
from triplepoint.simulate.predict.prediction import COLUMNS, Prediction, read_calibrations, with_progress
from triplepoint.simulate.stacks import OF_STACK, Stack, check_stack, find_stack
from triplepoint.status import PredictionStatus

if TYPE_CHECKING:
    import pandas as pd

_TABLES = (".csv", ".tsv", ".txt")
_TREES = (".yaml", ".yml", ".json")
SUFFIXES = (*_TABLES, *_TREES)
"""Endings of files with configurations."""
_MOST_BYTES = 64 << 20
"""Largest YAML or JSON file that is read: 10,000 configurations have about 3 MB."""
_TEXT_COLUMNS = ("id", "stack")
"""Columns whose cells are not parsed as YAML: an id may be 007, yes or 2024-01-02."""


class Configuration(Settings):
    """One configuration to predict: the settings of a study, an id and a software stack."""

    engine: Engine = "simulated"
    """Engine; `simulated` is predicted with the software of the published study."""
    id: str | int | None = None
    """Key of the row in the output. None: its number."""
    stack: str | None = None
    """Software stack and version, such as `NeMo dgxc v25.04`. None: that of the engine. A stack also gives defaults for
    `context_exchange` and `lora_targets`."""


@dataclass(frozen=True)
class Request:
    """One point to predict.

    Attributes:
        id: Key of the row in the output.
        where: File and line of the configuration, for errors.
        point: The folded point.
        stack: Software stack and version; None for that of the engine.
        invalid_because: Reason why the point cannot run; None if it can.
    """

    id: str
    where: str | Path
    point: Point
    stack: str | None
    invalid_because: str | None

    def predict(self, config: Path, with_power: bool = True) -> Prediction:
        """Return the prediction of the point, with or without power and heat, see `predict_point`."""
        if self.invalid_because:
            return Prediction(PredictionStatus.INVALID, self.invalid_because)
        return predict_point(self.point, config, self.stack, with_power)


def predict(
    points: "Iterable[Mapping[str, object]] | pd.DataFrame",
    config: str | Path = "config",
    *,
    with_power: bool = True,
    with_rank: bool = False,
) -> "pd.DataFrame":
    """Return predictions of configurations, in their order; many are computed on all cores.

    Args:
        points: Mappings of settings of a study (docs/config.md) and of `id` and `stack` as in `triplepoint predict`; or
            a table with them as columns, where blank cells mean the default.
        config: Folder of the configuration.
        with_power: Whether to predict power and heat, which takes most of the time.
        with_rank: Whether to rank the layouts of each training.

    Returns:
        Table with the columns of `triplepoint predict --help` and NaN for missing numbers. `attrs["units"]` has the
        unit of each column, '1' for ratios and '' for text.

    Raises:
        UserError: If a setting is unknown or invalid, or the configuration is.
    """
    import pandas as pd

    config = Path(config)
    catalogue, rows, requests = Catalogue(config), [], []
    if isinstance(points, pd.DataFrame):
        points = [
            {str(name): cell for name, cell in row.items() if not pd.isna(cell)} for row in points.to_dict("records")
        ]
    elif isinstance(points, Mapping | str | Path) or not isinstance(points, Iterable):
        raise UserError(f"points: expected a list of mappings or a pandas table, found one {type(points).__name__}")
    for number, point in enumerate(points, 1):
        if not isinstance(point, Mapping):
            raise UserError(f"point {number}: expected a mapping of settings, found one {type(point).__name__}")
        request = request_of(parse(Configuration, dict(point), f"point {number}"), f"point {number}", number, catalogue)
        rows.append({"id": request.id, "run": run_id(request.point)})
        requests.append(request)
    read_calibrations(config)
    predictions = on_all_cores(partial(Request.predict, config=config, with_power=with_power), requests, MANY_POINTS)
    ranks = rank(predictions, config) if with_rank else [{} for _ in predictions]
    columns = [*rows[0], *ranks[0], *COLUMNS] if rows else ["id", "run", *COLUMNS]
    table = [
        row | rank_of_row | prediction.cells()
        for row, rank_of_row, prediction in zip(rows, ranks, predictions, strict=True)
    ]
    predicted = pd.DataFrame(table, columns=columns).apply(_numbers)
    if with_rank and rows:
        predicted["tied_with_first"] = predicted["tied_with_first"].map({"yes": True, "no": False})
    predicted.attrs["units"] = {name: _unit_of(name) for name in columns}
    return predicted


_UNITS = {
    "tokens_per_s_per_gpu": "token/s", "_per_token_j": "J/token", "_s": "s", "_w": "W", "_c": "degC", "_mhz": "MHz",
    "_gib": "GiB", "_fraction": "1", "mfu": "1", "rank": "1", "num_ranked": "1",
}  # fmt: skip
"""Unit of a column of predictions, by the suffix of its name."""


def _unit_of(name: str) -> str:
    """Return the unit of a column, which is also that of its interval ends; empty for text."""
    quantity = name.replace("_lo_", "_").replace("_hi_", "_")
    return next((unit for suffix, unit in _UNITS.items() if quantity.endswith(suffix)), "")


def _numbers(column: "pd.Series[Any]") -> "pd.Series[Any]":
    """Return a column as numbers with NaN for blanks; unchanged if it has text."""
    import pandas as pd

    try:
        return pd.to_numeric(column.replace("", math.nan))
    except ValueError:
        return column


def predict_file(
    source: Path,
    config: Path,
    progress: Callable[[str], None],
    simulated: Collection[str] = (),
    with_power: bool = True,
) -> list[tuple[str, str, Prediction]]:
    """Return id, run id and prediction of each point of a file.

    Args:
        source: File, see `read_points`.
        config: Folder of the configuration.
        progress: Called with a line on how many rows are done.
        simulated: Clusters to simulate, see `read_points`.
        with_power: Whether to predict power and heat.

    Raises:
        UserError: As `read_points`.
    """
    read_calibrations(config)
    requests = with_progress(read_points(source, config, simulated), progress)
    return [(request.id, run_id(request.point), request.predict(config, with_power)) for request in requests]


def read_points(source: Path, config: Path, simulated: Collection[str] = ()) -> list[Request]:
    """Return the checked points of a file; equal points of a study, and repeats, appear once.

    Args:
        source: CSV with a setting per column, YAML or JSON with one configuration or a list of them, or a study.
        config: Folder of the configuration.
        simulated: Names of clusters to simulate whatever the engine, as with `plan --simulated`.

    Raises:
        UserError: If the file cannot be read, a key or value is invalid, two rows have the same id, or the
            configuration is invalid.
    """
    catalogue = Catalogue(config)
    for name in simulated:
        catalogue.cluster(name)
    requests: dict[str, Request] = {}
    problems = Problems(source)
    for where, settings in _read_settings(source, problems):
        request = try_request(problems, settings, where, len(requests) + 1, catalogue, simulated)
        if request is None:
            continue
        is_row = isinstance(settings, Configuration)
        key = request.id if is_row else request.point.digest()
        if is_row and key in requests:
            problems.add(UserError(f"{where}: id {key!r} is also the id of {requests[key].where}; change one"))
        requests.setdefault(key, request)
    problems.refuse()
    if not requests:
        raise UserError(f"{source}: has no configuration; give at least model, cluster and global_batch_size of one")
    return list(requests.values())


def try_request(
    problems: Problems,
    settings: Settings,
    where: str | Path,
    number: int,
    catalogue: Catalogue,
    simulated: Collection[str] = (),
) -> Request | None:
    """Return the result of `request_of`; if it raises a `UserError`, add that to `problems` and return None."""
    cluster = problems.call(catalogue.cluster, settings.cluster, where)
    model = problems.call(catalogue.model, settings.model, where)
    return problems.call(request_of, settings, where, number, catalogue, simulated) if cluster and model else None


def request_of(
    settings: Settings, where: str | Path, number: int, catalogue: Catalogue, simulated: Collection[str] = ()
) -> Request:
    """Return the request for one configuration; repeats count once.

    Args:
        settings: The configuration, or settings of a study.
        where: File and line of the configuration, for errors.
        number: Number of the configuration, the default of its id.
        catalogue: The configuration folder.
        simulated: Clusters to simulate, see `read_points`.

    Raises:
        UserError: If model, cluster or stack is unknown.
    """
    key, stack = str(number), None
    chosen = settings.chosen() if isinstance(settings, Configuration) else {}
    if isinstance(settings, Configuration):
        key, stack = key if settings.id in (None, "") else str(settings.id), settings.stack
    if stack:
        check_stack(stack, where, catalogue.folder)
        settings = _with_stack_defaults(settings, find_stack(stack, catalogue.folder))
    once = settings.model_copy(update={"repeats": 1})
    (point,) = points_of(once, catalogue, where, settings.cluster in simulated)
    reason = refusal_of(point, catalogue) or next(iter(without_effect(point, chosen).values()), None)
    return Request(key, where, point, stack, reason)


def _with_stack_defaults(settings: Settings, stack: Stack) -> Settings:
    """Return settings with the defaults of a stack for the settings that were not given."""
    defaults = {name: getattr(stack, name) for name in OF_STACK if name not in settings.model_fields_set}
    return settings.model_copy(update=defaults)


def _read_settings(source: Path, problems: Problems) -> Iterator[tuple[str | Path, Settings]]:
    """Yield place and settings of each configuration of a file; errors are added to `problems`."""
    suffix = source.suffix.lower()
    if source == STANDARD_INPUT:
        yield from _settings_of_standard_input(problems)
    elif suffix in _TABLES:
        yield from _settings_of_rows(source, read_cells(source), problems)
    elif suffix in _TREES:
        yield from _settings_of_tree(source, read_any(source, _MOST_BYTES), problems)
    else:
        found = "a folder" if source.is_dir() else f"unknown kind of file {suffix!r}"
        raise UserError(f"{source}: {found}; expected a file whose name ends in one of {', '.join(SUFFIXES)}")


def _settings_of_standard_input(problems: Problems) -> Iterator[tuple[str | Path, Settings]]:
    """Return place and settings of each configuration in standard input, which is YAML, JSON or CSV."""
    try:
        text = read_text(STANDARD_INPUT)
    except UnicodeDecodeError as error:
        raise UserError(f"standard input: not text: {not_utf8(error)}") from None
    try:
        content = load(text, "standard input") if len(text) <= _MOST_BYTES else None
    except UserError:
        if text.lstrip()[:1] in ("{", "["):
            raise
        content = None
    if isinstance(content, dict | list):
        return _settings_of_tree(STANDARD_INPUT, content, problems)
    rows = cells_of(STANDARD_INPUT, *parse_csv(text, STANDARD_INPUT, Configuration.model_fields))
    return _settings_of_rows(STANDARD_INPUT, rows, problems)


def _settings_of_rows(
    source: Path, rows: Iterable[tuple[int, dict[str, Any]]], problems: Problems
) -> Iterator[tuple[str | Path, Settings]]:
    """Yield place and settings of the rows of a CSV file."""
    for line, row in rows:
        where = f"{source}: line {line}"
        if settings := problems.call(parse, Configuration, row, where):
            yield where, settings


def _settings_of_tree(source: Path, content: Any, problems: Problems) -> Iterator[tuple[str | Path, Settings]]:
    """Yield place and settings of the content of YAML or JSON: one configuration, a list of them, or a study."""
    if isinstance(content, dict) and "sweeps" in content:
        for settings in expand(parse(Study, content, source), source):
            yield source, settings
        return
    for number, row in enumerate(content if isinstance(content, list) else [content], 1):
        place = f"{source}: row {number}" if isinstance(content, list) else source
        if not isinstance(row, dict):
            problems.add(UserError(f"{place}: expected a mapping of keys to values, found {kind_of(row)}"))
        elif configuration := problems.call(parse, Configuration, row, place):
            yield place, configuration


def read_cells(source: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield line number and values of the rows of a CSV file; blank cells give no value.

    Cells are parsed as YAML, except those of `_TEXT_COLUMNS`.

    Raises:
        UserError: If the file cannot be read, has a column twice, or a row has more or fewer cells than the header.
    """
    yield from cells_of(source, *read_csv(source, Configuration.model_fields))


def cells_of(source: Path, header: Sequence[str], rows: Rows) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield line number and values of the rows of a CSV file that is already read, as `read_cells`."""
    values: dict[str, Any] = {}
    if twice := next((name for name in header if header.count(name) > 1), None):
        raise UserError(f"{source}: column {twice!r} is there {header.count(twice)} times; keep one")
    if "gpu" in header and "cluster" not in header:
        raise UserError(
            f"{source}: has column 'gpu' and no 'cluster'; give --published to read a table of published results"
        )
    for line, row in rows:
        where = f"{source}: line {line}"
        if len(row) != len(header):
            raise UserError(f"{where}: {len(row)} cells, the header has {len(header)}; write [3, 5] within quotes")
        cells = dict(zip(header, row, strict=True))
        for name, text in cells.items():
            if name not in _TEXT_COLUMNS and text not in values:
                values[text] = load(text, f"{where}: {name}", "a value")
        row_values = {
            name: text.strip() or None if name in _TEXT_COLUMNS else values[text] for name, text in cells.items()
        }
        yield line, {name: value for name, value in row_values.items() if value is not None}
