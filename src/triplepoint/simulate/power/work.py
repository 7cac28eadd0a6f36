"""Work of operations on the units of a GPU, as the time of each unit at its peak."""

from collections.abc import Iterable

import numpy as np

from triplepoint.simulate.collectives.traffic import NodeSpread, spread_of_group, traffic
from triplepoint.simulate.job import Job
from triplepoint.simulate.operations import Communication, Kernel, Operation
from triplepoint.simulate.power.gpu import Activity, Float
from triplepoint.simulate.timeline.expand import TimeOf

UNITS = ("awake", "tensor", "sm", "hbm", "link", "clock_bound")
"""Units of work, in this order: time in which a kernel runs, time of each unit at its peak, and time that scales with
the clock."""

_ON_TENSOR = ("gemm", "attention")
_GEMM_CLASSES = ("gemm", "grouped")

OVERLAP_EXPONENT = 3.0
"""How well memory traffic hides behind computation; `overlap_exponent` of `config/kernels/`, 3.03 as fitted on H100."""

FP8_ENERGY = 0.48
"""Energy of an fp8 operation over that of a bf16 one; at the double rate, 0.5 would be the same power.

Source: at 700 W with random operands, best of all shapes, 1403 TFLOP/s on an H100 and 1453 on an H200
(stas00/ml-engineering, compute/accelerator/README.md), which `tensor` leaves to 0.47 to 0.50. Over bf16 GEMMs of those
GPUs it is 0.58 to 0.67; nodes that train in fp8 (tests/data/node_power) draw less than that suggests.
"""
_FP32_FLOPS_PER_BYTE = 0.5
"""fp32 operations per byte of memory-bound kernels, beyond those of GEMMs that stream weights; counted as data sheets
do.

Source: assumption. By hand count, the sum of two tensors has 37 operations for 24 elements, SwiGLU and norms some four
per element. With `hbm` as kernels demand, these would make 760 W of optimizer updates, but GPT-3 with FSDP has peaks of
617 W (arXiv:2509.10371, figure 13): the energy of a byte already contains most of it.
"""
_SOFTMAX_SHARE = 22 / 1792
"""fp32 operations of attention's softmax per operation of its GEMMs, two per instruction.

Source: five instructions per score forward (scale, exponential, maximum, sum, convert), six backward; GEMMs with heads
of 128 have 512 and 1280 operations.
"""


def uncounted_flops(cls: str, flops: float, num_bytes: float) -> float:
    """Return the fp32 operations of a kernel beyond its counted FLOPs: of softmax, and of memory-bound kernels.

    Args:
        cls: Class of the kernel; gemm, attention and grouped have GEMMs.
        flops: Counted operations. Unit: FLOP.
        num_bytes: Bytes read from and written to memory. Unit: byte.
    """
    if cls == "attention":
        return flops * _SOFTMAX_SHARE
    return 0.0 if cls in _GEMM_CLASSES else num_bytes * _FP32_FLOPS_PER_BYTE


