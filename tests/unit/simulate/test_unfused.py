"""Attention kernel by kernel, as stacks before flash attention run it, and what a slow host does to small kernels."""

from pathlib import Path

import pytest

from tests.unit.simulate.jobs import fabric_from, job, operations
from triplepoint.simulate.costs import LAUNCH_BEND, Constants
from triplepoint.simulate.operations import Kernel
from triplepoint.simulate.step import costs_of
from triplepoint.simulate.work.layer_parts import streaming
from triplepoint.simulate.work.training import stage_work

CONFIG = Path("config")
STACK = "Megatron-DeepSpeed"
SCORES = 2 * 8 * 1024 * 1024  # sequences, heads, queries, keys


def softmaxes(direction: str, **changes: object) -> list[Kernel]:
    found = operations(stage_work(job(stack=STACK, precision="fp16", **changes)), direction)
    return [op for op in found if isinstance(op, Kernel) and op.kind in ("softmax", "scale", "mask")]


def test_fused_softmax_skips_the_masked_half_of_what_it_reads() -> None:
    # Forward reads a half and writes all; backward reads halves of two arrays and writes one. 2 bytes each.
    assert [op.num_bytes for op in softmaxes("forward")] == [1.5 * SCORES * 2]
    assert [op.num_bytes for op in softmaxes("backward_input")] == [2 * SCORES * 2]


@pytest.mark.parametrize(
    ("changes", "is_fused"),
    [
        ({"tp": 4, "micro_batch_size": 1}, False),  # one sequence of two heads: no multiple of four
        ({"tp": 4, "micro_batch_size": 2}, True),
        ({"sequence_length": 4096}, False),
    ],
)
def test_fused_softmax_needs_four_rows_of_at_most_2048(changes: dict[str, int], is_fused: bool) -> None:
    kinds = [op.kind for op in softmaxes("forward", **changes)]
    assert kinds == (["softmax"] if is_fused else ["scale", "mask", "softmax"])


def test_pipeline_of_deepspeed_sends_a_part_of_the_activation_from_each_rank() -> None:
    first = stage_work(job(stack=STACK, precision="fp16", tp=4, pp=2))[0]
    assert first.chunks[0].send_bytes == 2 * 1024 * 512 * 2 / 4


@pytest.mark.parametrize("share", [0.5, 1.0, 2.0])
def test_pass_takes_longer_than_both_host_and_gpu(share: float) -> None:
    one = job(fabric=fabric_from("h100", 8, 400e9, CONFIG))
    kernel = streaming("elementwise", "add", 1e9)
    alone = costs_of(one, Constants(host_s=1e-12), CONFIG).price((kernel,)).total_s
    time = costs_of(one, Constants(host_s=share * alone), CONFIG).price((kernel,)).total_s
    assert time == pytest.approx(alone * (1 + share**LAUNCH_BEND) ** (1 / LAUNCH_BEND))
