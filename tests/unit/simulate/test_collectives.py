"""Times of collectives: by hand where a link is ideal, and what must hold on any fabric."""

import csv
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.simulate.jobs import fabric_from
from triplepoint.config.base import Quantity
from triplepoint.metrics import bus_factor
from triplepoint.simulate.collectives.links import Link, load_link, load_overlap
from triplepoint.simulate.collectives.times import CollectiveModel
from triplepoint.simulate.fabric import Fabric, Group, Level, Network, network_levels, scale_up_levels
from triplepoint.simulate.operations import CommKind
from triplepoint.units import MIB

CONFIG = Path("config")
KINDS: tuple[CommKind, ...] = get_args(CommKind)
RINGS: tuple[CommKind, ...] = ("all_gather", "reduce_scatter", "broadcast")

DATA = Path(__file__).parents[2] / "data" / "simulate"


def ideal(name: str, is_network: bool) -> Link:
    """A link that loses nothing: 10 us to start, 1 us a hop, latency and transfer added."""
    return load_link("nvlink4", CONFIG).model_copy(
        update={
            "name": name,
            "is_network": is_network,
            "launch_s": 10e-6,
            "latency_s": 1e-6,
            "peer_s": 0.0,
            "efficiency": 1.0,
            "tree_efficiency": 1.0,
            "reduction_efficiency": 1.0,
            "exchange_efficiency": 1.0,
            "plateau": 1.0,
            "tree_latency": 1.0,
            "bend": 1.0,
            "protocols": {},
        }
    )


INSIDE, BETWEEN = ideal("inside", False), ideal("between", True)
LINKS = {"inside": INSIDE, "between": BETWEEN}
NODE = scale_up_levels(INSIDE, 8, 400e9, False)


def two_levels(node_bandwidth: float = 400e9, num_nics: int = 8) -> CollectiveModel:
    """1024 ideal GPUs in nodes of 8, 400 GB/s each inside."""
    return CollectiveModel(Fabric(NODE + network_levels(Network(node_bandwidth, num_nics), BETWEEN, 8, 1024)), LINKS)


def real(has_reduction: bool = True) -> CollectiveModel:
    """1024 H100 with an adapter of 400 Gb/s each."""
    fabric = fabric_from("h100", 8, 400e9, CONFIG, 1024)
    inside = replace(fabric.levels[0], has_reduction=has_reduction)
    return CollectiveModel.load(Fabric((inside, *fabric.levels[1:])), CONFIG)


groups = st.builds(Group, st.integers(0, 7).map(lambda n: 2**n), st.integers(0, 3).map(lambda n: 2**n))
sizes = st.floats(1.0, 2e10)
kinds = st.sampled_from(KINDS)


# Expected by hand: 10 us to start, hops of 1 us, bytes over bandwidth; a GB is 1e9 bytes.
@pytest.mark.parametrize(
    ("kind", "group", "by_hand_us"),
    [
        ("all_gather", Group(8, 1), 10 + 7 + 7 / 8 * 1e9 / 400e9 * 1e6),
        ("all_reduce", Group(8, 1), 10 + 14 + 14 / 8 * 1e9 / 400e9 * 1e6),
        ("broadcast", Group(8, 1), 10 + 7 + 1e9 / 400e9 * 1e6),
        ("all_to_all", Group(8, 1), 10 + 1 + 7 / 8 * 1e9 / 400e9 * 1e6),
        ("send_recv", Group(2, 1), 10 + 1 + 1e9 / 400e9 * 1e6),
        # One member a node: its own adapter of 50 GB/s only.
        ("all_gather", Group(4, 8), 10 + 3 + 3 / 4 * 1e9 / 50e9 * 1e6),
        ("send_recv", Group(2, 8), 10 + 1 + 1e9 / 50e9 * 1e6),
        # 8 members a node use all 8 adapters: as fast as the links inside.
        ("all_gather", Group(64, 1), 10 + 63 + 63 / 64 * 1e9 / 400e9 * 1e6),
        # 56 of 64 parts leave the node, over an adapter of 50 GB/s each.
        ("all_to_all", Group(64, 1), 10 + 1 + 56 / 64 * 1e9 / 50e9 * 1e6),
    ],
)
def test_time_s_on_ideal_links_as_by_hand(kind: CommKind, group: Group, by_hand_us: float) -> None:
    assert two_levels().time_s(kind, 1e9, group) == pytest.approx(by_hand_us * 1e-6, rel=1e-9)


