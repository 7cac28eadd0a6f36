"""Training in 4 bits: what GEMMs read, what is cast, where it is refused."""

from pathlib import Path

import pytest

from tests.unit.simulate.jobs import job, llama
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.rules import check_format
from triplepoint.flops import peak_flops
from triplepoint.simulate.kernels.times import KernelModel
from triplepoint.simulate.memory.training import peak_memory
from triplepoint.simulate.operations import Kernel
from triplepoint.simulate.work.blocks import Blocks
from triplepoint.simulate.work.layer_parts import Share

CONFIG = Catalogue(Path("config"))
NUMBER = 0.5 + 1 / 16
"""Bytes of a number with its share of a scale of 8 bits for 16."""


def layer(precision: str) -> list[Kernel]:
    blocks = Blocks(Share(job(llama(), precision=precision, gpu=CONFIG.gpu("b200", "test"))))
    return [one for one in blocks.layer(llama().layer_kinds[0]).whole.forward if isinstance(one, Kernel)]


def test_gemms_read_4_bits_and_scales_and_write_16() -> None:
    (first, *_) = [one for one in layer("nvfp4") if one.precision == "nvfp4"]
    m, n, k = first.shape
    assert first.num_bytes == pytest.approx((m * k + k * n) * NUMBER + m * n * 2)
    assert {one.precision for one in layer("nvfp4") if one.cls == "attention"} == {"bf16"}


def test_casts_find_the_largest_number_first() -> None:
    kinds = [one.kind for one in layer("nvfp4") if one.kind in ("largest", "cast")]
    assert kinds[:2] == ["largest", "cast"]


@pytest.mark.parametrize("name", ["b200", "b300", "gb200", "gb300"])
def test_large_gemm_takes_the_share_of_its_peak_that_fp8_takes(name: str) -> None:
    gpu = CONFIG.gpu(name, "test")
    model = KernelModel.load(gpu, Path("config"))
    shape = (32768, 32768, 32768)
    flops = 2.0 * 32768**3
    times = [model.time_s(Kernel("gemm", "forward", flops, 0.0, shape, precision)) for precision in ("fp8", "nvfp4")]
    assert gpu.peak_nvfp4_flops and gpu.peak_fp8_flops
    assert times[0] / times[1] == pytest.approx(gpu.peak_nvfp4_flops.value / gpu.peak_fp8_flops.value, rel=0.05)
    assert model.sigma_of(Kernel("gemm", "forward", flops, 0.0, shape, "nvfp4")) >= 0.2
    assert peak_flops(gpu, "nvfp4") == gpu.peak_nvfp4_flops.value


@pytest.mark.parametrize("name", ["h100", "h200", "a100", "mi300x", "mi355x"])
def test_gpus_without_units_for_it_refuse_it(name: str) -> None:
    from tests.unit.config.test_rules import make

    point = make(precision="nvfp4")
    other = "bf16" if name == "a100" else "fp8"
    refused = f"precision: nvfp4, {name} has no units for it; set precision: {other}"
    assert check_format(point, CONFIG.gpu(name, "test")) == refused
    assert check_format(point, CONFIG.gpu("b200", "test")) is None


def test_weights_have_a_copy_in_4_bits_and_its_transpose() -> None:
    plain, narrow = (peak_memory(job(llama(), precision=precision)).weights for precision in ("bf16", "nvfp4"))
    share = Share(job(llama()))
    split = Blocks(share).layer(llama().layer_kinds[0]).whole.weights.split * llama().num_layers
    ends = 2 * 4096 * 512
    assert narrow - plain == pytest.approx(2 * NUMBER * (split + ends), rel=1e-3)
