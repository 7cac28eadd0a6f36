"""Python interface: results, traces and simulated runs as pandas tables with units (`docs/library.md`)."""

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from triplepoint.errors import UserError, nearest
from triplepoint.status import Status
from triplepoint.tables.reference import FILES_OF_RUN
from triplepoint.tables.results import RESULT_TABLES
from triplepoint.tables.schema import Table

if TYPE_CHECKING:
    import pyarrow as pa

    from triplepoint.manifest import Manifest

_TELEMETRY = "telemetry.parquet"
_FILES = {table.name: path for path, table in FILES_OF_RUN.items() if path.endswith(".parquet")}
"""File of each table of a run, by name of the table."""
_OF_RUN = {table.name: table for path, table in FILES_OF_RUN.items() if path.endswith(".parquet")}


class Tables(Mapping[str, pd.DataFrame]):
    """Tables by name; each is read on first use and kept.

    `tables["points"]` and `tables.points` are the same: a pandas table whose `attrs["units"]` has the unit of each
    column, '1' for counts and ratios and '' for text. A null of a table is NaN, None or NA.
    """

    def __init__(self, schemas: Mapping[str, Table], read: "Callable[[str], pa.Table]", where: str) -> None:
        """Read no table yet.

        Args:
            schemas: Schema of each table, by name.
            read: Reads the table of a name; called once for each table.
            where: Source of the tables, for errors.
        """
        self._schemas, self._read, self._where = dict(schemas), read, where
        self._kept: dict[str, pd.DataFrame] = {}

    def __getitem__(self, name: str) -> pd.DataFrame:
        """Return a table. Raises `UserError` if there is no such table, or its file is missing or damaged."""
        if name not in self._kept:
            units = self.units(name)
            table = self._read(name).to_pandas()
            table.attrs["units"] = units
            self._kept[name] = table
        return self._kept[name]

    def __getattr__(self, name: str) -> pd.DataFrame:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self[name]
        except UserError as error:
            if name in self._schemas:
                raise
            raise AttributeError(str(error)) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._schemas)

    def __len__(self) -> int:
        return len(self._schemas)

    def __contains__(self, name: object) -> bool:
        return name in self._schemas

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._schemas]

    def __repr__(self) -> str:
        return f"<tables of {self._where}: {', '.join(self)}>"

    def units(self, name: str) -> dict[str, str]:
        """Return the unit of each column of a table. Raises `UserError` if there is no such table."""
        return {column.name: column.unit for column in self._schema(name).columns}

    def describe(self, name: str) -> pd.DataFrame:
        """Return type, unit and meaning of each column of a table. Raises `UserError` if there is no such table."""
        columns = self._schema(name).columns
        rows = [(column.type, column.unit, column.about) for column in columns]
        index = pd.Index([column.name for column in columns], name="column")
        return pd.DataFrame(rows, columns=["type", "unit", "meaning"], index=index)

    def _schema(self, name: str) -> Table:
        if name not in self._schemas:
            raise UserError(f"{self._where}: no table {name!r}{nearest(name, self._schemas)}")
        return self._schemas[name]


