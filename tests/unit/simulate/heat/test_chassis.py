"""The chassis of a GPU comes from its file or its cluster's, never from what GPU it is."""

import shutil
from pathlib import Path

import pytest

from tests.unit.simulate.heat.machines import CONFIG
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.cluster import USUAL, ConditionsConfig
from triplepoint.errors import UserError
from triplepoint.simulate.heat.nodes import airflow_of, is_known, machine_of, node_power_of


@pytest.fixture
def catalogue(tmp_path: Path) -> Catalogue:
    """An MI300X whose power and heat are described, on a cluster of one node."""
    config = shutil.copytree(CONFIG, tmp_path / "config")
    for part in ("power", "heat"):
        text = (config / part / "h200.yaml").read_text()
        (config / part / "mi300x.yaml").write_text(text.replace("name: h200", "name: mi300x"))
    content = "name: mi300x8\ndevice: rocm\ngpu: mi300x\nnum_nodes: 1\ngpus_per_node: 8\nexecutor: local\n"
    (config / "clusters" / "mi300x8.yaml").write_text(content)
    return Catalogue(config)


def test_mi300x_without_a_chassis_has_no_other_gpus(catalogue: Catalogue) -> None:
    gpu = catalogue.gpu("mi300x")
    assert not is_known(gpu, catalogue.folder)
    for refused in (lambda: airflow_of(None, gpu, 8, catalogue.folder), lambda: node_power_of(gpu, catalogue.folder)):
        with pytest.raises(UserError, match="gpu mi300x has no chassis; name one"):
            refused()


def test_mi300x_in_the_chassis_its_cluster_names(catalogue: Catalogue) -> None:
    path = catalogue.folder / "clusters" / "mi300x8.yaml"
    path.write_text(path.read_text() + "chassis: hgx-8\n")
    gpu = catalogue.gpu_of(catalogue.cluster("mi300x8"))
    assert gpu is not None and is_known(gpu, catalogue.folder)
    assert machine_of(USUAL, gpu, (1, 8), "mi300x8", catalogue.folder).airflow.name == "hgx-8"
    assert node_power_of(gpu, catalogue.folder).name == "hgx-8"


def test_mi300x_in_a_chassis_of_packages_of_two_is_refused(catalogue: Catalogue) -> None:
    gpu = catalogue.gpu("mi300x").model_copy(update={"chassis": "mi250-4x2"})
    with pytest.raises(UserError, match="is of other packages than those of mi300x"):
        airflow_of(None, gpu, 8, catalogue.folder)


def test_airflow_of_the_conditions_comes_before_the_chassis(catalogue: Catalogue) -> None:
    gpu = catalogue.gpu("mi250")
    assert airflow_of(None, gpu, 8, catalogue.folder).name == "mi250-4x2"
    with pytest.raises(UserError, match="hgx-8 is of other packages"):
        airflow_of("hgx-8", gpu, 8, catalogue.folder)


def test_coolant_that_no_file_describes_is_refused(catalogue: Catalogue) -> None:
    liquid = ConditionsConfig(coolant="liquid")
    machine = machine_of(liquid, catalogue.gpu("mi250"), (1, 8), "mi250x32", catalogue.folder)
    with pytest.raises(UserError, match="coolant is liquid, config/heat/mi250.yaml describes cooling by air"):
        _ = machine.network
