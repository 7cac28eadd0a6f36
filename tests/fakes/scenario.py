"""Scenario of a fake node: its hardware, its behaviour over time, and the text file that the C libraries read."""

from dataclasses import dataclass, field, fields, replace
from enum import Enum

from tests.fakes.host import HostParts
from tests.fakes.wave import Wave, constant

FOREVER_S = 1e18
ALL_GPUS = -1


class Vendor(Enum):
    """Vendor whose library finds the GPUs. Numbers as in native/node.h."""

    NVIDIA = 1
    AMD = 2


@dataclass(frozen=True)
class Sensor:
    """A power sensor: it shows the mean power of a window, refreshed periodically."""

    period_s: float
    """Time between refreshes. Unit: s."""
    window_s: float
    """Length of the window. Unit: s."""
    lag_s: float = 0.0
    """Age of the end of the window at a refresh. Unit: s."""
    phase_s: float = 0.0
    """Time of refreshes within the period. Unit: s."""
    quantum_w: float = 0.001
    """Resolution. Unit: W."""
    gain: float = 1.0
    """Factor on the true power."""
    noise_w: float = 0.0
    """Largest noise, uniformly distributed in both directions. Unit: W."""


@dataclass(frozen=True)
class Gpu:
    """A GPU, or a die of AMD. Power is linear in the load. Every number has the same name in C."""

    name: str
    uuid: str
    serial: str
    part_number: str = "900-00000-0000-000"
    load: Wave = field(default_factory=lambda: constant(0.0))
    """Requested load, 0-1. Load 1 draws `max_w`. Power above `limit_w` is capped."""
    sw_thermal: Wave = field(default_factory=lambda: constant(0.0))
    """Share of time throttled for this cause, 0-1. The next three fields are the same for other causes."""
    hw_thermal: Wave = field(default_factory=lambda: constant(0.0))
    power_brake: Wave = field(default_factory=lambda: constant(0.0))
    sync_boost: Wave = field(default_factory=lambda: constant(0.0))

    idle_w: float = 75.0
    max_w: float = 700.0
    limit_w: float = 700.0
    default_limit_w: float = 700.0
    min_limit_w: float = 200.0
    max_limit_w: float = 700.0
    memory_power_share: float = 0.2

    inlet_c: float = 28.0
    resistance_c_per_w: float = 0.06
    tau_s: float = 12.0
    memory_resistance_c_per_w: float = 0.08
    memory_tau_s: float = 25.0
    hotspot_c_per_w: float = 0.02
    slowdown_c: float = 89.0
    shutdown_c: float = 95.0
    max_c: float = 87.0
    memory_max_c: float = 95.0

    max_sm_mhz: float = 1980.0
    idle_sm_mhz: float = 345.0
    throttled_sm_mhz: float = 1410.0
    memory_mhz: float = 3201.0
    memory_bytes: float = 141 * 2.0**30
    idle_memory_bytes: float = 0.5 * 2.0**30
    used_memory_bytes: float = 100 * 2.0**30

    nvlinks: int = 18
    nvlink_tx_bytes_per_s: float = 200e9
    """Sum over all links at load 1. Unit: byte/s."""
    nvlink_rx_bytes_per_s: float = 190e9
    nvlink_offset_bytes: float = 0.0
    pcie_tx_bytes_per_s: float = 20e9
    pcie_rx_bytes_per_s: float = 10e9
    pcie_offset_bytes: float = 0.0
    pcie_counter_bits: int = 64
    """Width of the counters. With 32 bits they wrap every 4 GiB."""

    instant: Sensor = field(default_factory=lambda: Sensor(period_s=0.1, window_s=0.025))
    average: Sensor = field(default_factory=lambda: Sensor(period_s=0.1, window_s=1.0))
    usage_is_average: int = 1
    energy_period_s: float = 0.1
    energy_phase_s: float = 0.0
    energy_offset_j: float = 1e6
    energy_unit_j: float = 0.001
    violation_offset_ns: float = 5e9

    architecture: int = 9
    """NVIDIA: 7 Ampere, 9 Hopper, 10 Blackwell. AMD: 2 for MI200, 3 for MI300."""
    mig_instances: int = 0
    unplug_s: float = FOREVER_S
    ecc_corrected: int = 0
    ecc_uncorrected: int = 0
    remapped_rows: int = 0
    pci_bus: int = 0x18
    module_id: int = 1
    slot: int = -1
    """Physical slot; negative if the platform does not report it."""
    numa_node: int = 0

    is_secondary_die: int = 0
    """AMD: 1 for a die without power and energy readings. The primary die has those of the package."""
    package: int = 0
    """AMD: number of the package. Dies with the same number share a package."""
    hip_id: int = 0

    def effective_load(self) -> Wave:
        """Return the load that the power limit allows."""
        highest = (self.limit_w - self.idle_w) / (self.max_w - self.idle_w)
        return self.load.map(lambda load: min(load, highest))

    def waves(self) -> dict[str, Wave]:
        """Return all waves of the file by name, including those derived from the load."""
        load = self.effective_load()
        causes = {name: getattr(self, name) for name in ("sw_thermal", "hw_thermal", "power_brake", "sync_boost")}
        capped = Wave(
            load.starts_s,
            tuple(float(a > b) for a, b in zip(self.load.values, load.values, strict=True)),
            load.period_s,
        )
        return {"load": load, "busy": load.map(lambda load: float(load > 0)), "power_cap": capped, **causes}