class Run(Tables):
    """A run: its status and its tables. A table that was not made yet is made on first use by the stages it needs."""

    def __init__(self, folder: Path, keep: object = None) -> None:
        """Read nothing yet.

        Args:
            folder: Folder of the run, with `raw/`.
            keep: Object that must live as long as the run, such as a temporary folder.
        """
        super().__init__(_OF_RUN, self._table, str(folder))
        self._folder, self._keep = folder, keep

    @property
    def folder(self) -> Path:
        """Folder of the run."""
        return self._folder

    @cached_property
    def manifest(self) -> "Manifest":
        """Manifest of the launch. Raises `UserError` if it is missing or damaged."""
        from triplepoint.manifest import read_manifest

        return read_manifest(self._folder / "raw" / "manifest.json")

    @property
    def status(self) -> Status:
        """Status of the run: ok, oom, invalid, or a kind of failure."""
        return self.manifest.status

    @property
    def evidence(self) -> str | None:
        """Evidence for the status; None if it is ok."""
        return self.manifest.evidence.message if self.manifest.evidence else None

    def _table(self, name: str) -> "pa.Table":
        path = self._folder / _FILES[name]
        if not path.exists() and self.status != Status.OK:
            raise UserError(f"{self._folder.name}: no table {name}: the run ended {self.status}: {self.evidence}")
        if not path.exists() and not _FILES[name].startswith("raw/"):
            self._make(name)
        return _OF_RUN[name].read(path)

    def _make(self, name: str) -> None:
        """Run the stages that write a table."""
        if not (self._folder / _TELEMETRY).exists():
            from triplepoint.telemetry.align import align_run

            align_run(self._folder / "raw", self._folder / _TELEMETRY)
        if _FILES[name] != _TELEMETRY:
            from triplepoint.trace.run_traces import trace_run
            from triplepoint.trace.taxonomy import load_scheme

            trace_run(self._folder, load_scheme(), _quiet)


class Results(Tables):
    """Results of studies: their joined tables with each run once, and the runs."""

    def __init__(self, folder: Path, studies: tuple[str, ...]) -> None:
        """Read nothing yet.

        Args:
            folder: Folder of runs and tables.
            studies: Names of the studies.
        """
        from triplepoint.tables.studies import read_joined

        super().__init__(RESULT_TABLES, lambda name: read_joined(folder, studies, name), f"{folder}")
        self._folder, self._studies = folder, studies

    @property
    def studies(self) -> tuple[str, ...]:
        """Names of the studies whose tables are joined."""
        return self._studies

    @property
    def runs(self) -> tuple[str, ...]:
        """Run ids, in the order of table `points`."""
        return tuple(self["points"]["run"])

    def run(self, name: str) -> Run:
        """Return a run. Raises `UserError` if no run of this name was launched or simulated."""
        folder = self._folder / "runs" / name
        if not (folder / "raw" / "manifest.json").is_file():
            known = [path.parent.parent.name for path in self._folder.glob("runs/*/raw/manifest.json")]
            hint = nearest(name, known)  # lists all names if none is similar; that is too long for many runs
            raise UserError(f"{self._folder}: no run {name!r}{hint if len(known) < 5 or 'mean' in hint else ''}")
        return Run(folder)


def load(results: str | Path = "results", studies: str | Iterable[str] | None = None) -> Results:
    """Return the results of studies; each table is read on first use.

    Args:
        results: Folder of runs and tables.
        studies: Name of a study, or several names; None for all studies with tables.

    Raises:
        UserError: If the folder has no tables, or none of a named study.
    """
    folder = Path(results)
    known = sorted(path.parent.name for path in folder.glob("tables/*/points.parquet"))
    if not known:
        raise UserError(f"{folder}: no tables of any study; make them with 'snakemake', or name another folder")
    if not isinstance(studies, str | Iterable | None):
        raise UserError(f"load: studies: expected a name or a list of names, found one {type(studies).__name__}")
    chosen = tuple(known) if studies is None else (studies,) if isinstance(studies, str) else tuple(studies)
    for study in chosen:
        if study not in known:
            raise UserError(f"{folder}: no tables of a study {study!r}{nearest(study, known)}")
    return Results(folder, chosen)


class Trace(Tables):
    """Tables of the traces of one job, and a summary."""

    def __init__(self, folder: Path, summary: str, keep: object = None) -> None:
        """Read no table yet.

        Args:
            folder: Folder of the tables.
            summary: Summary of the traces.
            keep: Object that must live as long as the tables, such as a temporary folder.
        """
        schemas = {name: _OF_RUN[name] for name in _OF_RUN if (folder / f"{name}.parquet").is_file()}
        super().__init__(schemas, lambda name: _OF_RUN[name].read(folder / f"{name}.parquet"), str(folder))
        self._folder, self._summary, self._keep = folder, summary, keep

    @property
    def folder(self) -> Path:
        """Folder of the tables, and of `perfetto.json.gz`."""
        return self._folder

    @property
    def summary(self) -> str:
        """Summary of the traces, as `triplepoint trace` prints it."""
        return self._summary


