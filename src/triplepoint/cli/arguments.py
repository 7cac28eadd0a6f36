"""Arguments that several subcommands share."""

import argparse
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

from triplepoint.config import RUN_PATTERN
from triplepoint.errors import UserError, nearest

if TYPE_CHECKING:
    from triplepoint.prices import Prices

_FIGURES = (".pdf", ".png", ".svg")
MOST_PROCESSES = 4096

RUN_ANSWER = MappingProxyType(
    {
        "run": "run id",
        "folder": "its folder",
        "status": "how it ended (docs/methodology.md#outcomes)",
        "evidence": "what says so, where it is not ok",
    }
)
"""JSON of commands that make a run."""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are those of the user: one line, without the usage.

    Attributes:
        answer: Keys of the command's JSON beside `command` and `version`, with what they hold.
        examples: Command lines in its help.
    """

    answer: Mapping[str, str] = MappingProxyType({})
    examples: Sequence[str] = ()

    def error(self, message: str) -> NoReturn:
        """Raise `UserError`."""
        raise UserError(f"{self.prog.removeprefix('triplepoint ')}: {message}; see '{self.prog} --help'")


class _Help(argparse.RawDescriptionHelpFormatter):
    """Help that wraps paragraphs, leaves tables as they are, and says the default of an option that has one."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" in text:
            return super()._fill_text(text, width, indent)
        return argparse.HelpFormatter._fill_text(self, text, width, indent)

    def _get_help_string(self, action: argparse.Action) -> str:
        says_it = "default" in (action.help or "") or action.required or action.default == argparse.SUPPRESS
        is_plain = action.default is None or action.default is False or action.default == []
        return f"{action.help}{'' if says_it or is_plain else ' (default: %(default)s)'}"


def make_parser(
    command: str,
    about: str,
    examples: Sequence[str] = (),
    details: str = "",
    answer: Mapping[str, str] | None = None,
) -> Parser:
    """Return the parser of one subcommand.

    Args:
        command: Its name.
        about: What it does, a sentence or two.
        examples: Whole command lines, shown at the end of the help.
        details: Lines shown before them as they stand.
        answer: Keys of its JSON with what they hold; None: `lines`, what it prints as text.
    """
    heading = ["example:" if len(examples) == 1 else "examples:"] if examples else []
    lines = [*([details.strip("\n"), ""] if details else []), *heading, *(f"  {line}" for line in examples)]
    # Lines that are not wrapped: the formatter knows them by their line break.
    epilog = "\n".join([*lines, ""]) if lines else None
    made = Parser(
        prog=f"triplepoint {command}",
        description=about,
        epilog=epilog,
        formatter_class=_Help,
        conflict_handler="resolve",
    )
    made.examples, made.answer = tuple(examples), dict(answer or {"lines": "what is printed without --json"})
    keys = ", ".join(("command", "version", *made.answer))
    made.add_argument("--json", action="store_true", help=f"print one JSON object: {keys} (docs/cli.md)")
    return made


def whole_number(most: int = MOST_PROCESSES, *, least: int = 1) -> Callable[[str], int]:
    """Return the type of an argument that is a whole number from `least` to `most`."""

    def read(text: str) -> int:
        if not re.fullmatch(r"\d{1,12}", text) or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"found {text[:40]!r}, expected a whole number from {least} to {most}")
        return int(text)

    return read


def number(least: float, most: float, unit: str = "a number", is_least_allowed: bool = True) -> Callable[[str], float]:
    """Return the type of an argument that is a number from `least`, or above it, to `most`; `unit` says what it is."""
    ends = f"from {least:g} to {most:g}" if is_least_allowed else f"above {least:g}, at most {most:g}"

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most or (value == least and not is_least_allowed):  # NaN is not either
            raise argparse.ArgumentTypeError(f"found {text[:40]!r}, expected {unit} {ends}")
        return value

    return read


def seconds(least: float, most: float) -> Callable[[str], float]:
    """Return the type of an argument that is a time from `least` to `most`. Unit: s."""
    return number(least, most, "seconds")


