"""Shared parts of subcommands: the parser, types of arguments, common options, and messages."""

import argparse
import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

from triplepoint.config import RUN_PATTERN
from triplepoint.errors import UserError, nearest

if TYPE_CHECKING:
    from triplepoint.prices import Prices

MAX_PROCESSES = 4096
"""Upper limit of an argument that is a number of processes."""

RUN_ANSWER = MappingProxyType(
    {
        "run": "run id",
        "folder": "its folder",
        "status": "how it ended (docs/methodology.md#outcomes)",
        "evidence": "what says so, where it is not ok",
    }
)
"""Keys of the JSON of commands that make a run."""


class Parser(argparse.ArgumentParser):
    """Parser that reports errors as `UserError`, in one line, without the usage.

    Attributes:
        answer: Keys of the command's JSON in addition to `command` and `version`, with their meaning.
        examples: Command lines in its help.
    """

    answer: Mapping[str, str] = MappingProxyType({})
    examples: Sequence[str] = ()

    def read(self, words: Sequence[str]) -> argparse.Namespace:
        """Return the arguments that words have; options may stand between positional arguments, until a `--`.

        Raises:
            UserError: If the words are not as the help says.
        """
        # argparse cannot intermix a rest of the line, nor names behind `--`.
        has_rest = any(action.nargs == argparse.REMAINDER for action in self._actions)
        return (self.parse_args if has_rest or "--" in words else self.parse_intermixed_args)(words)

    def error(self, message: str) -> NoReturn:
        """Raise `UserError`."""
        raise UserError(f"{self.prog.removeprefix('triplepoint ')}: {message}; see '{self.prog} --help'")


class _Help(argparse.RawDescriptionHelpFormatter):
    """Help formatter that wraps paragraphs, keeps tables as they are, and shows defaults of options."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" in text:
            return super()._fill_text(text, width, indent)
        return argparse.HelpFormatter._fill_text(self, text, width, indent)

    def _get_help_string(self, action: argparse.Action) -> str:
        is_stated = "default" in (action.help or "") or action.required or action.default == argparse.SUPPRESS
        is_off = action.default is None or action.default is False or action.default == []
        return f"{action.help}{'' if is_stated or is_off else ' (default: %(default)s)'}"


def make_parser(
    command: str,
    about: str,
    examples: Sequence[str] = (),
    details: str = "",
    answer: Mapping[str, str] | None = None,
) -> Parser:
    """Return the parser of one subcommand.

    Args:
        command: Name of the subcommand.
        about: Description in a sentence or two.
        examples: Whole command lines, shown at the end of the help.
        details: Lines shown before the examples, without wrapping.
        answer: Keys of the JSON with their meaning. None: only `lines`, the printed text.
    """
    heading = ["example:" if len(examples) == 1 else "examples:"] if examples else []
    lines = [*([details.strip("\n"), ""] if details else []), *heading, *(f"  {line}" for line in examples)]
    # The formatter does not wrap a text that has a line break.
    epilog = "\n".join([*lines, ""]) if lines else None
    parser = Parser(
        prog=f"triplepoint {command}",
        description=about,
        epilog=epilog,
        formatter_class=_Help,
        conflict_handler="resolve",
    )
    parser.examples, parser.answer = tuple(examples), dict(answer or {"lines": "what is printed without --json"})
    keys = ", ".join(("command", "version", *parser.answer))
    parser.add_argument("--json", action="store_true", help=f"print one JSON object: {keys} (docs/cli.md)")
    return parser


def whole_number(most: int = MAX_PROCESSES, *, least: int = 1) -> Callable[[str], int]:
    """Return an argument type for whole numbers from `least` to `most`."""

    def read(text: str) -> int:
        if not re.fullmatch(r"\d{1,12}", text) or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"found {text[:40]!r}, expected a whole number from {least} to {most}")
        return int(text)

    return read


def number(least: float, most: float, unit: str = "a number", is_least_allowed: bool = True) -> Callable[[str], float]:
    """Return an argument type for numbers of a range.

    Args:
        least: Lower end.
        most: Upper end, included.
        unit: Unit, for the error.
        is_least_allowed: Whether the range includes the lower end.
    """
    ends = f"from {least:g} to {most:g}" if is_least_allowed else f"above {least:g}, at most {most:g}"

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most or (value == least and not is_least_allowed):  # also true for NaN
            raise argparse.ArgumentTypeError(f"found {text[:40]!r}, expected {unit} {ends}")
        return value

    return read


def seconds(least: float, most: float) -> Callable[[str], float]:
    """Return an argument type for times from `least` to `most`. Unit: s."""
    return number(least, most, "seconds")


def out_file(text: str) -> Path:
    """Return the path of a file to write, as an argument type; it is checked before any work."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{path} is a folder, expected a file to write")
    _check_folder(path.parent)
    return path


