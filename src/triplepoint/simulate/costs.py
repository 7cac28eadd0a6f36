"""What passes cost on the machines of a job: kernels added up, messages beside them or not."""

from dataclasses import dataclass, field

from triplepoint.simulate.collectives import CollectiveModel
from triplepoint.simulate.fabric import Group
from triplepoint.simulate.job import Job
from triplepoint.simulate.kernels import KernelModel
from triplepoint.simulate.operations import Kernel, Message, Operation

OVERLAP_SLOWDOWN = 0.189
"""How much longer computation takes while a collective runs beside it. Source: arXiv:2507.03114, mean over models on
A100, H100, MI210 and MI250; it goes up to 0.40."""


@dataclass
class Cost:
    """Time of some operations in a row. Unit: s.

    Attributes:
        compute_s: Computation, slower while messages run beside it.
        exposed_s: Messages with no computation beside them.
        hidden_s: Messages beside computation.
        by_class: Computation by class of kernel, exposed messages by group.
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
    def total_s(self) -> float:
        """From start to end."""
        return self.compute_s + self.exposed_s


class Costs:
    """Prices operations of one job."""

    def __init__(self, job: Job, kernels: KernelModel, collectives: CollectiveModel, factor: float) -> None:
        """Use these models; `factor` is on the time of kernels, of the software stack."""
        self._job = job
        self._kernels = kernels
        self._collectives = collectives
        self._factor = factor
        self._known: dict[tuple[Operation, ...], Cost] = {}
        self._messages: dict[tuple[str, str, float], float] = {}

    def price(self, operations: tuple[Operation, ...]) -> Cost:
        """Return what operations cost that run one after the other, messages marked so beside the rest."""
        known = self._known.get(operations)
        if known is None:
            known = self._known[operations] = self._price(operations)
        return known

    def message_s(self, message: Message) -> float:
        """Return the time of all runs of a message."""
        key = (message.kind, message.group, message.num_bytes)
        time = self._messages.get(key)
        if time is None:
            group = group_of(self._job, message.group)
            time = self._collectives.time_s(message.kind, message.num_bytes, group) if group.size > 1 else 0.0
            self._messages[key] = time
        return time * message.count

    def send_s(self, num_bytes: float, stage: int) -> float:
        """Return the time of an activation over the boundary after a stage."""
        layout, node = self._job.layout, self._job.fabric.gpus_per_node
        stride = layout.tp * layout.cp * layout.dp
        # Stages that share a node meet over NVLink, but for the last one before the node's edge.
        is_inside = (stage * stride) // node == ((stage + 2) * stride - 1) // node
        group = Group(2, stride if is_inside else max(stride, node))
        return self._collectives.time_s("send_recv", num_bytes, group)

    def _price(self, operations: tuple[Operation, ...]) -> Cost:
        cost = Cost()
        beside: dict[bool, float] = {}
        for operation in operations:
            if isinstance(operation, Kernel):
                time = self._kernels.time_s(operation) * operation.count * self._factor
                cost.compute_s += time
                cost.add(operation.cls, time)
                continue
            time = self.message_s(operation)
            if operation.is_overlapped:
                where = self._is_inside(operation.group)
                beside[where] = beside.get(where, 0.0) + time
            else:
                cost.exposed_s += time
                cost.add(operation.group, time)
        return _put_beside(cost, beside)

    def _is_inside(self, name: str) -> bool:
        group = group_of(self._job, name)
        return group.size * group.stride <= self._job.fabric.gpus_per_node


def _put_beside(cost: Cost, beside: dict[bool, float]) -> Cost:
    """Put messages beside the computation: those inside nodes and those between them at the same time."""
    if not beside:
        return cost
    time = max(beside.values())
    cost.hidden_s = min(time, cost.compute_s)
    slower = OVERLAP_SLOWDOWN * cost.hidden_s
    cost.compute_s += slower
    cost.add("contention", slower)
    rest = max(0.0, time - cost.compute_s)
    cost.exposed_s += rest
    cost.add("overlapped", rest)
    return cost


def group_of(job: Job, name: str) -> Group:
    """Return where the ranks of a process group lie, in Megatron-LM's order of ranks: tp, cp, ep, dp, pp.

    Raises:
        ValueError: If there is no such group.
    """
    layout = job.layout
    expert_tp = job.expert_tp or layout.tp
    ranks = layout.tp * layout.cp * layout.dp
    expert_stride = layout.tp * layout.cp if job.expert_tp is None else expert_tp
    groups = {
        "tp": (layout.tp, 1),
        "cp": (layout.cp, layout.tp),
        "dp": (layout.dp, layout.tp * layout.cp),
        "dp_cp": (layout.dp * layout.cp, layout.tp),
        "pp": (layout.pp, ranks),
        "ep": (layout.ep, expert_stride),
        "etp": (expert_tp, 1),
        "edp": (max(1, ranks // (expert_stride * layout.ep)), expert_stride * layout.ep),
    }
    if name not in groups:
        raise ValueError(f"unknown process group {name}, expected one of {', '.join(groups)}")
    return Group(*groups[name])
