"""CPU package and DRAM energy from the kernel's RAPL counters.

Source: Linux kernel documentation, admin-guide/pm/powercap: `energy_uj` counts microjoules and wraps at
`max_energy_range_uj`; AMD processors use the same folder names.
"""

from dataclasses import dataclass, field
from pathlib import Path

from triplepoint.units import MEGA

POWERCAP = Path("/sys/class/powercap")


@dataclass
class _Counter:
    """One energy counter, followed across its wraps."""

    path: Path
    range_uj: int
    last_uj: int
    total_uj: int = 0

    def advance(self) -> int:
        """Read the counter and return the energy since the first read. Unit: microjoule."""
        now = int(self.path.read_text())
        step = now - self.last_uj
        self.total_uj += step if step >= 0 else step + self.range_uj
        self.last_uj = now
        return self.total_uj


@dataclass
class Rapl:
    """All packages of the host, and their DRAM where the processor reports it."""

    root: Path = POWERCAP
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
    zones = [path for path in sorted(root.glob("intel-rapl:*")) if _zone_name(path).startswith(pattern.rstrip("*"))]
    if not zones:
        return [], f"no RAPL zone {pattern} in {root}"
    counters = []
    for zone in zones:
        try:
            first = int((zone / "energy_uj").read_text())
            counters.append(_Counter(zone / "energy_uj", int((zone / "max_energy_range_uj").read_text()), first))
        except PermissionError:
            return [], f"{zone / 'energy_uj'} is readable by root only"
        except (OSError, ValueError) as error:
            return [], f"{zone}: {error}"
    return counters, None


def _zone_name(zone: Path) -> str:
    try:
        return (zone / "name").read_text().strip()
    except OSError:
        return ""
