import csv
import json
import shutil
from pathlib import Path

import pytest

from triplepoint.cli import main
from triplepoint.cli.doctor import new_folder
from triplepoint.config.yaml_file import read_yaml
from triplepoint.doctor.check import NodeFacts
from triplepoint.doctor.node import Vendor, read_node

CONFIG = Path("config").resolve()


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return shutil.copytree(CONFIG, tmp_path / "config")


@pytest.mark.long
def test_doctor_measures_processors_and_calibrate_reads_it(
    tmp_path: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--cluster", "cpu-local", "--measure", "0.5", "--ranks", "2", "--largest", "1", "--json"]
    assert main(["doctor", *words, "--results", str(tmp_path), "--config", str(config)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["name"] == "cpu-local"
    assert report["nodes"][0]["facts"]["vendor"] == "none"
    (folder,) = (tmp_path / "doctor/cpu-local").iterdir()
    assert json.loads((folder / "report.json").read_text()).items() <= report.items()
    with (folder / "collectives.csv").open() as table:
        rows = list(csv.DictReader(table))
    assert {row["fabric"] for row in rows} == {"cpu-local-node"}
    assert {row["kind"] for row in rows} >= {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"}
    assert main(["calibrate", "--collectives", str(folder / "collectives.csv"), "--config", str(config)]) == 0
    link = read_yaml(config / "collectives/links/cpu-local-node.yaml")
    assert link["fitted_to"].startswith(f"{len(rows)} rows of doctor-cpu-local-")
    assert link["max_gpus"] == 2


def test_doctor_of_this_machine_needs_no_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--results", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "skipped  gpus" in text
    assert "1 reported" in text


def test_doctors_of_the_same_second_have_folders_of_their_own(tmp_path: Path) -> None:
    folders = [new_folder(tmp_path / "doctor" / "node", "20260101T000000") for _ in range(3)]
    assert [folder.name for folder in folders] == ["20260101T000000", "20260101T000000-2", "20260101T000000-3"]
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        new_folder(tmp_path / "file", "20260101T000000")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--cluster", "h200x31"], "unknown cluster 'h200x31'"),
        (["--nodes", "2"], "--nodes without --cluster"),
        (["--cluster", "h200x32", "--nodes", "5"], "--nodes 5: cluster h200x32 has 4"),
    ],
)
def test_doctor_wrong_use_is_told(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *words]) == 2
    assert told in capsys.readouterr().err


def test_doctor_of_a_cluster_without_slurm_checks_this_machine(
    tmp_path: Path, config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It does so in this process: that of a job would see no GPU."""
    nodes: list[int] = []

    def read(node: int, vendors: tuple[Vendor, ...]) -> NodeFacts:
        nodes.append(node)
        return read_node(node, vendors)

    monkeypatch.setattr("triplepoint.doctor.probe.read_node", read)
    words = ["doctor", "--cluster", "cpu-local", "--config", str(config), "--results"]
    assert main([*words, str(tmp_path / "one")]) == 0
    assert "1 reported" in capsys.readouterr().out and nodes == [0]
    cluster = config / "clusters" / "cpu-local.yaml"
    cluster.write_text(cluster.read_text().replace("num_nodes: 1", "num_nodes: 2"))
    assert main([*words, str(tmp_path / "two")]) == 2
    assert "executor: local, which is this machine, and 2 nodes" in capsys.readouterr().err


def test_doctor_away_from_slurm_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["doctor", "--cluster", "h200x32", "--results", str(tmp_path)]) == 2
    assert "cluster h200x32 is reached through Slurm" in capsys.readouterr().err


def test_calibrate_without_a_table_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate"]) == 2
    assert "nothing to fit to" in capsys.readouterr().err
