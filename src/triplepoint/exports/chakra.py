"""Export traces as Chakra execution traces, for simulators such as ASTRA-sim."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from triplepoint.errors import UserError
from triplepoint.exports.runs import ExportedRun
from triplepoint.trace.chakra.export import write_rank
from triplepoint.trace.parsing import find_run_traces
from triplepoint.trace.taxonomy import Scheme


def write(study: str, runs: Sequence[ExportedRun], results: Path, target: Path, scheme: Scheme) -> list[Path]:
    """Write `TARGET/<run>/chakra.<rank>.et` for every run that has traces.

    Args:
        study: Name of the study.
        runs: Its runs.
        results: Folder of runs and tables.
        target: Folder to write to.
        scheme: Rules of the taxonomy, which tell communication from computation.

    Returns:
        The folder of each exported run.

    Raises:
        UserError: If no run has a trace, or a trace cannot be read or has no GPU work.
    """
    folders: list[Path] = []
    with tempfile.TemporaryDirectory() as scratch:
        for run in runs:
            files = find_run_traces(results / "runs" / run.run / "raw" / "traces")
            for index, file in enumerate(files):
                rank_scratch = Path(scratch) / f"{len(folders)}-{index}"
                rank_scratch.mkdir()
                write_rank(file, target / run.run, scheme, rank_scratch)
            if files:
                folders.append(target / run.run)
    if not folders:
        raise UserError(
            f"export: no run of {study} has traces (in {results}/runs/<run>/raw/traces); profile steps, or name a "
            "study whose runs have profiled steps"
        )
    return folders
