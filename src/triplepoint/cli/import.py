"""`triplepoint import FOLDER`: make a run from recordings of other tools."""

import argparse
import gc
import re
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triplepoint.cli.answer import Answer
from triplepoint.cli.arguments import (
    add_config,
    add_job,
    add_results,
    in_file,
    make_parser,
    read_settings,
    seconds,
    whole_number,
)
from triplepoint.cli.progress import Progress
from triplepoint.errors import UserError

if TYPE_CHECKING:
    from triplepoint.importers.run import Imported

_MOST_LISTED = 12
_EXAMPLES = (
    "triplepoint import ~/runs/llama70b",
    "triplepoint import logs --describe job.yaml --steps steps.csv --timezone Europe/Berlin",
    "triplepoint import power.csv --map map.yaml",
    "zstd -dc smi.csv.zst | triplepoint import -",
)
_ANSWER = {
    "run": "name of the run",
    "hosts": "by host: GPUs, samples, period, times, columns",
    "num_traces": "traces copied",
    "steps": "steps of a rank by kind",
    "formats": "files by format",
    "shows": "what the sensors can and cannot show",
    "notes": "what was corrected in files or left out of them",
    "left_out": "columns not taken, and why",
    "others": "files not read",
}


def parser() -> argparse.ArgumentParser:
    """Return the subcommand's parser."""
    parser = make_parser(
        "import",
        "Turn a folder of recordings into a run: telemetry of nvidia-smi, DCGM, Prometheus, rocm-smi, amd-smi, "
        "Omnistat, "
        "WattAMeter, Zeus or any CSV, and traces of Kineto, Nsight Systems or rocprof. Formats are recognised by the "
        "content of the files. See docs/import.md.",
        _EXAMPLES,
        answer=_ANSWER,
    )
    parser.add_argument(
        "folder",
        type=Path,
        metavar="FOLDER",
        help="folder with the recordings of one job, or one file; - for standard input",
    )
    add_job(parser, "job")
    parser.add_argument(
        "--steps", type=in_file, metavar="CSV", help="steps of the job: columns step, start, end (default: none)"
    )
    parser.add_argument(
        "--log", type=in_file, metavar="FILE", help="training log whose lines mark steps, with times (default: none)"
    )
    parser.add_argument(
        "--step-pattern",
        metavar="NAME|REGEX",
        help="lines of --log that end a step: megatron, torchtitan, ... (no default)",
    )
    parser.add_argument(
        "--map", type=in_file, metavar="FILE", help="YAML that names the columns of CSV files (default: none)"
    )
    _add_clocks(parser)
    _add_places(parser)
    parser.add_argument(
        "--query-gpu", metavar="LIST", help="columns of nvidia-smi CSV files without a header (no default)"
    )
    parser.add_argument("--skip-bad", action="store_true", help="leave out lines that have too few or too many cells")
    add_config(parser)
    add_results(parser)
    return parser


def _add_clocks(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--timezone",
        metavar="ZONE",
        help="zone of times without one: Europe/Berlin, UTC, +08:00 (default: found by the traces and steps, else UTC)",
    )
    parser.add_argument(
        "--offset",
        action="append",
        default=[],
        metavar="[HOST=]S",
        help="seconds to add to a host's clock; repeatable (default: none)",
    )
    parser.add_argument(
        "--start", metavar="TIME", help="time of the first sample, for recordings without times (no default)"
    )
    parser.add_argument(
        "--period",
        type=seconds(0.001, 3600),
        metavar="S",
        help="seconds between samples, for recordings without times (no default)",
    )


