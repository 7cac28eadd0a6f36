"""`triplepoint trace FILES|FOLDER --out DIR`, or `--run RUN` for a run of the pipeline."""

import argparse
from pathlib import Path

from triplepoint.cli.arguments import add_results, make_parser, run_folder, say
from triplepoint.errors import UserError


def parser() -> argparse.ArgumentParser:
    """Return the subcommand's parser."""
    made = make_parser("trace", "Parse Kineto traces, one per rank: kernels, intervals and a timeline.")
    made.add_argument("traces", nargs="*", type=Path, metavar="FILE|FOLDER", help="traces, or folders of them")
    made.add_argument("--out", type=Path, metavar="DIR", help="folder for the tables")
    made.add_argument("--run", metavar="RUN", help="a run of the pipeline instead of loose traces")
    add_results(made)
    return made


def run(arguments: argparse.Namespace) -> None:
    """Parse the traces of a run, or loose files."""
    if bool(arguments.run) == bool(arguments.traces):
        raise UserError("trace: name either traces with --out DIR, or a run with --run RUN")
    if arguments.run:
        _trace_run(run_folder(arguments))
    elif arguments.out is None:
        raise UserError("trace: --out DIR is missing; the tables need a folder")
    else:
        _trace_files(arguments.traces, arguments.out)


def _trace_run(folder: Path) -> None:
    from triplepoint.manifest import read_manifest
    from triplepoint.trace.tables import trace_run

    manifest = read_manifest(folder / "raw" / "manifest.json")
    trace_run(folder / "raw", folder, say, allow_empty=manifest.status != "ok")


def _trace_files(traces: list[Path], out: Path) -> None:
    from triplepoint.trace.tables import summarise, trace_files

    print(summarise(trace_files(traces, out, say)))
