"""Published numbers by run: each stands with every run of its point, whatever became of it, and no other."""

from pathlib import Path

from triplepoint.aggregate.points import unfinished_row
from triplepoint.plan import select
from triplepoint.tables.results import RESULT_TABLES
from triplepoint.verdicts.values import published_values

CONFIG = Path(__file__).parents[3] / "config"


def test_published_numbers_stand_with_their_runs() -> None:
    plan = select(CONFIG, ["microbatch"], ["cpu-local"], ["h200x32"])
    points = RESULT_TABLES["points"].from_rows([unfinished_row(entry, None) for entry in plan.entries]).to_pylist()
    rows = published_values(CONFIG, points)
    RESULT_TABLES["published"].from_rows(rows)
    by_run = {row["run"]: row for row in points}
    # Figure 13: TP8-FSDP at micro-batch 1 draws 163 W, read off to 15 W.
    (found,) = [
        row
        for row in rows
        if row["quantity"] == "gpu_power_w"
        and by_run[row["run"]]["data_parallel_sharding"] == "optim_grads_params"
        and by_run[row["run"]]["micro_batch_size"] == 1
    ]
    assert (found["published"], found["published_lo"], found["published_hi"]) == (163, 148, 178)
    assert found["source"] == "figure 13" and found["node"] is None
    assert {by_run[row["run"]]["model"] for row in rows} == {"gpt3-175b"}


def test_published_numbers_of_gpus_have_node_and_slot() -> None:
    """Figure 17 counts nodes from 1: TP8-PP4 on node 1, slot 0 is at 61.4 °C."""
    plan = select(CONFIG, ["optimizations"], ["cpu-local"], ["h200x32"])
    points = RESULT_TABLES["points"].from_rows([unfinished_row(entry, None) for entry in plan.entries]).to_pylist()
    rows = [row for row in published_values(CONFIG, points) if row["node"] is not None]
    by_run = {row["run"]: row for row in points}
    (found,) = [
        row
        for row in rows
        if (by_run[row["run"]]["tp"], row["node"], row["slot"], row["quantity"]) == (8, 0, 0, "gpu_temp_c")
    ]
    assert found["published"] == 61.4
    assert len(rows) == len({(row["run"], row["quantity"], row["node"], row["slot"]) for row in rows})
