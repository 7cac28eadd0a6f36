"""GPU types: `config/gpus/*.yaml`; the other files of a GPU type are found by its name or named here."""

from typing import Annotated, Literal

from pydantic import Field

from triplepoint.config.base import NAME_PATTERN, Quantity, Strict, unit_is

Architecture = Literal["Volta", "Ampere", "Ada", "Hopper", "Blackwell", "CDNA 2", "CDNA 3", "CDNA 4"]


class UsualNetwork(Strict):
    """The nodes a GPU type usually comes in, for predictions that name no cluster."""

    gpus_per_node: Annotated[int, Field(gt=0)]
    """Devices of a node, all joined by the scale-up link."""
    domain: Annotated[int, Field(gt=0)] | None = None
    """Devices that the scale-up link joins, where it reaches past a node: 72 of a GB200 NVL72."""
    other_nodes: tuple[Annotated[int, Field(gt=0)], ...] = ()
    """Devices of other nodes it stands in, besides those that divide the usual number."""
    nics_per_node: Annotated[int, Field(gt=0)] | None = None
    """Network adapters of a node; one for each device if not given."""
    node_bandwidth: Annotated[Quantity, unit_is("byte/s")]
    """Bandwidth of all network adapters of a node, one direction."""

    @property
    def largest_domain(self) -> int:
        """Devices that scale-up links join at most."""
        return max(self.domain or 0, self.gpus_per_node)

    @property
    def nic_bandwidth(self) -> float:
        """Of one adapter, one direction. Unit: byte/s."""
        return self.node_bandwidth.value / (self.nics_per_node or self.gpus_per_node)


INFERRED_SIGMA = 0.11
"""What is added to the uncertainty of kernels inferred from a relative. Source: root mean square of the logarithm of
the share of peak that the best GEMM reaches, over that of the relative, of GH200, B300, A100 PCIe, MI325X, MI355X and
GB200 (stas00/ml-engineering @744d01e, maximum achievable matmul FLOPS)."""


class InferredKernels(Strict):
    """Kernels of a GPU type that has no file in `config/kernels/`: as shares of its own peaks, those of a relative."""

    of: Annotated[str, Field(pattern=NAME_PATTERN)]
    """The relative, which has one."""
    num_sms: Annotated[Quantity, unit_is("1")] | None = None
    """Streaming multiprocessors or compute units of one device; those of the relative if not given."""
    rate: Annotated[Quantity, unit_is("1")] | None = None
    """Share of peak that GEMMs and attention reach, over that of the relative; 1 if not given."""
    sigma: Annotated[float, Field(gt=0)] = INFERRED_SIGMA
    """What is added to the uncertainty, in log and by squares. Unit: 1."""


class GemmKernels(Strict):
    """How the matrix library of a GPU type names its kernels, up to the tile sizes."""

    bf16: str
    """At bf16, and at each precision that is not given."""
    fp16: str | None = None
    """At fp16."""
    fp8: str | None = None
    """At fp8."""
    fp32: str | None = None
    """At fp32."""