def test_time_s_tree_of_nodes_by_hand() -> None:
    # A small message among 16 nodes: up and down 4 hops, where the ring makes 30.
    assert two_levels().time_s("all_reduce", 1.0, Group(16, 8)) == pytest.approx(10e-6 + 2 * 4 * 1e-6, rel=1e-3)


def test_time_s_reduction_in_switches_by_hand() -> None:
    # Each GPU sends its tensor once and the reduced eighth of it: 9/8 of the bytes, where a ring moves 14/8.
    model = CollectiveModel(Fabric(scale_up_levels(INSIDE, 8, 400e9, True)), LINKS)
    expected = 10e-6 + INSIDE.reduction_s + 9 / 8 * 1e9 / 400e9
    assert model.time_s("all_reduce", 1e9, Group(8, 1)) == pytest.approx(expected, rel=1e-9)


def test_time_s_group_of_one_is_free() -> None:
    assert real().time_s("all_reduce", 1e9, Group(1, 8)) == 0.0
    assert real().fastest("all_reduce", 1e9, Group(1, 8)) is None


def test_time_s_empty_message_still_has_to_start() -> None:
    assert real().time_s("all_reduce", 0.0, Group(8, 1)) > 10e-6


@pytest.mark.parametrize("group", [Group(0, 1), Group(2, 0)])
def test_time_s_impossible_group_is_refused(group: Group) -> None:
    with pytest.raises(ValueError, match="expected positive"):
        real().time_s("all_reduce", 1.0, group)


def test_time_s_negative_size_is_refused() -> None:
    with pytest.raises(ValueError, match="expected 0 or more"):
        real().time_s("all_reduce", -1.0, Group(2, 1))


# Traps others fell into.


