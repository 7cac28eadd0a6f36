"""Time of a kernel on a GPU from its shape, with its uncertainty."""

import math
from dataclasses import dataclass, field
from pathlib import Path

from triplepoint.config.base import Quantity
from triplepoint.config.gpu import GpuConfig
from triplepoint.errors import PointError, UserError, nearest
from triplepoint.simulate.kernels.formula import Gemm, Machine, attention_s, gemm_s
from triplepoint.simulate.kernels.parameters import AttentionKernel, Fit, GemmParameters, KernelConfig, read_kernels
from triplepoint.simulate.operations import Kernel

_ELEMENT_BYTES = {"bf16": 2, "fp16": 2, "fp8": 1, "nvfp4": 0.5 + 1 / 16, "fp32": 4}
_US = 1e-6

_SMALL_FLOPS, _LARGE_FLOPS, _LARGE_SIGMA = 1e10, 1e12, 0.4
"""Kernels that are as unsure as the mean of a fit, those that are surest, and how much of sigma those have. Source:
errors on the H100 GEMMs of config/kernels/measured.csv by decade from 1e9 FLOP up: 0.13, 0.14, 0.08 and 0.05."""

_HOST_KINDS = ("to_host", "from_host", "host_adam")
_HOST_COPY, _HOST_UPDATE, _HOST_SIGMA = 0.85, 0.6, 0.4
"""Copies to and from the host's memory, updates in it, and how unsure both are: shares of the bandwidths of data
sheets that they reach, and the standard deviation of the log error. Assumptions: no time of them was measured."""

_NVFP4_SIGMA = 0.2
"""What is added to the uncertainty of GEMMs in 4 bits, in log and by squares: they are taken to reach the share of
their peak that those in fp8 reach of theirs. An assumption: no time of them was measured."""

_LINEAR_SIGMA = 0.4
"""Standard deviation of the log error of scans and linear attention, whose products are taken as batched GEMMs. An
assumption: no time of them was measured."""


