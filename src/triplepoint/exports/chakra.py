"""Export traces as Chakra execution traces, for simulators such as ASTRA-sim."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from triplepoint.errors import UserError
from triplepoint.trace.chakra.export import write_rank
from triplepoint.trace.parsing import find_run_traces
from triplepoint.trace.taxonomy import Scheme


def write(
    name: str,
    runs: Sequence[str],
    results: Path,
    target: Path,
    scheme: Scheme,
    say: Callable[[str], None] = lambda line: None,
) -> list[Path]:
    """Write `TARGET/<run>/chakra.<rank>.et` for every run that has traces.

    Args:
        name: Name of the study or run.
        runs: Ids of its runs.
        results: Folder of runs and tables.
        target: Folder to write to.
        scheme: Rules of the taxonomy, which tell communication from computation.
        say: Called with a line on progress.

    Returns:
        The folder of each exported run.

    Raises:
        UserError: If no run has a trace, or a trace cannot be read or has no GPU work.
    """
    traces = [(run, file) for run in runs for file in find_run_traces(results / "runs" / run / "raw" / "traces")]
    if not traces:
        raise UserError(
            f"export: no run of {name} has traces (in {results}/runs/<run>/raw/traces); profile steps, or name a "
            "study or run that has profiled steps"
        )
    with tempfile.TemporaryDirectory() as scratch:
        for index, (run, file) in enumerate(traces):
            say(f"export: {index} of {len(traces)} traces")
            rank_scratch = Path(scratch) / str(index)
            rank_scratch.mkdir()
            write_rank(file, target / run, scheme, rank_scratch)
    return [target / run for run in dict.fromkeys(run for run, _ in traces)]
