"""`docs/extending.md`: its worked example runs, and everything it names exists."""

import importlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import triplepoint
from tests import synthetic_studies
from tests.synthetic import CONFIG, build
from triplepoint.aggregate import aggregate
from triplepoint.cli import COMMANDS
from triplepoint.recording import read_recording

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "extending.md").read_text()
SPANS = sorted(set(re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", TEXT, flags=re.DOTALL))))
MADE_UP = {"gpu": "testgpu", "link": "testlink", "chassis": "testbox"}
EXAMPLES = {
    *MADE_UP.values(),
    "{value, unit, source}",
    "ln -s profiles/mine mine",
    "--map",
    "reduce_kernel",
    "results/runs/<run>/telemetry.parquet",
    "wattlog",
}


@pytest.fixture(scope="module")
def words() -> set[str]:
    """Words of the code and of the files of the project."""
    files = [path for folder in ("src", "config", "profiles") for path in (ROOT / folder).rglob("*") if path.is_file()]
    return {word for path in files if path.suffix in (".py", ".yaml") for word in re.findall(r"\w+", path.read_text())}


def has_attribute(name: str) -> bool:
    """Return whether a dotted name is a module or something in one."""
    module, _, attribute = name.rpartition(".")
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        return hasattr(importlib.import_module(module), attribute)
    return True


def is_command(text: str) -> bool:
    _, command, *options = text.split()
    if command not in COMMANDS:
        return False
    parser = importlib.import_module(f"triplepoint.cli.{command}").parser()
    known = {option for action in parser._actions for option in action.option_strings}
    return {option for option in options if option.startswith("--")} <= known


@pytest.mark.parametrize("text", [text for text in SPANS if text not in EXAMPLES])
def test_extending_names_what_there_is(text: str, words: set[str]) -> None:
    if text.startswith("triplepoint "):
        assert is_command(text)
    elif re.fullmatch(r"triplepoint(\.\w+)+", text):
        assert has_attribute(text)
    elif re.fullmatch(r"\w[\w-]*/[\w/.<>-]*", text):
        assert list(ROOT.glob(re.sub(r"<\w+>", "*", text).rstrip("/")))
    else:
        name = re.match(r"[\w.]+", text)
        assert name and (
            name[0] in words or any(list((ROOT / folder).rglob(name[0])) for folder in ("src", "profiles"))
        )


def test_has_attribute_of_a_class_that_went_is_noticed() -> None:
    assert has_attribute("triplepoint.telemetry.sensor.Sensor")
    assert not has_attribute("triplepoint.telemetry.sensor.Device")


def script_of(heading: str) -> str:
    """Return the example of a section."""
    (section,) = re.findall(rf"^## {heading}$(.*?)(?=^## |\Z)", TEXT, flags=re.DOTALL | re.MULTILINE)
    (script,) = re.findall(r"```bash\n(.*?)```", section, flags=re.DOTALL)
    return str(script)


def do(script: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run an example in a folder."""
    source = str(Path(triplepoint.__file__).parents[1])
    functions = (
        f'triplepoint() {{ "{sys.executable}" -m triplepoint "$@"; }}\npython() {{ "{sys.executable}" "$@"; }}\n'
    )
    done = subprocess.run(
        ["bash", "-euc", functions + script],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": source},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done


def test_extending_example_adds_an_importer(tmp_path: Path) -> None:
    done = do(script_of("An importer"), tmp_path)
    assert ": 2 s on 1 GPU, no measured step" in done.stdout and "left out: volts (no counterpart)" in done.stdout
    (run,) = (tmp_path / "results" / "runs").iterdir()
    samples = read_recording(run / "raw" / "telemetry" / "node0.arrow").samples
    assert samples["gpu_power_w"].to_pylist() == [600.25, 610.5, None]
    assert samples["gpu_energy_j"].to_pylist() == [0, 600, 1210], "over a wrap of its 32 bits"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the configuration and the profiles."""
    for name in ("config", "profiles"):
        shutil.copytree(ROOT / name, tmp_path / name)
    return tmp_path


def test_extending_example_adds_a_model(project: Path) -> None:
    done = do(script_of("A model"), project)
    assert "3 points: 2 valid, 1 invalid" in done.stdout
    rows = pd.read_csv(project / "size.csv")
    assert rows["status"].tolist() == ["ok", "ok", "invalid"]
    assert rows["step_time_s"][:2].between(0.01, 10).all()


def test_extending_example_adds_a_cluster(project: Path) -> None:
    done = do(script_of("A cluster"), project)
    assert " 0 broken" in done.stdout and " on pair, " in done.stdout
    assert "0 valid" not in done.stdout
    assert yaml.safe_load((project / "mine/clusters.yaml").read_text())["clusters"] == ["pair"]


def test_extending_example_adds_an_engine(project: Path) -> None:
    done = do(script_of("An engine"), project)
    assert "the linear engine has data parallelism only; set tp: 1" in done.stdout
    (raw,) = project.glob("results/runs/*/raw")
    facts = json.loads((raw / "manifest.json").read_text())
    assert facts["status"] == "ok"
    steps = pq.read_table(raw / "steps.parquet").to_pandas()
    assert set(steps["rank"]) == {0, 1} and set(steps["kind"]) == {"warmup", "measured", "profiled"}
    # Tokens drawn at random can't be learned: what is known of the loss is the entropy of a vocabulary of 256.
    assert steps["loss"].between(math.log(256), math.log(256) + 0.5).all()
    assert len(list(raw.glob("traces/rank*.json.gz"))) == 2


def test_extending_example_adds_a_sensor(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chip = project / "sys/class/hwmon/hwmon3"
    chip.mkdir(parents=True)
    (chip / "name").write_text("coolant\n")
    (chip / "temp1_input").write_text("31500\n")
    monkeypatch.setenv("TRIPLEPOINT_SYSFS", str(project / "sys"))
    do(script_of("A sensor"), project)
    (recording,) = project.glob("results/runs/*/raw/telemetry/node0.arrow")
    # This process knows no such column: the file is read as what it is.
    read = pa.ipc.open_stream(recording).read_all()["coolant_temp_c"].drop_null().to_pylist()
    assert read and set(read) == {31.5}


def test_extending_example_adds_a_figure(project: Path) -> None:
    aggregate(build(project / "results", synthetic_studies.cpu_smoke(), ("smoke",)), project / "results", CONFIG)
    do(script_of("A figure"), project)
    assert (project / "figs/step_time.pdf").is_file()
    assert pd.read_csv(project / "figs/step_time.csv")["step_time_s"].is_monotonic_increasing


def test_extending_example_adds_a_kernel_rule(project: Path) -> None:
    (rules,) = re.findall(r"```yaml\n(device: .*?)```", TEXT, flags=re.DOTALL)
    (project / "mine.yaml").write_text(rules)
    do(script_of("A kernel rule"), project)
    classes = pq.read_table(project / "out" / "kernels.parquet").to_pandas().set_index("name")["class"]
    found = {name.partition("_")[0]: found_class for name, found_class in classes.items()}
    assert found == {"my": "attention", "selective": "ssm", "sm90": "gemm", "ncclDevKernel": "comm"}


def test_extending_example_adds_a_gpu_with_power(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "config", tmp_path / "config")
    done = do(script_of("A GPU"), tmp_path)
    assert " 0 broken" in done.stdout
    missing = [line for line in done.stdout.splitlines() if line.startswith("missing")]
    assert [line.split()[3] for line in missing] == ["calibration"], "every file but that of measured runs is there"
    (telemetry,) = tmp_path.glob("results/runs/*/telemetry.parquet")
    samples = pq.read_table(telemetry, columns=["device", "gpu_power_w", "gpu_temp_c"]).to_pandas()
    power_w = samples.groupby("device")["gpu_power_w"].mean()
    assert set(power_w.dropna().index) == {"gpu0", "gpu1"}
    assert power_w.dropna().between(77, 700).all(), "from rest to the limit"


def test_extending_lists_the_files_of_its_example() -> None:
    listed = set(re.findall(r"^\| `(config/\S+)` \|", TEXT, flags=re.MULTILINE))
    script = script_of("A GPU")
    copied = {f"config/{folder}/<{part}>.yaml" for folder, part in _copies(script)}
    assert copied == listed - {"config/calibration/fitted.yaml"}


def _copies(script: str) -> set[tuple[str, str]]:
    """Return folder and part of every file that the example copies."""
    parts = {name: part for part, name in MADE_UP.items()}
    (kinds,) = re.findall(r"for kind in ([\w ]+);", script)
    singles = re.findall(r"^copy (\S+) \S+ (\w+)$", script, flags=re.MULTILINE)
    return {(kind, "gpu") for kind in kinds.split()} | {(folder, parts[name]) for folder, name in singles}