def _add_places(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--hosts", metavar="LIST", help="hosts in the order of ranks (default: sorted by name)")
    parser.add_argument(
        "--host-pattern",
        metavar="REGEX",
        help="finds the host in a file's path, as its group (default: by column, folder or file name)",
    )
    parser.add_argument(
        "--gpus", metavar="LIST", help="GPUs of each host that worked for the job: 0-3,6 (default: all)"
    )
    parser.add_argument(
        "--gpus-per-node",
        type=whole_number(),
        metavar="N",
        help="GPUs of a node, where files are named by rank alone (default: 8)",
    )


def run(arguments: argparse.Namespace) -> Answer:
    """Import the folder and report the run."""
    from triplepoint.files import temporary_folder
    from triplepoint.importers.declaration import ReadOptions
    from triplepoint.importers.folder import ImportOptions
    from triplepoint.importers.hosts import parse_offsets
    from triplepoint.importers.run import Job, import_folder
    from triplepoint.importers.times import find_zone
    from triplepoint.trace.pipes import spool_pipes

    gc.disable()  # it would go through millions of cells, none of them in a cycle, again and again
    if arguments.timezone:
        find_zone(arguments.timezone)
    catalogue, described = _describe(arguments)
    query = tuple(_listed(arguments.query_gpu))
    options = ImportOptions(
        mapping=arguments.map,
        timezone=arguments.timezone,
        offsets=parse_offsets(arguments.offset),
        start=arguments.start,
        period_s=arguments.period,
        hosts=tuple(_listed(arguments.hosts)),
        host_pattern=arguments.host_pattern,
        read_options=ReadOptions(query, arguments.gpus_per_node, arguments.skip_bad),
    )
    job = Job(described, _numbers(arguments.gpus), *_steps(arguments), study=arguments.study)
    with Progress("looking at files") as progress, temporary_folder("triplepoint-import-") as scratch:
        (folder,) = spool_pipes([arguments.folder], scratch / "pipes", progress)
        try:
            imported = import_folder(folder, arguments.results, job, options, catalogue, progress)
        except UserError as error:
            raise UserError(str(error).replace(str(folder), str(arguments.folder))) from None
    return Answer(asdict(imported), "\n".join(_lines(imported, arguments.results)))


def _describe(arguments: argparse.Namespace) -> tuple[Any, Any]:
    """Return the catalogue of the configuration, None without one, and the description of the job."""
    from triplepoint.config.catalogue import Catalogue
    from triplepoint.recorded.description import read_description

    catalogue = Catalogue(arguments.config) if arguments.config.is_dir() else None
    settings = read_settings(arguments.set, "import") | ({"name": arguments.name} if arguments.name else {})
    return catalogue, read_description(arguments.describe, settings, catalogue)


def _steps(arguments: argparse.Namespace) -> tuple[Path | None, Path | None, str]:
    """Return the source of steps: a CSV, or a log with its pattern."""
    if (arguments.log is None) != (arguments.step_pattern is None):
        raise UserError(
            "import: --log and --step-pattern are needed together: the log file, and the lines in it that end a step"
        )
    if arguments.log is not None and arguments.steps is not None:
        raise UserError("import: --steps and --log both give the steps; leave one out")
    return arguments.steps, arguments.log, arguments.step_pattern or ""


def _listed(text: str | None) -> list[str]:
    """Return the words of a list with commas."""
    return [word.strip() for word in (text or "").split(",") if word.strip()]


def _numbers(text: str | None) -> tuple[int, ...]:
    """Return the GPUs in an argument such as `0-3,6`. Raises `UserError` for another form."""
    numbers: list[int] = []
    for word in _listed(text):
        match = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", word)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise UserError(f"import: --gpus {text!r}: expected numbers such as 0-3,6")
        numbers += range(int(match[1]), int(match[2] or match[1]) + 1)
    return tuple(numbers)


def _lines(imported: "Imported", results: Path) -> list[str]:
    """Return the report as text: first the run, and the command that explains it."""
    from triplepoint.recorded.run import sum_up
    from triplepoint.units import counted

    folder = results / "runs" / imported.run
    lines = [f"imported as {folder}: {sum_up(folder)}", f"why it is slow: triplepoint why {shlex.quote(str(folder))}"]
    sampled = [host for host in imported.hosts if host["num_samples"]]
    for host in sampled[:_MOST_LISTED]:
        gpus = counted(host["num_gpus"], "GPU")
        samples = f"{counted(host['num_samples'], 'sample')}, each device every {host['period_s']:.3g} s"
        columns = ", ".join(host["columns"])
        lines.append(f"{host['host']}: {gpus}, {samples}, {host['start']} to {host['end']}: {columns}")
    if len(sampled) > _MOST_LISTED:
        lines.append(f"and {len(sampled) - _MOST_LISTED} more hosts: --json lists them all")
    if silent := [host["host"] for host in imported.hosts if not host["num_samples"]]:
        lines.append(f"without telemetry: {counted(len(silent), 'host')}, {_some(silent)}")
    steps = (
        ", ".join(f"{num} {kind}" for kind, num in imported.steps.items())
        or "none, so the whole recording is one window"
    )
    lines.append(f"traces: {imported.num_traces}; steps: {steps}")
    lines += [f"note: {note}" for note in imported.notes[:_MOST_LISTED]]
    if len(imported.notes) > _MOST_LISTED:
        lines.append(f"note: {len(imported.notes) - _MOST_LISTED} more; --json lists them all")
    lines += [f"shows: {line}" for line in imported.shows]
    if imported.left_out:
        lines.append(f"left out: {_some([f'{name} ({why})' for name, why in imported.left_out.items()])}")
    if imported.others:
        lines.append(f"not read, of no format that is known: {_some(imported.others)}")
    return lines


def _some(names: list[str]) -> str:
    """Return the first names as text, and the number of the others."""
    more = len(names) - _MOST_LISTED
    return ", ".join(names[:_MOST_LISTED]) + (f" and {more} more" if more > 0 else "")
