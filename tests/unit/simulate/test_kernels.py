"""Times of kernels: against measured tables, and what must hold whatever the tables say."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from triplepoint.calibrate.kernels import Measurement, fit_kernels, read_measurements
from triplepoint.config.catalogue import Catalogue
from triplepoint.errors import UserError
from triplepoint.simulate.kernels.times import KernelModel
from triplepoint.simulate.operations import Kernel

CONFIG = Path(__file__).parents[3] / "config"
GPUS = ("a100", "b200", "h100", "h200", "mi250", "mi300x")
CATALOGUE = Catalogue(CONFIG)
MODELS = {name: KernelModel.load(CATALOGUE.gpu(name), CONFIG) for name in GPUS}
MEASURED = read_measurements(CONFIG / "kernels" / "measured.csv")
GAP_S = 1e-6

sizes = st.integers(1, 32768)
gpus = st.sampled_from(GPUS)


def product(m: int, n: int, k: int, precision: str = "bf16") -> Kernel:
    element = {"fp8": 1, "fp32": 4}.get(precision, 2)
    return Kernel("gemm", "forward", 2.0 * m * n * k, element * (m * k + k * n) + 2.0 * m * n, (m, n, k), precision)


def attention(length: int, heads: int = 16, size: int = 128, kind: str = "forward", batch: int = 1) -> Kernel:
    flops = {"forward": 2, "backward": 5}[kind] * 2 * batch * heads * length**2 * size / 2
    moved = 2.0 * batch * length * heads * size * 4
    return Kernel("attention", kind, flops, moved, (batch, heads, heads, length, length, size), is_causal=True)


def measured(gpu: str, library: str, precision: str = "bf16", least_flops: float = 0) -> list[Measurement]:
    wanted = (gpu, library, precision)
    rows = [row for row in MEASURED if (row.gpu, row.library, row.kernel.precision) == wanted]
    return [row for row in rows if row.kernel.flops >= least_flops]


def errors(model: KernelModel, rows: list[Measurement]) -> np.ndarray:
    found = []
    for row in rows:
        kinds = ("forward", "backward") if row.kernel.kind == "both" else (row.kernel.kind,)
        kernel = row.kernel
        times = [
            model.time_s(Kernel(kernel.cls, kind, kernel.flops, 0, kernel.shape, is_causal=kernel.is_causal)) - GAP_S
            if kernel.cls == "attention"
            else model.time_s(kernel) - GAP_S
            for kind in kinds
        ]
        found.append(sum(times) / row.time_s - 1)
    return np.array(found)


@pytest.mark.parametrize(
    ("gpu", "library", "precision", "least_flops", "median", "p90"),
    [
        ("h100", "cublas", "bf16", 5e10, 0.06, 0.15),
        ("h100", "cublas", "bf16", 0, 0.08, 0.20),
        ("h100", "deepgemm", "bf16", 5e10, 0.06, 0.25),
        ("h100", "cublas", "fp8", 5e10, 0.05, 0.20),
    ],
)
def test_time_matrix_products(
    gpu: str, library: str, precision: str, least_flops: float, median: float, p90: float
) -> None:
    away = np.abs(errors(MODELS[gpu], measured(gpu, library, precision, least_flops)))
    assert len(away) >= 20
    assert np.median(away) <= median
    assert np.quantile(away, 0.9) <= p90


@pytest.mark.parametrize(
    ("gpu", "library"), [("h100", "cudnn"), ("h100", "flash3"), ("h100", "flash2"), ("a100", "flash2")]
)
def test_time_attention(gpu: str, library: str) -> None:
    away = np.abs(errors(KernelModel.load(CATALOGUE.gpu(gpu), CONFIG, library), measured(gpu, library)))
    assert len(away) >= 20
    assert np.median(away) <= 0.05
    assert np.quantile(away, 0.9) <= 0.15


def test_time_batches_and_groups() -> None:
    """Batches of products on an H100; experts in fp8 on an H800, whose kernels are DeepGEMM's and a little slower."""
    batched, grouped = measured("h100", "cublas-batched"), measured("h800", "deepgemm", "fp8")
    assert np.median(np.abs(errors(MODELS["h100"], batched))) <= 0.12
    experts = errors(MODELS["h100"], [row for row in grouped if row.kernel.kind == "grouped"])
    assert len(experts) == 10
    assert -0.20 <= np.median(experts) <= 0.05


@pytest.mark.parametrize("gpu", ["a100", "h100", "h200", "b200", "mi300x"])
def test_time_products_stay_below_the_best_of_all_shapes(gpu: str) -> None:
    rows = [row for row in MEASURED if (row.gpu, row.library) == (gpu, "best-of-all-shapes")]
    assert len(rows) >= 1
    assert errors(MODELS[gpu], rows).min() > -0.02


