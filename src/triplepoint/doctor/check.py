"""Data of the doctor: facts of a node (`node<N>.json`), checks of nodes, and the expected state of a cluster."""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

from triplepoint.config.base import Strict
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.cluster import ClusterConfig
from triplepoint.config.gpu import GpuConfig
from triplepoint.launch.slurm import ranges
from triplepoint.simulate.collectives.links import Link, load_link


class GpuFacts(Strict):
    """Facts of one GPU from its driver; None where the driver gives no value, with the reason in `refused`."""

    index: int
    """Number in the driver's order."""
    product: str | None = None
    """Product name."""
    uuid: str | None = None
    """Unique identifier."""
    memory_bytes: int | None = None
    """Device memory. Unit: byte."""
    power_limit_w: float | None = None
    """Power limit in force. Unit: W."""
    default_power_limit_w: float | None = None
    """Power limit after a reset. Unit: W."""
    clock_limit_mhz: float | None = None
    """Application clock in force, which the compute units reach under load. Unit: MHz."""
    default_clock_mhz: float | None = None
    """Application clock after a reset. Unit: MHz."""
    max_clock_mhz: float | None = None
    """Highest clock of the compute units. Unit: MHz."""
    has_ecc: bool | None = None
    """Whether error correction of memory is on."""
    num_uncorrected: int | None = None
    """Uncorrected errors since the driver was loaded."""
    num_remapped: int | None = None
    """Rows or pages of memory taken out of use for uncorrected errors."""
    is_repair_pending: bool | None = None
    """Whether rows or pages wait for a reset to be taken out of use."""
    has_repair_failed: bool | None = None
    """Whether rows could not be taken out of use."""
    slowdowns: tuple[str, ...] | None = None
    """Reasons that the clock is throttled at present, by hardware or to protect it."""
    pcie_generation: int | None = None
    """Highest PCIe generation of the link between GPU and slot. At rest the link runs slower."""
    max_pcie_generation: int | None = None
    """Highest PCIe generation of the GPU."""
    pcie_width: int | None = None
    """PCIe lanes in use."""
    max_pcie_width: int | None = None
    """PCIe lanes of the GPU."""
    num_links: int | None = None
    """NVLink or xGMI links of the GPU; 0 for none."""
    num_links_up: int | None = None
    """NVLink or xGMI links that are up."""
    num_processes: int | None = None
    """Processes that compute on the GPU."""
    refused: dict[str, str] = {}
    """Reason by name of a fact that could not be read; telemetry has the name of its metric."""


class PortFacts(Strict):
    """Facts of one port of a network adapter, from `/sys/class/infiniband`."""

    name: str
    """Adapter and port, such as `mlx5_0/1`."""
    state: str
    """State of the port, such as ACTIVE, INIT or DOWN."""
    link_layer: str
    """InfiniBand or Ethernet (RoCE)."""
    bytes_per_s: float | None
    """Signalling rate in one direction. Unit: byte/s."""
    counters: str
    """Reason that its counters cannot be read; empty if they can."""


class NodeFacts(Strict):
    """Facts of one node."""

    node: int
    """Number of the node in the job."""
    host: str
    """Host name."""
    vendor: Literal["nvidia", "amd", "none"]
    """Vendor whose driver answered."""
    no_gpus_because: str = ""
    """Reason that no driver answered; empty if one did."""
    gpus: tuple[GpuFacts, ...] = ()
    """GPUs in the driver's order."""
    versions: dict[str, str] = {}
    """Versions of driver, libraries, Python and packages; those not installed are absent."""
    num_torch_devices: int | None = None
    """Devices that torch sees; None without torch."""
    ports: tuple[PortFacts, ...] = ()
    """Ports of network adapters."""
    telemetry: dict[str, str] = {}
    """Reason by sensor of the host that it cannot be read; empty if it can."""
    xids: tuple[str, ...] | None = None
    """Errors of the GPU driver in the kernel log; None if the log cannot be read."""
    num_cores: int
    """Logical processors that this process may use."""
    memory_bytes: int
    """Host memory. Unit: byte."""
    shm_bytes: int | None = None
    """Size of /dev/shm. Unit: byte."""
    memlock_bytes: int | None = None
    """Memory that a process may lock, as RDMA needs; None for no limit. Unit: byte."""


