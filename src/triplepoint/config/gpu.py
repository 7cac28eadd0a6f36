"""GPU types, `config/gpus/*.yaml`: peaks, memory, power, clocks and links, and the names of further files."""

from typing import Annotated, Literal

from pydantic import Field

from triplepoint.config.base import NAME_PATTERN, Quantity, Strict, unit_is

Architecture = Literal["Volta", "Ampere", "Ada", "Hopper", "Blackwell", "CDNA 2", "CDNA 3", "CDNA 4"]


class UsualNetwork(Strict):
    """Usual node and network of a GPU type, for predictions that name no cluster."""

    gpus_per_node: Annotated[int, Field(gt=0)]
    """Devices of a node, all joined by the scale-up link."""
    domain: Annotated[int, Field(gt=0)] | None = None
    """Devices joined by the scale-up link where it reaches beyond a node: 72 of a GB200 NVL72."""
    other_nodes: tuple[Annotated[int, Field(gt=0)], ...] = ()
    """Other possible numbers of devices per node, besides the divisors of `gpus_per_node`."""
    nics_per_node: Annotated[int, Field(gt=0)] | None = None
    """Network adapters of a node. None: one for each device."""
    node_bandwidth: Annotated[Quantity, unit_is("byte/s")]
    """Bandwidth of all network adapters of a node, one direction."""

    @property
    def largest_domain(self) -> int:
        """Devices joined by scale-up links, at most."""
        return max(self.domain or 0, self.gpus_per_node)

    @property
    def nic_bandwidth(self) -> float:
        """Bandwidth of one adapter, one direction. Unit: byte/s."""
        return self.node_bandwidth.value / (self.nics_per_node or self.gpus_per_node)


INFERRED_SIGMA = 0.11
"""Additional relative uncertainty of kernel times inferred from a related GPU type.

Source: the best GEMM's share of peak over that of the related type: root mean square of its logarithm for GH200, B300,
A100 PCIe, MI325X, MI355X and GB200 (stas00/ml-engineering @744d01e, maximum achievable matmul FLOPS).
"""


class InferredKernels(Strict):
    """Kernel rates of a GPU type without a file in `config/kernels/`: the shares of peak of a related GPU type."""

    of: Annotated[str, Field(pattern=NAME_PATTERN)]
    """The related GPU type, which has such a file."""
    num_sms: Annotated[Quantity, unit_is("1")] | None = None
    """Streaming multiprocessors or compute units of one device. None: those of the related type."""
    rate: Annotated[Quantity, unit_is("1")] | None = None
    """Share of peak of GEMMs and attention, over that of the related type. None: 1."""
    sigma: Annotated[float, Field(gt=0)] = INFERRED_SIGMA
    """Standard deviation of the logarithm of kernel times that the inference adds, in quadrature. Unit: 1."""


class GemmKernels(Strict):
    """Names of the GEMM kernels of a GPU type's matrix library, up to the tile sizes."""

    bf16: str
    """Name at bf16, and at each precision that has no name of its own."""
    fp16: str | None = None
    """Name at fp16."""
    fp8: str | None = None
    """Name at fp8."""
    fp32: str | None = None
    """Name at fp32."""