class GpuConfig(Strict):
    """One GPU as the driver shows it: a whole NVIDIA GPU, one graphics compute die (GCD) of an MI250."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    """Name of the GPU type; the file is called the same."""
    vendor: Literal["nvidia", "amd"]
    """Whose driver and collective library it takes."""
    architecture: Architecture
    """Generation of its compute units, whose calibrated constants it takes where none were fitted on it."""
    product: str
    """Product and form factor as sold."""
    like: Annotated[str, Field(pattern=NAME_PATTERN)] | None = None
    """GPU type whose keys this one has where it gives none, but for `also_called`, `is_usual`, `chassis`, `idle_power`,
    `slowdown_temperature` and `pcie_bandwidth`: those are left out where they are not known."""
    chip: Annotated[str, Field(pattern=r"^[a-z0-9]+$")]
    """Word that all names of it have, in lower case: h100 in `NVIDIA H100 PCIe`."""
    form_factor: Literal["sxm", "pcie", "nvl", "superchip", "oam"]
    """Form factor: nvl is a PCIe card with NVLink bridges; superchip has the processor on the module."""
    memory_type: Literal["hbm2", "hbm2e", "hbm3", "hbm3e", "gddr6"]
    """Kind of device memory."""
    also_called: tuple[str, ...] = ()
    """Names in lower case that do not follow from the keys above, such as that of the driver."""
    is_usual: bool = False
    """Whether a name that states the form factor and no memory size means this one, where there are several."""
    kernels: InferredKernels | None = None
    """Where its kernels come from if `config/kernels/` has no file of its own."""
    gpus_per_package: Annotated[int, Field(gt=0)] = 1
    """Devices that share one package, its heat sink and its power sensor; 2 on MI250."""
    chassis: Annotated[str, Field(pattern=NAME_PATTERN)] | None = None
    """Kind of node it usually stands in, a file in `config/heat/airflow/` and one in `config/power/nodes/`. None: not
    known, so that nothing is simulated of power and heat."""
    scale_up_link: Annotated[str, Field(pattern=NAME_PATTERN)]
    """Kind of link that joins the devices of a node, a file in `config/collectives/links/`."""
    gemm_kernels: GemmKernels
    """Names of GEMM kernels in simulated traces."""
    has_bf16: bool = True
    """Whether its matrix units take bf16; where not, `peak_bf16_flops` is that at fp16."""
    peak_bf16_flops: Annotated[Quantity, unit_is("FLOP/s")]
    """Dense bf16 matrix peak of one device, no sparsity."""
    peak_fp32_flops: Annotated[Quantity, unit_is("FLOP/s")]
    """Dense fp32 vector peak of one device."""
    peak_fp8_flops: Annotated[Quantity, unit_is("FLOP/s")] | None = None
    """Dense fp8 matrix peak of one device; absent where the GPU has none."""
    peak_nvfp4_flops: Annotated[Quantity, unit_is("FLOP/s")] | None = None
    """Dense matrix peak of one device at 4 bits with a scale for 16 numbers (NVFP4); absent where the GPU has none."""
    memory_capacity: Annotated[Quantity, unit_is("byte")]
    """Device memory of one device."""
    memory_bandwidth: Annotated[Quantity, unit_is("byte/s")]
    """Peak device memory bandwidth of one device."""
    package_power_limit: Annotated[Quantity, unit_is("W")]
    """Default power limit of the package."""
    idle_power: Annotated[Quantity, unit_is("W")] | None = None
    """Package power with nothing running; absent where not published."""
    max_sm_clock: Annotated[Quantity, unit_is("MHz")]
    """Highest clock of the compute units."""
    slowdown_temperature: Annotated[Quantity, unit_is("degC")] | None = None
    """Die temperature at which the hardware slows down; absent where not published."""
    scale_up_bandwidth: Annotated[Quantity, unit_is("byte/s")]
    """Bandwidth of one device into the links inside a node, one direction: NVLink, xGMI, or PCIe where it has none."""
    pcie_bandwidth: Annotated[Quantity, unit_is("byte/s")] | None = None
    """Bandwidth of one device over PCIe to host and adapters, one direction; absent where not entered."""
    host_bandwidth: Annotated[Quantity, unit_is("byte/s")] | None = None
    """Bandwidth of one device to the memory of its host, one direction, where that is not PCIe: NVLink-C2C."""
    host_memory_bandwidth: Annotated[Quantity, unit_is("byte/s")] | None = None
    """Its share of the bandwidth of the host's memory; absent where not known."""
    usual_network: UsualNetwork
    """Nodes and network of a published run that does not state them."""

    @property
    def host_link(self) -> Quantity | None:
        """Bandwidth of one device to the memory of its host, one direction; None where not known. Unit: byte/s."""
        return self.host_bandwidth or self.pcie_bandwidth

    @property
    def kernels_of(self) -> str:
        """GPU type whose kernels and software were measured: its relative, or itself."""
        return self.kernels.of if self.kernels else self.name
