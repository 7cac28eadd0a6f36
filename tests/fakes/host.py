"""Parts of the fake sysfs tree: network ports, CPU energy domains and board sensors."""

from dataclasses import dataclass, field

from tests.fakes.wave import Wave, constant


@dataclass(frozen=True)
class Port:
    """An InfiniBand or RoCE port. Its counters follow its load."""

    device: str = "mlx5_0"
    port: int = 1
    load: Wave = field(default_factory=lambda: constant(0.0))
    xmit_bytes_per_s: float = 10e9
    rcv_bytes_per_s: float = 8e9
    offset_bytes: float = 0.0
    counter_bits: int = 64
    """Width of the counters. Legacy counters have 32 bits and stop or wrap after 16 GiB."""
    link_layer: str = "InfiniBand"
    rate: str = "400 Gb/sec (4X NDR)"
    congestion_per_s: float = 0.0
    """Increase of each congestion counter at load 1. Unit: 1/s."""
    freeze_s: float = 1e18
    """Scenario time from which the counters stand still. Unit: s."""
    missing: tuple[str, ...] = ()
    """Names of files that do not exist."""


@dataclass(frozen=True)
class Rapl:
    """A powercap domain, such as `intel-rapl:0`."""

    folder: str = "intel-rapl:0"
    name: str = "package-0"
    power_w: Wave = field(default_factory=lambda: constant(100.0))
    offset_uj: int = 0
    max_energy_range_uj: int = 262_143_328_850


@dataclass(frozen=True)
class Hwmon:
    """A temperature sensor."""

    chip: str = "coretemp"
    label: str = "Package id 0"
    temp_c: Wave = field(default_factory=lambda: constant(45.0))


@dataclass
class HostParts:
    """Contents of the tree under TRIPLEPOINT_SYSFS."""

    ports: list[Port] = field(default_factory=list)
    rapl: list[Rapl] = field(default_factory=list)
    hwmon: list[Hwmon] = field(default_factory=list)
    plug_w: Wave | None = None
    """Power that an ACPI power meter shows, None if there is no meter. Unit: W."""
    slots: dict[str, str] = field(default_factory=dict)
    """PCI address (domain, bus and device) of the card in each physical slot, by name of the slot."""
