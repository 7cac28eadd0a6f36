"""GPU types: `config/gpus/*.yaml`; the other files of a GPU type are found by its name or named here."""

from typing import Annotated, Literal

from pydantic import Field

from triplepoint.config.base import NAME_PATTERN, Quantity, Strict, unit_is

Architecture = Literal["Volta", "Ampere", "Ada", "Hopper", "Blackwell", "CDNA 2", "CDNA 3", "CDNA 4"]


class UsualNetwork(Strict):
    """The nodes a GPU type usually comes in, for predictions that name no cluster."""

    gpus_per_node: Annotated[int, Field(gt=0)]
    """Devices of a node, all joined by the scale-up link."""
    node_bandwidth: Annotated[Quantity, unit_is("byte/s")]
    """Bandwidth of all network adapters of a node, one direction."""


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
    gpus_per_package: Annotated[int, Field(gt=0)] = 1
    """Devices that share one package, its heat sink and its power sensor; 2 on MI250."""
    chassis: Annotated[str, Field(pattern=NAME_PATTERN)] | None = None
    """Kind of node it usually stands in, a file in `config/heat/airflow/` and one in `config/power/nodes/`. None: not
    known, so that nothing is simulated of power and heat."""
    scale_up_link: Annotated[str, Field(pattern=NAME_PATTERN)]
    """Kind of link that joins the devices of a node, a file in `config/collectives/links/`."""
    gemm_kernels: GemmKernels
    """Names of GEMM kernels in simulated traces."""
    peak_bf16_flops: Annotated[Quantity, unit_is("FLOP/s")]
    """Dense bf16 matrix peak of one device, no sparsity."""
    peak_fp32_flops: Annotated[Quantity, unit_is("FLOP/s")]
    """Dense fp32 vector peak of one device."""
    peak_fp8_flops: Annotated[Quantity, unit_is("FLOP/s")] | None = None
    """Dense fp8 matrix peak of one device; absent where the GPU has none."""
    memory_capacity: Annotated[Quantity, unit_is("byte")]
    """Device memory of one device."""
    memory_bandwidth: Annotated[Quantity, unit_is("byte/s")]
    """Peak device memory bandwidth of one device."""
    package_power_limit: Annotated[Quantity, unit_is("W")]
    """Default power limit of the package."""
    idle_power: Annotated[Quantity, unit_is("W")]
    """Package power with nothing running."""
    max_sm_clock: Annotated[Quantity, unit_is("MHz")]
    """Highest clock of the compute units."""
    slowdown_temperature: Annotated[Quantity, unit_is("degC")] | None = None
    """Die temperature at which the hardware slows down; absent where not published."""
    scale_up_bandwidth: Annotated[Quantity, unit_is("byte/s")]
    """NVLink or xGMI bandwidth of one device, one direction."""
    usual_network: UsualNetwork
    """Nodes and network of a published run that does not state them."""
