"""Cost of passes on the machines of a job: kernels in a row, communication exposed or overlapped."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import NormalDist

from triplepoint.simulate.collectives.links import Overlap
from triplepoint.simulate.collectives.times import CollectiveModel
from triplepoint.simulate.fabric import Group
from triplepoint.simulate.job import Job
from triplepoint.simulate.kernels.times import HOST_KINDS, KernelModel
from triplepoint.simulate.operations import Communication, Kernel, Operation
from triplepoint.simulate.work.experts import share_sent_once
from triplepoint.simulate.work.fp8 import RECIPES

HOST_OPERATIONS_OUTSIDE = 30
"""Operations of a micro-batch that launch next to no work and are no part of `work`: batch broadcast, masks and
positions, loss mask and mean. An estimate, after what pretrain_gpt.py of NVIDIA/Megatron-LM does there; not counted."""


LAUNCH_BEND = 5
"""How the time a pass takes to launch and the time it takes to run add up, as a p-norm: more than the longer of both,
since in some pieces of a pass the host is behind and in others the GPU. A choice: on published steps of small models
(vTrain, single node) 4, 5 and 6 are as good as each other."""

GPU_SPREAD = 0.0133
"""Standard deviation of the speed of GPUs of one type, in one cluster. Source: Sinha et al. 2022 (SC22), performance
varies by 8 % over the GPUs of a cluster; the range of the hundreds it has is 6 standard deviations of a normal."""


@dataclass(frozen=True)
class Constants:
    """Corrections of a software stack to kernel tables; at most one of both is fitted for a version of a stack.

    Attributes:
        factor: On the time of kernels.
        host_s: Time the host takes to launch one operation. Unit: s.
        host_sigma: Relative standard deviation of it. Unit: 1.
    """

    factor: float = 1.0
    host_s: float = 20e-6
    """Source: mean of the gaps below 0.5 ms between launches in the trace of a ResNet on MI300X in HTA's test data."""
    host_sigma: float = 0.0


@dataclass
class Cost:
    """Time of some operations in a row. Unit: s.

    Attributes:
        compute_s: Computation, slower while communication overlaps it.
        exposed_s: Communication that no computation overlaps.
        hidden_s: Communication overlapped with computation.
        by_class: Computation by class of kernel, exposed communication by group.
    """

    compute_s: float = 0.0
    exposed_s: float = 0.0
    hidden_s: float = 0.0
    by_class: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, time_s: float) -> None:
        """Add time to a class."""
        self.by_class[name] = self.by_class.get(name, 0.0) + time_s

    def include(self, other: "Cost", count: int = 1) -> None:
        """Add what `count` runs of other operations cost."""
        self.compute_s += other.compute_s * count
        self.exposed_s += other.exposed_s * count
        self.hidden_s += other.hidden_s * count
        for name, time in other.by_class.items():
            self.add(name, time * count)

    @property
    def host_share(self) -> float:
        """Share of computation in which the GPU waits for the host to launch. Unit: 1."""
        return self.by_class.get("host", 0.0) / self.compute_s if self.compute_s else 0.0

    @property
    def total_s(self) -> float:
        """From start to end."""
        return self.compute_s + self.exposed_s