Status = Literal["ok", "warn", "fail", "skipped"]

Value = TypeVar("Value", bound=Hashable)

_ORDER: tuple[Status, ...] = ("skipped", "ok", "warn", "fail")
"""Statuses from the least to the most severe."""


@dataclass(frozen=True)
class Check:
    """One check of one node or of all nodes.

    Attributes:
        name: Name of the check.
        status: ok; warn, if a measurement will work but may mislead; fail, if it will not work or be wrong; skipped, if
            there was nothing to check or it could not be read.
        found: State found, or the reason that it could not be read.
        expected: Expected state; empty where none is defined.
        advice: Remedy; empty where none is needed.
        nodes: Hosts that the check is about.
    """

    name: str
    status: Status
    found: str
    expected: str = ""
    advice: str = ""
    nodes: tuple[str, ...] = ()


def worst(statuses: Iterable[Status]) -> Status:
    """Return the most severe status; skipped if there is none."""
    return max(statuses, key=_ORDER.index, default="skipped")


def fold(checks: Iterable[Check]) -> list[Check]:
    """Join checks that differ only in the node; checks of one name are ordered from the most severe."""
    folded: dict[Check, list[str]] = {}
    names: dict[str, int] = {}
    for check in checks:
        names.setdefault(check.name, len(names))
        folded.setdefault(replace(check, nodes=()), []).extend(check.nodes)
    joined = [replace(check, nodes=tuple(nodes)) for check, nodes in folded.items()]
    return sorted(joined, key=lambda check: (names[check.name], -_ORDER.index(check.status)))


def odd_ones(values: Mapping[str, Value]) -> tuple[Value, dict[str, Value]]:
    """Return the most common value, and the owners with another value. In a tie the first value is the common one.

    Args:
        values: Values by owner; at least one.
    """
    common = Counter(values.values()).most_common(1)[0][0]
    return common, {owner: value for owner, value in values.items() if value != common}


def by_gpu(texts: Sequence[tuple[int, str]]) -> str:
    """Join texts of GPUs, each text once with its GPUs: `gpu0-6: 700 W; gpu7: 500 W`.

    Args:
        texts: Number of the GPU, and text.
    """
    indices_of: dict[str, list[int]] = {}
    for index, text in texts:
        indices_of.setdefault(text, []).append(index)
    return "; ".join(f"gpu{ranges(indices)}: {text}" for text, indices in indices_of.items())


@dataclass(frozen=True)
class Expected:
    """Expected state of a node, from the description of its cluster; empty for a machine without a description.

    Attributes:
        cluster: Cluster of the node.
        gpu: GPU type of the cluster; None on cpu.
        link: Kind of link inside a node; None on cpu.
        limits_w: Power limits by GPU that a run asks for. Unit: W.
    """

    cluster: ClusterConfig | None = None
    gpu: GpuConfig | None = None
    link: Link | None = None
    limits_w: Mapping[int, float] = field(default_factory=dict)

    @classmethod
    def of(cls, cluster: ClusterConfig, catalogue: Catalogue) -> "Expected":
        """Return the expected state of a cluster's nodes. Raises `UserError` if the cluster names a missing file."""
        gpu = catalogue.gpu_of(cluster)
        link = load_link(cluster.scale_up_link or gpu.scale_up_link, catalogue.folder) if gpu else None
        return cls(cluster, gpu, link)

    @property
    def has_gpus(self) -> bool | None:
        """Whether nodes have GPUs; None without a description."""
        return None if self.cluster is None else self.cluster.device != "cpu"

    @property
    def where(self) -> str:
        """File with the description of the cluster."""
        return f"config/clusters/{self.cluster.name}.yaml" if self.cluster else "the configuration"
