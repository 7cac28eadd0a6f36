"""The registry of software stacks."""

from pathlib import Path

import pytest

from tests.unit.published.cells import NEMOTRON
from triplepoint.published.rows import read_row
from triplepoint.simulate.stacks import find_stack

CONFIG = Path("config")


@pytest.mark.parametrize(
    ("framework", "name"),
    [
        ("Megatron-LM (2021)", "megatron-lm-2021"),
        ("Megatron-DeepSpeed", "megatron-deepspeed"),
        ("Megatron-Core r0.8", "megatron-core"),
        ("NeMo dgxc v25.04", "nemo-dgxc"),
        ("NeMo AutoModel", "nemo-automodel"),
        ("PyTorch", "other"),
        ("", "other"),
        ("a trainer nobody knows", "other"),
    ],
)
def test_find_stack_by_words_of_the_framework(framework: str, name: str) -> None:
    assert find_stack(framework, CONFIG).name == name


def test_unknown_stack_is_one_and_the_same_for_overlap_and_for_layers() -> None:
    job = read_row(NEMOTRON | {"framework": "a trainer nobody knows"}, 1, CONFIG).job
    assert job is not None and job.software is find_stack("a trainer nobody knows", CONFIG)
    assert job.overlap == set(job.software.overlap) == {"grad", "param"}
    assert not job.software.has_placeholder_gradients, "those are TransformerEngine's"


@pytest.mark.parametrize(("framework", "num_bytes"), [("DeepSpeed", 2), ("Megatron-Core", 4)])
def test_gradient_bytes_of_bf16_training(framework: str, num_bytes: int) -> None:
    stack = find_stack(framework, CONFIG)
    assert [stack.gradient_bytes(precision) for precision in ("fp32", "bf16", "fp16")] == [4, num_bytes, 2]
