"""Data of the doctor: facts read of a node (`node<N>.json`), checks of nodes, and what is expected of them."""

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
    """One GPU as its driver shows it; None where the driver gives no value, with the reason in `refused`."""

    index: int
    """Number in the driver's order."""
    product: str | None = None
    """Product name."""
    uuid: str | None = None
    """Identity."""
    memory_bytes: int | None = None
    """Device memory. Unit: byte."""
    power_limit_w: float | None = None
    """Power limit in force. Unit: W."""
    default_power_limit_w: float | None = None
    """Power limit after a reset. Unit: W."""
    clock_limit_mhz: float | None = None
    """Clock the compute units are set to reach under load. Unit: MHz."""
    default_clock_mhz: float | None = None
    """The same after a reset. Unit: MHz."""
    max_clock_mhz: float | None = None
    """Highest clock of the compute units. Unit: MHz."""
    has_ecc: bool | None = None
    """Whether errors in memory are corrected."""
    num_uncorrected: int | None = None
    """Uncorrected errors since the driver was loaded."""
    num_remapped: int | None = None
    """Rows or pages of memory taken out of use for uncorrected errors."""
    is_repair_pending: bool | None = None
    """Whether rows or pages wait for a reset to be taken out of use."""
    has_repair_failed: bool | None = None
    """Whether rows could not be taken out of use."""
    slowdowns: tuple[str, ...] | None = None
    """Why the clock is throttled just now, by the hardware or to protect it."""
    pcie_generation: int | None = None
    """Highest generation of the link between GPU and slot; at rest the link runs slower."""
    max_pcie_generation: int | None = None
    """Highest generation of the GPU."""
    pcie_width: int | None = None
    """Lanes in use."""
    max_pcie_width: int | None = None
    """Lanes the GPU has."""
    num_links: int | None = None
    """NVLink or xGMI links the GPU has; 0 for none."""
    num_links_up: int | None = None
    """Those that are up."""
    num_processes: int | None = None
    """Processes that compute on it."""
    refused: dict[str, str] = {}
    """What could not be read, each with the reason; telemetry is under the name of its metric."""


class PortFacts(Strict):
    """One port of a network adapter, from `/sys/class/infiniband`."""

    name: str
    """Adapter and port, such as `mlx5_0/1`."""
    state: str
    """ACTIVE, INIT, DOWN, ..."""
    link_layer: str
    """InfiniBand or Ethernet (RoCE)."""
    bytes_per_s: float | None
    """Signalling rate, one direction. Unit: byte/s."""
    counters: str
    """Empty if its counters can be read, else the reason."""


class NodeFacts(Strict):
    """One node."""

    node: int
    """Number in the job."""
    host: str
    """Host name."""
    vendor: Literal["nvidia", "amd", "none"]
    """Whose GPUs answered."""
    no_gpus_because: str = ""
    """Why none did."""
    gpus: tuple[GpuFacts, ...] = ()
    """GPUs in the driver's order."""
    versions: dict[str, str] = {}
    """Versions of driver, libraries, Python and packages; absent where not installed."""
    num_torch_devices: int | None = None
    """Devices torch sees; None without torch."""
    ports: tuple[PortFacts, ...] = ()
    """Ports of network adapters."""
    telemetry: dict[str, str] = {}
    """Sensors of the host: empty if readable, else the reason."""
    xids: tuple[str, ...] | None = None
    """Errors of the GPU driver in the kernel's log; None if it cannot be read."""
    num_cores: int
    """Logical processors this process may use."""
    memory_bytes: int
    """Host memory. Unit: byte."""
    shm_bytes: int | None = None
    """Size of /dev/shm. Unit: byte."""
    memlock_bytes: int | None = None
    """Memory a process may lock, as RDMA needs; None for no limit. Unit: byte."""


Status = Literal["ok", "warn", "fail", "skipped"]

Value = TypeVar("Value", bound=Hashable)

_ORDER: tuple[Status, ...] = ("skipped", "ok", "warn", "fail")


@dataclass(frozen=True)
class Check:
    """One check of one node, or of all of them.

    Attributes:
        name: What was checked.
        status: ok; warn, a measurement will work but may not be what it seems; fail, it will not work or be wrong;
            skipped, there was nothing to check or it could not be read.
        found: What is there, or why it could not be read.
        expected: What should be there; empty where nothing is expected.
        advice: What to do; empty if nothing.
        nodes: Hosts it is about.
    """

    name: str
    status: Status
    found: str
    expected: str = ""
    advice: str = ""
    nodes: tuple[str, ...] = ()


def worst(statuses: Iterable[Status]) -> Status:
    """Return the worst of some statuses; skipped if there is none."""
    return max(statuses, key=_ORDER.index, default="skipped")


def fold(checks: Iterable[Check]) -> list[Check]:
    """Return checks, one for those that differ in the node only; the worst of each name first."""
    folded: dict[Check, list[str]] = {}
    names: dict[str, int] = {}
    for check in checks:
        names.setdefault(check.name, len(names))
        folded.setdefault(replace(check, nodes=()), []).extend(check.nodes)
    joined = [replace(check, nodes=tuple(nodes)) for check, nodes in folded.items()]
    return sorted(joined, key=lambda check: (names[check.name], -_ORDER.index(check.status)))


def odd_ones(values: Mapping[str, Value]) -> tuple[Value, dict[str, Value]]:
    """Return the value most share, and those that have another; of a tie the first is taken as common.

    Args:
        values: By who has it; at least one.
    """
    common = Counter(values.values()).most_common(1)[0][0]
    return common, {who: value for who, value in values.items() if value != common}


def by_gpu(found: Sequence[tuple[int, str]]) -> str:
    """Return what was found on GPUs, each text once: `gpu0-6: 700 W; gpu7: 500 W`."""
    texts: dict[str, list[int]] = {}
    for index, text in found:
        texts.setdefault(text, []).append(index)
    return "; ".join(f"gpu{ranges(indices)}: {text}" for text, indices in texts.items())


@dataclass(frozen=True)
class Expected:
    """The description of a cluster; empty where a machine is checked as it is.

    Attributes:
        cluster: Its nodes.
        gpu: Its GPU type; None on cpu.
        link: Its kind of link inside a node; None on cpu.
        limits_w: Power limits that GPUs of this node are to have, by GPU, where a run asks for them. Unit: W.
    """

    cluster: ClusterConfig | None = None
    gpu: GpuConfig | None = None
    link: Link | None = None
    limits_w: Mapping[int, float] = field(default_factory=dict)

    @classmethod
    def of(cls, cluster: ClusterConfig, catalogue: Catalogue) -> "Expected":
        """Return what the configuration says of a cluster. Raises `UserError` if a file it names is missing."""
        gpu = catalogue.gpu_of(cluster)
        link = load_link(cluster.scale_up_link or gpu.scale_up_link, catalogue.folder) if gpu else None
        return cls(cluster, gpu, link)

    @property
    def has_gpus(self) -> bool | None:
        """Whether nodes have GPUs; None without a description."""
        return None if self.cluster is None else self.cluster.device != "cpu"

    @property
    def where(self) -> str:
        """File to change where the description is wrong."""
        return f"config/clusters/{self.cluster.name}.yaml" if self.cluster else "the configuration"