def test_fit_holds_shapes_out() -> None:
    """The error of shapes a fit has not seen, worked out again: a fit that could not predict would show."""
    rows = [row for library in ("cublas", "cudnn") for row in measured("h100", library)]
    refitted = fit_kernels(rows, CATALOGUE.gpu("h100"), MODELS["h100"].config, "measured.csv")
    gemm, fused = refitted.gemm["bf16"].fit, refitted.attention["cudnn"].fit
    assert gemm.held_out_median is not None and gemm.held_out_median <= 0.08
    assert gemm.held_out_p90 is not None and gemm.held_out_p90 <= 0.20
    assert fused.held_out_median is not None and fused.held_out_median <= 0.05
    assert refitted.gemm["bf16"].efficiency == pytest.approx(MODELS["h100"].config.gemm["bf16"].efficiency, rel=0.02)


def test_fit_finds_what_made_the_rows() -> None:
    """A table made by the model itself with a slower GPU is fitted back to it."""
    known = MODELS["h100"].config
    slow = known.gemm["bf16"].model_copy(update={"efficiency": 0.6})
    model = KernelModel(CATALOGUE.gpu("h100"), known.model_copy(update={"gemm": {"bf16": slow}}), "cudnn")
    made = [
        Measurement("h100", "cublas", row.kernel, model.time_s(row.kernel) - GAP_S, "made for a test")
        for row in measured("h100", "cublas", least_flops=5e10)
    ]
    fitted = fit_kernels(made, CATALOGUE.gpu("h100"), known, "made for a test").gemm["bf16"]
    assert fitted.efficiency == pytest.approx(0.6, rel=0.03)
    assert fitted.fit.held_out_median is not None and fitted.fit.held_out_median < 0.02


@given(gpus, sizes, sizes, sizes)
def test_time_products_never_beat_peak_or_memory(gpu: str, m: int, n: int, k: int) -> None:
    model, kernel = MODELS[gpu], product(m, n, k)
    found = model.time_s(kernel)
    assert found > kernel.flops / model.gpu.peak_bf16_flops.value
    assert found > kernel.num_bytes / model.gpu.memory_bandwidth.value
    assert math.isfinite(found)


@given(
    gpus,
    sizes,
    st.integers(1, 128),
    st.sampled_from([32, 64, 96, 128, 192, 256]),
    st.sampled_from(["forward", "backward"]),
)
def test_time_attention_never_beats_peak(gpu: str, length: int, heads: int, size: int, kind: str) -> None:
    kernel = attention(length, heads, size, kind)
    assert MODELS[gpu].time_s(kernel) > kernel.flops / MODELS[gpu].gpu.peak_bf16_flops.value


@given(gpus, sizes, sizes, sizes, st.integers(0, 2))
def test_time_products_grow_with_every_dimension(gpu: str, m: int, n: int, k: int, which: int) -> None:
    shape = [m, n, k]
    shape[which] *= 2
    assert MODELS[gpu].time_s(product(*shape)) >= MODELS[gpu].time_s(product(m, n, k))


@given(gpus, st.integers(1, 16384), st.integers(1, 64))
def test_time_attention_grows(gpu: str, length: int, heads: int) -> None:
    least = MODELS[gpu].time_s(attention(length, heads))
    assert MODELS[gpu].time_s(attention(2 * length, heads)) >= least
    assert MODELS[gpu].time_s(attention(length, 2 * heads)) >= least


@given(gpus, st.floats(1, 1e11), st.sampled_from(["norm", "elementwise", "optimizer", "moe"]))
def test_time_streaming_never_beats_memory(gpu: str, num_bytes: float, cls: str) -> None:
    model = MODELS[gpu]
    found = model.time_s(Kernel(cls, "forward", 0, num_bytes))
    assert found > num_bytes / model.gpu.memory_bandwidth.value + GAP_S
    assert model.time_s(Kernel(cls, "forward", 0, 2 * num_bytes)) > found


def test_time_grouped_products_are_one_large_one_in_groups() -> None:
    """Sixteen experts with 1024 tokens each: as fast as one product of 16384 rows, but for reading sixteen weights."""
    groups, m, n, k = 16, 1024, 4096, 4096
    moved = 2.0 * groups * (m * k + k * n + m * n)
    grouped = Kernel("gemm", "grouped", 2.0 * groups * m * n * k, moved, (groups, m, n, k))
    one = MODELS["h100"].time_s(product(groups * m, n, k))
    assert one < MODELS["h100"].time_s(grouped) < 1.2 * one


def test_time_flops_are_two_per_multiply_accumulate() -> None:
    """8192 cubed on an H100: 1443 us (cuBLAS, measured); with one operation per multiply-accumulate it were 720."""
    assert MODELS["h100"].time_s(product(8192, 8192, 8192)) * 1e6 == pytest.approx(1443, rel=0.08)