class GpuConfig(Strict):
    """One GPU as the driver shows it: a whole NVIDIA GPU, one graphics compute die (GCD) of an MI250."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    """Name of the GPU type; the file is called the same."""
    vendor: Literal["nvidia", "amd"]
    """Vendor, which decides driver and collective library."""
    architecture: Architecture
    """Generation of the compute units. Its calibrated constants apply where none were fitted on this GPU type."""
    product: str
    """Product and form factor as sold."""
    like: Annotated[str, Field(pattern=NAME_PATTERN)] | None = None
    """GPU type whose keys this one inherits where it gives none. Never inherited: `also_called`, `is_usual`, `chassis`,
    `idle_power`, `slowdown_temperature` and `pcie_bandwidth`."""
    chip: Annotated[str, Field(pattern=r"^[a-z0-9]+$")]
    """Chip, the lower-case word that all its names contain: h100 in `NVIDIA H100 PCIe`."""
    form_factor: Literal["sxm", "pcie", "nvl", "superchip", "oam"]
    """Form factor: nvl is a PCIe card with NVLink bridges; superchip has the processor on the module."""
    memory_type: Literal["hbm2", "hbm2e", "hbm3", "hbm3e", "gddr6"]
    """Kind of device memory."""
    also_called: tuple[str, ...] = ()
    """Further names in lower case, such as the driver's, that do not follow from the keys above."""
    is_usual: bool = False
    """Whether a name that states the form factor but no memory size means this variant."""
    kernels: InferredKernels | None = None
    """Source of the kernel rates if `config/kernels/` has no file for this GPU type."""
    gpus_per_package: Annotated[int, Field(gt=0)] = 1
    """Devices that share one package, its heat sink and its power sensor; 2 on MI250."""
    chassis: Annotated[str, Field(pattern=NAME_PATTERN)] | None = None
    """Usual kind of node: a file in `config/heat/airflow/` and one in `config/power/nodes/`. None: not known, so power
    and heat are not simulated."""
    scale_up_link: Annotated[str, Field(pattern=NAME_PATTERN)]
    """Kind of link that joins the devices of a node, a file in `config/collectives/links/`."""
    gemm_kernels: GemmKernels
    """Names of GEMM kernels in simulated traces."""
    has_bf16: bool = True
    """Whether the matrix units support bf16; if not, `peak_bf16_flops` is the peak at fp16."""
    peak_bf16_flops: Annotated[Quantity, unit_is("FLOP/s")]
    """Dense bf16 matrix peak of one device, no sparsity."""
    peak_fp32_flops: Annotated[Quantity, unit_is("FLOP/s")]
    """Dense fp32 vector peak of one device."""
    peak_fp8_flops: Annotated[Quantity, unit_is("FLOP/s")] | None = None
    """Dense fp8 matrix peak of one device; absent where the GPU has none."""
    peak_nvfp4_flops: Annotated[Quantity, unit_is("FLOP/s")] | None = None
    """Dense NVFP4 matrix peak of one device (4 bits, one scale for 16 numbers); absent where the GPU has none."""
    memory_capacity: Annotated[Quantity, unit_is("byte")]
    """Device memory of one device."""
    memory_bandwidth: Annotated[Quantity, unit_is("byte/s")]
    """Peak device memory bandwidth of one device."""
    package_power_limit: Annotated[Quantity, unit_is("W")]
    """Default power limit of the package."""
    idle_power: Annotated[Quantity, unit_is("W")] | None = None
    """Idle power of the package; absent where not published."""
    max_sm_clock: Annotated[Quantity, unit_is("MHz")]
    """Highest clock of the compute units."""
    slowdown_temperature: Annotated[Quantity, unit_is("degC")] | None = None
    """Die temperature at which the hardware slows down; absent where not published."""
    scale_up_bandwidth: Annotated[Quantity, unit_is("byte/s")]
    """Bandwidth of one device into the links inside a node, one direction: NVLink, xGMI, or PCIe where it has none."""
    pcie_bandwidth: Annotated[Quantity, unit_is("byte/s")] | None = None
    """Bandwidth of one device over PCIe to host and adapters, one direction; absent where not known."""
    host_bandwidth: Annotated[Quantity, unit_is("byte/s")] | None = None
    """Bandwidth of one device to host memory, one direction, where the link is not PCIe: NVLink-C2C."""
    host_memory_bandwidth: Annotated[Quantity, unit_is("byte/s")] | None = None
    """Bandwidth of host memory, the share of one device; absent where not known."""
    usual_network: UsualNetwork
    """Nodes and network of a published run that does not state them."""

    @property
    def host_link(self) -> Quantity | None:
        """Bandwidth of one device to host memory, one direction; None where not known. Unit: byte/s."""
        return self.host_bandwidth or self.pcie_bandwidth

    @property
    def kernels_of(self) -> str:
        """GPU type whose kernels were measured: the related type of `kernels`, or this one."""
        return self.kernels.of if self.kernels else self.name
