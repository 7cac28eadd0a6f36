"""The studies, against every pre-training configuration of the published study's artifact.

What the artifact's framework does with each file is worked out here anew, apart from the project's folding and checks.
"""

import csv
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.unit.config.conftest import REPOSITORY
from triplepoint.config.plan import Plan, PlanEntry
from triplepoint.plan import select

GRID = Path(__file__).parents[2] / "data" / "paper_grid.csv"

Row = dict[str, str]


class Key(NamedTuple):
    """What makes two measurements of the grid different."""

    gpu: str
    model: str
    num_gpus: int
    tp: int
    pp: int
    ep: int
    dp: int
    micro_batch_size: int
    global_batch_size: int
    sequence_length: int
    is_recomputed: bool
    overlap: frozenset[str]
    is_sequence_parallel: bool
    is_fsdp: bool


def rows() -> list[Row]:
    lines = GRID.read_text().splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def number(row: Row, name: str) -> int:
    return int(float(row[name] or 1))


def published(row: Row) -> Key:
    has_tp, has_dp = number(row, "tp") > 1, number(row, "dp") > 1
    is_sequence_parallel, is_fsdp = row["seq_parallel"] == "True" and has_tp, row["fsdp"] == "True"
    effective = {
        "grad": row["overlap_grad"] == "True" and has_dp and not is_fsdp,
        "param": row["overlap_param"] == "True" and has_dp and not is_fsdp,
        # NeMo turns it off without sequence parallelism and with FSDP.
        "tp": row["tp_comm_overlap"] == "True" and is_sequence_parallel and not is_fsdp,
    }
    return Key(
        gpu="h100" if "h100" in row["sweep"] else "h200",
        model=row["model"],
        num_gpus=number(row, "n_gpus"),
        tp=number(row, "tp"),
        pp=number(row, "pp"),
        ep=number(row, "ep"),
        dp=number(row, "dp"),
        micro_batch_size=number(row, "mbs"),
        global_batch_size=number(row, "gbs"),
        sequence_length=number(row, "seq"),
        is_recomputed=row["recompute"] == "full",
        overlap=frozenset(flag for flag, is_on in effective.items() if is_on),
        is_sequence_parallel=is_sequence_parallel,
        is_fsdp=is_fsdp,
    )


def cannot_run(row: Row) -> bool:
    return bool(
        number(row, "layers") % number(row, "pp") or number(row, "gbs") % (number(row, "mbs") * number(row, "dp"))
    )


def planned(entry: PlanEntry) -> Key:
    point = entry.planned.point
    layout = point.layout
    return Key(
        gpu=str(point.cluster.gpu),
        model=point.model.name,
        num_gpus=point.num_gpus,
        tp=layout.tp,
        pp=layout.pp,
        ep=layout.ep,
        dp=layout.dp,
        micro_batch_size=point.micro_batch_size,
        global_batch_size=point.global_batch_size,
        sequence_length=point.sequence_length,
        is_recomputed=point.recompute == "full",
        overlap=frozenset(point.overlap),
        is_sequence_parallel=layout.sequence_parallel,
        is_fsdp=layout.data_parallel_sharding == "optim_grads_params",
    )


@pytest.fixture(scope="module")
def plan() -> Plan:
    return select(REPOSITORY / "config", ["parallelism", "optimizations", "microbatch"])


def of_sweeps(*names: str) -> set[Key]:
    return {published(row) for row in rows() if row["sweep"] in names}


def in_study(plan: Plan, study: str) -> set[Key]:
    return {planned(entry) for entry in plan.entries if study in entry.studies}


def test_grid_has_the_published_number_of_points() -> None:
    assert len(rows()) == 188
    assert len({published(row) for row in rows()}) == 153


def test_studies_are_exactly_the_published_grid(plan: Plan) -> None:
    assert {planned(entry) for entry in plan.entries} == {published(row) for row in rows()}
    assert len(plan.entries) == 153


def test_optimizations_are_the_published_sweeps(plan: Plan) -> None:
    expected = of_sweeps(*(f"optimization-sweep-{gpu}{fsdp}" for gpu in ("h200", "h100") for fsdp in ("", "-fsdp")))
    assert in_study(plan, "optimizations") == expected
    assert len(expected) == 46 + 4 + 54 + 4


def test_microbatch_is_the_published_sweep(plan: Plan) -> None:
    expected = of_sweeps("microbatch-sweep-h200", "microbatch-sweep-h200-fsdp")
    assert in_study(plan, "microbatch") == expected
    assert len(expected) == 60


def test_parallelism_is_the_points_named_01000(plan: Plan) -> None:
    expected = {published(row) for row in rows() if row["file"].endswith("_01000.yaml")}
    assert in_study(plan, "parallelism") == expected
    assert sum(key.gpu == "h200" for key in expected) == 15


def test_invalid_points_are_exactly_those_that_cannot_run(plan: Plan) -> None:
    invalid = {planned(entry) for entry in plan.entries if entry.invalid_because}
    assert invalid == {published(row) for row in rows() if cannot_run(row)}
    assert sorted(key.model for key in invalid) == ["llama3-70b"] * 4 + ["mixtral-8x7b"]


def test_architectures_are_those_of_the_grid(plan: Plan) -> None:
    models = {entry.planned.point.model.name: entry.planned.point.model for entry in plan.entries}
    for row in rows():
        model = models[row["model"]]
        assert model.num_layers == number(row, "layers")
        assert model.hidden_size == number(row, "hidden")
        assert model.ffn_hidden_size == number(row, "ffn")
        assert model.num_attention_heads == number(row, "heads")
        assert model.num_query_groups == number(row, "kv" if row["kv"] else "heads")
        assert (model.moe.num_experts if model.moe else 1) == number(row, "experts")
        assert (model.moe.top_k if model.moe else 1) == number(row, "topk")