def test_time_gigabyte_is_1e9() -> None:
    """A matrix of 1.85e9 bytes read on an H100: 592 to 624 us (measured); at 3.35 TiB/s it would be over by a tenth."""
    model = MODELS["h100"]
    assert model.time_s(Kernel("copy", "forward", 0, 1.8539e9)) * 1e6 == pytest.approx(608, rel=0.03)


@given(st.floats(0.5, 1.0))
@settings(max_examples=examples(20))
def test_time_clock_slows_computation_alone(ratio: float) -> None:
    model, large, streaming = MODELS["h100"], product(8192, 8192, 8192), Kernel("norm", "forward", 0, 1e9)
    assert model.time_s(large, ratio) == pytest.approx(model.time_s(large) / ratio, rel=0.02)
    assert model.time_s(streaming, ratio) == model.time_s(streaming)


def test_time_small_kernels_are_bound_by_their_launch() -> None:
    assert 3e-6 < MODELS["h100"].time_s(product(16, 16, 16)) < 10e-6
    assert 3e-6 < MODELS["h100"].time_s(Kernel("norm", "forward", 0, 1024)) < 10e-6


def test_time_precisions() -> None:
    model, shape = MODELS["h100"], (8192, 8192, 8192)
    times = [model.time_s(product(*shape, precision)) for precision in ("fp8", "bf16", "fp16", "fp32")]
    assert 1.6 < times[1] / times[0] < 2
    assert times[1] == times[2]
    assert times[3] > 10 * times[2]


def test_time_refuses_fp8_where_there_is_none() -> None:
    with pytest.raises(UserError, match="gpu a100: no fp8 units; use bf16"):
        MODELS["a100"].time_s(product(1024, 1024, 1024, "fp8"))


def test_load_refuses_unknown_attention() -> None:
    with pytest.raises(UserError, match="unknown attention 'flash4'"):
        KernelModel.load(CATALOGUE.gpu("h100"), CONFIG, "flash4")


def test_sigma_widens_outside_of_what_was_measured() -> None:
    model = MODELS["h100"]
    _, most = model.config.gemm["bf16"].fit.flops_range or (0, 0)
    inside, outside = product(4096, 4096, 4096), Kernel("gemm", "forward", 16 * most, 1, (1, 1, 1))
    sigma = model.config.gemm["bf16"].fit.sigma
    # 1.37e11 FLOP are 57 % of the way from 1e10 to 1e12 in log; four octaves outside, a large kernel.
    assert model.sigma_of(inside) == pytest.approx((1 - 0.6 * 0.569) * sigma, rel=1e-3)
    assert model.sigma_of(outside) == pytest.approx(3 * 0.4 * sigma)
    assert MODELS["mi250"].sigma_of(inside) > MODELS["h100"].sigma_of(inside)


def test_inferred_kernels_are_shares_of_their_own_peak() -> None:
    # As many units, the same memory: what differs between the A100 cards is the rate, 252.9 against 271.2 TFLOP/s.
    large = product(8192, 8192, 8192)
    pcie, sxm = (KernelModel.load(CATALOGUE.gpu(name), CONFIG) for name in ("a100-pcie", "a100"))
    assert pcie.time_s(large) / sxm.time_s(large) == pytest.approx(271.2 / 252.9, rel=0.01)
    assert pcie.config.gemm["bf16"].fit.sigma == pytest.approx(math.hypot(sxm.config.gemm["bf16"].fit.sigma, 0.05))


@pytest.mark.parametrize(
    ("size", "is_causal", "measured_ms"),
    [(64, False, 0.545), (64, True, 0.315), (128, False, 0.532), (128, True, 0.319)],
)
def test_inferred_attention_of_a_slow_chip(size: int, is_causal: bool, measured_ms: float) -> None:
    # Dao-AILab/flash-attention issue 1310, cuDNN on an H20; in view when `rate` of config/gpus/h20.yaml was chosen, and
    # that softmax takes as many cycles as on an H100. As shares of the peak alone they are 1.5 to 2.2 times slower.
    kernel = replace(attention(2048, 2048 // size, size, batch=2), is_causal=is_causal)
    found = KernelModel.load(CATALOGUE.gpu("h20"), CONFIG, "cudnn").time_s(kernel)
    assert found * 1e3 == pytest.approx(measured_ms, rel=0.13)


def test_inferred_kernels_of_every_gpu_are_wider_and_known_at_its_precisions() -> None:
    for name, gpu in CATALOGUE.gpus.items():
        model = KernelModel.load(gpu, CONFIG)
        assert ("fp8" in model.config.gemm) or gpu.peak_fp8_flops is None, name
        if gpu.kernels:
            relative = KernelModel.load(CATALOGUE.gpu(gpu.kernels.of), CONFIG)
            assert model.sigma_of(product(4096, 4096, 4096)) > relative.sigma_of(product(4096, 4096, 4096))
            assert model.config.gemm["bf16"].fit.rows == 0
