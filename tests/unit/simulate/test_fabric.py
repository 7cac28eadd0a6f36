"""Levels of links: what a cluster's description becomes."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.simulate.jobs import fabric_from
from triplepoint.config.base import Quantity
from triplepoint.config.catalogue import Catalogue
from triplepoint.errors import UserError
from triplepoint.simulate.collectives.links import load_link
from triplepoint.simulate.fabric import (
    Fabric,
    Level,
    Network,
    fabric_of,
    network_levels,
    node_levels,
)

CONFIG = Path("config")
CATALOGUE = Catalogue(CONFIG)
CLUSTER = CATALOGUE.cluster("h100x64")


def test_fabric_of_h100_shares_its_two_adapters() -> None:
    cluster = CATALOGUE.cluster("h100x64")
    inside, between = fabric_of(cluster, CATALOGUE.gpu("h100"), CONFIG).levels
    assert (inside.name, inside.num_gpus, inside.bandwidth, inside.has_reduction) == ("nvlink4", 8, 450e9, True)
    # Two adapters of 100 Gb/s: an eighth of both each, a whole one for a GPU alone.
    assert (between.num_gpus, between.bandwidth, between.single) == (64, 2 * 12.5e9 / 8, 12.5e9)
    assert between.kind == "infiniband-shared"


def test_fabric_of_one_node_has_no_network() -> None:
    cluster = CATALOGUE.cluster("h100x64").model_copy(update={"num_nodes": 1})
    assert [level.name for level in fabric_of(cluster, CATALOGUE.gpu("h100"), CONFIG).levels] == ["nvlink4"]


def test_fabric_of_nodes_without_adapters_is_refused() -> None:
    cluster = CATALOGUE.cluster("h100x64").model_copy(update={"nics_per_node": None})
    with pytest.raises(UserError, match="h100x64.*nics_per_node"):
        fabric_of(cluster, CATALOGUE.gpu("h100"), CONFIG)


def test_node_levels_of_mi250_have_the_package_inside() -> None:
    package, node = node_levels(CATALOGUE.gpu("mi250"), 8, CONFIG)
    assert (package.num_gpus, package.bandwidth) == (2, 200e9)
    assert (node.num_gpus, node.bandwidth) == (8, 150e9)


def test_fabric_from_numbers_of_a_table() -> None:
    fabric = fabric_from("a100", 8, 200e9, CONFIG, 512)
    assert [(level.num_gpus, level.bandwidth) for level in fabric.levels] == [(8, 300e9), (512, 25e9)]
    assert fabric.levels[1].single == 25e9
    assert fabric.gpus_per_node == 8


def test_fabric_from_no_adapters_is_one_node() -> None:
    assert len(fabric_from("h200", 8, 0.0, CONFIG).levels) == 1


def test_network_levels_oversubscribed_spine_is_slower() -> None:
    network = Network(400e9, gpus_per_leaf=256, oversubscription=4.0)
    leaf, spine = network_levels(network, load_link("infiniband", CONFIG), 8, 1024)
    assert (leaf.name, leaf.num_gpus, leaf.bandwidth) == ("leaf", 256, 50e9)
    assert (spine.name, spine.num_gpus, spine.bandwidth) == ("spine", 1024, 12.5e9)


@pytest.mark.parametrize("network", [Network(0.0), Network(50e9, oversubscription=0.5)])
def test_network_levels_without_bandwidth_are_refused(network: Network) -> None:
    with pytest.raises(UserError, match="expected a positive bandwidth"):
        network_levels(network, load_link("infiniband", CONFIG), 8, 64)


def test_merged_joins_levels_that_differ_in_name_and_size_only() -> None:
    eight = Level("nvlink4", 8, 450e9, 3e-6)
    two, other = Level("pair", 2, 450e9, 3e-6, link="nvlink4"), Level("nvlink4", 16, 50e9, 3e-6)
    assert Fabric((two, eight, other)).merged == Fabric((eight, other))
    assert Fabric((replace(two, bandwidth=500e9), eight)).merged.levels[0].num_gpus == 2


def test_load_link_unknown_name_hints_at_the_nearest() -> None:
    with pytest.raises(UserError, match="infiniband"):
        load_link("infinband", CONFIG)


def test_fabric_of_an_nvlink_domain_of_several_nodes() -> None:
    changes = {"num_nodes": 36, "gpus_per_node": 4, "nodes_per_domain": 18, "network_link": "infiniband"}
    adapters = {"nics_per_node": Quantity(value=4, unit="NIC", source="made up for tests")}
    cluster = CLUSTER.model_copy(update=changes | adapters)
    inside, between = fabric_of(cluster, CATALOGUE.gpu("gb200"), CONFIG).levels
    assert (inside.num_gpus, inside.bandwidth) == (72, 900e9)
    assert (between.num_gpus, between.bandwidth) == (144, 12.5e9)
    with pytest.raises(UserError, match="nodes_per_domain: 18 joins 72 GPUs, h100 has 8 at most"):
        fabric_of(cluster, CATALOGUE.gpu("h100"), CONFIG)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"network_link": "nvlink4"}, "network_link: nvlink4 joins GPUs of a node; name one between nodes"),
        ({"scale_up_link": "infiniband"}, "scale_up_link: infiniband joins nodes; name one inside a node"),
    ],
)
def test_fabric_of_links_in_the_wrong_place_is_refused(changes: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        fabric_of(CLUSTER.model_copy(update=changes), CATALOGUE.gpu("h100"), CONFIG)


def test_fabric_of_an_oversubscribed_cluster() -> None:
    def sizes(**changes: object) -> list[tuple[int, float]]:
        cluster = CLUSTER.model_copy(update={"num_nodes": 64, "oversubscription": 2.0} | changes)
        levels = fabric_of(cluster, CATALOGUE.gpu("h100"), CONFIG).levels
        return [(level.num_gpus, level.bandwidth / 1e9) for level in levels[1:]]

    # Two adapters of 12.5 GB/s a node: 16 nodes on a leaf of 32 ports, 32 nodes if each has its own rail.
    assert sizes() == [(128, 3.125), (512, 1.5625)]
    assert sizes(topology="rail_optimised") == [(256, 3.125), (512, 1.5625)]
    assert sizes(topology="fat_tree") == sizes()
    assert sizes(gpus_per_leaf=64) == [(64, 3.125), (512, 1.5625)]
    assert sizes(oversubscription=1.0) == [(512, 3.125)]


def test_fabric_of_a_dragonfly() -> None:
    def sizes(**changes: object) -> list[tuple[int, float]]:
        cluster = CLUSTER.model_copy(update={"num_nodes": 1024, "topology": "dragonfly"} | changes)
        levels = fabric_of(cluster, CATALOGUE.gpu("h100"), CONFIG).levels
        return [(level.num_gpus, level.bandwidth / 1e9) for level in levels[1:]]

    # Two adapters of 12.5 GB/s a node: 512 of them in a group, 256 nodes; twice over links between groups.
    assert sizes() == [(2048, 3.125), (8192, 1.5625)]
    assert sizes(oversubscription=2.0) == [(2048, 3.125), (8192, 0.78125)]
    assert sizes(gpus_per_leaf=512)[0] == (512, 3.125)
    # A job in one group is not slower.
    assert sizes(num_nodes=256) == [(2048, 3.125)]
