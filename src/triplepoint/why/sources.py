"""What `triplepoint why` is asked about: a run, parsed or raw, loose traces, their tables, or a table of operations."""

from pathlib import Path

from triplepoint.compare.sides import Context, parsed_run, parsed_traces
from triplepoint.compare.subjects import find_subject, one_run
from triplepoint.errors import UserError
from triplepoint.why.answer import Answer, why_operations, why_run
from triplepoint.why.loose_traces import why_traces
from triplepoint.why.recorded_operations import is_operations_table


def why(word: str, context: Context) -> Answer:
    """Return why the job that a word means is slow.

    Args:
        word: What `triplepoint compare` takes: a run id or its beginning, the folder of a run, traces, `STUDY:POINT`;
            also a folder that `triplepoint trace --out` wrote, and a table of operations.
        context: What raw runs and traces are read with.

    Raises:
        UserError: If it means nothing or several runs, or what it means is incomplete or damaged.
    """
    path = Path(word)
    if path.suffix == ".parquet" or (path.is_file() and is_operations_table(path)):
        return why_operations(path)
    if (path / "timeline.parquet").is_file() and not (path / "point.json").is_file():
        return why_traces(path.resolve())
    subject = find_subject(word, context.results)
    if subject.traces:
        with parsed_traces(subject, context) as (tables, _):
            try:
                return why_traces(tables, subject.word)
            except UserError as error:
                raise UserError(str(error).replace(str(tables), subject.word)) from None
    return _why_raw(one_run(subject), context)


def _why_raw(run: Path, context: Context) -> Answer:
    """Return why a run is slow; its telemetry and traces are parsed in a scratch folder where that was not done yet."""
    has_traces = any((run / "raw" / "traces").glob("*"))
    note: tuple[str, ...] = ()
    if has_traces:
        try:
            with parsed_run(run, True, context) as parsed:
                return why_run(parsed, run.name)
        except UserError as error:
            if (run / "timeline.parquet").is_file():
                raise
            note = (f"traces are not used: {error}",)
    with parsed_run(run, False, context) as parsed:
        return why_run(parsed, run.name, note)
