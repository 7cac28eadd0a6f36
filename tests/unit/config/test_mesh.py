"""The rank mesh: places of ranks, process groups, ranks by role."""

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triplepoint.config.mesh import Group, Place, RankMesh, ranks_at_boundary, ranks_by_role
from triplepoint.config.point import Layout
from triplepoint.plan import select

ROWS = [[1, 2, 5, 7], [0, 3, 4, 6]]


def test_ranks_by_role_one_of_every_stage_and_row() -> None:
    # Four stages of four ranks, two to a node: in each, GPUs 1 and 0, or 5 and 4.
    assert ranks_by_role(Layout(tp=4, pp=4), 8, ROWS) == (0, 1, 4, 5, 8, 9, 12, 13)


def test_ranks_by_role_stage_in_one_row_has_one() -> None:
    # A rank a stage: each is in one row only.
    assert ranks_by_role(Layout(pp=8), 8, ROWS) == tuple(range(8))


def test_ranks_by_role_without_a_pipeline() -> None:
    # And the two ranks next to the first border between nodes.
    assert ranks_by_role(Layout(dp=32), 8, ROWS) == (0, 1, 7, 8)


def test_ranks_at_boundary_of_stages_on_several_nodes() -> None:
    stages = [range(0, 16), range(16, 32), range(4, 8), range(0, 8), range(6, 10)]
    assert [ranks_at_boundary(ranks, 8) for ranks in stages] == [(7, 8), (23, 24), (), (), (7, 8)]


def test_plan_roles_are_those_of_the_clusters_airflow() -> None:
    plan = select(Path("config"), ["parallelism"], ["h200x32"])
    point = next(
        entry.planned.point
        for entry in plan.valid
        if entry.planned.point.model.name == "llama3-70b" and entry.planned.point.layout.pp == 4
    )
    # Stages of eight ranks, a node each: GPU 0 and 1 of every node are of different rows.
    assert point.trace_ranks == (0, 1, 8, 9, 16, 17, 24, 25)


LAYOUTS = st.builds(
    Layout, tp=st.sampled_from([1, 2, 4]), cp=st.integers(1, 3), dp=st.integers(1, 4), pp=st.integers(1, 4)
)
MESHES = st.builds(RankMesh, LAYOUTS)


def by_name(mesh: RankMesh, name: str) -> set[tuple[int, ...]]:
    group = mesh.group(name)
    return {tuple(group.ranks(rank)) for rank in range(mesh.num_ranks)}


@given(MESHES)
def test_place_and_rank_are_inverse_and_cover_the_world(mesh: RankMesh) -> None:
    layout = mesh.layout
    # Megatron-LM's order tp-cp-ep-dp-pp: the first varies fastest.
    places = [
        Place(tp, cp, dp, pp)
        for pp, dp, cp, tp in itertools.product(*map(range, (layout.pp, layout.dp, layout.cp, layout.tp)))
    ]
    assert [mesh.place(rank) for rank in range(mesh.num_ranks)] == places
    assert [mesh.rank(place) for place in places] == list(range(mesh.num_ranks))


@given(MESHES, st.sampled_from(["tp", "cp", "dp", "pp"]))
def test_ranks_of_a_group_differ_in_its_coordinate_alone(mesh: RankMesh, name: str) -> None:
    for ranks in by_name(mesh, name):
        places = [mesh.place(rank)._asdict() for rank in ranks]
        assert [place.pop(name) for place in places] == list(range(getattr(mesh.layout, name)))
        assert all(place == places[0] for place in places)


@st.composite
def expert_meshes(draw: st.DrawFn) -> RankMesh:
    layout = draw(LAYOUTS)
    split = draw(st.sampled_from([None, *divisors(layout.tp)]))
    rest = RankMesh(layout).ranks_per_stage // (split or layout.tp)
    ep = draw(st.sampled_from(divisors(rest)))
    return RankMesh(layout.model_copy(update={"ep": ep, "etp": split}), num_copies=draw(st.integers(1, 4)))


def divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


@given(expert_meshes())
def test_groups_of_each_kind_are_a_partition_of_the_world(mesh: RankMesh) -> None:
    for name, group in mesh.groups.items():
        found = by_name(mesh, name)
        assert all(len(ranks) == group.size for ranks in found)
        assert sorted(rank for ranks in found for rank in ranks) == list(range(mesh.num_ranks))
        if name != "pp":
            # All but the pipeline's stay inside a stage.
            assert all(len({mesh.place(rank).pp for rank in ranks}) == 1 for ranks in found)
    size = {name: group.size for name, group in mesh.groups.items()}
    stage = mesh.ranks_per_stage
    assert size["tp"] * size["cp"] * size["dp"] == size["etp"] * size["ep"] * size["edp"] == stage
    assert size["dp_shard"] * size["dp_copy"] == size["dp_cp"] and size["edp_shard"] * size["edp_copy"] == size["edp"]


def test_groups_of_megatrons_own_example() -> None:
    # Docstring of initialize_model_parallel in megatron/core/parallel_state.py: 16 GPUs, tp 2, pp 4.
    mesh = RankMesh(Layout(tp=2, pp=4, dp=2))
    assert by_name(mesh, "dp") == {(0, 2), (1, 3), (4, 6), (5, 7), (8, 10), (9, 11), (12, 14), (13, 15)}
    assert by_name(mesh, "tp") == {(rank, rank + 1) for rank in range(0, 16, 2)}
    assert by_name(mesh, "pp") == {(0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)}


def test_group_that_is_not_there_names_those_that_are() -> None:
    assert RankMesh(Layout(tp=2, dp=4)).group("dp") == Group(4, 2)
    with pytest.raises(ValueError, match="unknown process group sp, expected one of tp, cp, dp, dp_cp, pp"):
        RankMesh(Layout()).group("sp")
