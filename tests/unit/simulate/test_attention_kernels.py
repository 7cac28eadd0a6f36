"""Which kernels of attention a job runs, and what they cost."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.published.cells import NEMOTRON
from tests.unit.simulate.jobs import fabric_from, job, llama
from triplepoint.config.catalogue import Catalogue
from triplepoint.errors import PointError
from triplepoint.published.rows import read_row
from triplepoint.simulate.costs import Constants
from triplepoint.simulate.kernels.parameters import read_kernels
from triplepoint.simulate.operations import Kernel
from triplepoint.simulate.predict.software import software_use
from triplepoint.simulate.stacks import attention_kernel, find_stack
from triplepoint.simulate.step import costs_of

CONFIG = Path("config")
CATALOGUE = Catalogue(CONFIG)
FORWARD = Kernel("attention", "forward", 4.4e11, 2e8, (2, 16, 16, 8192, 8192, 128), is_causal=True)


def attention_s(name: str | None) -> float:
    software = find_stack("Megatron-Core", CONFIG).model_copy(update={"attention": name})
    return costs_of(
        replace(job(llama(), fabric=fabric_from("h100", 8, 0, CONFIG)), software=software), Constants(), CONFIG
    ).kernel_s(FORWARD)


def test_flash_attention_2_on_h100_is_as_much_slower_as_published() -> None:
    # arXiv:2407.08608, abstract: FlashAttention-3 is 1.5 to 2.0 times as fast.
    assert 1.5 < attention_s("flash2") / attention_s("flash3") < 2.0
    assert attention_s(None) == attention_s("cudnn"), "the usual one of an H100"
    assert attention_s("flash1") == pytest.approx(2 * attention_s("flash2"))


def test_kernels_a_table_lacks_are_a_multiple_of_those_it_has() -> None:
    for gpu, expected in (("b200", ("cudnn", 1.75)), ("a100", ("flash2", 1.0)), ("mi300x", ("ck", 1.0))):
        assert attention_kernel("flash2", read_kernels(CATALOGUE.gpu(gpu), CONFIG).attention, CONFIG) == expected


def test_kernels_a_gpu_cannot_have_are_refused_in_one_line() -> None:
    with pytest.raises(PointError, match="attention: flash3, this GPU has flash2; set attention: flash2"):
        attention_kernel("flash3", read_kernels(CATALOGUE.gpu("a100"), CONFIG).attention, CONFIG)


@pytest.mark.parametrize(
    ("framework", "cell", "expected"),
    [
        ("PyTorch", "", "flash2"),
        ("NeMo dgxc v25.04", "", "cudnn"),
        ("NeMo dgxc v25.04", "FlashAttention-3", "flash3"),
        ("torchtitan", "cuDNN", "cudnn"),
        ("Megatron-LM 2021", "", "unfused"),
    ],
)
def test_attention_is_that_of_the_row_else_of_its_stack(framework: str, cell: str, expected: str) -> None:
    read = read_row(NEMOTRON | {"framework": framework, "attention": cell}, 1, CONFIG).job
    assert read is not None
    assert software_use(read, CONFIG).attention == expected
