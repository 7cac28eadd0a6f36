"""Cost of passes: kernels in sequence, communication exposed or overlapped, waits for the host."""

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
"""Host operations of a micro-batch that launch almost no GPU work and are not in `work`: batch broadcast, masks and
positions, loss mask and mean. An estimate from pretrain_gpt.py of NVIDIA/Megatron-LM; not counted."""


LAUNCH_BEND = 5
"""Exponent of the p-norm that adds the launch time and the run time of a pass. The result exceeds the longer of both,
since some pieces of a pass are launch-bound and others are not. A choice: on published steps of small models (vTrain,
single node) 4, 5 and 6 are equally good."""

GPU_SPREAD = 0.0133
"""Relative standard deviation of the speed of GPUs of one type in one cluster. Source: Sinha et al. 2022 (SC22):
performance varies by 8 % over the GPUs of a cluster; among hundreds of them the range of a normal is 6 standard
deviations."""


@dataclass(frozen=True)
class Constants:
    """Calibration constants of a software stack.

    For a version of a stack at most one of `factor` and `host_s` is fitted.

    Attributes:
        factor: Factor on kernel times from the tables.
        host_s: Time of the host to launch one operation. Unit: s.
        host_sigma: Relative standard deviation of `host_s`. Unit: 1.
    """

    factor: float = 1.0
    host_s: float = 20e-6
    """Source: mean of the gaps below 0.5 ms between launches in the trace of a ResNet on MI300X in HTA's test data."""
    host_sigma: float = 0.0


@dataclass
class Cost:
    """Time of a sequence of operations. Unit: s.

    Attributes:
        compute_s: Computation, including its slowdown by overlapped communication and waits for the host.
        exposed_s: Exposed communication.
        hidden_s: Communication overlapped with computation.
        by_class: Computation by class of kernel and exposed communication by process group.
    """

    compute_s: float = 0.0
    exposed_s: float = 0.0
    hidden_s: float = 0.0
    by_class: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, time_s: float) -> None:
        """Add time to a class."""
        self.by_class[name] = self.by_class.get(name, 0.0) + time_s

    def include(self, other: "Cost", count: int = 1) -> None:
        """Add the cost of `count` runs of other operations."""
        self.compute_s += other.compute_s * count
        self.exposed_s += other.exposed_s * count
        self.hidden_s += other.hidden_s * count
        for name, time in other.by_class.items():
            self.add(name, time * count)

    @property
    def host_share(self) -> float:
        """Share of computation in which the GPU waits for the host. Unit: 1."""
        return self.by_class.get("host", 0.0) / self.compute_s if self.compute_s else 0.0

    @property
    def total_s(self) -> float:
        """Time from start to end."""
        return self.compute_s + self.exposed_s


