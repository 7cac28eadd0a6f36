"""Tokens on their way to experts on other nodes, against published times."""

import csv
from pathlib import Path
from typing import Any

import pytest

from tests.points import TINY, tiny_point
from tests.unit.simulate.jobs import communications, job, mixtral, operations
from triplepoint.config.model import MixtureOfExperts
from triplepoint.config.point import Layout
from triplepoint.config.rules import fold, refusal
from triplepoint.published.rows import read_row
from triplepoint.simulate.costs import Constants
from triplepoint.simulate.fabric import Fabric, Level
from triplepoint.simulate.operations import Communication
from triplepoint.simulate.predict.software import software_use
from triplepoint.simulate.stacks import find_stack
from triplepoint.simulate.step import costs_of
from triplepoint.simulate.work.experts import share_sent_once
from triplepoint.simulate.work.training import stage_work

CONFIG = Path("config")
TABLE = Path("tests/data/throughput/experts_over_nodes.csv")
ROWS = {row["id"]: row for row in csv.DictReader(TABLE.open())}

ONCE = {"dispatch": "once_per_node"}


def software(**changes: object) -> dict[str, object]:
    return {"software": find_stack("Megatron-Core", CONFIG).model_copy(update=changes)}


def fabric(nvlink: float) -> Fabric:
    """Nodes of 8 with a 400 Gb/s adapter for each GPU."""
    return Fabric(
        (
            Level("nvlink4", 8, nvlink, 3.4e-6, counters="nvlink"),
            Level("rail", 1 << 20, 50e9, 1.4e-5, link="infiniband", is_network=True),
        )
    )


DEEPSEEK = MixtureOfExperts(num_experts=256, top_k=8)
TOKENS, WIDTH = 4096, 7168


@pytest.mark.parametrize(
    ("nvlink", "ep", "published"),
    [
        # deepseek-ai/DeepEP @dd758ca docs/legacy.md, normal kernels on H800, dispatch.
        (200e9, 8, 153e9),
        (200e9, 32, 58e9),
        (200e9, 64, 51e9),
        # README.md, version 2 on SM90, dispatch; NVLink of H100.
        (450e9, 16, 90e9),
        (450e9, 32, 61e9),
    ],
)
def test_dispatch_once_per_node_takes_the_published_time(nvlink: float, ep: int, published: float) -> None:
    num_nodes = ep // 8
    changes = software(**ONCE, token_nodes=4, dispatch_precision="fp8")
    model = mixtral(None, moe=DEEPSEEK, hidden_size=WIDTH, num_attention_heads=56, num_query_groups=56)
    one = job(model, dp=ep, ep=ep, fabric=fabric(nvlink), micro_batch_size=4, **changes)
    copies = TOKENS * 8 * WIDTH * (1 + 4 / 128)
    time_s = costs_of(one, Constants(), CONFIG).communication_s(Communication("all_to_all", "ep", copies))
    # Published bandwidth counts one copy for each place a token goes to, its own included: nodes, in one node GPUs.
    places = num_nodes if num_nodes > 1 else 8
    logical = copies * share_sent_once(one, places)
    assert logical / time_s == pytest.approx(published, rel=0.2)


def test_group_limited_routing_meets_fewer_nodes() -> None:
    model = mixtral(None, moe=DEEPSEEK)
    free, limited = (job(model, dp=64, ep=64, **software(**ONCE, token_nodes=nodes)) for nodes in (None, 4))
    # Eight experts on four nodes, each missed with a chance of (3/4)^8.
    assert share_sent_once(limited, 8) == pytest.approx(4 * (1 - (3 / 4) ** 8) / 8)
    assert share_sent_once(free, 8) == pytest.approx(8 * (1 - (7 / 8) ** 8) / 8)
    assert share_sent_once(job(model, dp=8, ep=8, **software(**ONCE, token_nodes=4)), 8) == pytest.approx(
        share_sent_once(free, 8)
    ), "one node is no limit"


def test_fp8_dispatch_sends_fewer_bytes_one_way_only() -> None:
    plain, packed = (
        communications(operations(stage_work(job(mixtral(None), dp=8, ep=8, **software(dispatch_precision=name)))),
                       "all_to_all", "ep")
        for name in ("bf16", "fp8")
    )  # fmt: skip
    one = plain[0].num_bytes
    assert {op.num_bytes for op in plain} == {one}
    assert sorted({op.num_bytes for op in packed}) == pytest.approx([one * (1 + 4 / 128) / 2, one])


def test_overlap_of_the_exchange_hides_it() -> None:
    exposed, hidden = (
        operations(stage_work(job(mixtral(None), dp=16, ep=16, overlap=frozenset(flags)))) for flags in ((), ("ep",))
    )
    assert not any(op.is_overlapped for op in communications(exposed, "all_to_all", "ep"))
    assert all(op.is_overlapped for op in communications(hidden, "all_to_all", "ep"))


@pytest.mark.parametrize("name", sorted(set(ROWS) - {"bridge-qwen3-30b-fp8"}))
def test_step_of_experts_over_nodes_is_near_the_published_one(name: str) -> None:
    row = ROWS[name]
    found = read_row(row, 1, CONFIG).predict(CONFIG)
    assert found.tokens_per_s_per_gpu == pytest.approx(float(row["tokens_per_s_per_gpu"]), rel=0.2)


def test_layouts_of_deepseek_are_ranked_as_they_run() -> None:
    # Sent as copies the exchange takes longer than all else; sent once, and behind other work, it does not.
    row = ROWS["deepseek-v3"]
    changes = ({}, {"overlap": "grad param"}, {"overlap": "grad param", "dispatch": "all-to-all"})
    times = [read_row(row | change, 1, CONFIG).predict(CONFIG).step_time_s for change in changes]
    assert times == sorted(times)
    assert times[2] > 1.5 * times[0]


def test_software_of_a_row_wins_over_that_of_its_stack() -> None:
    stated = read_row(ROWS["bridge-qwen3-235b"], 1, CONFIG).job
    assert stated is not None
    assert (software_use(stated, CONFIG).dispatch, software_use(stated, CONFIG).overlap) == (
        "all_to_all",
        "ep grad param",
    )
    assert read_row(ROWS["deepseek-v3"] | {"dispatch": "by hand"}, 1, CONFIG).reason.startswith("dispatch is 'by hand'")
    assert "none, or some of" in read_row(ROWS["deepseek-v3"] | {"overlap": "all"}, 1, CONFIG).reason


@pytest.mark.parametrize("changes", [{"dispatch": "once_per_node"}, {"token_nodes": 4}, {"overlap": ("ep",)}])
def test_engines_that_launch_refuse_what_they_do_not_do(changes: dict[str, Any]) -> None:
    one = tiny_point(
        model=TINY.model_copy(update={"moe": MixtureOfExperts(num_experts=2, top_k=1)}),
        layout=Layout(dp=2, ep=2),
        **changes,
    )
    assert "engine: simulated" in str(refusal(fold(one)))
    assert refusal(fold(one.model_copy(update={"engine": "simulated"}))) is None
    dense = fold(tiny_point(**changes))
    assert (dense.dispatch, dense.token_nodes, dense.overlap) == (None, None, ())
