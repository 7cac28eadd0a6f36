"""The parts of the fake sysfs tree: fabric ports, CPU energy domains, board sensors."""

from dataclasses import dataclass, field

from tests.fakes.wave import Wave, constant


@dataclass(frozen=True)
class Port:
    """One InfiniBand or RoCE port; counters follow its own load."""

    device: str = "mlx5_0"
    port: int = 1
    load: Wave = field(default_factory=lambda: constant(0.0))
    xmit_bytes_per_s: float = 10e9
    rcv_bytes_per_s: float = 8e9
    offset_bytes: float = 0.0
    counter_bits: int = 64
    """32: the legacy counter, which stops or wraps after 16 GiB."""
    link_layer: str = "InfiniBand"
    rate: str = "400 Gb/sec (4X NDR)"
    congestion_per_s: float = 0.0
    """Marks, waits and out-of-sequence packets per second at load 1."""
    freeze_s: float = 1e18
    missing: tuple[str, ...] = ()
    """Files that are not there."""


@dataclass(frozen=True)
class Rapl:
    """One powercap domain, such as `intel-rapl:0`."""

    folder: str = "intel-rapl:0"
    name: str = "package-0"
    power_w: Wave = field(default_factory=lambda: constant(100.0))
    offset_uj: int = 0
    max_energy_range_uj: int = 262_143_328_850


@dataclass(frozen=True)
class Hwmon:
    """One temperature input."""

    chip: str = "coretemp"
    label: str = "Package id 0"
    temp_c: Wave = field(default_factory=lambda: constant(45.0))


@dataclass
class HostParts:
    """What is under TRIPLEPOINT_SYSFS."""

    ports: list[Port] = field(default_factory=list)
    rapl: list[Rapl] = field(default_factory=list)
    hwmon: list[Hwmon] = field(default_factory=list)
    plug_w: Wave | None = None
    """Power that an ACPI power meter shows."""
    slots: dict[str, str] = field(default_factory=dict)
    """Physical slot by name, with the PCI address of what sits in it: domain, bus and device."""
