"""Facts read of a node, before any check: the content of `node<N>.json`."""

from typing import Literal

from triplepoint.config.base import Strict


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
