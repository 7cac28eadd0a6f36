"""Traces of runs as Chakra execution traces, for simulators such as ASTRA-sim."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from triplepoint.errors import UserError
from triplepoint.exports.runs import ExportedRun
from triplepoint.trace.chakra.export import write_rank
from triplepoint.trace.parsing import find_run_traces
from triplepoint.trace.taxonomy import Scheme


def write(study: str, runs: Sequence[ExportedRun], results: Path, target: Path, scheme: Scheme) -> list[Path]:
    """Write `TARGET/<run>/chakra.<rank>.et` of every run that has traces; return the folders.

    Args:
        study: Name of the study.
        runs: Its runs.
        results: Folder of runs and tables.
        target: Folder to write into.
        scheme: Rules of the taxonomy, which say what communicates.

    Raises:
        UserError: If no run has a trace, or one cannot be read or has no work of a GPU.
    """
    folders = list[Path]()
    with tempfile.TemporaryDirectory() as scratch:
        for run in runs:
            files = find_run_traces(results / "runs" / run.run / "raw" / "traces")
            for index, file in enumerate(files):
                place = Path(scratch) / f"{len(folders)}-{index}"
                place.mkdir()
                write_rank(file, target / run.run, scheme, place)
            if files:
                folders.append(target / run.run)
    if not folders:
        raise UserError(
            f"export: no run of {study} has traces (in {results}/runs/<run>/raw/traces); profile steps, or name a "
            "study whose runs have profiled steps"
        )
    return folders