class Costs:
    """Costs of the operations of one job.

    Attributes:
        slowdown: Additional time of computation that communication overlaps, over its time alone. Unit: 1.
    """

    def __init__(
        self,
        job: Job,
        models: tuple[KernelModel, CollectiveModel],
        overlap: Overlap,
        constants: Constants,
        attention_slowdown: float = 1.0,
    ) -> None:
        """Compute costs by kernel and collective models.

        Args:
            job: The job.
            models: Kernel model and collective model.
            overlap: Slowdown of overlapped computation.
            constants: Calibration constants of the software stack.
            attention_slowdown: Time of the stack's attention kernels over that of those in the kernel model. Unit: 1.
        """
        self._job = job
        self._kernels, self._collectives = models
        self._attention_slowdown = attention_slowdown
        self._fp8_slowdown = RECIPES[job.software.fp8_recipe].gemm_slowdown
        self._sends_once = job.software.dispatch == "once_per_node"
        self._constants = constants
        self._slowest_gpu = slowest_gpu_factor(job.num_gpus)
        self.slowdown = overlap.compute_slowdown.value
        self._costs: dict[tuple[tuple[Operation, ...], int], Cost] = {}
        self._communication_s: dict[tuple[str, str, float], float] = {}

    def price(self, operations: tuple[Operation, ...], num_outside: int = 0) -> Cost:
        """Return the cost of operations that run in sequence, with the communication marked so overlapped.

        Args:
            operations: Operations of one pass.
            num_outside: Further operations that the host launches.
        """
        key = (operations, num_outside)
        cost = self._costs.get(key)
        if cost is None:
            cost = self._costs[key] = self._wait_for_host(self._price(operations), operations, num_outside)
        return cost

    def communication_s(self, communication: Communication) -> float:
        """Return the time of all runs of a collective or send. Unit: s."""
        key = (communication.kind, communication.group, communication.num_bytes)
        time = self._communication_s.get(key)
        if time is None:
            group = self._job.mesh.group(communication.group)
            exchanges = [(communication.num_bytes, group)]
            if communication.kind == "all_to_all" and communication.group == "ep" and self._sends_once:
                exchanges = self._exchanges_once_per_node(communication.num_bytes, group)
            time = max(
                self._collectives.time_s(communication.kind, num_bytes, ranks) if ranks.size > 1 else 0.0
                for num_bytes, ranks in exchanges
            )
            self._communication_s[key] = time
        return time * communication.count

    def _exchanges_once_per_node(self, num_bytes: float, group: Group) -> list[tuple[float, Group]]:
        """Return the two overlapped all-to-alls of tokens sent once per node: inside nodes and between them.

        Args:
            num_bytes: Bytes that a rank would send with one copy per expert. Unit: byte.
            group: Expert parallel group.

        Returns:
            Bytes that a rank sends, and the group, of each. Unit: byte.
        """
        gpus_per_node = self._job.fabric.gpus_per_node
        num_nodes = -(-group.size * group.stride // gpus_per_node)
        ranks_per_node = min(group.size, max(1, gpus_per_node // group.stride))
        exchanges = [(num_bytes * share_sent_once(self._job, group.size), Group(ranks_per_node, group.stride))]
        if num_nodes > 1:
            exchanges.append((num_bytes * share_sent_once(self._job, num_nodes), group))
        return exchanges

    def sigmas(self, operations: Iterable[Operation]) -> tuple[float, float]:
        """Return the relative standard deviations of kernel and collective times, as means weighted by time."""
        kernels, collectives = [0.0, 0.0], [0.0, 0.0]
        for operation in operations:
            if isinstance(operation, Kernel):
                time, sums, sigma = self.kernel_s(operation), kernels, self._kernels.sigma_of(operation)
            else:
                time, sums = self.communication_s(operation), collectives
                sigma = self._collectives.sigma(operation.num_bytes, self._job.mesh.group(operation.group))
            sums[0] += time * sigma
            sums[1] += time
        kernel_sigma, collective_sigma = (weighted / time if time else 0.0 for weighted, time in (kernels, collectives))
        return kernel_sigma, collective_sigma

    def host_sigma(self, operations: Iterable[Operation]) -> float:
        """Return the relative standard deviation of the time of a pass due to that of the launch time."""
        operations = tuple(operations)
        launches = self._num_launches(operations)
        ratio = launches * self._constants.host_s / max(self._price(operations).total_s, 1e-12)
        return self._constants.host_sigma * ratio**LAUNCH_BEND / (1 + ratio**LAUNCH_BEND)

    def send_s(self, num_bytes: float, stage: int) -> float:
        """Return the time to send an activation over the boundary after a stage. Unit: s."""
        stride, gpus_per_node = self._job.mesh.ranks_per_stage, self._job.fabric.gpus_per_node
        # Stages that share a node communicate over NVLink, except the last one before the node's edge.
        is_inside = (stage * stride) // gpus_per_node == ((stage + 2) * stride - 1) // gpus_per_node
        group = Group(2, stride if is_inside else max(stride, gpus_per_node))
        # The sends of one stage, or of its part on the node, share the adapters of the node.
        num_sharing = None if is_inside else min(stride, gpus_per_node)
        transfer_s = self._collectives.time_s("send_recv", num_bytes, group, num_sharing)
        wait = self._job.software.send_wait
        return transfer_s + (wait.value if wait and self._job.layout.pp > 1 else 0.0)

    def _price(self, operations: tuple[Operation, ...]) -> Cost:
        """Return the cost of operations without waits for the host."""
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
        """Return the time of all runs of a kernel, with nothing overlapped. Unit: s."""
        time = self._kernels.time_s(kernel) * kernel.count
        if kernel.kind in HOST_KINDS:  # The factors below were fitted to kernels of the GPU.
            return time
        time *= self._constants.factor * self._slowest_gpu
        if kernel.cls == "attention":
            return time * self._attention_slowdown
        return time * self._fp8_slowdown if kernel.precision == "fp8" and kernel.cls == "gemm" else time

    def _num_launches(self, operations: Iterable[Operation]) -> int:
        """Return the number of host launches; both pieces of an overlapped reduce-scatter are one launch."""
        exposed_piece = ("reduce_scatter", "tp", False) if "tp" in self._job.overlap else None
        return sum(
            operation.count
            for operation in operations
            if isinstance(operation, Kernel)
            or (operation.kind, operation.group, operation.is_overlapped) != exposed_piece
        )

    def _wait_for_host(self, cost: Cost, operations: tuple[Operation, ...], num_outside: int) -> Cost:
        """Add the time in which the GPU waits for launches of the host."""
        launches = self._num_launches(operations) + num_outside if operations else 0
        ratio = launches * self._constants.host_s / cost.total_s if cost.total_s else 0.0
        wait_s = cost.total_s * ((1 + ratio**LAUNCH_BEND) ** (1 / LAUNCH_BEND) - 1)
        if wait_s > 0:
            cost.compute_s += wait_s
            cost.add("host", wait_s)
        return cost

    def _overlap(self, cost: Cost, overlapped: dict[Group, float]) -> Cost:
        """Add overlapped communication to a cost; groups on different levels of the fabric run at the same time.

        Args:
            cost: Cost of everything else, changed.
            overlapped: Time of the overlapped communication of each group. Unit: s.
        """
        if not overlapped:
            return cost
        time = self._collectives.together_s(overlapped)
        cost.hidden_s = min(time, cost.compute_s)
        contention_s = self.slowdown * cost.hidden_s
        cost.compute_s += contention_s
        cost.add("contention", contention_s)
        exposed_s = max(0.0, time - cost.compute_s)
        cost.exposed_s += exposed_s
        cost.add("overlapped", exposed_s)
        return cost


def slowest_gpu_factor(num_gpus: int) -> float:
    """Return the expected compute time of the slowest GPU over the mean one; every step waits for it."""
    return 1 + GPU_SPREAD * expected_maximum(num_gpus)


def expected_maximum(number: int) -> float:
    """Return the expected largest of `number` normal values, in standard deviations above the mean.

    Source:
        Blom 1958, Statistical Estimates and Transformed Beta-Variables.
    """
    return NormalDist().inv_cdf((number - 0.375) / (number + 0.25)) if number > 1 else 0.0
