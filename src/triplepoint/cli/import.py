"""`triplepoint import FOLDER`: make a run of recordings that other tools made."""

import argparse
import gc
import re
import shlex
import tempfile
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
    made = make_parser(
        "import",
        "Turn a folder of recordings into a run: telemetry of nvidia-smi, DCGM, Prometheus, rocm-smi, amd-smi, "
        "Omnistat, "
        "WattAMeter, Zeus or any CSV, and traces of Kineto, Nsight Systems or rocprof. Formats are recognised by the "
        "content of the files. See docs/import.md.",
        _EXAMPLES,
        answer=_ANSWER,
    )
    made.add_argument(
        "folder",
        type=Path,
        metavar="FOLDER",
        help="folder with the recordings of one job, or one file; - for standard input",
    )
    add_job(made, "job")
    made.add_argument(
        "--steps", type=in_file, metavar="CSV", help="steps of the job: columns step, start, end (default: none)"
    )
    made.add_argument(
        "--log", type=in_file, metavar="FILE", help="training log whose lines mark steps, with times (default: none)"
    )
    made.add_argument(
        "--step-pattern",
        metavar="NAME|REGEX",
        help="lines of --log that end a step: megatron, torchtitan, ... (no default)",
    )
    made.add_argument(
        "--map", type=in_file, metavar="FILE", help="YAML that names the columns of CSV files (default: none)"
    )
    _add_clocks(made)
    _add_places(made)
    made.add_argument(
        "--query-gpu", metavar="LIST", help="columns of nvidia-smi CSV files without a header (no default)"
    )
    made.add_argument("--skip-bad", action="store_true", help="leave out lines that have too few or too many cells")
    add_config(made)
    add_results(made)
    return made


def _add_clocks(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "--timezone",
        metavar="ZONE",
        help="zone of times without one: Europe/Berlin, UTC, +08:00 (default: found by the traces and steps, else UTC)",
    )
    made.add_argument(
        "--offset",
        action="append",
        default=[],
        metavar="[HOST=]S",
        help="seconds to add to a host's clock; repeatable (default: none)",
    )
    made.add_argument(
        "--start", metavar="TIME", help="time of the first sample, for recordings without times (no default)"
    )
    made.add_argument(
        "--period",
        type=seconds(0.001, 3600),
        metavar="S",
        help="seconds between samples, for recordings without times (no default)",
    )


def _add_places(made: argparse.ArgumentParser) -> None:
    made.add_argument("--hosts", metavar="LIST", help="hosts in the order of ranks (default: sorted by name)")
    made.add_argument(
        "--host-pattern",
        metavar="REGEX",
        help="finds the host in a file's path, as its group (default: by column, folder or file name)",
    )
    made.add_argument("--gpus", metavar="LIST", help="GPUs of each host that worked for the job: 0-3,6 (default: all)")
    made.add_argument(
        "--gpus-per-node",
        type=whole_number(),
        metavar="N",
        help="GPUs of a node, where files are named by rank alone (default: 8)",
    )


def run(arguments: argparse.Namespace) -> Answer:
    """Import the folder and say what came of it."""
    from triplepoint.importers.declaration import Asked
    from triplepoint.importers.folder import Wanted
    from triplepoint.importers.hosts import offsets_of
    from triplepoint.importers.run import Job, import_folder
    from triplepoint.importers.times import find_zone
    from triplepoint.trace.pipes import spool_pipes

    gc.disable()  # millions of cells that are in no cycle, walked again and again
    if arguments.timezone:
        find_zone(arguments.timezone)
    catalogue, described = _describe(arguments)
    query = tuple(_listed(arguments.query_gpu))
    wanted = Wanted(
        mapping=arguments.map,
        timezone=arguments.timezone,
        offsets=offsets_of(arguments.offset),
        start=arguments.start,
        period_s=arguments.period,
        hosts=tuple(_listed(arguments.hosts)),
        host_pattern=arguments.host_pattern,
        asked=Asked(query, arguments.gpus_per_node, arguments.skip_bad),
    )
    job = Job(described, _numbers(arguments.gpus), *_steps(arguments), study=arguments.study)
    with Progress("looking at files") as progress, tempfile.TemporaryDirectory() as scratch:
        (folder,) = spool_pipes([arguments.folder], Path(scratch) / "pipes", progress)
        try:
            done = import_folder(folder, arguments.results, job, wanted, catalogue, progress)
        except UserError as error:
            raise UserError(str(error).replace(str(folder), str(arguments.folder))) from None
    return Answer(asdict(done), "\n".join(_lines(done, arguments.results)))


