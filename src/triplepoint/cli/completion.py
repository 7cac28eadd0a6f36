"""`triplepoint completion SHELL`, and the completions while a command is typed."""

import argparse
import importlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from triplepoint.cli.answer import Answer
from triplepoint.cli.arguments import make_parser

SHELLS = ("bash", "zsh", "fish")


def parser() -> argparse.ArgumentParser:
    """Return the subcommand's parser."""
    parser = make_parser(
        "completion",
        "Print a script that completes subcommands, options, and names of studies, clusters, figures and runs.",
        [
            "triplepoint completion bash > ~/.local/share/bash-completion/completions/triplepoint",
            "triplepoint completion zsh >> ~/.zshrc",
            "triplepoint completion fish > ~/.config/fish/completions/triplepoint.fish",
        ],
        answer={"shell": "name of the shell", "script": "text of the script"},
    )
    parser.add_argument("shell", choices=SHELLS, help="shell the script is for")
    return parser


def run(arguments: argparse.Namespace) -> Answer:
    """Print the script."""
    from argcomplete.shell_integration import shellcode

    script: str = shellcode(["triplepoint"], shell=arguments.shell)
    return Answer({"shell": arguments.shell, "script": script}, script)


def complete(commands: dict[str, str]) -> None:
    """Send completions of the command line in `COMP_LINE` to the shell, and exit.

    Args:
        commands: Subcommands with their line of help.
    """
    import argcomplete

    words = os.environ.get("COMP_LINE", "").split()
    root = argparse.ArgumentParser(prog="triplepoint")
    subparsers = root.add_subparsers()
    for name, about in commands.items():
        if name in words[1:2]:  # importing the modules of all subcommands takes a second
            parent = importlib.import_module(f"triplepoint.cli.{name}").parser()
            _add_names(parent)
            subparsers.add_parser(name, help=about, parents=[parent], add_help=False, conflict_handler="resolve")
        else:
            subparsers.add_parser(name, help=about)
    argcomplete.autocomplete(root)


Names = Callable[[argparse.Namespace], Iterable[str]]
"""Lists the names that complete an argument, given the arguments before it."""


def _add_names(parser: argparse.ArgumentParser) -> None:
    """Add completers to the arguments that are names; the shell completes all others with files."""
    for action in parser._actions:
        metavar = action.metavar if isinstance(action.metavar, str) else ""
        names = _BY_OPTION.get(action.dest) if metavar == "NAME" else _BY_METAVAR.get(metavar)
        if names is not None:
            action.completer = _completer(names)  # type: ignore[attr-defined]


def _completer(names: Names) -> Callable[..., list[str]]:
    def complete(prefix: str, parsed_args: argparse.Namespace, **_: object) -> list[str]:
        return [name for name in names(parsed_args) if name.startswith(prefix)]

    return complete


def _files(folder: str) -> Names:
    """Return a function that lists the files of a folder of the configuration."""

    def names(arguments: argparse.Namespace) -> Iterable[str]:
        config: Path = getattr(arguments, "config", None) or Path("config")
        return sorted(path.stem for path in (config / folder).glob("*.yaml"))

    return names


def _runs(arguments: argparse.Namespace) -> Iterable[str]:
    results: Path = getattr(arguments, "results", None) or Path("results")
    return sorted(path.parent.name for path in results.glob("runs/*/point.json"))


def _figures(arguments: argparse.Namespace) -> Iterable[str]:
    from triplepoint.figures import NAMES

    return (*NAMES, *(f"{study}/{name}" for study in _files("studies")(arguments) for name in NAMES))


def _studies_and_runs(arguments: argparse.Namespace) -> Iterable[str]:
    return (*_files("studies")(arguments), *_runs(arguments))


_BY_METAVAR: dict[str, Names] = {
    "STUDY": _files("studies"),
    "RUN": _runs,
    "STUDY|RUN": _studies_and_runs,
    "[STUDY/]NAME": _figures,
}
_BY_OPTION: dict[str, Names] = {
    "cluster": _files("clusters"),
    "simulated": _files("clusters"),
    "gpu": _files("gpus"),
}
