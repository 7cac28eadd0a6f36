"""The default scheme: names labelled by hand, the share of recorded kernel time it knows, operators of the CPU."""

import csv
from pathlib import Path

import pytest

from triplepoint.trace.taxonomy import load_scheme

DATA = Path(__file__).parents[3] / "data" / "kernels"


def labelled() -> list[tuple[str, str, str]]:
    lines = (DATA / "labelled_names.tsv").read_text().splitlines()[1:]
    rows = [line.split("\t") for line in lines if not line.startswith("#")]
    return [(cls, kind, name) for cls, kind, name in rows]


LABELLED = labelled()


def test_labelled_names_are_many() -> None:
    assert len({name for _, _, name in LABELLED}) == len(LABELLED) > 300


@pytest.mark.parametrize(("cls", "kind", "name"), LABELLED, ids=[name[:60] for _, _, name in LABELLED])
def test_classify_device_labelled_names(cls: str, kind: str, name: str) -> None:
    assert load_scheme().device(name) == (cls, kind)


@pytest.mark.parametrize(
    ("name", "cls", "kind"),
    [
        ("_dsv4_special_op", "triton", "custom"),
        ("Vendor::Frobnicate(int)", "other", "unknown"),
        ("", "other", "unknown"),
    ],
)
def test_classify_device_unknown_name(name: str, cls: str, kind: str) -> None:
    assert load_scheme().device(name) == (cls, kind)


@pytest.mark.parametrize(
    ("name", "cls"),
    [
        ("void softmax_warp_forward<flash_attn_gemm>(layer_norm_t*)", "softmax"),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, ln_fwd> >(gemm)", "reduction"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::mse_kernel_cuda()::{lambda()#1}>(x)", "loss"),
        ("void cutlass::Kernel2<cutlass_tensorop_s1688dgrad_optimized_tf32_64x128_32x3_nhwc_align4>(x)", "conv"),
    ],
)
def test_classify_device_own_name_counts_before_arguments(name: str, cls: str) -> None:
    assert load_scheme().device(name).cls == cls


def test_classify_device_recorded_time_is_known() -> None:
    with (DATA / "kernel_times.tsv").open() as lines:
        rows = [(float(row["total_us"]), row["name"]) for row in csv.DictReader(lines, delimiter="\t")]
    known_us = sum(us for us, name in rows if load_scheme().device(name).cls != "other")
    assert len(rows) > 400
    assert known_us >= 0.99 * sum(us for us, _ in rows)


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "comm"),
        ("Memset (Device)", "memory"),
        ("nvjet_tst_192x8_64x8_4x1_v_bz_TNT", "compute"),
        ("at::cuda::spin_kernel(long)", "compute"),
    ],
)
def test_category_of_kernels(name: str, category: str) -> None:
    assert load_scheme().device(name).category == category


@pytest.mark.parametrize(
    ("name", "cls", "kind"),
    [
        ("aten::mm", "gemm", "dense"),
        ("aten::addmm", "gemm", "dense"),
        ("aten::bmm", "gemm", "dense"),
        ("aten::_grouped_mm", "gemm", "grouped"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "attention", "forward"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu_backward", "attention", "backward"),
        ("aten::_fused_adamw_", "optimizer", "adam"),
        ("aten::_foreach_mul_", "optimizer", "multi_tensor"),
        ("aten::native_layer_norm", "norm", "forward"),
        ("aten::native_layer_norm_backward", "norm", "backward"),
        ("aten::_fused_rms_norm", "norm", "forward"),
        ("aten::embedding", "embedding", "lookup"),
        ("aten::embedding_dense_backward", "embedding", "backward"),
        ("aten::_softmax", "softmax", "forward"),
        ("aten::_log_softmax_backward_data", "softmax", "backward"),
        ("aten::nll_loss_forward", "loss", "cross_entropy"),
        ("aten::nll_loss_backward", "loss", "backward"),
        ("aten::mul", "elementwise", "pointwise"),
        ("aten::silu_backward", "elementwise", "activation"),
        ("aten::copy_", "memory", "copy"),
        ("aten::zero_", "memory", "fill"),
        ("aten::empty_strided", "memory", "allocate"),
        ("aten::index_put_", "index", "gather_scatter"),
        ("aten::sort", "index", "sort"),
        ("aten::topk", "moe", "router"),
        ("aten::sum", "reduction", "reduce"),
        ("aten::view", "other", "view"),
        ("gloo:all_reduce", "comm", "all_reduce"),
        ("gloo:all_to_all", "comm", "all_to_all"),
        ("gloo:recv", "comm", "recv"),
    ],
)
def test_classify_host_operators(name: str, cls: str, kind: str) -> None:
    assert load_scheme().host(name) == (cls, kind)
