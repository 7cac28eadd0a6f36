"""Read traces of any profiler. The format follows from the first bytes of a file, for Chakra from its name."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from triplepoint.errors import UserError
from triplepoint.trace.chakra.files import is_chakra
from triplepoint.trace.chakra.rows import read_chakra
from triplepoint.trace.kineto.reader import Header, Sink
from triplepoint.trace.kineto.reader import read_trace as read_kineto
from triplepoint.trace.kineto.source import Source, head
from triplepoint.trace.profilers import Counter, Facts, Part, nsight, rocpd, rocprof_csv, rocprof_json
from triplepoint.trace.profilers.database import MAGIC, Database, open_database
from triplepoint.trace.profilers.emitter import Emitter

_HEAD_BYTES = 4096
_DATABASES = {nsight.KNOWN_BY: nsight, rocpd.ROCPD: rocpd, rocpd.RPD: rocpd, rocpd.RESULTS: rocpd}
"""Reader of a SQLite file, by a table that only this profiler's files have."""


def read_parts(path: Path) -> list[Part]:
    """Return the parts of a file that are the trace of one rank each; none for Kineto and Chakra, with one rank a file.

    Raises:
        UserError: If the file is missing, has no known layout, or has no GPU work.
    """
    if is_chakra(path):
        return []
    start = head(path, _HEAD_BYTES)
    parts: list[Part] = []
    if start.startswith(MAGIC):
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise UserError(f"{path.name}: a packed SQLite file; unpack it first")
        with open_database(path) as database:
            parts = _database_reader(database).parts(database)
    elif rocprof_json.JSON_START.match(start):
        parts = rocprof_json.parts(_read_json(path))
    elif rocprof_csv.is_kernel_csv(start):
        parts = rocprof_csv.parts(path)
    else:
        return []
    if not parts:
        raise UserError(f"{path.name}: no work of a GPU in it; record it with 'nsys --trace=cuda' or 'rocprofv3 -r'")
    return parts


def _database_reader(database: Database) -> ModuleType:
    for table, reader in _DATABASES.items():
        if table in database.tables:
            return reader
    some_tables = ", ".join(sorted(database.tables)[:3]) or "none"
    raise UserError(
        f"{database.path.name}: a SQLite file of no known profiler (tables: {some_tables}); expected one of 'nsys "
        "export --type sqlite', rocprofv3 or rocmProfileData"
    )


def _read_json(path: Path) -> rocprof_json.Document:
    return rocprof_json.decode(path, b"".join(Source(path).unpacked()))


def read_trace(
    path: Path,
    sink: Sink,
    part: Part | None = None,
    *,
    host: bool = False,
    streams: bool = False,
    progress: Callable[[str], None] = lambda line: None,
) -> Header:
    """Read the trace of one rank.

    Args:
        path: Trace of any profiler.
        sink: Called with arrays of `ROW` and of `LAUNCH`, as by `read_kineto`.
        part: Part of the file from `read_parts`; None for a trace of Kineto or Chakra.
        host: Whether to include operators on the CPU of a Kineto trace.
        streams: Whether to include every event of a Kineto trace that has a stream or a correlation.
        progress: Receives progress, a line at a time.

    Raises:
        UserError: If the file is missing or damaged.
    """
    if part is None and is_chakra(path):
        return read_chakra(path, sink, progress)
    if part is None:
        return read_kineto(path, sink, host=host, streams=streams, progress=progress)
    emitter = Emitter(sink, lambda count: progress(f"{path.name}: {count} events"))
    facts = _read_part(path, part, emitter)
    return Header(
        path=path,
        rank=part.rank,
        base_ns=facts.base_ns,
        metadata=facts.metadata,
        names=emitter.names,
        messages=[],
        geometries=emitter.geometries,
        num_events=emitter.num_events,
        num_damaged=emitter.num_damaged,
        is_truncated=False,
    )


def _read_part(path: Path, part: Part, emitter: Emitter) -> Facts:
    start = head(path, _HEAD_BYTES)
    if start.startswith(MAGIC):
        with open_database(path) as database:
            facts: Facts = _database_reader(database).read(database, part, emitter)
            return facts
    if rocprof_json.JSON_START.match(start):
        return rocprof_json.read(_read_json(path), part, emitter)
    return rocprof_csv.read(path, part, emitter)


def read_counters(path: Path, part: Part) -> list[Counter]:
    """Return the profiler's samples of the part's GPU: clocks, power, activity; empty if the format has none."""
    if not head(path, len(MAGIC)).startswith(MAGIC):
        return []
    with open_database(path) as database:
        counters: list[Counter] = _database_reader(database).counters(database, part)
        return counters
