"""CPU package and DRAM energy from the kernel's RAPL counters.

Source: Linux kernel documentation, admin-guide/pm/powercap: `energy_uj` counts microjoules and wraps at
`max_energy_range_uj`; AMD processors use the same folder names.
"""

from dataclasses import dataclass, field
from pathlib import Path

from triplepoint.telemetry.kernel_files import KernelFile, read_text, sysfs
from triplepoint.units import MEGA


@dataclass
class _Counter:
    """One energy counter, followed across its wraps."""

    file: KernelFile
    range_uj: int
    last_uj: int
    total_uj: int = 0

    def advance(self) -> int:
        """Read the counter and return the energy since the first read. Unit: microjoule."""
        now = self.file.number()
        step = now - self.last_uj
        self.total_uj += step if step >= 0 else step + self.range_uj
        self.last_uj = now
        return self.total_uj


@dataclass
class Rapl:
    """All packages of the host, and their DRAM where the processor reports it."""

    root: Path = field(default_factory=lambda: sysfs() / "class/powercap")
    absent: dict[str, str] = field(default_factory=dict)
    _counters: dict[str, list[_Counter]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for metric, zones in (("cpu_energy_j", "package-*"), ("dram_energy_j", "dram")):
            counters, reason = _open(self.root, zones)
            if reason:
                self.absent[metric] = reason
            else:
                self._counters[metric] = counters

    def read(self) -> dict[str, float]:
        """Return energy since the first read of each kind that works. Unit: J."""
        energy: dict[str, float] = {}
        for metric, counters in self._counters.items():
            try:
                energy[metric] = sum(counter.advance() for counter in counters) / MEGA
            except (OSError, ValueError):
                continue
        return energy


def _open(root: Path, pattern: str) -> tuple[list[_Counter], str | None]:
    """Return the counters of the zones whose name matches, or the reason there are none."""
    if not root.is_dir():
        return [], f"this host has no {root}"
    # Psys zones hold the packages again, and intel-rapl-mmio mirrors intel-rapl: counting either would double.
    zones = [path for path in sorted(root.glob("intel-rapl:*")) if _zone_name(path).startswith(pattern.rstrip("*"))]
    if not zones:
        return [], f"no RAPL zone {pattern} in {root}"
    counters = []
    for zone in zones:
        try:
            file = KernelFile(zone / "energy_uj")
            counters.append(_Counter(file, int((zone / "max_energy_range_uj").read_text()), file.number()))
        except PermissionError:
            return [], f"{zone / 'energy_uj'} is readable by root only"
        except (OSError, ValueError) as error:
            return [], f"{zone}: {error}"
    return counters, None


def _zone_name(zone: Path) -> str:
    return read_text(zone / "name") or ""