def _describe(arguments: argparse.Namespace) -> tuple[Any, Any]:
    """Return the configuration, None where there is none, and what is known of the job."""
    from triplepoint.config.catalogue import Catalogue
    from triplepoint.recorded.description import read_description

    catalogue = Catalogue(arguments.config) if arguments.config.is_dir() else None
    settings = read_settings(arguments.set, "import") | ({"name": arguments.name} if arguments.name else {})
    return catalogue, read_description(arguments.describe, settings, catalogue)


def _steps(arguments: argparse.Namespace) -> tuple[Path | None, Path | None, str]:
    """Return what tells the steps: a CSV, or a log with its pattern."""
    if (arguments.log is None) != (arguments.step_pattern is None):
        raise UserError(
            "import: --log and --step-pattern are needed together: the log file, and the lines in it that end a step"
        )
    if arguments.log is not None and arguments.steps is not None:
        raise UserError("import: --steps and --log both give the steps; leave one out")
    return arguments.steps, arguments.log, arguments.step_pattern or ""


def _listed(text: str | None) -> list[str]:
    return [word.strip() for word in (text or "").split(",") if word.strip()]


def _numbers(text: str | None) -> tuple[int, ...]:
    found: list[int] = []
    for word in _listed(text):
        match = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", word)
        if match is None:
            raise UserError(f"import: --gpus {text!r}: expected numbers such as 0-3,6")
        found += range(int(match[1]), int(match[2] or match[1]) + 1)
    return tuple(found)


def _lines(done: "Imported", results: Path) -> list[str]:
    """Return what was imported, to be read: the run first, and what to do with it."""
    from triplepoint.recorded.run import sum_up
    from triplepoint.units import counted

    folder = results / "runs" / done.run
    lines = [f"imported as {folder}: {sum_up(folder)}", f"why it is slow: triplepoint why {shlex.quote(str(folder))}"]
    sampled = [host for host in done.hosts if host["num_samples"]]
    for host in sampled[:_MOST_LISTED]:
        gpus = counted(host["num_gpus"], "GPU")
        samples = f"{counted(host['num_samples'], 'sample')}, each device every {host['period_s']:.3g} s"
        columns = ", ".join(host["columns"])
        lines.append(f"{host['host']}: {gpus}, {samples}, {host['start']} to {host['end']}: {columns}")
    if len(sampled) > _MOST_LISTED:
        lines.append(f"and {len(sampled) - _MOST_LISTED} more hosts: --json lists them all")
    if silent := [host["host"] for host in done.hosts if not host["num_samples"]]:
        lines.append(f"without telemetry: {counted(len(silent), 'host')}, {_some(silent)}")
    steps = (
        ", ".join(f"{num} {kind}" for kind, num in done.steps.items()) or "none, so the whole recording is one window"
    )
    lines.append(f"traces: {done.num_traces}; steps: {steps}")
    lines += [f"note: {note}" for note in done.notes[:_MOST_LISTED]]
    if len(done.notes) > _MOST_LISTED:
        lines.append(f"note: {len(done.notes) - _MOST_LISTED} more; --json lists them all")
    lines += [f"shows: {line}" for line in done.shows]
    if done.left_out:
        lines.append(f"left out: {_some([f'{name} ({why})' for name, why in done.left_out.items()])}")
    if done.others:
        lines.append(f"not read, of no format that is known: {_some(done.others)}")
    return lines


def _some(names: list[str]) -> str:
    more = len(names) - _MOST_LISTED
    return ", ".join(names[:_MOST_LISTED]) + (f" and {more} more" if more > 0 else "")
