"""Work of operations on the units of a GPU: time of each unit at its peak."""

from collections.abc import Iterable

import numpy as np

from triplepoint.simulate.collectives.traffic import NodeSpread, spread_of_group, traffic
from triplepoint.simulate.job import Job
from triplepoint.simulate.operations import Communication, Kernel, Operation
from triplepoint.simulate.power.gpu import Activity, Float
from triplepoint.simulate.timeline.expand import TimeOf

UNITS = ("awake", "tensor", "sm", "hbm", "link", "clock_bound")
"""What work is counted by, in this order: time a kernel runs, time each unit would take at its peak, and time that goes
with the clock."""

_ON_TENSOR = ("gemm", "attention")
_PRODUCTS = ("gemm", "grouped")

OVERLAP_EXPONENT = 3.0
"""How well memory hides behind computation; `overlap_exponent` of `config/kernels/`, 3.03 as fitted on H100."""

FP8_ENERGY = 0.48
"""Energy of an FP8 operation over that of a BF16 one, where half of it would be as much as twice the rate asks.

Source: at 700 W with random operands, best of all shapes, 1403 TFLOP/s on an H100 and 1453 on an H200
(stas00/ml-engineering, compute/accelerator/README.md), which `tensor` leaves to 0.47 to 0.50. Over BF16 GEMMs of those
GPUs it is 0.58 to 0.67; nodes that train in FP8 (tests/data/node_power) draw less than that says.
"""
_FP32_FLOPS_PER_BYTE = 0.5
"""Arithmetic of kernels that stream beyond that of GEMMs that stream weights, in FP32 operations as data sheets count.

Source: assumption. Counted by hand, the sum of two tensors has 37 operations for 24 elements, SwiGLU and norms some
four each; but with `hbm` as kernels ask for, these make 760 W of updates of optimizers, where GPT-3 FSDP has peaks of
617 W (arXiv:2509.10371, figure 13): so the energy of a byte holds most of it.
"""
_SOFTMAX_SHARE = 22 / 1792
"""FP32 operations of attention's softmax for each operation of its GEMMs, two for every instruction.

Source: five instructions for each score forward (scale, exponential, maximum, sum, convert), six backward; GEMMs with
heads of 128 have 512 and 1280 operations.
"""


def uncounted_flops(cls: str, flops: float, num_bytes: float) -> float:
    """Return the FP32 operations of a kernel that are not counted for it: of softmax, and of what streams.

    Args:
        cls: Its class; gemm, attention and grouped have GEMMs.
        flops: Counted operations. Unit: FLOP.
        num_bytes: Read from and written to memory. Unit: byte.
    """
    if cls == "attention":
        return flops * _SOFTMAX_SHARE
    return 0.0 if cls in _PRODUCTS else num_bytes * _FP32_FLOPS_PER_BYTE


class Workload:
    """The work of one job's operations, each counted once."""

    def __init__(self, job: Job, time_of: TimeOf) -> None:
        """Take the job, and the time of one run of an operation in s."""
        self.job, self._time_of = job, time_of
        gpu = job.gpu
        self._hbm, self._sm = gpu.memory_bandwidth.value, gpu.peak_fp32_flops.value
        self._tensor = gpu.peak_bf16_flops.value
        # Both directions together.
        self._link = 2 * gpu.scale_up_bandwidth.value
        self._spreads: dict[str, NodeSpread] = {}
        # By identity, and kept alive: to compare operations takes longer than to count their work.
        self._known: dict[int, tuple[Operation, tuple[float, ...]]] = {}
        self._sums: dict[int, tuple[tuple[Operation, ...], Float]] = {}

    def of(self, operations: tuple[Operation, ...]) -> Float:
        """Return the work of operations, all runs of them; shape (len(UNITS),). Unit: s."""
        known = self._sums.get(id(operations))
        if known is None:
            count = np.array([one.count for one in operations], dtype=float)
            work = count @ np.array([self.each(one) for one in operations]).reshape(-1, len(UNITS))
            known = self._sums[id(operations)] = (operations, work)
        return known[1]

    def of_all(self, parts: Iterable[tuple[Operation, ...]]) -> Float:
        """Return the work of several passes; shape (len(UNITS),). Unit: s."""
        return np.asarray(np.sum([self.of(part) for part in parts], axis=0))

    def each(self, operation: Operation) -> tuple[float, ...]:
        """Return the work of one run of an operation, in the order of `UNITS`. Unit: s."""
        known = self._known.get(id(operation))
        if known is None:
            made = self._kernel(operation) if isinstance(operation, Kernel) else self._communication(operation)
            known = self._known[id(operation)] = (operation, made)
        return known[1]

    def sent(self, num_bytes: float, is_inside: bool) -> Float:
        """Return the work of a send between two stages, on either side of it, but for its time."""
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
        # What is sent is read, and what is received, as much again, is written.
        hbm = min(2 * (moved.inside + moved.outside) / self._hbm, time)
        # Its kernel polls most of the time, whoever computes beside it: that is counted as waiting.
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
        work: Shape (..., len(UNITS)). Unit: s.
        duration_s: Shape (...). Unit: s.
    """
    share = work / np.maximum(np.asarray(duration_s), 1e-12)[..., None]
    awake, tensor, sm, hbm, link, bound = np.moveaxis(share, -1, 0)
    return Activity(
        np.minimum(awake, 1.0), tensor, sm, np.minimum(hbm, 1.0), np.minimum(link, 1.0), np.ones_like(awake),
        np.minimum(bound, 1.0),
    )  # fmt: skip
