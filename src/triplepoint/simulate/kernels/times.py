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
"""FLOPs up to which a kernel has the sigma of its fit, FLOPs from which it has the smallest sigma, and the smallest
sigma over that of the fit. Source: errors on the H100 GEMMs of config/kernels/measured.csv by decade from 1e9 FLOP up:
0.13, 0.14, 0.08 and 0.05."""

HOST_KINDS = ("to_host", "from_host", "host_adam")
"""Kinds of kernels in host memory: copies to it and from it, and the update of an offloaded optimizer."""
_HOST_COPY, _HOST_UPDATE, _HOST_SIGMA = 0.85, 0.6, 0.4
"""Share of the data sheet's bandwidth that copies to and from host memory reach, the same of updates in host memory,
and the standard deviation of the log error of both. Assumptions: none of these times was measured."""

_NVFP4_SIGMA = 0.2
"""Additional standard deviation of the log error of 4-bit GEMMs, added in squares. They are assumed to reach the same
share of their peak as fp8 GEMMs of theirs: none of their times was measured."""

_LINEAR_SIGMA = 0.4
"""Standard deviation of the log error of scans and linear attention, whose products are priced as batched GEMMs. An
assumption: none of their times was measured."""


@dataclass(frozen=True)
class KernelModel:
    """Kernel times of one GPU type.

    Attributes:
        gpu: The GPU type, with its peaks.
        config: Parameters fitted to measured tables.
        attention: Implementation of fused attention: flash2, flash3, cudnn, ck.
    """

    gpu: GpuConfig
    config: KernelConfig
    attention: str
    _times: dict[tuple[object, ...], float] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def load(cls, gpu: GpuConfig, folder: Path, attention: str | None = None) -> "KernelModel":
        """Return the model of a GPU type.

        Args:
            gpu: The GPU type.
            folder: Folder of the configuration.
            attention: Implementation of fused attention; None for the default of the GPU type.

        Raises:
            UserError: If the kernels of the GPU, or the implementation on it, are unknown.
        """
        config = read_kernels(gpu, folder)
        chosen = attention or next(iter(config.attention))
        if chosen not in config.attention:
            where = folder / "kernels" / f"{gpu.kernels_of}.yaml"
            raise UserError(f"{where}: unknown attention {chosen!r}{nearest(chosen, config.attention)}")
        return cls(gpu, config, chosen)

    def sigma_of(self, kernel: Kernel) -> float:
        """Return the standard deviation of the log error of a kernel.

        It is smaller for large kernels and grows outside the fit.
        """
        fit = self._fit_of(kernel)
        if kernel.kind in HOST_KINDS:
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
        # A choice: twice the sigma at a quarter of the smallest or four times the largest fitted kernel.
        return sigma * (1 + octaves / 2)

    def time_s(self, kernel: Kernel, clock_ratio: float = 1.0) -> float:
        """Return the time of one run, including the gap to the next kernel. Unit: s.

        Args:
            kernel: The kernel.
            clock_ratio: Clock of the compute units over that of the measured tables; memory has a clock of its own.

        Raises:
            ValueError: If the shape has an unexpected number of dimensions.
        """
        key = (kernel.shape, kernel.num_bytes, kernel.precision, kernel.kind, kernel.cls, kernel.is_causal, clock_ratio)
        time_s = self._times.get(key)
        if time_s is None:
            time_s = self._times[key] = self._run_s(kernel, clock_ratio) + self.config.launch_gap.value * _US
        return time_s

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
        fit, memory = self._attention(), self.config.memory
        machine = self._machine(precision, clock_ratio)
        fit_of_pass = fit.backward if kind == "backward" else fit.forward
        compute_s = attention_s(kernel.shape, kernel.is_causal, kind, fit_of_pass, machine)
        memory_s = machine.memory_s(kernel.num_bytes, memory.efficiency)
        return max(compute_s, memory_s) + memory.fixed_us * _US

    def _memory_s(self, kernel: Kernel, clock_ratio: float) -> float:
        if kernel.kind in HOST_KINDS:
            return self._host_s(kernel)
        memory = self.config.memory
        share = memory.classes.get(kernel.cls, 1.0)
        memory_s = self._machine("bf16", 1.0).memory_s(kernel.num_bytes, memory.efficiency * share)
        # A scan runs on the vector units, at the rate of the data sheet.
        compute_s = kernel.flops / self._machine("fp32", clock_ratio).peak_flops if kernel.flops else 0.0
        return max(memory_s, compute_s) + memory.fixed_us * _US

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
    """Return the sigma of a kernel over that of its fit, by its FLOPs."""
    position = math.log(flops / _SMALL_FLOPS) / math.log(_LARGE_FLOPS / _SMALL_FLOPS)
    return 1 - (1 - _LARGE_SIGMA) * min(1.0, max(0.0, position))
