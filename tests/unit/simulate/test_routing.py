"""Where the experts of a token are, and what follows for a stack that sends a token once."""

from pathlib import Path

import pytest

from tests.unit.published.cells import NEMOTRON
from tests.unit.simulate.jobs import communication_bytes, communications, job, mixtral, operations
from triplepoint.config.model import MixtureOfExperts
from triplepoint.published.rows import read_row
from triplepoint.simulate.operations import Kernel
from triplepoint.simulate.work.experts import share_sent_once
from triplepoint.simulate.work.training import stage_work

ONCE = "NeMo AutoModel"


@pytest.mark.parametrize(
    ("num_experts", "top_k", "num_places", "share"),
    [
        (128, 8, 8, 1 / 8),  # 16 on a rank, rows of 8 begin at 0 or 8: always one rank.
        (256, 8, 64, 2 / 8),  # 4 on a rank: two ranks.
        (384, 8, 32, (4 / 3) / 8),  # 12 on a rank; 0 to 7 and 16 to 23 are on one, 8 to 15 on two.
        (8, 2, 1, 1 / 2),
    ],
)
def test_share_sent_once_in_turn(num_experts: int, top_k: int, num_places: int, share: float) -> None:
    model = mixtral(None, moe=MixtureOfExperts(num_experts=num_experts, top_k=top_k))
    assert share_sent_once(job(model, stack=ONCE), num_places) == pytest.approx(share)


def test_share_sent_once_at_random() -> None:
    # Two of eight places: the second is elsewhere seven times of eight.
    assert share_sent_once(job(mixtral()), 8) == pytest.approx((1 + 7 / 8) / 2)


def test_tokens_sent_once_are_copied_on_arrival() -> None:
    forward = operations(stage_work(job(mixtral(None), dp=8, ep=8, stack=ONCE)), "forward")
    moved = [op for op in forward if isinstance(op, Kernel) and op.kind in ("permute", "sort")]
    # 2048 tokens, two copies of 512 elements of 2 bytes; experts of a token are on two ranks: all copies arrive.
    assert {op.num_bytes for op in moved} == {2 * 2 * 2048 * 512 * 2}
    assert len(moved) == 1


def test_experts_sharded_by_automodel_travel_once_a_step() -> None:
    one = job(mixtral(), dp=8, ep=4, stack=ONCE, data_parallel_sharding="optim_grads_params")
    (stage,) = stage_work(one)
    assert not communications(operations([stage]), "all_gather", "edp")
    each = 8 * 3 * 512 * 1536 * 8 / 4  # layers, matrices, experts on the rank
    assert communication_bytes(stage.gradient_sync, "all_gather", "edp") == pytest.approx(2 * each)
    other = job(mixtral(), dp=8, ep=4, stack="FSDP", data_parallel_sharding="optim_grads_params")
    assert communications(operations(stage_work(other)), "all_gather", "edp")


@pytest.mark.parametrize(("stack", "ep", "expected"), [(ONCE, "1", 16), (ONCE, "4", 4), ("Megatron-Core", "1", 1)])
def test_experts_are_spread_where_the_stack_always_does(stack: str, ep: str, expected: int) -> None:
    experts = {"experts": "128", "topk": "4", "moe_ffn": "2880", "params_B": ""}
    cells = NEMOTRON | experts | {"framework": stack, "ep": ep, "tp": "1", "dp": "16"}
    read = read_row(cells, 1, Path("config")).job
    assert read is not None
    assert read.layout.ep == expected
