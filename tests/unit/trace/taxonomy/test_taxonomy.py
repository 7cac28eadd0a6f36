"""Kernel names of real traces, labelled by hand; operators of the CPU; what collectives call themselves."""

import pytest

from triplepoint.trace.taxonomy import classify_device, classify_host, collective_kind

ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::"
REDUCE = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::"

DEVICE = [
    ("Memcpy HtoD (Pageable -> Device)", "memory", "host_to_device"),
    ("Memcpy DtoH (Device -> Pinned)", "memory", "device_to_host"),
    ("Memcpy DtoD (Device -> Device)", "memory", "device_to_device"),
    ("Memcpy PtoP (Device -> Device)", "memory", "device_to_device"),
    ("Memset (Device)", "memory", "memset"),
    ("__amd_rocclr_fillBufferAligned", "memory", "memset"),
    ("__amd_rocclr_copyBuffer", "memory", "copy"),
    ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*, unsigned long, ncclWork*)", "comm", "all_reduce"),
    ("ncclKernel_AllReduce_TREE_LL_Sum_float(ncclWorkElem)", "comm", "all_reduce"),
    ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)", "comm", "all_reduce"),
    ("void multimem_all_reduce_kernel<c10::BFloat16, 4>(c10::BFloat16*)", "comm", "all_reduce"),
    ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "comm", "all_gather"),
    ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevComm*)", "comm", "reduce_scatter"),
    ("ncclDevKernel_Reduce_Sum_f32_RING_LL(ncclDevComm*)", "comm", "reduce"),
    ("ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclDevComm*)", "comm", "broadcast"),
    ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)", "comm", "send_recv"),
    ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", "comm", "unknown"),
    ("void deep_ep::internode::dispatch<false, 8, true, 8>(int4*, float*)", "comm", "all_to_all"),
    ("void deep_ep::intranode::combine<__nv_bfloat16, 8, 768>(__nv_bfloat16*)", "comm", "all_to_all"),
    ("void permute_kernel<__nv_bfloat16, __nv_bfloat16>(__nv_bfloat16 const*, int)", "moe", "permute"),
    ("void moe_align_block_size_kernel<int>(int*, int*)", "moe", "router"),
    ("void topkGatingSoftmax<float, 4, 8, 4, 16>(float const*)", "moe", "router"),
    ("attn_fwd", "attention", "flash_forward"),
    ("void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64> >", "attention", "flash_forward"),
    ("void flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<128> >", "attention", "flash_backward"),
    ("void cutlass::device_kernel<flash::FlashAttnBwdPreprocess<cute::tuple<> > >", "attention", "flash_backward"),
    ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_31_64x128", "attention", "flash_forward"),
    ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_8_64x128", "attention", "flash_backward"),
    ("_ZN7ck_tile6kentryILi2ENS_13FmhaBwdDQDKDVKernelINS_24BlockFmhaBwdPipeline", "attention", "flash_backward"),
    ("void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*)", "attention", "rope"),
    ("void scaled_upper_triang_masked_softmax_warp_forward<__half, __half, float, 11>", "attention", "masked_softmax"),
    ("nvjet_tst_192x8_64x8_4x1_v_bz_TNT", "gemm", "nvjet"),
    ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT320x224x64_MI16x16x1_SN", "gemm", "tensile"),
    ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_cublas", "gemm", "dense"),
    ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_64x6_tn_align8>", "gemm", "dense"),
    ("ampere_sgemm_128x64_nn", "gemm", "dense"),
    ("void cublasLt::splitKreduce_kernel<32, 16, int, float, float, float>", "gemm", "dense"),
    ("void gemvNSP_kernel<float, float, float, float, 1, 32, 4, 1024>", "gemm", "gemv"),
    ("_matmul_ogs_NNT_bf16xbf16xmxfp4_128x128x128x1_swiglu", "gemm", "grouped"),
    ("void cutlass::device_kernel<dpsk::grouped_gemm::cuda::fp8_ptp128c::GemmKernel>", "gemm", "grouped"),
    ("void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>", "conv", "winograd"),
    ("sm80_xmma_dgrad_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_cudnn_infer", "conv", "data_gradient"),
    ("igemm_wrw_gtcx3_nhwc_bf16_bx0_ex1_bt64x64x64", "conv", "weight_gradient"),
    ("implicit_convolve_sgemm<float, float, 1024, 6, 7, 3, 3, 5, 1>", "conv", "forward"),
    (
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float> >",
        "optimizer",
        "adam",
    ),
    ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<x, AxpbyFunctor>", "optimizer", "multi_tensor"),
    (
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>",
        "norm",
        "layer_norm",
    ),
    ("void layer_norm::ln_bwd_finalize_kernel<layer_norm::Kernel_traits_finalize<512u> >", "norm", "layer_norm"),
    ("void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel<float>", "norm", "rms_norm"),
    ("_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi64E", "norm", "rms_norm"),
    ("void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 512, true, 1>", "norm", "batch_norm"),
    ("void split_embedding_codegen_forward_unweighted_kernel<c10::Half>", "embedding", "lookup"),
    ("void split_embedding_backward_codegen_rowwise_adagrad_unweighted_kernel", "embedding", "backward"),
    ("void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float>", "loss", "cross_entropy"),
    ("void softmax_warp_forward<float, float, float, 8, false, false>", "softmax", "forward"),
    ("void (anonymous namespace)::softmax_warp_backward<float, float, float, 10, true>", "softmax", "backward"),
    ("void transformer_engine::cast_transpose_general_kernel<float>", "quant", "cast"),
    ("void vllm::scaled_fp8_quant_kernel_strided<c10::BFloat16>", "quant", "quantize"),
    ("triton_poi_fused_addmm_gelu_view_15", "triton", "pointwise"),
    ("triton_red_fused_add_addmm_mul_native_layer_norm_split_unsqueeze_view_16", "triton", "reduction"),
    ("void at::native::radixSortKVInPlace<2, -1, 32, 4, long, long, unsigned int>", "index", "sort"),
    ("void at::native::(anonymous namespace)::indexSelectLargeIndex<long, long>", "index", "gather_scatter"),
    (ELEMENTWISE + "FillFunctor<float>, std::array<char*, 1ul> >", "elementwise", "fill"),
    (ELEMENTWISE + "CUDAFunctor_add<float>, at::detail::Array<char*, 3> >", "elementwise", "pointwise"),
    (ELEMENTWISE + "GeluCUDAKernelImpl(at::TensorIteratorBase&)>", "elementwise", "activation"),
    ("void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda()>", "elementwise", "copy"),
    ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int>", "elementwise", "copy"),
    (REDUCE + "MeanOps<float, float, float, float>, unsigned int, float, 4> >", "reduction", "reduce"),
    ("at::cuda::spin_kernel(long)", "other", "unknown"),
]


@pytest.mark.parametrize(("name", "cls", "kind"), DEVICE, ids=[name[:60] for name, _, _ in DEVICE])
def test_classify_device_real_names(name: str, cls: str, kind: str) -> None:
    assert classify_device(name) == (cls, kind)


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
    assert classify_host(name) == (cls, kind)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("allreduce", "all_reduce"),
        ("_allgather_base", "all_gather"),
        ("_reduce_scatter_base", "reduce_scatter"),
        ("c10d::_reduce_scatter_base_", "reduce_scatter"),
        ("all_to_allv", "all_to_all"),
        ("c10d::alltoall_base_", "all_to_all"),
        ("nccl:all_to_all", "all_to_all"),
        ("send", "send"),
        ("c10d::recv_any_source_", "recv"),
        ("c10d::broadcast_", "broadcast"),
        ("c10d::monitored_barrier_", "barrier"),
        ("nccl:coalesced", None),
    ],
)
def test_collective_kind_names(name: str, kind: str | None) -> None:
    assert collective_kind(name) == kind
