"""Parameters of the kernels of a GPU type, fitted to measured tables: `config/kernels/<gpu>.yaml`."""

import math
from functools import lru_cache
from pathlib import Path
from typing import Annotated

from pydantic import Field

from triplepoint.config.base import NAME_PATTERN, Quantity, Strict, unit_is
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.gpu import GpuConfig, InferredKernels
from triplepoint.config.yaml_file import read_named

Positive = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(gt=0, le=1)]


class Fit(Strict):
    """Source and uncertainty of fitted parameters."""

    source: Annotated[str, Field(min_length=8)]
    """Table of the fit, or the assumption."""
    rows: Annotated[int, Field(ge=0)]
    """Measurements of the fit; 0 for an assumption."""
    sigma: Positive
    """Standard deviation of the log error of held-out shapes; for an assumption, its assumed uncertainty."""
    held_out_median: Positive | None = None
    """Median relative error of held-out shapes, as a fraction."""
    held_out_p90: Positive | None = None
    """90th percentile of the relative error of held-out shapes, as a fraction."""
    flops_range: tuple[float, float] | None = None
    """Smallest and largest FLOPs of the fitted kernels; sigma grows outside. Unit: FLOP."""


class GemmParameters(Strict):
    """Parameters of GEMMs of one precision."""

    efficiency: Fraction
    """Rate of a large tile without other limits, as a fraction of peak."""
    tile_penalty: Annotated[float, Field(ge=0)]
    """Slowdown of small tiles: the tile extent `mn/(m+n)` at which the rate is half."""
    tile_overhead_us: Annotated[float, Field(ge=0)]
    """Time to fill and empty the pipeline of one tile. Unit: us."""
    wave_quantisation: Annotated[float, Field(ge=0, le=1)]
    """Cost of a partial last wave: 1 for a whole wave, 0 for its share."""
    overlap_exponent: Annotated[float, Field(ge=1)]
    """Overlap of memory and computation: 1 for none, infinite for perfect overlap."""
    memory_efficiency: Fraction
    """Rate at which operands and results are read and written, as a fraction of peak bandwidth."""
    output_cost: Annotated[float, Field(ge=0)]
    """Exposed time of writing (and with accumulation reading) results, as a fraction of that at peak bandwidth."""
    fixed_us: Annotated[float, Field(ge=0)]
    """Time of the shortest kernel: ramp-up and drain. Unit: us."""
    split_k_efficiency: Positive
    """Rate at which partial sums of a split K are added, as a multiple of memory bandwidth (L2 helps)."""
    batched_efficiency: Fraction = 1
    """Rate of a batch of many small GEMMs over that of one large GEMM."""
    fit: Fit
    """Source of the parameters."""


class AttentionPass(Strict):
    """Parameters of one direction of an attention kernel."""

    efficiency: Positive
    """Rate of its GEMMs without softmax, as a fraction of peak."""
    softmax_extent: Annotated[float, Field(ge=0)]
    """Head size at which softmax takes as long as the GEMMs."""
    tile_overhead: Annotated[float, Field(ge=0)]
    """Time to start and end a block of queries, in blocks of 128 keys."""
    tail: Annotated[float, Field(ge=0)]
    """Share of the longest block of queries that other blocks do not hide."""


class AttentionKernel(Strict):
    """Parameters of one implementation of fused attention."""

    forward: AttentionPass
    """Forward pass."""
    backward: AttentionPass
    """Backward pass."""
    fit: Fit
    """Source of the parameters."""


class MemoryParameters(Strict):
    """Parameters of memory-bound kernels."""

    efficiency: Fraction
    """Rate of large tensors, as a fraction of peak bandwidth."""
    fixed_us: Annotated[float, Field(ge=0)]
    """Time of the shortest kernel: ramp-up and drain. Unit: us."""
    ramp_us: Annotated[float, Field(ge=0)]
    """Additional time of large tensors before memory reaches its full rate. Unit: us."""
    ramp_bytes: Positive
    """Size at which half of `ramp_us` is lost. Unit: byte."""
    classes: dict[str, Fraction] = Field(default_factory=dict)
    """Rate of a class of kernels over that of a copy; 1 for classes not listed."""
    fit: Fit
    """Source of the parameters."""