@dataclass(frozen=True)
class Rule:
    """A fault: a call that fails, a call with a latency, or a counter that stands still, for some time."""

    what: str
    """A function, `field:ID`, `field:ID:SCOPE`, or `*`. If frozen: power, energy, temperature, nvlink or pcie."""
    value: float = 0.0
    """Status that a failing call returns, or latency in us."""
    gpu: int = ALL_GPUS
    from_s: float = -FOREVER_S
    until_s: float = FOREVER_S


@dataclass(frozen=True)
class Xid:
    """An XID error, which NVML delivers as an event."""

    gpu: int
    code: int
    at_s: float


@dataclass
class Scenario:
    """A node: its GPUs, its host and its faults."""

    gpus: list[Gpu] = field(default_factory=list)
    vendor: Vendor = Vendor.NVIDIA
    errors: list[Rule] = field(default_factory=list)
    freezes: list[Rule] = field(default_factory=list)
    latencies_us: list[Rule] = field(default_factory=list)
    xids: list[Xid] = field(default_factory=list)
    host: HostParts = field(default_factory=HostParts)
    driver_version: str = "575.57.08"
    scale: float = 1.0
    """Scenario seconds per second of the monotonic clock. Power does not depend on it, but counters run faster."""
    is_virtual: bool = False
    """Whether only `FakeNode.advance` and calls with a latency advance the time."""

    def set_all(self, **changes: object) -> "Scenario":
        """Change fields of every GPU; return the scenario."""
        self.gpus = [replace(gpu, **changes) for gpu in self.gpus]  # type: ignore[arg-type]
        return self

    def set_gpu(self, index: int, **changes: object) -> "Scenario":
        """Change fields of one GPU; return the scenario."""
        self.gpus[index] = replace(self.gpus[index], **changes)  # type: ignore[arg-type]
        return self

    def text(self, start_ns: int, start_wall_ns: int) -> str:
        """Return the scenario as text, one fact per line."""
        times = f"{start_ns} {start_wall_ns} {self.scale!r} {int(self.is_virtual)}"
        node = f"node -1 {times} {self.vendor.value} {len(self.gpus)}"
        lines = [node, f"text -1 driver_version {self.driver_version}"]
        for index, gpu in enumerate(self.gpus):
            lines += _gpu_lines(index, gpu)
        for kind, rules in (("error", self.errors), ("freeze", self.freezes), ("latency", self.latencies_us)):
            lines += [f"{kind} {r.gpu} {r.what} {r.value!r} {r.from_s!r} {r.until_s!r}" for r in rules]
        lines += [f"xid {x.gpu} {x.code} {x.at_s!r}" for x in self.xids]
        return "\n".join(lines) + "\n"


def _gpu_lines(index: int, gpu: Gpu) -> list[str]:
    lines = []
    for name, value in ((f.name, getattr(gpu, f.name)) for f in fields(gpu)):
        if isinstance(value, str):
            lines.append(f"text {index} {name} {value}")
        elif isinstance(value, Sensor):
            lines += [f"number {index} {name}.{f.name} {getattr(value, f.name)!r}" for f in fields(value)]
        elif not isinstance(value, Wave):
            lines.append(f"number {index} {name} {value!r}")
    for name, wave in gpu.waves().items():
        pairs = " ".join(f"{t!r} {v!r}" for t, v in zip(wave.starts_s, wave.values, strict=True))
        lines.append(f"wave {index} {name} {wave.period_s!r} {len(wave.values)} {pairs}")
    return lines
