"""Every block of README.md and docs/: YAML and CSV are read as what they are, commands are parsed.

Commands that a machine without GPU and Slurm can run are run. The worked example of docs/extending.md is tested in
test_extending.py, the study of README.md through Snakemake in tests/workflow/test_readme.py.
"""

import importlib
import io
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.commands import triplepoint
from triplepoint.advise.swings.spec import read_spec
from triplepoint.cli import COMMANDS
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.site import read_site
from triplepoint.config.study import Settings
from triplepoint.importers.mapped import read_mapping
from triplepoint.plan import select

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TRACES = sorted((ROOT / "tests/data/traces").glob("gloo_rank?.json.gz"))
"""Of two ranks of one job."""
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_COMMAND = re.compile(r"^(?:\$ )?((?:triplepoint|snakemake|make) .*?)(?:\s{2,}#.*|\s+#.*)?$", re.MULTILINE)
_NEEDS_A_MACHINE = re.compile(
    r"triplepoint (?!plan|predict|whatif|compare TABLE|trace|doctor --files)"
    r"|<|snakemake|make|scale_up|report\.sqlite|4711|--chakra"
)
"""Commands that need a GPU, a cluster, results, traces of GPUs or minutes: these are parsed only."""
_TESTED_ELSEWHERE = ("extending.md", "bash")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    text: str

    @property
    def commands(self) -> list[str]:
        """Commands, each in one line."""
        return _COMMAND.findall(self.text.replace("\\\n", " "))

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks() -> list[Block]:
    found = []
    for page in PAGES:
        text = page.read_text()
        found += [Block(page.name, text[: m.start()].count("\n") + 1, m[1], m[2]) for m in _BLOCK.finditer(text)]
    return found


BLOCKS = blocks()
COMMAND_LINES = [pytest.param(command, id=f"{block}: {command}") for block in BLOCKS for command in block.commands]
SPANS = sorted(
    {span for page in PAGES for span in re.findall(r"`(triplepoint [a-z][^`\n]*)`", _BLOCK.sub("", page.read_text()))}
)


