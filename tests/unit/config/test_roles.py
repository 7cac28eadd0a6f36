from pathlib import Path

from triplepoint.config.point import Layout
from triplepoint.config.roles import ranks_by_role
from triplepoint.plan import select

ROWS = [[1, 2, 5, 7], [0, 3, 4, 6]]


def test_ranks_by_role_one_of_every_stage_and_row() -> None:
    # Four stages of four ranks, two to a node: in each, GPUs 1 and 0, or 5 and 4.
    assert ranks_by_role(Layout(tp=4, pp=4), 8, ROWS) == (0, 1, 4, 5, 8, 9, 12, 13)


def test_ranks_by_role_stage_in_one_row_has_one() -> None:
    # A rank a stage: each is in one row only.
    assert ranks_by_role(Layout(pp=8), 8, ROWS) == tuple(range(8))


def test_ranks_by_role_without_a_pipeline() -> None:
    assert ranks_by_role(Layout(dp=32), 8, ROWS) == (0, 1)


def test_plan_roles_are_those_of_the_clusters_airflow() -> None:
    plan = select(Path("config"), ["parallelism"], ["h200x32"])
    point = next(
        entry.planned.point
        for entry in plan.valid
        if entry.planned.point.model.name == "llama3-70b" and entry.planned.point.layout.pp == 4
    )
    # Stages of eight ranks, a node each: GPU 0 and 1 of every node are of different rows.
    assert point.trace_ranks == (0, 1, 8, 9, 16, 17, 24, 25)
