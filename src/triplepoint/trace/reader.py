"""Reader of traces: Kineto's, Nsight Systems' and rocprof's by how they begin, Chakra's by their names."""

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
from triplepoint.trace.profilers.database import MAGIC, Database, opened
from triplepoint.trace.profilers.emitter import Emitter

_HEAD_BYTES = 4096
_DATABASES = {nsight.KNOWN_BY: nsight, rocpd.ROCPD: rocpd, rocpd.RPD: rocpd, rocpd.RESULTS: rocpd}
"""Table that tells whose database it is, and its reader."""


def read_parts(path: Path) -> list[Part]:
    """Return what of a trace of another profiler is the trace of one rank each.

    Those of Kineto and of Chakra have no parts: each is the trace of one rank.

    Raises:
        UserError: If the file is missing, is of no known layout, or nothing in it ran on a GPU.
    """
    if is_chakra(path):
        return []
    start = head(path, _HEAD_BYTES)
    found: list[Part] = []
    if start.startswith(MAGIC):
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise UserError(f"{path.name}: a packed SQLite file; unpack it first")
        with opened(path) as database:
            found = _reader(database).parts(database)
    elif rocprof_json.JSON_START.match(start):
        found = rocprof_json.parts(_document(path))
    elif rocprof_csv.is_kernel_csv(start):
        found = rocprof_csv.parts(path)
    else:
        return []
    if not found:
        raise UserError(f"{path.name}: no work of a GPU in it; record it with 'nsys --trace=cuda' or 'rocprofv3 -r'")
    return found


def _reader(database: Database) -> ModuleType:
    for table, reader in _DATABASES.items():
        if table in database.tables:
            return reader
    some = ", ".join(sorted(database.tables)[:3]) or "none"
    raise UserError(
        f"{database.path.name}: a SQLite file of no known profiler (tables: {some}); expected one of 'nsys export "
        "--type sqlite', rocprofv3 or rocmProfileData"
    )


def _document(path: Path) -> rocprof_json.Document:
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
    """Read one trace, or the part of one rank of a trace of many.

    Args:
        path: Trace of any profiler.
        sink: Called with arrays of `ROW` and of `LAUNCH`, as `read_kineto` does.
        part: One of `read_parts`; None for a trace of Kineto or Chakra.
        host: Of a trace of Kineto, give operators on the CPU too.
        streams: Of a trace of Kineto, give every event that carries a stream or a correlation.
        progress: Called now and then with what was read so far.

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
        with opened(path) as database:
            facts: Facts = _reader(database).read(database, part, emitter)
            return facts
    if rocprof_json.JSON_START.match(start):
        return rocprof_json.read(_document(path), part, emitter)
    return rocprof_csv.read(path, part, emitter)


def read_counters(path: Path, part: Part) -> list[Counter]:
    """Return what the profiler sampled of the GPU of a part: clocks, power, activity."""
    if not head(path, len(MAGIC)).startswith(MAGIC):
        return []
    with opened(path) as database:
        found: list[Counter] = _reader(database).counters(database, part)
        return found
