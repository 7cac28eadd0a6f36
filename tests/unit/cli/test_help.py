"""Every `--help` has an example that parses and says its defaults; `docs/cli.md` is made of the parsers."""

import argparse
import shlex
from pathlib import Path

import pytest

from triplepoint.cli import COMMANDS
from triplepoint.cli.reference import PATH, arguments_of, help_of, parser_of, reference

ROOT = Path(__file__).parents[3]


def examples_of(command: str) -> list[str]:
    """Return the command lines under the heading of examples."""
    _, heading, rest = parser_of(command).format_help().rpartition("\nexample")
    assert heading, f"{command} --help has no example"
    return [line.strip() for line in rest.splitlines()[1:] if line.strip()]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples_that_parse(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config").symlink_to(ROOT / "config")
    monkeypatch.chdir(tmp_path)
    lines = examples_of(command)
    assert lines
    for line in lines:
        words = shlex.split(line.partition("<")[0].partition(" > ")[0].partition(" >> ")[0])
        words = words[words.index("triplepoint") :]
        assert words[:2] == ["triplepoint", command], line
        try:
            parser_of(command).read([word.replace("/var/lib", str(tmp_path)) for word in words[2:]])
        except argparse.ArgumentTypeError as error:
            pytest.fail(f"{line}: {error}")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_says_the_default_of_every_option(command: str) -> None:
    parser = parser_of(command)
    for action in arguments_of(parser):
        text = help_of(parser, action)
        assert text, f"{command} {action.dest} has no help"
        if action.option_strings and action.nargs != 0 and not action.required:
            assert "default" in text, f"{command} {action.option_strings[0]}: {text}"
        assert "default: None" not in text and text.count("default:") <= 1


def test_reference_is_written_from_the_parsers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert (ROOT / PATH).read_text() == reference(), "run 'python -m triplepoint.cli.reference'"


@pytest.mark.parametrize("command", COMMANDS)
def test_reference_is_the_same_in_a_terminal_of_any_width(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    chapter = reference().partition(f"\n## {command}\n")[2].partition("\n## ")[0]
    assert chapter in (ROOT / PATH).read_text()
