"""CPU package and DRAM energy from the kernel's RAPL counters.

Source: Linux kernel documentation, admin-guide/pm/powercap: `energy_uj` counts microjoules and wraps at
`max_energy_range_uj`; AMD processors use the same folder names.
"""

from pathlib import Path

import numpy as np

from triplepoint.telemetry.kernel_files import FileReads, KernelFile, read_text, sysfs
from triplepoint.telemetry.sensor import Counters, Sensor
from triplepoint.telemetry.sweep import Step
from triplepoint.units import MEGA

_ZONES = {"cpu_energy_j": "package-*", "dram_energy_j": "dram"}


class Rapl(Sensor):
    """All packages of the host, and their DRAM where the processor reports it; what it lacks is in `absent`."""

    devices = ("host",)

    def __init__(self, root: Path | None = None) -> None:
        """Open the counters.

        Args:
            root: The kernel's class/powercap; that of this machine by default.
        """
        self.absent: dict[str, str] = {}
        files: list[KernelFile] = []
        ranges_uj: list[int] = []
        self._parts: list[slice] = []
        for metric, zones in _ZONES.items():
            counters, reason = _open(root or sysfs() / "class/powercap", zones)
            if reason:
                self.absent[metric] = reason
                continue
            self._parts.append(slice(len(files), len(files) + len(counters)))
            files += [file for file, _ in counters]
            ranges_uj += [range_uj for _, range_uj in counters]
        self.columns = tuple(metric for metric in _ZONES if metric not in self.absent)
        self._reads, self._counters = FileReads(files), Counters(len(files))
        self._ranges_uj = np.array(ranges_uj, float)

    def allocate(self, num_slots: int, period_s: float) -> list[list[Step]]:
        """Make room for `num_slots` reads and return their calls."""
        return [self._reads.allocate(num_slots)]

    def take(self, num_slots: int) -> np.ndarray:
        """Return the first `num_slots` reads."""
        totals_uj = self._counters.advance(self._reads.numbers(num_slots), self._ranges_uj)
        return np.column_stack([totals_uj[:, part].sum(axis=1) for part in self._parts])[:, None] / MEGA


def _open(root: Path, pattern: str) -> tuple[list[tuple[KernelFile, int]], str | None]:
    """Return counters and their ranges of the zones whose name matches, or the reason there are none."""
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
            file.number()
            counters.append((file, int((zone / "max_energy_range_uj").read_text())))
        except PermissionError:
            return [], f"{zone / 'energy_uj'} is readable by root only"
        except (OSError, ValueError) as error:
            return [], f"{zone}: {error}"
    return counters, None


def _zone_name(zone: Path) -> str:
    return read_text(zone / "name") or ""
