"""What simulated operations are called in a trace: names that tell what they are to whoever reads real ones."""

from triplepoint.config.gpu import GpuConfig
from triplepoint.simulate.operations import CommKind, Kernel, Message

_KERNELS = {
    ("attention", "backward"): "flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel",
    ("attention", "softmax"): "scaled_masked_softmax_kernel",
    ("attention", ""): "flash_fwd_kernel",
    ("norm", "backward"): "ln_bwd_kernel",
    ("norm", ""): "ln_fwd_kernel",
    ("embedding", "backward"): "embedding_backward_kernel",
    ("embedding", ""): "embedding_lookup_kernel",
    ("loss", "backward"): "cross_entropy_backward_kernel",
    ("loss", ""): "cross_entropy_forward_kernel",
    ("optimizer", "clip"): "multi_tensor_l2norm_scale_kernel",
    ("optimizer", "adam"): "multi_tensor_adam_kernel",
    ("optimizer", ""): "multi_tensor_apply_{kind}",
    ("moe", "router"): "moe_router_topk_softmax_kernel",
    ("moe", ""): "moe_{kind}_kernel",
    # Not `rope` or `cast`: those are kernels of attention and of quantisation to the taxonomy.
    ("elementwise", "rope"): "elementwise_kernel_rotation",
    ("elementwise", "cast"): "elementwise_kernel_conversion",
    ("elementwise", ""): "elementwise_kernel_{kind}",
}
"""By class and kind, or by class alone."""

_MESSAGES: dict[CommKind, tuple[str, str]] = {
    "all_reduce": ("AllReduce_Sum_bf16_RING_LL", "allreduce"),
    "all_gather": ("AllGather_RING_LL", "_allgather_base"),
    "reduce_scatter": ("ReduceScatter_Sum_bf16_RING_LL", "_reduce_scatter_base"),
    "all_to_all": ("SendRecv", "all_to_allv"),
    "broadcast": ("Broadcast_RING_LL", "broadcast"),
    "send_recv": ("SendRecv", "send_recv"),
}
"""NCCL's kernel, and what torch calls the collective."""


def kernel_name(kernel: Kernel, gpu: GpuConfig) -> str:
    """Return the name of a kernel: of matrix products with their shape, after the library of the GPU."""
    if kernel.cls == "gemm":
        return _gemm_name(kernel, gpu)
    name = _KERNELS.get((kernel.cls, kernel.kind)) or _KERNELS.get((kernel.cls, ""))
    return name.format(kind=kernel.kind) if name else f"{kernel.cls}_{kernel.kind}_kernel"


def message_names(message: Message, gpu: GpuConfig) -> tuple[str, str]:
    """Return the name of a message's kernel, and torch's name of the collective."""
    kernel, collective = _MESSAGES[message.kind]
    if gpu.vendor == "amd":
        # RCCL calls all its kernels the same.
        return "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", collective
    return f"ncclDevKernel_{kernel}(ncclDevKernelArgsStorage<4096ul>)", collective


def _gemm_name(kernel: Kernel, gpu: GpuConfig) -> str:
    shape = "x".join(map(str, kernel.shape))
    if kernel.kind.startswith("grouped"):
        return f"cutlass_grouped_gemm_{kernel.precision}_{shape}"
    if gpu.vendor == "amd":
        return f"Cijk_Alik_Bljk_{'F8BS' if kernel.precision == 'fp8' else 'BBS'}_{shape}"
    if gpu.peak_fp8_flops is None:
        return f"ampere_{kernel.precision}_s16816gemm_{shape}"
    return f"nvjet_sm90_{'qqtst' if kernel.precision == 'fp8' else 'tst'}_{shape}"
