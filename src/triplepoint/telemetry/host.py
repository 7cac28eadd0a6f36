"""The node itself: processor, memory, temperatures, energy and network."""

from collections.abc import Callable
from pathlib import Path

import psutil

from triplepoint.telemetry.device import Device
from triplepoint.telemetry.rapl import POWERCAP, Rapl

_CPU_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "acpitz")
"""hwmon drivers whose readings are the processor's, best first. Source: Linux kernel documentation, hwmon."""

_COLUMNS = (
    *("cpu_utilisation", "cpu_freq_mhz", "cpu_temp_c", "memory_used_bytes"),
    *("cpu_energy_j", "dram_energy_j", "network_rx_bytes", "network_tx_bytes"),
)


class Host(Device):
    """The host's own sensors; what it does not have is listed in `absent` with the reason."""

    device = "host"

    def __init__(self, powercap: Path = POWERCAP) -> None:
        """Open the sensors.

        Args:
            powercap: Folder of the RAPL counters.
        """
        self._rapl = Rapl(powercap)
        self._busy = _cpu_times()
        self._network = _network_bytes()
        self.absent = dict(self._rapl.absent)
        self._probes = self._working(
            {
                "cpu_freq_mhz": (_frequency_mhz, "the kernel reports no CPU frequency"),
                "cpu_temp_c": (_temperature_c, "no hwmon sensor of the processor"),
                "memory_used_bytes": (_memory_used_bytes, "no memory information"),
            }
        )
        self.columns = tuple(column for column in _COLUMNS if column not in self.absent)

    def _working(
        self, probes: dict[str, tuple[Callable[[], float | None], str]]
    ) -> dict[str, Callable[[], float | None]]:
        working = {}
        for metric, (probe, reason) in probes.items():
            if probe() is None:
                self.absent[metric] = reason
            else:
                working[metric] = probe
        return working

    def measure(self) -> dict[str, float]:
        """Return the host's metrics now; utilisation is over the time since the previous read."""
        values = self._rapl.read()
        for metric, probe in self._probes.items():
            value = probe()
            if value is not None:
                values[metric] = value
        busy, total = _cpu_times()
        elapsed = total - self._busy[1]
        if elapsed > 0:
            values["cpu_utilisation"] = min(max((busy - self._busy[0]) / elapsed, 0.0), 1.0)
        self._busy = busy, total
        received, sent = _network_bytes()
        values["network_rx_bytes"] = received - self._network[0]
        values["network_tx_bytes"] = sent - self._network[1]
        return values


def _cpu_times() -> tuple[float, float]:
    """Return busy and total time summed over the cores since boot. Unit: s."""
    times = psutil.cpu_times()
    # guest time is already inside user time; iowait is idle time with a disk request pending.
    total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    return total - times.idle - getattr(times, "iowait", 0.0), total


def _frequency_mhz() -> float | None:
    frequency = psutil.cpu_freq()
    return frequency.current if frequency and frequency.current > 0 else None


def _temperature_c() -> float | None:
    sensors = psutil.sensors_temperatures()
    for driver in _CPU_SENSORS:
        if sensors.get(driver):
            return max(float(reading.current) for reading in sensors[driver])
    return None


def _memory_used_bytes() -> float:
    memory = psutil.virtual_memory()
    return float(memory.total - memory.available)


def _network_bytes() -> tuple[int, int]:
    """Return bytes received and sent over all interfaces, loopback included: ranks on one host talk over it."""
    counters = psutil.net_io_counters(nowrap=True)
    return (counters.bytes_recv, counters.bytes_sent) if counters else (0, 0)