class Costs:
    """Prices operations of one job."""

    def __init__(
        self,
        job: Job,
        models: tuple[KernelModel, CollectiveModel],
        overlap: Overlap,
        constants: Constants,
        attention_slowdown: float = 1.0,
    ) -> None:
        """Use these models, what computation loses to communication, and what the software stack does and adds.

        `attention_slowdown` is the time of its kernels of attention over that of those in the kernel model.
        """
        self._job = job
        self._kernels, self._collectives = models
        self._attention_slowdown = attention_slowdown
        self._fp8_slowdown = RECIPES[job.software.fp8_recipe].gemm_slowdown
        self._sends_once = job.software.dispatch == "once_per_node"
        self._constants = constants
        self._slowest = slowest_of(job.num_gpus)
        self.slowdown = overlap.compute_slowdown.value
        self._known: dict[tuple[tuple[Operation, ...], int], Cost] = {}
        self._known_s: dict[tuple[str, str, float], float] = {}

    def price(self, operations: tuple[Operation, ...], num_outside: int = 0) -> Cost:
        """Return what operations cost that run one after the other, communication marked so overlapped with the rest.

        Args:
            operations: Of one pass.
            num_outside: Operations more that the host has to launch.
        """
        key = (operations, num_outside)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._wait_for_host(self._price(operations), operations, num_outside)
        return known

    def communication_s(self, communication: Communication) -> float:
        """Return the time of all runs of a collective or send."""
        key = (communication.kind, communication.group, communication.num_bytes)
        time = self._known_s.get(key)
        if time is None:
            group = self._job.mesh.group(communication.group)
            is_once = communication.kind == "all_to_all" and communication.group == "ep" and self._sends_once
            ways = self._sent_once(communication.num_bytes, group) if is_once else [(communication.num_bytes, group)]
            time = max(self._collectives.time_s(communication.kind, *way) if way[1].size > 1 else 0.0 for way in ways)
            self._known_s[key] = time
        return time * communication.count

    def _sent_once(self, num_bytes: float, group: Group) -> list[tuple[float, Group]]:
        """Return what a rank sends, and among whom: one copy of a token to each node, from there one to each rank."""
        node = self._job.fabric.gpus_per_node
        num_nodes, num_ranks = -(-group.size * group.stride // node), min(group.size, max(1, node // group.stride))
        ways = [(num_bytes * share_sent_once(self._job, group.size), Group(num_ranks, group.stride))]
        if num_nodes > 1:
            ways.append((num_bytes * share_sent_once(self._job, num_nodes), group))
        return ways

    def sigmas(self, operations: Iterable[Operation]) -> tuple[float, float]:
        """Return the uncertainty of kernels and collectives: relative standard deviations, means weighted by time."""
        kernel, comm = [0.0, 0.0], [0.0, 0.0]
        for operation in operations:
            if isinstance(operation, Kernel):
                time, total, sigma = self.kernel_s(operation), kernel, self._kernels.sigma_of(operation)
            else:
                time, total = self.communication_s(operation), comm
                sigma = self._collectives.sigma(operation.num_bytes, self._job.mesh.group(operation.group))
            total[0] += time * sigma
            total[1] += time
        mean = [weighted / time if time else 0.0 for weighted, time in (kernel, comm)]
        return mean[0], mean[1]

    def host_sigma(self, operations: Iterable[Operation]) -> float:
        """Return the relative standard deviation of the time of a pass that is due to that of the host's time."""
        operations = tuple(operations)
        launches = self._num_launches(operations)
        ratio = launches * self._constants.host_s / max(self._price(operations).total_s, 1e-12)
        return self._constants.host_sigma * ratio**LAUNCH_BEND / (1 + ratio**LAUNCH_BEND)

    def send_s(self, num_bytes: float, stage: int) -> float:
        """Return the time of an activation over the boundary after a stage."""
        stride, node = self._job.mesh.ranks_per_stage, self._job.fabric.gpus_per_node
        # Stages that share a node meet over NVLink, but for the last one before the node's edge.
        is_inside = (stage * stride) // node == ((stage + 2) * stride - 1) // node
        group, wait = Group(2, stride if is_inside else max(stride, node)), self._job.software.send_wait
        # Over a node's edge go the sends of one stage, or of as much of it as is on the node.
        moved = self._collectives.time_s("send_recv", num_bytes, group, None if is_inside else min(stride, node))
        return moved + (wait.value if wait and self._job.layout.pp > 1 else 0.0)

    def _price(self, operations: tuple[Operation, ...]) -> Cost:
        cost = Cost()
        overlapped: dict[Group, float] = {}
        for operation in operations:
            if isinstance(operation, Kernel):
                time = self.kernel_s(operation)
                cost.compute_s += time
                cost.add("offload" if operation.kind in HOST_KINDS else operation.cls, time)
                continue
            time = self.communication_s(operation)
            if operation.is_overlapped:
                group = self._job.mesh.group(operation.group)
                overlapped[group] = overlapped.get(group, 0.0) + time
            else:
                cost.exposed_s += time
                cost.add(operation.group, time)
        return self._overlap(cost, overlapped)

    def time_of(self, operation: Operation) -> float:
        """Return the time of one run of an operation, with nothing overlapped. Unit: s."""
        time = self.kernel_s(operation) if isinstance(operation, Kernel) else self.communication_s(operation)
        return float(time / operation.count)

    def kernel_s(self, kernel: Kernel) -> float:
        """Return the time of all runs of a kernel, with nothing overlapped."""
        time = self._kernels.time_s(kernel) * kernel.count
        if kernel.kind in HOST_KINDS:  # The host's pace, which no factor on kernels of the GPU was fitted to.
            return time
        time *= self._constants.factor * self._slowest
        if kernel.cls == "attention":
            return time * self._attention_slowdown
        return time * self._fp8_slowdown if kernel.precision == "fp8" and kernel.cls == "gemm" else time

    def _num_launches(self, operations: Iterable[Operation]) -> int:
        """Return how often the host launches something: both pieces of an overlapped reduce-scatter are one call."""
        rest = ("reduce_scatter", "tp", False) if "tp" in self._job.overlap else None
        return sum(
            operation.count
            for operation in operations
            if isinstance(operation, Kernel) or (operation.kind, operation.group, operation.is_overlapped) != rest
        )

    def _wait_for_host(self, cost: Cost, operations: tuple[Operation, ...], num_outside: int) -> Cost:
        """Let the GPU wait where the host takes longer to launch a piece of a pass than the GPU to run it."""
        launches = self._num_launches(operations) + num_outside if operations else 0
        ratio = launches * self._constants.host_s / cost.total_s if cost.total_s else 0.0
        behind = cost.total_s * ((1 + ratio**LAUNCH_BEND) ** (1 / LAUNCH_BEND) - 1)
        if behind > 0:
            cost.compute_s += behind
            cost.add("host", behind)
        return cost

    def _overlap(self, cost: Cost, overlapped: dict[Group, float]) -> Cost:
        """Overlap communication with the computation, groups on different levels of the fabric at the same time."""
        if not overlapped:
            return cost
        time = self._collectives.together_s(overlapped)
        cost.hidden_s = min(time, cost.compute_s)
        slower = self.slowdown * cost.hidden_s
        cost.compute_s += slower
        cost.add("contention", slower)
        rest = max(0.0, time - cost.compute_s)
        cost.exposed_s += rest
        cost.add("overlapped", rest)
        return cost


def slowest_of(num_gpus: int) -> float:
    """Return how much longer the slowest of some GPUs computes than a middling one: all wait for it in every step."""
    return 1 + GPU_SPREAD * largest_of(num_gpus)


def largest_of(number: int) -> float:
    """Return where the largest of some normal values lies, in standard deviations above the mean.

    Source:
        Blom 1958, Statistical Estimates and Transformed Beta-Variables.
    """
    return NormalDist().inv_cdf((number - 0.375) / (number + 0.25)) if number > 1 else 0.0