def out_file_with(*endings: str) -> Callable[[str], Path]:
    """Return an argument type: the path of a file to write, whose name has one of these endings."""

    def parse(text: str) -> Path:
        path = out_file(text)
        if path.suffix not in endings:
            found, expected = path.suffix or "no ending", " or ".join(endings)
            raise argparse.ArgumentTypeError(f"{path}: found {found}, expected a name that ends in {expected}")
        return path

    return parse


out_figure = out_file_with(".pdf", ".png", ".svg")
"""Argument type: path of a figure to write."""
out_rows = out_file_with(".parquet", ".csv")
"""Argument type: path of a table to write, see `Table.write_rows`."""
out_study = out_file_with(".yaml")
"""Argument type: path of a study to write."""


def in_table(text: str) -> Path:
    """Return the path of a table to read, as an argument type; `-` is standard input."""
    return Path(text) if text == "-" else in_file(text)


def out_table(text: str) -> Path | None:
    """Return the path of a table to write, as an argument type; None for `-`, standard output."""
    return None if text == "-" else out_file(text)


def in_file(text: str) -> Path:
    """Return the path of a file to read, as an argument type; a pipe is refused, because it may never end."""
    path = Path(text)
    if path.exists() and not path.is_file():
        raise argparse.ArgumentTypeError(f"{path} is a folder, pipe or device, expected a file")
    return path


def out_folder(text: str) -> Path:
    """Return the path of a folder to write into, as an argument type; it may not exist yet."""
    path = Path(text)
    _check_folder(path)
    return path


def _check_folder(folder: Path) -> None:
    """Raise `ArgumentTypeError` unless a folder can be written into, or made below the nearest existing parent."""
    existing = next((path for path in (folder, *folder.parents) if os.path.lexists(path)), Path())
    if not existing.is_dir():
        raise argparse.ArgumentTypeError(f"{existing} is not a folder; move it away, or use another path")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise argparse.ArgumentTypeError(
            f"{existing} cannot be written into: no permission, or a read-only file system"
        )


def require_different_files(source: Path, target: Path) -> None:
    """Raise `UserError` if a command would overwrite the file that it reads, however its path is spelled."""
    if source.exists() and target.exists() and source.samefile(target):
        raise UserError(f"{target}: is the file that is read, {source}; name another one to write")


def add_job(parser: argparse.ArgumentParser, usual_name: str) -> None:
    """Add the name of a job, by default `usual_name`, its study, and its description."""
    parser.add_argument("--name", metavar="NAME", help=f"name of the job (default: {usual_name})")
    parser.add_argument(
        "--study", default="recorded", metavar="NAME", help="study of recorded runs to put the run into"
    )
    parser.add_argument(
        "--describe",
        type=in_file,
        metavar="FILE",
        help="YAML that describes the job: model, layout, batch (default: none)",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="describe one setting of the job, such as tp=8; repeatable (default: none)",
    )


def read_settings(pairs: Iterable[str], command: str) -> dict[str, Any]:
    """Return the settings in options `--set KEY=VALUE` of a command. Raises `UserError` for any other form."""
    from triplepoint.config.yaml_file import load

    settings: dict[str, Any] = {}
    for text in pairs:
        key, equals, value = text.partition("=")
        if not equals:
            raise UserError(f"{command}: --set {text!r}: expected KEY=VALUE, such as tp=8")
        settings[key] = load(value, f"--set {key}")
    return settings


