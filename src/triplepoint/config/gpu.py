"""GPU types: `config/gpus/*.yaml`."""

from typing import Annotated, Literal

from pydantic import Field

from triplepoint.config.base import NAME_PATTERN, Quantity, Strict, unit_is


class GpuConfig(Strict):
    """One GPU as the driver shows it: a whole NVIDIA GPU, one graphics compute die (GCD) of an MI250."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    """Name of the GPU type; the file is called the same."""
    vendor: Literal["nvidia", "amd"]
    """Whose driver and collective library it takes."""
    product: str
    """Product and form factor as sold."""
    gpus_per_package: Annotated[int, Field(gt=0)] = 1
    """Devices that share one package, its heat sink and its power sensor; 2 on MI250."""
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
