"""Parameters of a GPU's kernels: `config/kernels/<gpu>.yaml`, fitted to measured tables by `kernels_fit`."""

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
    """Where parameters come from and how far they can be trusted."""

    source: Annotated[str, Field(min_length=8)]
    """Table they were fitted to, or the assumption they are."""
    rows: Annotated[int, Field(ge=0)]
    """Measurements fitted to; 0 for an assumption."""
    sigma: Positive
    """Standard deviation of the log error of shapes that were held out; of an assumption, how sure it is."""
    held_out_median: Positive | None = None
    """Median relative error of held-out shapes, as a fraction."""
    held_out_p90: Positive | None = None
    """The error nine tenths of held-out shapes stay under, as a fraction."""
    flops_range: tuple[float, float] | None = None
    """Least and most FLOPs of the kernels fitted to; outside it sigma grows. Unit: FLOP."""


class GemmParameters(Strict):
    """GEMMs of one precision."""

    efficiency: Fraction
    """Rate of a large tile with nothing else in the way, as a fraction of peak."""
    tile_penalty: Annotated[float, Field(ge=0)]
    """How much slower small tiles are: the tile extent `mn/(m+n)` at which the rate is half."""
    tile_overhead_us: Annotated[float, Field(ge=0)]
    """Filling and emptying the pipeline of one tile. Unit: us."""
    wave_quantisation: Annotated[float, Field(ge=0, le=1)]
    """How much of a partial last wave costs: 1 a whole wave, 0 only its share."""
    overlap_exponent: Annotated[float, Field(ge=1)]
    """How well memory hides behind computation: 1 one after the other, infinite perfectly."""
    memory_efficiency: Fraction
    """Rate of operands and results from memory, as a fraction of peak."""
    output_cost: Annotated[float, Field(ge=0)]
    """Time of writing (and with accumulation reading) results that nothing hides, as a fraction of that at peak."""
    fixed_us: Annotated[float, Field(ge=0)]
    """Shortest kernel: ramp-up and drain. Unit: us."""
    split_k_efficiency: Positive
    """Rate at which partial sums of a split K are brought together, as a multiple of memory bandwidth (L2 helps)."""
    batched_efficiency: Fraction = 1
    """Rate of a batch of many small GEMMs against one large one."""
    fit: Fit
    """Where the parameters come from."""


class AttentionPass(Strict):
    """One direction of an attention kernel."""

    efficiency: Positive
    """Rate of its GEMMs without softmax, as a fraction of peak."""
    softmax_extent: Annotated[float, Field(ge=0)]
    """Head size at which softmax takes as long as the GEMMs."""
    tile_overhead: Annotated[float, Field(ge=0)]
    """Start and end of a block of queries, in blocks of 128 keys."""
    tail: Annotated[float, Field(ge=0)]
    """How much of the longest block of queries is not hidden by others."""


class AttentionKernel(Strict):
    """One implementation of fused attention."""

    forward: AttentionPass
    """Forward pass."""
    backward: AttentionPass
    """Backward pass."""
    fit: Fit
    """Where the parameters come from."""


class MemoryParameters(Strict):
    """Kernels bound by memory."""

    efficiency: Fraction
    """Rate of large tensors, as a fraction of peak."""
    fixed_us: Annotated[float, Field(ge=0)]
    """Shortest kernel: ramp-up and drain. Unit: us."""
    ramp_us: Annotated[float, Field(ge=0)]
    """What large tensors lose besides, before the full rate is reached. Unit: us."""
    ramp_bytes: Positive
    """Size at which half of it is lost. Unit: byte."""
    classes: dict[str, Fraction] = Field(default_factory=dict)
    """Rate of a class of kernels against that of copying; 1 where absent."""
    fit: Fit
    """Where the parameters come from."""


class KernelConfig(Strict):
    """The kernels of one GPU type."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    """Name of the GPU type; the file is called the same."""
    num_sms: Annotated[Quantity, unit_is("1")]
    """Streaming multiprocessors, or compute units, of one device."""
    launch_gap: Annotated[Quantity, unit_is("us")]
    """From one kernel to the next of a stream that never waits for the host."""
    gemm: dict[str, GemmParameters]
    """By precision: bf16 (fp16 is the same), fp8, fp32."""
    attention: dict[str, AttentionKernel]
    """By implementation: flash2, flash3, cudnn, ck; the first is taken where none is named."""
    memory: MemoryParameters
    """Kernels bound by memory."""


@lru_cache(maxsize=64)
def read_kernels(gpu: GpuConfig, config: Path) -> KernelConfig:
    """Return what is known of a GPU's kernels: its own file, or what follows from that of its relative.

    Raises:
        UserError: If the file is missing or wrong.
    """
    path = config / "kernels" / f"{gpu.name}.yaml"
    if path.is_file() or gpu.kernels is None:
        return read_named(KernelConfig, path)
    relative = Catalogue(config).gpu(gpu.kernels.of, config / "gpus" / path.name)
    return _inferred(read_named(KernelConfig, path.with_stem(relative.name)), relative, gpu, gpu.kernels)


def _inferred(
    known: KernelConfig, relative: GpuConfig, gpu: GpuConfig, inferred: InferredKernels
) -> KernelConfig:  # fmt: skip
    """Return kernels that reach the same shares of a GPU's own peaks as those of its relative, times `rate`.

    Softmax is not the work of matrix units: it takes as many cycles of a compute unit as on the relative.
    """
    rate = inferred.rate.value if inferred.rate else 1.0
    num_sms = inferred.num_sms or known.num_sms
    per_cycle = _matrix_flops_per_cycle(gpu, num_sms) / _matrix_flops_per_cycle(relative, known.num_sms)

    def widened(fit: Fit) -> Fit:
        source = f"inferred from {relative.name}: {fit.source}"
        return fit.model_copy(update={"source": source, "rows": 0, "sigma": math.hypot(fit.sigma, inferred.sigma)})

    def scaled(fitted: GemmParameters) -> GemmParameters:
        reached = min(1.0, fitted.efficiency * rate)
        return fitted.model_copy(update={"efficiency": reached, "fit": widened(fitted.fit)})

    def passed(one: AttentionPass) -> AttentionPass:
        changes = {"efficiency": one.efficiency * rate, "softmax_extent": one.softmax_extent * per_cycle}
        return one.model_copy(update=changes)

    gemm = {precision: scaled(fitted) for precision, fitted in known.gemm.items()}
    if gpu.peak_fp8_flops:
        gemm.setdefault("fp8", gemm["bf16"])
    attention = {
        name: AttentionKernel(forward=passed(one.forward), backward=passed(one.backward), fit=widened(one.fit))
        for name, one in known.attention.items()
    }
    memory = known.memory.model_copy(update={"fit": widened(known.memory.fit)})
    changes = {"name": gpu.name, "num_sms": num_sms, "gemm": gemm, "attention": attention, "memory": memory}
    return known.model_copy(update=changes)


def _matrix_flops_per_cycle(gpu: GpuConfig, num_sms: Quantity) -> float:
    """Return what the matrix units of one compute unit do in a cycle of the highest clock."""
    return gpu.peak_bf16_flops.value / (num_sms.value * gpu.max_sm_clock.value * 1e6)