def of_language(language: str) -> list[Block]:
    return [block for block in BLOCKS if block.language == language]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which every file stands that commands of the pages name."""
    made = tmp_path_factory.mktemp("pages")
    shutil.copytree(ROOT / "config", made / "config")
    (made / "traces").mkdir()
    for rank, trace in enumerate(TRACES):
        shutil.copy(trace, made / f"traces/rank{rank}.json.gz")
        shutil.copy(trace, made / f"rank{rank}.json.gz")
    for name in ("work.0.et", "work.1.et", "chakra.0.et"):
        shutil.copy(ROOT / "tests/data/chakra/schema_004.et", made / name)
    (point,) = [block.text for block in of_language("yaml") if block.text.startswith("# point.yaml")]
    (rules,) = [block.text for block in of_language("yaml") if block.text.startswith("device:")]
    studies = [
        block.text for block in of_language("yaml") if block.text.startswith(("# config/studies/", "# layouts.yaml"))
    ]
    (table,) = [block.text for block in of_language("csv")]
    files = {
        "point.yaml": point,
        "h100.yaml": point,
        "h200.yaml": point.replace("h100x64", "h200x32"),
        "mine.yaml": rules,
        "TABLE.csv": table,
        **{text.partition("\n")[0].removeprefix("# "): text for text in studies},
    }
    for name, text in files.items():
        (made / name).write_text(text)
    return made


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    done = triplepoint(folder, *command)
    assert done.returncode == 0, done.stderr
    return done


def test_blocks_are_all_of_a_known_kind() -> None:
    assert len(BLOCKS) > 15
    known = ("yaml", "csv", "bash", "python", "json", "text")
    unknown = [
        str(block)
        for block in BLOCKS
        if block.language not in known and not _COMMAND.search(block.text) and not block.text.startswith("plan -> ")
    ]
    assert unknown == []


@pytest.mark.parametrize("command", COMMAND_LINES)
def test_command_of_a_block_is_one(command: str) -> None:
    program, *words = shlex.split(command.replace("<time>", "20260101T000000"))
    if program == "triplepoint":
        assert words[0] in COMMANDS
        importlib.import_module(f"triplepoint.cli.{words[0]}").parser().read(_with_files(words[1:]))
    elif program == "make":
        assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    else:
        _check_snakemake(words)


def _with_files(words: list[str]) -> list[str]:
    """Return arguments with files of the repository that arguments which must be files can be checked with."""
    is_file = re.compile(r"FILE|TABLE\.csv|.*/collectives\.csv")
    return [str(ROOT / "README.md") if is_file.fullmatch(word) else word for word in words]


def _check_snakemake(words: list[str]) -> None:
    from snakemake.cli import get_argument_parser

    if "--profile" in words:
        assert (ROOT / "profiles" / words[words.index("--profile") + 1] / "config.yaml").is_file()
    parsed, unknown = get_argument_parser().parse_known_args(words)
    assert unknown == []
    for target in parsed.targets:
        figure = re.fullmatch(r"figs/(?:\w+/)?(\w+)\.pdf", target)
        assert target in ("all", "report", "report.html") or figure is not None, target


@pytest.mark.parametrize("span", SPANS)
def test_command_in_the_text_is_one(span: str) -> None:
    command, *words = span.partition(" -- ")[0].split()[1:]
    assert command in COMMANDS
    parser = importlib.import_module(f"triplepoint.cli.{command}").parser()
    known = {option for action in parser._actions for option in action.option_strings}
    assert {word.partition("=")[0] for word in words if word.startswith("--")} <= known


RUNNABLE = {
    command: pytest.param(command, id=f"{block}: {command}")
    for block in BLOCKS
    for command in block.commands
    if not _NEEDS_A_MACHINE.search(command) and (block.page, block.language) != _TESTED_ELSEWHERE
}
"""Each once: several pages have the same commands."""


@pytest.mark.parametrize("command", RUNNABLE.values())
def test_command_of_a_block_runs(command: str, folder: Path) -> None:
    _, *words = shlex.split(command.replace(" FILE", " point.yaml"))
    files = [str(path) for word in words for path in sorted(folder.glob(word)) if "*" in word]
    run([*(word for word in words if "*" not in word), *files] if files else words, folder)


@pytest.mark.parametrize("block", of_language("yaml"), ids=str)
def test_yaml_of_a_block_is_read(block: Block, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = yaml.safe_load(io.StringIO(block.text))
    if "sweeps" in content:
        (folder / "config/studies/of-a-page.yaml").write_text(block.text)
        plan = select(folder / "config", ["of-a-page"])
        assert all(entry.invalid_because is None for entry in plan.entries)
    elif "gangs" in content:
        path = tmp_path / "site.yaml"
        path.write_text(block.text)
        monkeypatch.setenv("TRIPLEPOINT_SITE", str(path))
        assert read_site().gangs.keys() == content["gangs"].keys()
    elif "columns" in content:
        path = tmp_path / "map.yaml"
        path.write_text(block.text)
        assert read_mapping(path).columns
    elif "claims" in content:
        _check_claims(block, folder)
    elif "bands" in content:
        path = tmp_path / "spec.yaml"
        path.write_text(block.text)
        assert read_spec(path).bands
    elif "like" in content:
        (folder / f"config/gpus/{content['name']}.yaml").write_text(block.text)
        assert Catalogue(folder / "config").gpu(content["name"]).name == content["name"]
    elif block.text.startswith("# job.yaml"):
        assert content.keys() <= Settings.model_fields.keys()
    else:
        # Points and rules of kernels: files that commands of the pages read.
        assert block.text in [path.read_text() for path in folder.glob("*.yaml")]


@pytest.mark.parametrize("block", of_language("python"), ids=str)
def test_python_of_a_block_compiles(block: Block) -> None:
    compile(block.text, str(block), "exec")


def _check_claims(block: Block, folder: Path) -> None:
    from triplepoint.verdicts.judge import check_claims
    from triplepoint.verdicts.read import read_claims

    (folder / "config/published/claims.yaml").write_text(block.text)
    published = read_claims(folder / "config")
    assert published is not None
    check_claims(published)


@pytest.mark.parametrize("command", ["plan mine", "plan mine --write", "predict config/studies/mine.yaml"])
def test_study_of_the_readme_works_in_every_command(command: str, folder: Path) -> None:
    said = run(command.split(), folder)
    assert "two different points" not in said.stdout + said.stderr
    if command == "plan mine":
        runs = re.findall(r"tiny-llama_cpu-local\S+", said.stdout)
        assert len(set(runs)) == len(runs) == 6