def out_file(text: str) -> Path:
    """Return an argument that is a file to write; what cannot be written is refused before any work is done."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{path} is a folder, expected a file to write")
    _check_folder(path.parent)
    return path


def out_figure(text: str) -> Path:
    """Return an argument that is a figure to write; another kind of file is refused before any work is done."""
    path = out_file(text)
    if path.suffix not in _FIGURES:
        found = path.suffix or "no ending"
        raise argparse.ArgumentTypeError(f"{path}: found {found}, expected one of {', '.join(_FIGURES)}")
    return path


def in_table(text: str) -> Path:
    """Return an argument that is a table to read, or `-` for standard input."""
    return Path(text) if text == "-" else in_file(text)


def out_table(text: str) -> Path | None:
    """Return an argument that is a table to write, or None: `-` is standard output."""
    return None if text == "-" else out_file(text)


def in_file(text: str) -> Path:
    """Return an argument that is a file to read; a pipe, which may never end, is refused."""
    path = Path(text)
    if path.exists() and not path.is_file():
        raise argparse.ArgumentTypeError(f"{path} is a folder, pipe or device, expected a file")
    return path


def out_folder(text: str) -> Path:
    """Return an argument that is a folder to write into, made if needed."""
    path = Path(text)
    _check_folder(path)
    return path


def _check_folder(folder: Path) -> None:
    there = next((path for path in (folder, *folder.parents) if os.path.lexists(path)), Path())
    if not there.is_dir():
        raise argparse.ArgumentTypeError(f"{there} is not a folder; move it away, or use another path")
    if not os.access(there, os.W_OK | os.X_OK):
        raise argparse.ArgumentTypeError(f"{there} cannot be written into: no permission, or a read-only file system")


def add_job(parser: argparse.ArgumentParser, usual_name: str) -> None:
    """Add what its job is called, `usual_name` if nothing is said, its study, and what is known of it."""
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
    """Return the settings that `--set KEY=VALUE` of a command names. Raises `UserError` if one is no such pair."""
    from triplepoint.config.yaml_file import load

    settings: dict[str, Any] = {}
    for text in pairs:
        key, equals, value = text.partition("=")
        if not equals:
            raise UserError(f"{command}: --set {text!r}: expected KEY=VALUE, such as tp=8")
        settings[key] = load(value, f"--set {key}")
    return settings


def add_results(parser: argparse.ArgumentParser) -> None:
    """Add `--results`, the folder runs and tables live in."""
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
    """Add the prices of energy and of GPU hours; `read_prices` returns them."""
    parser.add_argument(
        "--price-kwh", type=number(0, 1e6), metavar="PRICE", help="price of a kWh (default: energy costs nothing)"
    )
    parser.add_argument(
        "--price-gpu-hour",
        type=number(0, 1e6),
        metavar="PRICE",
        help="price of a GPU for an hour, without its energy (default: nothing)",
    )
    parser.add_argument("--currency", type=_currency, default="currency", metavar="NAME", help="name of the currency")
    parser.add_argument(
        "--pue", type=number(1, 10), default=1.0, metavar="FACTOR",
        help="power usage effectiveness of the hall: energy paid over energy of nodes (default: 1)",
    )  # fmt: skip


def read_prices(arguments: argparse.Namespace) -> "Prices":
    """Return the prices that were given."""
    from triplepoint.prices import Prices

    return Prices(arguments.price_kwh, arguments.price_gpu_hour, arguments.currency, arguments.pue)


def _currency(text: str) -> str:
    if not re.fullmatch(r"[^\W\d_]{1,12}|[$€£¥]", text):
        raise argparse.ArgumentTypeError(f"found {text[:40]!r}, expected a name such as EUR")
    return text


def is_run_folder(text: str) -> bool:
    """Return whether a text names the folder of a run."""
    return (Path(text) / "point.json").is_file()


def run_folder(arguments: argparse.Namespace) -> Path:
    """Return the folder of the run that was named, by its id or by its folder; `run` and `results` name it then.

    Raises:
        UserError: If the name cannot be a run id, or there is no such run.
    """
    run: str = arguments.run
    if is_run_folder(run):
        named = Path(run).resolve()
        arguments.run = named.name
        if named.parent.name == "runs":
            arguments.results = named.parents[1]
        return named
    if not re.fullmatch(RUN_PATTERN, run):
        raise UserError(f"{run!r} is not a run id: lower-case letters, digits, '.', '_' and '-' only")
    folder: Path = arguments.results / "runs" / run
    if not (folder / "point.json").is_file():
        known = [path.parent.name for path in arguments.results.glob("runs/*/point.json")]
        hint = nearest(run, known) if known else "; write it with 'triplepoint plan STUDY --write'"
        raise UserError(f"{folder}: no such run{hint if len(hint) < 200 else ''}")
    return folder


def say(line: str) -> None:
    """Tell the user about progress, at once, in the place of what `Progress` shows on a terminal."""
    print(f"\r\x1b[K{line}" if sys.stderr.isatty() else line, file=sys.stderr, flush=True)
