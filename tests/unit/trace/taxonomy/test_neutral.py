"""Vendor-neutral names: names recorded on NVIDIA and on AMD GPUs, in pairs that do the same."""

import csv
from pathlib import Path

import pytest

from triplepoint.trace.taxonomy import Kernel, load_scheme
from triplepoint.trace.taxonomy.neutral import Neutral, neutral, neutral_name

DATA = Path(__file__).parents[3] / "data" / "kernels"

_ADD_BF16 = "at::native::CUDAFunctor_add<c10::BFloat16>"
_TENSILE = "_MT256x128x64_MI16x16x1_SN_LDSB1_AFC1"
_CK_CONV = "kernel_grouped_conv_fwd_xdl_cshuffle_v3"
_CK_TYPES = "INS_28GridwiseGemm_xdl_cshuffle_v3INS_13tensor_layout4gemm8RowMajorENS6_11ColumnMajorES7_ttfttNS0_12elem"

SAME = [
    ("gemm tn bf16", "nvjet_tst_128x64_64x10_4x1_v_bz_TNN", f"Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs{_TENSILE}"),
    ("gemm nn bf16", "nvjet_tst_256x128_64x4_2x1_v_bz_NNT", f"Cijk_Ailk_Bljk_B_BS_BH_Bias_HA_S_SAV{_TENSILE}"),
    ("gemm nt fp32", "volta_sgemm_128x32_sliced1x4_nt", f"Cijk_Ailk_Bjlk_S_B_Bias_HA_S_SAV{_TENSILE}"),
    (
        "gemm tn fp16",
        "void cutlass::Kernel2<cutlass_75_tensorop_f16_s1688gemm_f16_256x128_tn_align1>(x::Params)",
        f"Cijk_Alik_Bljk_HHS_BH{_TENSILE}",
    ),
    (
        "elementwise add bf16",
        f"void at::native::vectorized_elementwise_kernel<8, {_ADD_BF16}, std::array<char*, 3ul> >(int)",
        f"void at::native::elementwise_kernel_manual_unroll<128, 8, at::native::gpu_kernel_impl_nocast<{_ADD_BF16} >",
    ),
    (
        "norm batch_norm backward fp32",
        "void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 512, true, 1>(float, float)",
        "void at::native::batch_norm_backward_kernel<float, float, float, int>(at::GenericPackedTensorAccessor<float>)",
    ),
    (
        "conv forward bf16",
        "sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_cudnn_infer",
        f"_ZN2ck16tensor_operation6device12_GLOBAL__N_139{_CK_CONV}{_CK_TYPES}",
    ),
    (
        "conv weight_gradient bf16",
        "sm80_xmma_wgrad_implicit_gemm_indexed_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x16_cudnn_train",
        "igemm_wrw_gtcx3_nhwc_bf16_bx0_ex1_bt64x64x64_wt32x32x8_ws1x1_wr1x1_ta1x4x1x4_1x16x1x16_gkgs",
    ),
    ("memory device_to_host", "Memcpy DtoH (Device -> Pageable)", "Memcpy DtoH (Device -> Host)"),
    (
        "attention kv_cache bf16",
        "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, unsigned char>(__nv_bfloat16 const*)",
        "void vllm::reshape_and_cache_flash_kernel<__hip_bfloat16, unsigned char>(__hip_bfloat16 const*)",
    ),
    ("fused addmm_gelu_view", "triton_poi_fused_addmm_gelu_view_15", "triton_poi_fused_addmm_gelu_view_24"),
]


@pytest.mark.parametrize(("expected", "nvidia", "amd"), SAME, ids=[one[0] for one in SAME])
def test_neutral_name_same_work(expected: str, nvidia: str, amd: str) -> None:
    assert neutral(nvidia).operation == neutral(amd).operation
    assert neutral_name(amd) == expected
    assert neutral_name(nvidia) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nvjet_qqtst_128x64_128x6_1x1_v_bz_TNT", Neutral("gemm", "tn", "fp8")),
        (
            "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x256_32x3_tn_align1>(x)",
            Neutral("gemm", "tn", "tf32"),
        ),
        (
            "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4, false, "
            "cutlass::bfloat16_t> >(x)",
            Neutral("attention forward", "d64", "bf16"),
        ),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::AUnaryFunctor<long, long, long, "
            "at::native::binary_internal::MulFunctor<long> >, std::array<char*, 2ul> >(int)",
            Neutral("elementwise mul", "", "int64"),
        ),
        (
            "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float>, "
            "unsigned int, float, 4> >(x)",
            Neutral("reduction mean", "", "fp32"),
        ),
        (
            "void cublasLt::splitKreduce_kernel<32, int, float>(x)",
            Neutral("gemm split_k_reduce", "", "fp32"),
        ),
        (
            "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true, (cudnnKernelDataType_t)2>(x)",
            Neutral("elementwise transpose", "", "fp32"),
        ),
        ("transpose_NCHW2CNHW_V2_2D_WG_off64", Neutral("elementwise transpose")),
        ("", Neutral("other")),
    ],
)
def test_neutral_parts(name: str, expected: Neutral) -> None:
    assert neutral(name) == expected


def test_neutral_collective_by_its_arguments() -> None:
    # RCCL's kernels have one name; the trace's arguments say which collective ran.
    generic = "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)"
    assert neutral_name(generic, Kernel("comm", "all_reduce")) == "comm all_reduce"
    assert neutral_name("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)") == "comm all_reduce"


def test_neutral_names_of_recorded_time() -> None:
    """Every recorded name has a neutral one of its class, and GEMMs mostly tell their layout and type."""
    with (DATA / "kernel_times.tsv").open() as lines:
        rows = [(float(row["total_us"]), row["name"]) for row in csv.DictReader(lines, delimiter="\t")]
    classes = {name: load_scheme().device(name).cls for _, name in rows}
    for _, name in rows:
        assert neutral_name(name).split()[0] in (classes[name], "fused")
    gemms = [(us, neutral(name)) for us, name in rows if classes[name] == "gemm"]
    told = sum(us for us, one in gemms if one.layout and one.dtype)
    assert told > 0.8 * sum(us for us, _ in gemms)