def add_results(parser: argparse.ArgumentParser) -> None:
    """Add `--results`, the folder of runs and tables."""
    parser.add_argument(
        "--results", type=Path, default=Path("results"), metavar="DIR", help="folder of runs and tables"
    )


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add `RUN` and `--results`."""
    parser.add_argument("run", metavar="RUN", help="run id, or the folder of a run")
    add_results(parser)


def add_config(parser: argparse.ArgumentParser) -> None:
    """Add `--config`, the folder of the configuration."""
    parser.add_argument(
        "--config", type=Path, default=Path("config"), metavar="DIR", help="folder of the configuration"
    )


def add_prices(parser: argparse.ArgumentParser) -> None:
    """Add the prices of energy and GPU hours, which `read_prices` returns."""
    parser.add_argument(
        "--price-kwh", type=number(0, 1e6), metavar="PRICE", help="price of a kWh (default: energy costs nothing)"
    )
    parser.add_argument(
        "--price-gpu-hour",
        type=number(0, 1e6),
        metavar="PRICE",
        help="price of a GPU for an hour, without its energy (default: nothing)",
    )
    parser.add_argument("--currency", type=_currency, metavar="NAME", help="name of the currency (default: currency)")
    parser.add_argument(
        "--pue", type=number(1, 10), default=1.0, metavar="FACTOR",
        help="power usage effectiveness of the hall: energy paid over energy of nodes (default: 1)",
    )  # fmt: skip


def read_prices(arguments: argparse.Namespace) -> "Prices":
    """Return the prices on the command line.

    Raises:
        UserError: If a currency or a factor on energy has no price.
    """
    from triplepoint.prices import Prices

    prices = Prices(arguments.price_kwh, arguments.price_gpu_hour, arguments.currency or Prices.currency, arguments.pue)
    if arguments.currency and not prices.are_given:
        raise UserError(f"--currency {arguments.currency}: no price is given; add --price-kwh or --price-gpu-hour")
    if arguments.pue != Prices.pue and prices.kwh is None:
        raise UserError(f"--pue {arguments.pue:g}: energy has no price; add --price-kwh")
    return prices


def _currency(text: str) -> str:
    if not re.fullmatch(r"[^\W\d_]{1,12}|[$€£¥]", text):
        raise argparse.ArgumentTypeError(f"found {text[:40]!r}, expected a name such as EUR")
    return text


def is_run_folder(text: str) -> bool:
    """Return whether an argument is the folder of a run."""
    return (Path(text) / "point.json").is_file()


def run_folder(arguments: argparse.Namespace) -> Path:
    """Return the folder of the run that an argument names by id or by folder; the same folder when called again.

    For a folder it also sets `arguments.run` to the id, and `arguments.results` if the folder is in `runs/`.

    Raises:
        UserError: If the name cannot be a run id, or there is no such run.
    """
    if (found := getattr(arguments, "run_folder", None)) is None:
        found = arguments.run_folder = _find_run(arguments)
    return Path(found)


def _find_run(arguments: argparse.Namespace) -> Path:
    run: str = arguments.run
    if is_run_folder(run):
        path = Path(run).resolve()
        arguments.run = path.name
        if path.parent.name == "runs":
            arguments.results = path.parents[1]
        return path
    folder: Path = arguments.results / "runs" / run
    is_id = re.fullmatch(RUN_PATTERN, run) is not None
    if is_id and (folder / "point.json").is_file():
        return folder
    if run and (Path(run).is_dir() or os.sep in run):
        found = "a folder without point.json" if Path(run).is_dir() else "no such folder"
        raise UserError(f"{run!r}: {found}; expected a run id, or the folder of a run")
    if not is_id:
        raise UserError(f"{run!r} is not a run id: lower-case letters, digits, '.', '_' and '-' only")
    known = [path.parent.name for path in arguments.results.glob("runs/*/point.json")]
    hint = nearest(run, known) if known else "; write it with 'triplepoint plan STUDY --write'"
    raise UserError(f"{folder}: no such run{hint if len(hint) < 200 else ''}")


def check_finished(folder: Path, instead: str) -> None:
    """Raise `UserError` if a run has not finished, and so has no telemetry; it says what can be asked instead."""
    if not (folder / "raw" / "manifest.json").is_file():
        raise UserError(
            f"{folder.name}: no telemetry, the run has not finished; launch it first. Without it, {instead}"
        )


def plan_command(study: Path, config: Path, clusters: Iterable[str]) -> str:
    """Return what to do with a written study: move it, if need be, and plan it on its clusters.

    Args:
        study: File of the study.
        config: Folder of the configuration.
        clusters: Names of the clusters that its points run on.
    """
    studies = config / "studies"
    move = "" if study.resolve().parent == studies.resolve() else f"move {study} to {studies}, then "
    words = ["triplepoint", "plan", study.stem]
    return move + shlex.join(words + [word for name in dict.fromkeys(clusters) for word in ("--cluster", name)])


def say(line: str) -> None:
    """Print a line to standard error at once; on a terminal it replaces the line of `Progress`."""
    print(f"\r\x1b[K{line}" if sys.stderr.isatty() else line, file=sys.stderr, flush=True)
