"""What is out of bounds in a configuration: one line and status 2 from `triplepoint plan`, never a traceback."""

import os
import re
import shutil
from pathlib import Path

import pytest

from tests.unit.config.conftest import REPOSITORY
from triplepoint.cli import main
from triplepoint.config.study import MOST_POINTS
from triplepoint.config.yaml_file import MOST_BYTES

STUDY = """\
description: A study for the tests of bounds.
defaults: {{cluster: cpu-local, engine: native, model: tiny-llama, num_gpus: 2, global_batch_size: 8}}
sweeps:
  - set: {{{more}}}
    axes: {axes}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A configuration with one study, `mine`."""
    folder = tmp_path / "config"
    shutil.copytree(REPOSITORY / "config", folder, ignore=shutil.ignore_patterns("studies"))
    (folder / "studies").mkdir()
    write_study(folder)
    return folder


def write_study(config: Path, more: str = "", axes: str = "{micro_batch_size: [1, 2]}") -> Path:
    path = config / "studies" / "mine.yaml"
    path.write_text(STUDY.format(more=more, axes=axes))
    return path


def edit(path: Path, key: str, value: str) -> None:
    path.write_text(re.sub(rf"^{key}: .*$", f"{key}: {value}", path.read_text(), flags=re.MULTILINE))