def trace(
    traces: str | Path | Iterable[str | Path],
    out: str | Path | None = None,
    *,
    scheme: str = "default",
    rules: str | Path | None = None,
    num_jobs: int | None = 1,
) -> Trace:
    """Return the tables of the traces of one job: kernels, intervals, collectives, ranks, critical path, timeline.

    Args:
        traces: Trace file or folder, or several; one file per rank.
        out: Folder to write the tables to; None for a temporary folder that is removed with the result.
        scheme: Classes to sort kernels into: a key of `triplepoint.trace.taxonomy.SCHEMES`.
        rules: YAML file of rules that are tried before those of the scheme.
        num_jobs: Number of processes that parse; None for one per core. A script that starts more than one must call
            this below `if __name__ == "__main__":`.

    Raises:
        UserError: If there are no traces, a trace cannot be read or has no rank, or two traces have the same rank.
    """
    from triplepoint.trace.loose_traces import trace_files
    from triplepoint.trace.taxonomy import load_scheme

    files = [Path(traces)] if isinstance(traces, str | Path) else [Path(file) for file in traces]
    if not files:
        raise UserError("trace: no traces; name files, or folders of them")
    keep = tempfile.TemporaryDirectory(prefix="triplepoint-") if out is None else None
    folder = Path(out if keep is None else keep.name)  # type: ignore[arg-type]
    chosen = load_scheme(scheme, None if rules is None else Path(rules))
    summary = trace_files(files, folder, chosen, _quiet, num_jobs=num_jobs).summary
    return Trace(folder, summary, keep)


def simulate(point: Mapping[str, object], config: str | Path = "config", out: str | Path | None = None) -> Run:
    """Simulate one configuration and return the run, with the files of a launch, traces and telemetry.

    Args:
        point: Settings by name, as for `predict` (docs/config.md); without `stack` and `engine`.
        config: Folder of the configuration.
        out: Folder of results in which `runs/<run>` is written; None for a temporary folder that is removed with the
            result.

    Returns:
        The run. A run that does not fit in memory, or is invalid, has that status and no tables.

    Raises:
        UserError: If a setting is unknown or wrong, or the configuration is wrong.
    """
    from triplepoint.config.base import parse
    from triplepoint.config.catalogue import Catalogue
    from triplepoint.files import atomic_folder, write_text
    from triplepoint.plan import plan_point
    from triplepoint.predictions import Configuration, request_of
    from triplepoint.simulate.artefacts.simulate_run import simulate_run

    if not isinstance(point, Mapping):
        raise UserError(f"simulate: expected a mapping of settings, found one {type(point).__name__}")
    catalogue = Catalogue(Path(config))
    settings = parse(Configuration, dict(point), "point")
    if settings.stack or settings.engine != "simulated":
        raise UserError("simulate: 'stack' and 'engine' are of predictions and launches; leave them out")
    request = request_of(settings, "point", 1, catalogue)
    planned = plan_point(request.point, catalogue.cluster(request.point.cluster.name))
    keep = tempfile.TemporaryDirectory(prefix="triplepoint-") if out is None else None
    folder = Path(out if keep is None else keep.name) / "runs" / planned.run  # type: ignore[arg-type]
    write_text(folder / "point.json", planned.model_dump_json(indent=2) + "\n")
    with atomic_folder(folder / "raw") as raw:
        simulate_run(planned, raw, Path(config))
    return Run(folder, keep)


def _quiet(line: str) -> None:
    """Discard a line of progress."""
