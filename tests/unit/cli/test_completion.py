"""Shell completion: what is offered where, and that bash gets it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from triplepoint.cli import COMMANDS, main
from triplepoint.cli.completion import SHELLS

STUDY = "description: One point.\n"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for path in ("config/studies/mine.yaml", "config/studies/micro.yaml", "config/clusters/h200x8.yaml"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(STUDY)
    for run in ("llama_r1_abc", "llama_r2_def"):
        (tmp_path / "results" / "runs" / run).mkdir(parents=True)
        (tmp_path / "results" / "runs" / run / "point.json").write_text("{}")
    return tmp_path


def offered(place: Path, line: str) -> set[str]:
    """Return what is offered at the end of a line."""
    asked = {"COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n"}
    out = place / "offered"
    environment = os.environ | asked | {"_ARGCOMPLETE_STDOUT_FILENAME": str(out)}
    done = subprocess.run([sys.executable, "-m", "triplepoint"], cwd=place, env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr
    return {word.strip() for word in out.read_text().split("\n") if word.strip()}


def test_subcommands_and_options_are_offered(place: Path) -> None:
    assert offered(place, "triplepoint ") >= set(COMMANDS)
    assert offered(place, "triplepoint pre") == {"predict"}
    assert offered(place, "triplepoint predict --time") == {"--time-only"}
    assert offered(place, "triplepoint export mine --to ") == {"mlflow", "wandb", "prometheus", "chakra"}


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("triplepoint plan mi", {"mine", "micro"}),
        ("triplepoint plan --cluster h", {"h200x8"}),
        ("triplepoint telemetry ", {"llama_r1_abc", "llama_r2_def"}),
        ("triplepoint figure microbatch_p", {"microbatch_power"}),
        ("triplepoint figure mine/microbatch_p", {"mine/microbatch_power"}),
        ("triplepoint export mic", {"micro"}),
        ("triplepoint export llama", {"llama_r1_abc", "llama_r2_def"}),
    ],
)
def test_names_are_offered(place: Path, line: str, names: set[str]) -> None:
    assert {word for word in offered(place, line) if not word.startswith("-")} == names


def test_files_are_offered_where_a_file_is_read(place: Path) -> None:
    (place / "points.yaml").write_text("")
    assert "points.yaml" in offered(place, "triplepoint predict poi")


@pytest.mark.parametrize("shell", SHELLS)
def test_script_of_each_shell_completes_triplepoint(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "triplepoint" in script and "_ARGCOMPLETE" in script


def test_bash_completes_with_the_script(place: Path) -> None:
    lines = f"""
triplepoint() {{ "{sys.executable}" -m triplepoint "$@"; }}
eval "$(triplepoint completion bash)"
export COMP_LINE="triplepoint plan mic" COMP_POINT=20 COMP_TYPE=9 COMP_WORDBREAKS=" "
_python_argcomplete triplepoint
echo "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash", "-c", lines], cwd=place, capture_output=True, text=True)
    assert done.stdout.split() == ["micro"], done.stderr