class Workload:
    """Work of one job's operations, each computed once."""

    def __init__(self, job: Job, time_of: TimeOf) -> None:
        """Prepare the rates of the job's GPU type.

        Args:
            job: The job.
            time_of: Function that returns the time of one run of an operation. Unit: s.
        """
        self.job, self._time_of = job, time_of
        gpu = job.gpu
        self._hbm, self._sm = gpu.memory_bandwidth.value, gpu.peak_fp32_flops.value
        self._tensor = gpu.peak_bf16_flops.value
        # Both directions together.
        self._link = 2 * gpu.scale_up_bandwidth.value
        self._spreads: dict[str, NodeSpread] = {}
        # By identity, with the operation kept alive: comparing operations takes longer than counting their work.
        self._each: dict[int, tuple[Operation, tuple[float, ...]]] = {}
        self._sums: dict[int, tuple[tuple[Operation, ...], Float]] = {}
        self.of_stage: dict[int, Float] = {}
        """Work of the pieces of pipeline stages that were asked for, by stage. Unit: s."""

    def of(self, operations: tuple[Operation, ...]) -> Float:
        """Return the work of all runs of operations; shape (len(UNITS),). Unit: s."""
        cached = self._sums.get(id(operations))
        if cached is None:
            count = np.array([operation.count for operation in operations], dtype=float)
            work = count @ np.array([self.each(operation) for operation in operations]).reshape(-1, len(UNITS))
            cached = self._sums[id(operations)] = (operations, work)
        return cached[1]

    def of_all(self, parts: Iterable[tuple[Operation, ...]]) -> Float:
        """Return the work of several passes; shape (len(UNITS),). Unit: s."""
        return np.asarray(np.sum([self.of(part) for part in parts], axis=0))

    def each(self, operation: Operation) -> tuple[float, ...]:
        """Return the work of one run of an operation, in the order of `UNITS`. Unit: s."""
        cached = self._each.get(id(operation))
        if cached is None:
            work = self._kernel(operation) if isinstance(operation, Kernel) else self._communication(operation)
            cached = self._each[id(operation)] = (operation, work)
        return cached[1]

    def sent(self, num_bytes: float, is_inside: bool) -> Float:
        """Return the work of a send between two stages on either side, without its time; shape (len(UNITS),). Unit: s.

        Args:
            num_bytes: Size of the activation. Unit: byte.
            is_inside: Whether both stages share a node.
        """
        return np.array([0.0, 0.0, 0.0, num_bytes / self._hbm, num_bytes / self._link if is_inside else 0.0, 0.0])

    def _kernel(self, kernel: Kernel) -> tuple[float, ...]:
        time = self._time_of(kernel)
        on_tensor = kernel.cls in _ON_TENSOR and kernel.precision != "fp32"
        gemms = kernel.flops / self._peak(kernel.precision) if on_tensor else 0.0
        arithmetic = 0.0 if on_tensor else kernel.flops / self._sm
        hbm = min(kernel.num_bytes / self._hbm, time)
        core, memory = max(gemms, arithmetic) ** OVERLAP_EXPONENT, hbm**OVERLAP_EXPONENT
        bound = time * core / (core + memory) if core else 0.0
        tensor = kernel.flops * self._energy(kernel.precision) / self._tensor if on_tensor else 0.0
        uncounted = uncounted_flops(kernel.cls, kernel.flops, kernel.num_bytes) / self._sm
        return time, tensor, min(arithmetic + uncounted, time), hbm, 0.0, bound

    def _communication(self, communication: Communication) -> tuple[float, ...]:
        time = self._time_of(communication)
        spread = self._spread(communication.group)
        if spread.size == 1:
            return (0.0,) * len(UNITS)
        moved = traffic(communication.kind, communication.num_bytes, spread)
        # A rank reads what it sends and writes what it receives, which is as much.
        hbm = min(2 * (moved.inside + moved.outside) / self._hbm, time)
        # The kernel polls most of the time, which counts as waiting, whatever computes at the same time.
        return 0.0, 0.0, 0.0, hbm, min(2 * moved.inside / self._link, time), 0.0

    def _spread(self, group: str) -> NodeSpread:
        if group not in self._spreads:
            self._spreads[group] = spread_of_group(self.job.mesh.group(group), self.job.fabric.gpus_per_node)
        return self._spreads[group]

    def _energy(self, precision: str) -> float:
        return FP8_ENERGY if precision in ("fp8", "nvfp4") and self.job.gpu.peak_fp8_flops else 1.0

    def _peak(self, precision: str) -> float:
        fp8 = self.job.gpu.peak_fp8_flops
        return fp8.value if precision in ("fp8", "nvfp4") and fp8 else self.job.gpu.peak_bf16_flops.value


def activity_of(work: Float, duration_s: Float | float) -> Activity:
    """Return the mean activity of work over a time.

    Args:
        work: Work; shape (..., len(UNITS)). Unit: s.
        duration_s: Time; shape (...). Unit: s.
    """
    share = work / np.maximum(np.asarray(duration_s), 1e-12)[..., None]
    awake, tensor, sm, hbm, link, bound = np.moveaxis(share, -1, 0)
    return Activity(
        np.minimum(awake, 1.0), tensor, sm, np.minimum(hbm, 1.0), np.minimum(link, 1.0), np.ones_like(awake),
        np.minimum(bound, 1.0),
    )  # fmt: skip