@given(kinds, sizes, groups)
def test_bus_bandwidth_never_above_the_link(kind: CommKind, num_bytes: float, group: Group) -> None:
    model = real(has_reduction=False)
    if group.size == 1:
        return
    reached = num_bytes / model.time_s(kind, num_bytes, group) * float(bus_factor(kind, group.size))
    per_node = min(group.size, max(1, 8 // group.stride))
    slowest = 450e9 if group.size == per_node else min(450e9, 50e9 * per_node)
    if kind in ("all_to_all", "send_recv") and group.size > per_node:
        # Of an all-to-all a part stays inside the node.
        slowest = 50e9 * (group.size - 1) / (group.size - per_node) if kind == "all_to_all" else 50e9
    assert reached <= slowest * (1 + 1e-9)


@given(sizes, st.integers(3, 8))
def test_bus_bandwidth_of_switch_reduction_within_what_links_carry(num_bytes: float, size: int) -> None:
    # Of each byte a link carries 1 + 1/size.
    reached = num_bytes / real().time_s("all_reduce", num_bytes, Group(size, 1))
    assert reached <= 450e9 / (1 + 1 / size)


def test_sends_of_one_gpu_are_serialised() -> None:
    # 64 MiB to 7 peers over 450 GB/s: another simulator has 24.9 us, 2,356 GB/s over the link.
    assert real().time_s("all_to_all", 64 * MIB, Group(8, 1)) >= 7 / 8 * 64 * MIB / 450e9


def test_message_between_nodes_is_not_priced_as_nvlink() -> None:
    model = real()
    assert model.time_s("send_recv", 1e9, Group(2, 8)) >= 1e9 / 50e9
    assert model.time_s("send_recv", 1e9, Group(4, 4)) >= 1e9 / 50e9  # Two stages a node: every other message leaves.
    assert model.time_s("send_recv", 1e9, Group(2, 4)) <= 1e9 / 300e9


def test_subgroups_use_the_node_and_are_no_flat_ring() -> None:
    flat = CollectiveModel(Fabric(two_levels().fabric.levels[1:]), LINKS)
    one = two_levels().time_s("all_reduce", 1e9, Group(64, 1))
    assert one < flat.time_s("all_reduce", 1e9, Group(64, 1)) / 4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("group", [Group(8192, 1), Group(64, 1), Group(8, 1), Group(4, 1), Group(64, 8), Group(16, 4)])
def test_time_s_does_not_depend_on_spelling(kind: CommKind, group: Group) -> None:
    fabric = fabric_from("h100", 8, 400e9, CONFIG, 8192)
    inside, rail = fabric.levels
    halves = (replace(inside, name="half", num_gpus=4, link="nvlink4"), replace(inside, name="node", link="nvlink4"))
    racks = (replace(rail, name="rack", num_gpus=256), replace(rail, name="hall"))
    expected = CollectiveModel.load(fabric, CONFIG).time_s(kind, 64 * MIB, group)
    for levels in [(*halves, rail), (inside, *racks), (*halves, *racks)]:
        assert CollectiveModel.load(Fabric(levels), CONFIG).time_s(kind, 64 * MIB, group) == pytest.approx(
            expected, rel=1e-12
        )


@given(kinds, sizes)
def test_time_s_strides_that_lie_alike_are_equal(kind: CommKind, num_bytes: float) -> None:
    model = real()
    assert model.time_s(kind, num_bytes, Group(4, 8)) == model.time_s(kind, num_bytes, Group(4, 16))


@given(kinds, sizes, st.floats(1.0, 100.0), groups)
def test_time_s_grows_with_bytes(kind: CommKind, num_bytes: float, factor: float, group: Group) -> None:
    model = real()
    assert model.time_s(kind, num_bytes * factor, group) >= model.time_s(kind, num_bytes, group) * (1 - 1e-12)


@given(st.sampled_from(RINGS), sizes, st.integers(0, 8), st.sampled_from([1, 8]))
def test_more_ranks_are_never_faster(kind: CommKind, num_bytes: float, exponent: int, stride: int) -> None:
    model = real()
    fewer, more = Group(2**exponent, stride), Group(2 ** (exponent + 1), stride)
    assert model.time_s(kind, num_bytes, more) >= model.time_s(kind, num_bytes, fewer) * (1 - 1e-12)


def test_groups_of_a_node_share_its_only_adapter() -> None:
    # 8 groups of one member a node: with one adapter of 50 GB/s each has an eighth; one group alone has it all.
    model = two_levels(50e9, 1)
    alone = model.time_s("all_gather", 1e9, Group(4, 8), num_sharing=1)
    together = model.time_s("all_gather", 1e9, Group(4, 8))
    assert alone == pytest.approx(13e-6 + 3 / 4 * 1e9 / 50e9)
    assert together == pytest.approx(13e-6 + 8 * 3 / 4 * 1e9 / 50e9)


def test_groups_of_a_node_with_an_adapter_each_do_not_share() -> None:
    model = two_levels()
    assert model.time_s("all_gather", 1e9, Group(4, 8), 1) == model.time_s("all_gather", 1e9, Group(4, 8), 8)


def test_oversubscribed_spine_slows_what_crosses_it_only() -> None:
    network = Network(400e9, gpus_per_leaf=256, oversubscription=4.0)
    model = CollectiveModel(Fabric(NODE + network_levels(network, BETWEEN, 8, 1024)), LINKS)
    assert model.time_s("all_gather", 1e9, Group(32, 8)) == two_levels().time_s("all_gather", 1e9, Group(32, 8))
    assert model.time_s("send_recv", 1e9, Group(2, 256)) == pytest.approx(11e-6 + 4 * 1e9 / 50e9)


def test_package_of_mi250_is_faster_than_its_node() -> None:
    model = CollectiveModel.load(fabric_from("mi250", 8, 12.5e9, CONFIG, 32), CONFIG)
    pair, node, all_nodes = (model.time_s("all_reduce", 1e9, Group(size, 1)) for size in (2, 8, 32))
    assert pair < node < all_nodes


def test_together_takes_the_sum_of_what_one_level_carries() -> None:
    model = two_levels()
    inside, between, smaller = Group(8, 1), Group(4, 8), Group(2, 8)
    assert model.together_s({}) == 0
    assert model.together_s({inside: 2.0, between: 3.0}) == 3
    assert model.together_s({between: 3.0, smaller: 2.0}) == 5
    assert model.together_s({inside: 6.0, between: 3.0, smaller: 2.0}) == 6


def test_sigma_widens_outside_of_what_was_measured() -> None:
    model = real()
    known = model.sigma(1e9, Group(64, 1))
    assert model.sigma(1e12, Group(64, 1)) > known
    assert model.sigma(100.0, Group(64, 1)) > known
    assert model.sigma(1e9, Group(1 << 16, 1)) > known


def test_load_overlap_is_the_published_mean() -> None:
    assert load_overlap(CONFIG).compute_slowdown.value == 0.189


# An independent simulator, and why it says something else.


def astra(**wanted: str) -> list[dict[str, str]]:
    with (DATA / "astra_collectives.csv").open() as file:
        return [row for row in csv.DictReader(file) if wanted.items() <= row.items()]


@pytest.mark.parametrize(("backend", "passes", "tolerance"), [("Unaware", 1, 0.01), ("Aware", 2, 0.01)])
def test_ring_is_that_of_astra_once_its_conventions_are_taken_over(backend: str, passes: int, tolerance: float) -> None:
    """GB read as GiB, each hop two links long, four chunks one after the other; `Aware` stores and forwards."""
    rows = astra(backend=backend, collective="all_gather", algo="ring", npus="8")
    assert len(rows) == 6
    for row in rows:
        latency = float(row["lat_ns"]) * 1e-9 * 2 * 4
        level = Level("inside", 8, float(row["bw_GBps"]) * 2**30 / passes, latency)
        model = CollectiveModel(Fabric((level,)), {"inside": INSIDE.model_copy(update={"launch_s": 1e-12})})
        found = model.time_s("all_gather", float(row["size_bytes"]), Group(8, 1))
        assert found * 1e6 == pytest.approx(float(row["time_us"]), rel=tolerance)


def test_astra_direct_all_to_all_is_faster_than_the_link() -> None:
    # Its sends do not share the link: 7 at once at 450 GiB/s each.
    for row in astra(collective="all_to_all", algo="direct"):
        num_bytes, time_s = float(row["size_bytes"]), float(row["time_us"]) * 1e-6
        assert num_bytes < 64 * MIB or num_bytes / time_s * float(bus_factor("all_to_all", 8)) > 5 * 450e9


def test_astra_depends_on_spelling_where_we_do_not() -> None:
    times = [float(row["time_us"]) for row in astra(npus="8192")]
    assert max(times) / min(times) > 600


def test_rings_of_some_of_a_nodes_gpus_share_what_gets_from_one_adapter_to_another() -> None:
    # Four adapters of 25 GB/s for eight GPUs, as vTrain's nodes have them.
    most = Quantity(value=25e9, unit="byte/s", source="vTrain's nodes")
    link = BETWEEN.model_copy(update={"partial_ring_bandwidth": most})
    fabric = Fabric(NODE + network_levels(Network(100e9, 4), link, 8, 1024))
    model = CollectiveModel(fabric, LINKS | {"between": link})
    reached = {tp: model.route(Group(64 // tp, tp))[-1].bandwidth / 1e9 for tp in (1, 2, 4, 8)}
    # All of a node's GPUs: all adapters. One: half of one. Of some: both rings, or all four, 25 GB/s.
    assert reached == {1: 100, 2: 12.5, 4: 6.25, 8: 12.5}
    # Each sends for itself in an all-to-all, through its share of an adapter.
    assert [model.route(Group(64 // tp, tp))[-1].exchange / 1e9 for tp in (1, 2, 4, 8)] == [100, 50, 25, 12.5]
    each = CollectiveModel(Fabric(NODE + network_levels(Network(200e9, 8), link, 8, 1024)), model.links)
    assert [each.route(Group(64 // tp, tp))[-1].bandwidth / 1e9 for tp in (1, 2, 4, 8)] == [200, 100, 50, 25]


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
@pytest.mark.parametrize("num_bytes", [2**16, 2**23, 2**26, 2**28, 2**30, 2**32])
def test_roce_is_no_faster_than_infiniband(kind: CommKind, num_bytes: int) -> None:
    config = Path("config")
    inside = scale_up_levels(load_link("nvlink4", config), 8, 450e9)
    times = []
    for name in ("infiniband", "roce"):
        levels = inside + network_levels(Network(400e9, 8, name), load_link(name, config), 8, 64)
        times.append(CollectiveModel.load(Fabric(levels), config).time_s(kind, num_bytes, Group(64, 1)))
    assert times[1] >= times[0]
