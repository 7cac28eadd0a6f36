"""`--config DIR`: all that is read is in DIR, whatever the current folder holds."""

from pathlib import Path

import pytest

from tests.commands import triplepoint
from tests.unit.published.cells import NEMOTRON

ROOT = Path(__file__).parents[3]
ROWS = [
    NEMOTRON,
    NEMOTRON | {"n_gpus": "64", "dp": "16", "gbs": "256", "interconnect": "8x400G RoCE/node"},
    NEMOTRON | {"gpu": "MI250", "precision": "bf16"},
    NEMOTRON | {"task": "inference", "output_tokens": "16", "gbs": "16"},
]
COMMANDS = [
    ("predict", "--published", "in.csv", "out.csv"),
    ("predict", "study.csv"),
    ("plan", "lora", "inference"),
]


def call(folder: Path, *words: str) -> str:
    """Return what a command prints in a folder, and the tables it leaves."""
    done = triplepoint(folder, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout + "".join(path.read_text() for path in sorted(folder.glob("out.csv")))


def make_folder(folder: Path, config: str | None) -> Path:
    """Return a folder with a table to predict, and a configuration: a link to the real one, or nothing but poison."""
    columns = sorted({name for row in ROWS for name in row})
    lines = [",".join(f'"{row.get(name, "")}"' for name in columns) for row in ROWS]
    folder.mkdir()
    (folder / "in.csv").write_text("\n".join([",".join(columns), *lines]) + "\n")
    study = "model,cluster,global_batch_size\nllama3-8b,h200x1,8\nmixtral-8x7b,mi250x32,32\n"
    (folder / "study.csv").write_text(study)
    if config == "real":
        (folder / "config").symlink_to(ROOT / "config")
    elif config == "poison":
        for path in (ROOT / "config").rglob("*.*"):
            poisoned = folder / path.relative_to(ROOT)
            poisoned.parent.mkdir(parents=True, exist_ok=True)
            poisoned.write_text("poison: [")
    return folder


@pytest.mark.parametrize("command", COMMANDS, ids=["published", "predict", "plan"])
def test_config_of_another_folder(tmp_path: Path, command: tuple[str, ...]) -> None:
    here, empty, poisoned = (make_folder(tmp_path / str(config), config) for config in ("real", None, "poison"))
    expected = call(here, *command)
    assert "ok" in expected or "valid" in expected
    for folder in (empty, poisoned):
        assert call(folder, *command, "--config", str(ROOT / "config")) == expected


def test_simulate_with_the_configuration_of_another_folder(tmp_path: Path) -> None:
    poisoned = make_folder(tmp_path / "poison", "poison")
    simulated = ("--simulated", "h200x32", "--simulated", "h200x1")
    call(poisoned, "plan", "lora", "inference", *simulated, "--write", "--config", str(ROOT / "config"))
    runs = {("lora" in path.parent.name): path.parent.name for path in poisoned.glob("results/runs/*/point.json")}
    for run in runs.values():
        call(poisoned, "simulate", run, "--config", str(ROOT / "config"))
        assert (poisoned / "results" / "runs" / run / "raw" / "manifest.json").is_file()