class KernelConfig(Strict):
    """Kernel parameters of one GPU type."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    """Name of the GPU type; the file has the same name."""
    num_sms: Annotated[Quantity, unit_is("1")]
    """Streaming multiprocessors, or compute units, of one device."""
    launch_gap: Annotated[Quantity, unit_is("us")]
    """Time between two kernels of a stream that never waits for the host."""
    gemm: dict[str, GemmParameters]
    """GEMM parameters by precision: bf16 (also for fp16), fp8, fp32."""
    attention: dict[str, AttentionKernel]
    """Attention parameters by implementation: flash2, flash3, cudnn, ck; the first is the default."""
    memory: MemoryParameters
    """Parameters of memory-bound kernels."""


@lru_cache(maxsize=64)
def read_kernels(gpu: GpuConfig, config: Path) -> KernelConfig:
    """Return the kernel parameters of a GPU type: from its own file, or inferred from a related type.

    Raises:
        UserError: If the file is missing or wrong.
    """
    path = config / "kernels" / f"{gpu.name}.yaml"
    if path.is_file() or gpu.kernels is None:
        return read_named(KernelConfig, path)
    relative = Catalogue(config).gpu(gpu.kernels.of, config / "gpus" / path.name)
    return _inferred(read_named(KernelConfig, path.with_stem(relative.name)), relative, gpu, gpu.kernels)


def _inferred(known: KernelConfig, relative: GpuConfig, gpu: GpuConfig, inferred: InferredKernels) -> KernelConfig:
    """Return kernels that reach the same shares of the GPU's peaks as those of a related type, times `rate`.

    Softmax does not run on matrix units: it takes as many cycles of a compute unit as on the related type.

    Args:
        known: Parameters of the related type.
        relative: The related type.
        gpu: The GPU type.
        inferred: How its parameters differ.
    """
    rate = inferred.rate.value if inferred.rate else 1.0
    num_sms = inferred.num_sms or known.num_sms
    per_cycle = _matrix_flops_per_cycle(gpu, num_sms) / _matrix_flops_per_cycle(relative, known.num_sms)

    def widened(fit: Fit) -> Fit:
        source = f"inferred from {relative.name}: {fit.source}"
        return fit.model_copy(update={"source": source, "rows": 0, "sigma": math.hypot(fit.sigma, inferred.sigma)})

    def scaled(fitted: GemmParameters) -> GemmParameters:
        efficiency = min(1.0, fitted.efficiency * rate)
        return fitted.model_copy(update={"efficiency": efficiency, "fit": widened(fitted.fit)})

    def scaled_pass(fitted: AttentionPass) -> AttentionPass:
        changes = {"efficiency": fitted.efficiency * rate, "softmax_extent": fitted.softmax_extent * per_cycle}
        return fitted.model_copy(update=changes)

    gemm = {precision: scaled(fitted) for precision, fitted in known.gemm.items()}
    if gpu.peak_fp8_flops:
        gemm.setdefault("fp8", gemm["bf16"])
    attention = {
        name: AttentionKernel(
            forward=scaled_pass(kernel.forward), backward=scaled_pass(kernel.backward), fit=widened(kernel.fit)
        )
        for name, kernel in known.attention.items()
    }
    memory = known.memory.model_copy(update={"fit": widened(known.memory.fit)})
    changes = {"name": gpu.name, "num_sms": num_sms, "gemm": gemm, "attention": attention, "memory": memory}
    return known.model_copy(update=changes)


def _matrix_flops_per_cycle(gpu: GpuConfig, num_sms: Quantity) -> float:
    """Return the FLOPs of one compute unit's matrix units in a cycle of the highest clock."""
    return gpu.peak_bf16_flops.value / (num_sms.value * gpu.max_sm_clock.value * 1e6)
