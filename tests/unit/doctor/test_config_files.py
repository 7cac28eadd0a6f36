"""`triplepoint doctor --files` on copies of the configuration with files taken away, renamed and spoilt."""

import json
import shutil
from pathlib import Path

import pytest

from triplepoint.cli import main
from triplepoint.doctor.config_files import NO_CALIBRATION, NO_KERNELS, NO_NETWORK, NO_POWER, FileCheck, check_files
from triplepoint.errors import UserError

CONFIG = Path(__file__).parents[3] / "config"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return shutil.copytree(CONFIG, tmp_path / "config")


def not_ok(checks: list[FileCheck]) -> dict[str, tuple[str, str]]:
    return {check.part: (check.status, check.note) for check in checks if check.status != "ok"}


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


def test_check_files_that_ship_are_whole() -> None:
    checks = check_files([], CONFIG)
    assert {check.name for check in checks} >= {"gpu h100", "gpu h200", "gpu mi250", "gpu mi300x", "cluster h200x32"}
    assert not [check for check in checks if check.status == "broken"]
    assert {Path(check.file).exists() for check in checks if check.status == "ok"} == {True}
    assert not_ok(check_files(["h100", "h100x64", "h200x32", "mi250x32"], CONFIG)) == {}


def test_check_files_mi300x_has_no_power_and_no_chassis() -> None:
    absent = not_ok(check_files(["mi300x"], CONFIG))
    assert absent == {
        "power": ("missing", NO_POWER),
        "heat": ("missing", NO_POWER),
        "chassis": ("missing", f"names no chassis: {NO_POWER}"),
    }
    assert not_ok(check_files(["mi250"], CONFIG)) == {"calibration": ("missing", NO_CALIBRATION)}


@pytest.mark.parametrize(("part", "cost"), [("power", NO_POWER), ("heat", NO_POWER), ("kernels", NO_KERNELS)])
def test_check_files_without_an_optional_file_says_what_that_costs(config: Path, part: str, cost: str) -> None:
    path = config / part / "h100.yaml"
    path.unlink()
    checks = check_files(["h100"], config)
    assert [(check.file, check.status, check.note) for check in checks if check.status != "ok"] == [
        (str(path), "missing", cost)
    ]


def test_check_files_of_a_cluster_with_an_incomplete_gpu_says_so(config: Path) -> None:
    (config / "power" / "h100.yaml").unlink()
    assert not_ok(check_files(["h100x64"], config)) == {
        "conditions": ("missing", f"gpu h100 is incomplete: {NO_POWER}")
    }


def test_check_files_of_a_cluster_without_adapters_says_what_that_costs(config: Path) -> None:
    path = config / "clusters" / "h200x1.yaml"
    replace(path, "num_nodes: 1", "num_nodes: 2")
    assert not_ok(check_files(["h200x1"], config)) == {"network": ("missing", NO_NETWORK)}


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("coolant: liquid", "conditions.coolant is liquid, config/heat/mi250.yaml describes cooling by air"),
        ("power_limit_w: 900", "takes limits of 100 to 280 W for a device of mi250"),
        ("airflow: hgx-8", "airflow hgx-8 is of other packages than those of mi250"),
    ],
)
def test_check_files_of_a_cluster_with_impossible_conditions_is_broken(
    config: Path, condition: str, message: str
) -> None:
    path = config / "clusters" / "mi250x32.yaml"
    path.write_text(f"{path.read_text()}conditions: {{{condition}}}\n")
    status, note = not_ok(check_files(["mi250x32"], config))["conditions"]
    assert status == "broken" and message in note


def test_check_files_of_a_cluster_of_another_vendors_gpu_is_broken(config: Path) -> None:
    replace(config / "clusters" / "h200x1.yaml", "device: cuda", "device: rocm")
    assert not_ok(check_files(["h200x1"], config)) == {"device": ("broken", "device is rocm, h200 is of nvidia")}


@pytest.mark.parametrize(
    ("file", "old", "new", "part", "message"),
    [
        ("gpus/h100.yaml", "unit: MHz", "unit: GHz", "gpu", "max_sm_clock: unit is 'GHz', expected 'MHz'"),
        ("gpus/h100.yaml", "chassis: hgx-8", "chassis: hgx-9", "airflow", "no such file (did you mean 'hgx-8.yaml'?)"),
        ("gpus/h100.yaml", "chassis: hgx-8", "chassis: mi250-4x2", "airflow", "is of other packages"),
        ("gpus/h100.yaml", "scale_up_link: nvlink4", "scale_up_link: nvlink7", "link", "unknown link 'nvlink7'"),
        ("kernels/h100.yaml", "name: h100", "name: h200", "kernels", "they must be the same"),
        ("heat/h100.yaml", "publish_period:\n    value: 0.1", "publish_period:\n    value: 0", "heat", "is 0 s"),
        ("heat/h100.yaml", "gpu_power_cap_s,", "gpu_power_cap,", "heat", "sensors.shows"),
        ("heat/h100.yaml", "sensors:\n", "sensors:\n  power_die: 1\n", "heat", "gpus_per_package of h100 is 1"),
        ("power/nodes/hgx-8.yaml", "name: hgx-8", "nome: hgx-8", "node power", "nome"),
        ("collectives/links/nvlink4.yaml", "is_network: false", "is_network: 3", "link", "is_network"),
        ("calibration/fitted.yaml", "fitted_to:", "fited_to:", "calibration", "fited_to"),
    ],
)
def test_check_files_broken_file_is_named(config: Path, file: str, old: str, new: str, part: str, message: str) -> None:
    replace(config / file, old, new)
    status, note = not_ok(check_files(["h100"], config))[part]
    assert status == "broken" and message in note


def test_check_files_unknown_name_hints_at_the_nearest() -> None:
    with pytest.raises(UserError, match="h300: neither a GPU type nor a cluster of .* 'h[128]00'"):
        check_files(["h300"], CONFIG)


def test_check_files_of_another_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="name Triplepoint's folder of configuration"):
        check_files([], tmp_path)


def test_doctor_files_exit_status_and_json(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["doctor", "--config", str(config), "--json", "--files", "mi300x"]
    assert main(words) == 0
    (config / "gpus" / "mi300x.yaml").write_text("name: mi300x\n")
    capsys.readouterr()
    assert main(words) == 2
    (check,) = json.loads(capsys.readouterr().out)["files"]
    assert (check["name"], check["part"], check["status"]) == ("gpu mi300x", "gpu", "broken")
    assert "is missing" in check["note"]


def test_doctor_files_table_has_a_line_for_each_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--config", str(CONFIG), "--files", "mi300x"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"missing  gpu mi300x         power        {CONFIG}/power/mi300x.yaml: {NO_POWER}" in lines
    assert lines[-1] == "7 files: 4 ok, 3 missing, 0 broken"


def test_doctor_files_of_a_machine_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--files", "--cluster", "h200x32"]) == 2
    assert "--files checks the configuration" in capsys.readouterr().err