@dataclass(frozen=True)
class KernelModel:
    """Times of the kernels of one GPU type.

    Attributes:
        gpu: The GPU type, with its peaks.
        config: Parameters fitted to measured tables.
        attention: Implementation of fused attention: flash2, flash3, cudnn, ck.
    """

    gpu: GpuConfig
    config: KernelConfig
    attention: str
    _known: dict[tuple[object, ...], float] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def load(cls, gpu: GpuConfig, folder: Path, attention: str | None = None) -> "KernelModel":
        """Return the model of a GPU type.

        Args:
            gpu: The GPU type.
            folder: Folder of the configuration.
            attention: Implementation of fused attention; None for the first known for the GPU.

        Raises:
            UserError: If nothing is known of the GPU's kernels, or of that implementation on it.
        """
        config = read_kernels(gpu, folder)
        chosen = attention or next(iter(config.attention))
        if chosen not in config.attention:
            where = folder / "kernels" / f"{gpu.kernels_of}.yaml"
            raise UserError(f"{where}: unknown attention {chosen!r}{nearest(chosen, config.attention)}")
        return cls(gpu, config, chosen)

    def sigma_of(self, kernel: Kernel) -> float:
        """Return the standard deviation of the log error of a kernel: less of large ones, more outside of the fit."""
        fit = self._fit_of(kernel)
        if kernel.kind in _HOST_KINDS:
            return _HOST_SIGMA
        if kernel.kind in ("linear", "scan"):
            return max(fit.sigma, _LINEAR_SIGMA)
        if kernel.flops <= 0:
            return fit.sigma
        sigma = fit.sigma * _share_of_sigma(kernel.flops)
        if kernel.precision == "nvfp4":
            sigma = math.hypot(sigma, _NVFP4_SIGMA)
        if fit.flops_range is None:
            return sigma
        least, most = fit.flops_range
        octaves = max(0.0, math.log2(least / kernel.flops), math.log2(kernel.flops / most))
        # A choice, not a measurement: twice as unsure at a quarter of the smallest or four times the largest kernel.
        return sigma * (1 + octaves / 2)

    def time_s(self, kernel: Kernel, clock_ratio: float = 1.0) -> float:
        """Return the time of one run, with the gap to the next kernel. Unit: s.

        Args:
            kernel: The kernel.
            clock_ratio: Clock of the compute units against the one the tables were measured at; memory has its own.

        Raises:
            ValueError: If the shape is not of a GEMM, attention or none.
        """
        key = (kernel.shape, kernel.num_bytes, kernel.precision, kernel.kind, kernel.cls, kernel.is_causal, clock_ratio)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._run_s(kernel, clock_ratio) + self.config.launch_gap.value * _US
        return known

    def _run_s(self, kernel: Kernel, clock_ratio: float) -> float:
        if not kernel.shape:
            return self._memory_s(kernel, clock_ratio)
        if len(kernel.shape) == 6:
            return self._attention_s(kernel, clock_ratio)
        if len(kernel.shape) not in (3, 4):
            raise ValueError(f"kernel {kernel.cls} {kernel.kind}: shape {kernel.shape} has {len(kernel.shape)} numbers")
        groups, m, n, k = kernel.shape if len(kernel.shape) == 4 else (1, *kernel.shape)
        machine, fit = self._machine(kernel.precision, clock_ratio), self._gemm(kernel.precision)
        if groups > 1 and not kernel.kind.startswith("grouped"):
            fit = fit.model_copy(update={"efficiency": fit.efficiency * fit.batched_efficiency})
        input_bytes = groups * (m * k + k * n) * _ELEMENT_BYTES[kernel.precision]
        gemm = Gemm(groups, m, n, k, kernel.num_bytes, max(0.0, kernel.num_bytes - input_bytes))
        return gemm_s(gemm, fit, machine)

    def _attention_s(self, kernel: Kernel, clock_ratio: float) -> float:
        # fp8 training keeps attention in bf16 by default.
        precision = "bf16" if kernel.precision == "fp8" else kernel.precision
        kind = "backward" if kernel.kind == "backward" else "forward"
        fit = self._attention()
        chosen = fit.backward if kind == "backward" else fit.forward
        machine = self._machine(precision, clock_ratio)
        compute = attention_s(kernel.shape, kernel.is_causal, kind, chosen, machine)
        memory = self.config.memory
        streaming = machine.memory_s(kernel.num_bytes, memory.efficiency)
        return max(compute, streaming) + memory.fixed_us * _US

    def _memory_s(self, kernel: Kernel, clock_ratio: float) -> float:
        if kernel.kind in _HOST_KINDS:
            return self._host_s(kernel)
        memory = self.config.memory
        share = memory.classes.get(kernel.cls, 1.0)
        moving = self._machine("bf16", 1.0).memory_s(kernel.num_bytes, memory.efficiency * share)
        # A scan works on the vector units, at the rate of the data sheet.
        working = kernel.flops / self._machine("fp32", clock_ratio).peak_flops if kernel.flops else 0.0
        return max(moving, working) + memory.fixed_us * _US

    def _host_s(self, kernel: Kernel) -> float:
        gpu, is_copy = self.gpu, kernel.kind != "host_adam"
        rate = gpu.host_link if is_copy else gpu.host_memory_bandwidth
        if rate is None:
            raise PointError(f"offload: the host of gpu {gpu.name} is not known; set offload: []")
        return kernel.num_bytes / (rate.value * (_HOST_COPY if is_copy else _HOST_UPDATE))

    def _machine(self, precision: str, clock_ratio: float) -> Machine:
        gpu = self.gpu
        peaks = {"fp8": gpu.peak_fp8_flops, "nvfp4": gpu.peak_nvfp4_flops, "fp32": gpu.peak_fp32_flops}
        peak = peaks.get(precision, gpu.peak_bf16_flops)
        if not isinstance(peak, Quantity):
            raise PointError(f"gpu {gpu.name}: no {precision} units; use bf16")
        num_sms, memory = int(self.config.num_sms.value), self.config.memory
        bandwidth = self.gpu.memory_bandwidth.value
        return Machine(peak.value * clock_ratio, bandwidth, num_sms, memory.ramp_us, memory.ramp_bytes)

    def _gemm(self, precision: str) -> GemmParameters:
        name = {"fp16": "bf16", "nvfp4": "fp8"}.get(precision, precision)
        if name not in self.config.gemm:
            raise PointError(f"gpu {self.gpu.name}: {name} GEMMs are not known{nearest(name, self.config.gemm)}")
        return self.config.gemm[name]

    def _attention(self) -> AttentionKernel:
        return self.config.attention[self.attention]

    def _fit_of(self, kernel: Kernel) -> Fit:
        if not kernel.shape:
            return self.config.memory.fit
        return self._attention().fit if len(kernel.shape) == 6 else self._gemm(kernel.precision).fit


def _share_of_sigma(flops: float) -> float:
    large = math.log(flops / _SMALL_FLOPS) / math.log(_LARGE_FLOPS / _SMALL_FLOPS)
    return 1 - (1 - _LARGE_SIGMA) * min(1.0, max(0.0, large))
