"""Predictions of configurations written in a study's words: CSV, YAML or JSON, or a study."""

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
from triplepoint.errors import Problems, UserError
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
_MOST_BYTES = 64 << 20
"""Largest YAML or JSON that is read: 10,000 configurations have some 3 MB."""
_TEXTS = ("id", "stack")
"""Columns whose cells are text as they stand: an id may be 007, yes or 2024-01-02."""


class Configuration(Settings):
    """One configuration to predict: the settings of a study, and what only a prediction has."""

    engine: Engine = "simulated"
    """What trains; `simulated` is predicted as the software of the published study."""
    id: str | int | None = None
    """Key of the row in the output. None: its number."""
    stack: str | None = None
    """Software stack and version, such as `NeMo dgxc v25.04`. None: that of the engine. Where a row names one and no
    `context_exchange` or `lora_targets`, these are as the stack has them."""


@dataclass(frozen=True)
class Request:
    """One point to predict.

    Attributes:
        id: Key of its row in the output.
        where: Place it stands at in the file.
        point: The point, folded.
        stack: Software stack and version; None for that of its engine.
        invalid_because: Why it cannot run; None if it can.
    """

    id: str
    where: str | Path
    point: Point
    stack: str | None
    invalid_because: str | None

    def predict(self, config: Path, with_power: bool = True) -> Prediction:
        """Return its prediction, power and heat on request: see `predict_point`."""
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
    """Return predictions of configurations, in their order; of many, in as many processes as there are cores.

    Args:
        points: Settings of a study by name (docs/config.md), and `id` and `stack` as `triplepoint predict` has them; or
            a table of them, whose blank cells leave their key out.
        config: Folder of the configuration.
        with_power: Whether power and heat are wanted, which take most of the time.
        with_rank: Whether layouts of one training are ranked.

    Returns:
        Columns as `triplepoint predict --help` names them, NaN where there is nothing; `attrs["units"]` has the unit of
        each, '1' for ratios and '' for text.

    Raises:
        UserError: If a setting is not known or wrong, or the configuration is.
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
    found = on_all_cores(partial(Request.predict, config=config, with_power=with_power), requests, MANY_POINTS)
    ranked = rank(found, config) if with_rank else [{} for _ in found]
    columns = [*rows[0], *ranked[0], *COLUMNS] if rows else ["id", "run", *COLUMNS]
    table = [keys | more | one.cells() for keys, more, one in zip(rows, ranked, found, strict=True)]
    predicted = pd.DataFrame(table, columns=columns).apply(_numbers)
    if with_rank and rows:
        predicted["tied_with_first"] = predicted["tied_with_first"].map({"yes": True, "no": False})
    predicted.attrs["units"] = {name: _unit_of(name) for name in columns}
    return predicted


_UNITS = {
    "tokens_per_s_per_gpu": "token/s", "_per_token_j": "J/token", "_s": "s", "_w": "W", "_c": "degC", "_mhz": "MHz",
    "_gib": "GiB", "_fraction": "1", "mfu": "1", "rank": "1", "num_ranked": "1",
}  # fmt: skip
"""Unit of a column of predictions, by the end of its name without that of an interval."""


def _unit_of(name: str) -> str:
    bare = name.replace("_lo_", "_").replace("_hi_", "_")
    return next((unit for end, unit in _UNITS.items() if bare.endswith(end)), "")


def _numbers(column: "pd.Series[Any]") -> "pd.Series[Any]":
    """Return a column as numbers, NaN where nothing stands, where all that stands in it are numbers."""
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
    """Return the prediction of each point of a file by its id and run id, repeats once.

    Args:
        source: As `read_points`.
        config: Folder of the configuration.
        progress: Called with a line on how many rows are done.
        simulated: As `read_points`.
        with_power: Whether power and heat are wanted.

    Raises:
        UserError: As `read_points`.
    """
    read_calibrations(config)
    requests = with_progress(read_points(source, config, simulated), progress)
    return [(request.id, run_id(request.point), request.predict(config, with_power)) for request in requests]


def read_points(source: Path, config: Path, simulated: Collection[str] = ()) -> list[Request]:
    """Return the points of a file, checked as a plan checks them; those that are equal in a study are one.

    Args:
        source: CSV with a setting in each column, YAML or JSON with one configuration or a list of them, or a study.
        config: Folder of the configuration.
        simulated: Names of clusters whose points are those that `plan --simulated` simulates, whatever their engine.

    Raises:
        UserError: If the file cannot be read, a key or a value in it is no setting, two rows have one id, or the
            configuration is wrong.
    """
    catalogue = Catalogue(config)
    for name in simulated:
        catalogue.cluster(name)
    requests: dict[str, Request] = {}
    problems = Problems(source)
    for where, settings in _read_settings(source, problems):
        request = noted_request(problems, settings, where, len(requests) + 1, catalogue, simulated)
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


def noted_request(
    problems: Problems, settings: Settings, where: str | Path, number: int, catalogue: Catalogue, *others: Any
) -> Request | None:
    """Return what `request_of` does; None where model, cluster or both are refused, which is noted."""
    cluster = problems.call(catalogue.cluster, settings.cluster, where)
    model = problems.call(catalogue.model, settings.model, where)
    return problems.call(request_of, settings, where, number, catalogue, *others) if cluster and model else None


def request_of(
    settings: Settings, where: str | Path, number: int, catalogue: Catalogue, simulated: Collection[str] = ()
) -> Request:
    """Return the point that one configuration means; repeats are one.

    Args:
        settings: The configuration, or a point of a study.
        where: Place it stands at, for errors.
        number: Its number, which is its id where it has none.
        catalogue: The configuration.
        simulated: As `read_points`.

    Raises:
        UserError: If what it names is not known.
    """
    name, stack = str(number), None
    chosen = settings.chosen() if isinstance(settings, Configuration) else {}
    if isinstance(settings, Configuration):
        name, stack = name if settings.id in (None, "") else str(settings.id), settings.stack
    if stack:
        check_stack(stack, where, catalogue.folder)
        settings = _as_usual(settings, find_stack(stack, catalogue.folder))
    once = settings.model_copy(update={"repeats": 1})
    (point,) = points_of(once, catalogue, where, settings.cluster in simulated)
    reason = refusal_of(point, catalogue) or next(iter(without_effect(point, chosen).values()), None)
    return Request(name, where, point, stack, reason)


def _as_usual(settings: Settings, stack: Stack) -> Settings:
    """Return settings with what a stack does where they say nothing."""
    usual = {name: getattr(stack, name) for name in OF_STACK if name not in settings.model_fields_set}
    return settings.model_copy(update=usual)


def _read_settings(source: Path, problems: Problems) -> Iterator[tuple[str | Path, Settings]]:
    """Yield the settings of each configuration with the place they stand at, for errors; what is wrong is noted."""
    suffix = source.suffix.lower()
    if source == STANDARD_INPUT:
        yield from _of_standard_input(problems)
    elif suffix in _TABLES:
        yield from _of_cells(source, read_cells(source), problems)
    elif suffix in _TREES:
        yield from _of_tree(source, read_any(source, _MOST_BYTES), problems)
    else:
        known = ", ".join((*_TABLES, *_TREES))
        raise UserError(f"{source}: unknown kind of file {suffix!r}; expected a name that ends in one of {known}")


def _of_standard_input(problems: Problems) -> Iterator[tuple[str | Path, Settings]]:
    """Yield the settings in standard input: YAML or JSON if that is what it holds, else a table."""
    try:
        text = read_text(STANDARD_INPUT)
    except UnicodeDecodeError as error:
        raise UserError(f"standard input: not text: {error}") from None
    try:
        content = load(text, "standard input") if len(text) <= _MOST_BYTES else None
    except UserError:
        if text.lstrip()[:1] in ("{", "["):
            raise
        content = None
    if isinstance(content, dict | list):
        return _of_tree(STANDARD_INPUT, content, problems)
    rows = cells_of(STANDARD_INPUT, *parse_csv(text, STANDARD_INPUT, Configuration.model_fields))
    return _of_cells(STANDARD_INPUT, rows, problems)


def _of_cells(
    source: Path, rows: Iterable[tuple[int, dict[str, Any]]], problems: Problems
) -> Iterator[tuple[str | Path, Settings]]:
    for line, row in rows:
        where = f"{source}: line {line}"
        if settings := problems.call(parse, Configuration, row, where):
            yield where, settings


def _of_tree(source: Path, content: Any, problems: Problems) -> Iterator[tuple[str | Path, Settings]]:
    """Yield the settings of what YAML or JSON holds: one configuration, a list of them, or a study."""
    if isinstance(content, dict) and "sweeps" in content:
        for settings in expand(parse(Study, content, source), source):
            yield source, settings
        return
    for number, one in enumerate(content if isinstance(content, list) else [content], 1):
        place = f"{source}: row {number}" if isinstance(content, list) else source
        if not isinstance(one, dict):
            problems.add(UserError(f"{place}: expected a mapping of keys to values, found {type(one).__name__}"))
        elif configuration := problems.call(parse, Configuration, one, place):
            yield place, configuration


def read_cells(source: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows of a CSV with their lines, each cell read as YAML but for ids; a blank one leaves its key out.

    Raises:
        UserError: If the file cannot be read, a column stands twice, or a row has more or fewer cells than the header.
    """
    yield from cells_of(source, *read_csv(source, Configuration.model_fields))


def cells_of(source: Path, header: Sequence[str], rows: Rows) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows of a CSV that was read, as `read_cells`."""
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
            if name not in _TEXTS and text not in values:
                values[text] = load(text, f"{where}: {name}", "a value")
        read = {name: text.strip() or None if name in _TEXTS else values[text] for name, text in cells.items()}
        yield line, {name: value for name, value in read.items() if value is not None}