def refused(config: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the one line that `plan` says; it must be refused."""
    assert main(["plan", "--config", str(config), "--results", str(config.parent / "results")]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert len(line) < 400
    return line


def test_plan_takes_the_study_of_these_tests(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--config", str(config), "--results", str(config.parent)]) == 0


def test_plan_study_without_points(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_study(config, axes="{micro_batch_size: []}")
    assert "mine.yaml: sweeps.0.axes.micro_batch_size: expected at least 1 of them in the list, found 0" in refused(
        config, capsys
    )
    path.write_text(path.read_text().partition("sweeps:")[0] + "sweeps: []")
    assert "mine.yaml: sweeps: expected at least 1 of them in the list, found 0" in refused(config, capsys)


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (f"seed: {2**70}", "is out of range"),
        (f"seed: {2**32}", "seed: expected less than 4294967296, found 4294967296"),
        (f"micro_batch_size: {'9' * 400}", "99999999999999999999... of 400 characters is out of range"),
        (f"micro_batch_size: {'9' * 5000}", "not readable as YAML"),
        (f"sequence_length: 0x{'f' * 5000}", "of 5002 characters is out of range"),
        (f"sequence_length: {2**31}", "sequence_length: expected less than 2147483648"),
        ("data_parallel_sharding: zero1", "or 'optim_grads_params', found 'zero1' (did you mean 'optim'?)"),
        (f"tp: {10**12}", "tp: expected 1000000 or less, found 1000000000000"),
        (f"vp: {10**12}", "vp: expected 1000000 or less"),
        (f"lora_rank: {10**12}", "lora_rank: expected less than"),
        (f"repeats: {10**6}", "repeats: expected 1000 or less"),
        (f"steps: {{measured: {10**12}}}", "steps.measured: expected 1000000 or less"),
        (f"steps: {{warmup: {10**12}}}", "steps.warmup: expected 1000000 or less"),
        (f"trace_ranks: [{10**30}]", "is out of range"),
        ("telemetry_period_s: .inf", ".inf is out of range, expected a finite number"),
        ("telemetry_period_s: .nan", ".nan is out of range"),
        ("telemetry_period_s: 1.0e-300", "telemetry_period_s: expected 0.001 or more"),
        ("lora_alpha: 1.0e+400", "1.0e+400 is out of range"),
        ("seed: 2001-99-99", "month must be in 1..12"),
        ("seed: !!bool perhaps", "not readable as YAML: 'perhaps'"),
        (f"model: {'m' * 190}", "model: expected at most 64 lower-case letters, digits, dots and dashes, found 'mmm"),
    ],
)
def test_plan_number_out_of_range(
    config: Path, capsys: pytest.CaptureFixture[str], setting: str, expected: str
) -> None:
    path = write_study(config, setting, "{pp: [1, 2]}")
    line = refused(config, capsys)
    assert expected in line
    assert str(path) in line


@pytest.mark.parametrize("key", ["num_layers", "hidden_size", "num_attention_heads", "vocab_size", "sequence_length"])
@pytest.mark.parametrize("value", [10**12, 10**30])
def test_plan_model_out_of_range(config: Path, capsys: pytest.CaptureFixture[str], key: str, value: int) -> None:
    edit(config / "models" / "tiny-llama.yaml", key, str(value))
    assert "tiny-llama.yaml" in refused(config, capsys)


@pytest.mark.parametrize("key", ["num_nodes", "gpus_per_node"])
def test_plan_cluster_out_of_range(config: Path, capsys: pytest.CaptureFixture[str], key: str) -> None:
    edit(config / "clusters" / "cpu-local.yaml", key, str(10**12))
    assert f"{key}: expected 1000000 or less" in refused(config, capsys)


@pytest.mark.parametrize(("name", "odd"), [("a b", " "), ("Mine", "M"), (".b", "."), ("a_b", "_")])
def test_plan_name_with_a_wrong_character_names_it(
    config: Path, capsys: pytest.CaptureFixture[str], name: str, odd: str
) -> None:
    (config / "studies" / f"{name}.yaml").write_text("name: x")
    assert f"in front of .yaml, a letter or digit first, found {odd!r}; rename it" in refused(config, capsys)


def test_plan_study_that_ends_in_yml_is_not_ignored(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (config / "studies" / "other.yml").write_text("name: x")
    line = refused(config, capsys)
    assert line.endswith(
        "studies/other.yml: names of these files end in .yaml, so this one would not be read; rename it"
    )


@pytest.mark.parametrize("folder", ["studies", "models", "clusters"])
def test_plan_name_of_190_letters(config: Path, capsys: pytest.CaptureFixture[str], folder: str) -> None:
    (config / folder / f"{'n' * 190}.yaml").write_text("name: x")
    assert "expected at most 64 lower-case letters, digits, dots and dashes in front of .yaml, found 190" in refused(
        config, capsys
    )


def test_plan_study_that_is_a_folder(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (config / "studies" / "folder.yaml").mkdir()
    assert "folder.yaml: is a folder, expected a YAML file" in refused(config, capsys)


def test_plan_fifo_among_the_studies(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(config / "studies" / "pipe.yaml")
    assert "pipe.yaml: is a FIFO, expected a YAML file" in refused(config, capsys)


@pytest.mark.parametrize("folder", ["studies", "models", "clusters"])
def test_plan_device_among_the_files(config: Path, capsys: pytest.CaptureFixture[str], folder: str) -> None:
    name = {"studies": "endless", "models": "tiny-llama", "clusters": "cpu-local"}[folder]
    path = config / folder / f"{name}.yaml"
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")
    assert f"{name}.yaml: is a device, expected a YAML file" in refused(config, capsys)


def test_plan_link_to_itself(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (config / "studies" / "loop.yaml").symlink_to("loop.yaml")
    assert "loop.yaml: cannot be read: " in refused(config, capsys)


def test_plan_file_too_large(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (config / "studies" / "mine.yaml").open("a") as file:
        file.write("# padding\n" * (MOST_BYTES // 10))
    assert f"bytes, at most {MOST_BYTES} are read" in refused(config, capsys)


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? "])
def test_plan_nested_too_deeply(config: Path, capsys: pytest.CaptureFixture[str], opening: str) -> None:
    """libyaml ends the process at some ten thousand levels, with signal 11."""
    (config / "studies" / "mine.yaml").write_text(f"description:\n  {opening * 200}")
    assert "nested more than 100 levels deep" in refused(config, capsys)


def test_plan_bomb_of_aliases(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A kilobyte whose aliases stand for 10^10 numbers: they are shared, and no message may write them out."""
    inner, text = "1", "description: A bomb of aliases.\nfigures:\n"
    for level in range(10):
        text += f"  - &a{level} [{', '.join([inner] * 10)}]\n"
        inner = f"*a{level}"
    (config / "studies" / "mine.yaml").write_text(
        f"{text}defaults: {{model: {inner}}}\nsweeps:\n  - set: {{tp: {inner}}}\n"
    )
    line = refused(config, capsys)
    assert "figures.0: expected text" in line and len(line) < 2000


def test_plan_many_keys_take_no_time(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A hundred thousand keys were compared each with each, for minutes."""
    (config / "studies" / "mine.yaml").write_text("".join(f"k{number}: 0\n" for number in range(80_000)))
    assert "unknown key 'k0'" in refused(config, capsys)


def test_plan_too_many_points(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = list(range(10))
    axes = ", ".join(
        f"{key}: {values}" for key in ("seed", "lora_rank", "vp", "pp", "tp", "cp", "ep", "micro_batch_size")
    )
    write_study(config, axes=f"{{{axes}}}")
    line = refused(config, capsys)
    assert f"100000000 points or more, a study has at most {MOST_POINTS}; shorten its axes" in line


def test_plan_too_many_repeats(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_study(config, "repeats: 1000", f"{{seed: {list(range(MOST_POINTS // 1000 + 1))}}}")
    assert f"{MOST_POINTS + 1000} points or more, a study has at most" in refused(config, capsys)
