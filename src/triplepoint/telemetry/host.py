"""The node itself: processor, memory, temperatures, energy and network."""

from collections.abc import Callable
from pathlib import Path

from triplepoint.telemetry.device import Device
from triplepoint.telemetry.kernel_files import KernelFile, read_text, sysfs
from triplepoint.telemetry.rapl import Rapl
from triplepoint.units import KIB, MS_PER_S

_CPU_CHIPS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "acpitz")
"""hwmon drivers whose readings are the processor's, best first. Source: Linux kernel documentation, hwmon."""
_INLET_LABELS = ("inlet", "intake", "ambient", "front", "systin")
"""What boards call the air that enters the chassis, or the board itself, best first."""
_FREQUENCIES = 8
"""Cores whose clock is read: all of a large node would take milliseconds."""
_COLUMNS = (
    *("cpu_utilisation", "cpu_freq_mhz", "cpu_temp_c", "inlet_temp_c", "memory_used_bytes"),
    *("cpu_energy_j", "dram_energy_j", "network_rx_bytes", "network_tx_bytes"),
)


class Host(Device):
    """The host's own sensors; what it does not have is listed in `absent` with the reason."""

    device = "host"

    def __init__(self, root: Path | None = None, proc: Path = Path("/proc")) -> None:
        """Open the sensors.

        Args:
            root: Root of sysfs; what the environment names by default.
            proc: Root of procfs.
        """
        root = root or sysfs()
        self._rapl = Rapl(root / "class/powercap")
        self._stat, self._memory = KernelFile(proc / "stat"), KernelFile(proc / "meminfo")
        self._net = KernelFile(proc / "net/dev")
        self._busy = _cpu_times(self._stat)
        self._network: tuple[int, int] | None = None
        self.absent = dict(self._rapl.absent)
        cores = sorted(root.glob("devices/system/cpu/cpu[0-9]*/cpufreq/scaling_cur_freq"))
        self._open("cpu_freq_mhz", cores[:: -(-len(cores) // _FREQUENCIES) or 1], "the kernel reports no CPU frequency")
        self._open("cpu_temp_c", _hottest(root), "no hwmon sensor of the processor")
        self._open("inlet_temp_c", _labelled(root), "no hwmon sensor labelled as inlet, ambient or board")
        self.columns = tuple(column for column in _COLUMNS if column not in self.absent)

    def _open(self, column: str, paths: list[Path], reason: str) -> None:
        files = []
        for path in paths:
            try:
                files.append(KernelFile(path))
                files[-1].number()
            except (OSError, ValueError):
                continue
        self._files = {**getattr(self, "_files", {}), column: files}
        if not files:
            self.absent[column] = reason

    def measure(self) -> dict[str, float]:
        """Return the host's metrics now; utilisation is over the time since the previous read."""
        values = self._rapl.read()
        self._put(values, "cpu_freq_mhz", _mean)
        self._put(values, "cpu_temp_c", max)
        self._put(values, "inlet_temp_c", max)
        values["memory_used_bytes"] = _memory_used_bytes(self._memory)
        busy, total = _cpu_times(self._stat)
        elapsed = total - self._busy[1]
        if elapsed > 0:
            values["cpu_utilisation"] = min(max((busy - self._busy[0]) / elapsed, 0.0), 1.0)
        self._busy = busy, total
        received, sent = _network_bytes(self._net)
        first = self._network = self._network or (received, sent)
        values["network_rx_bytes"], values["network_tx_bytes"] = received - first[0], sent - first[1]
        return values

    def _put(self, values: dict[str, float], column: str, join: Callable[[list[int]], float]) -> None:
        """Add what the files of a column say, in thousandths (millidegrees, kHz), where they can be read."""
        try:
            numbers = [file.number() for file in self._files[column]]
        except (OSError, ValueError):
            return
        if numbers:
            values[column] = join(numbers) / MS_PER_S


def _mean(numbers: list[int]) -> float:
    return sum(numbers) / len(numbers)


def _cpu_times(stat: KernelFile) -> tuple[int, int]:
    """Return busy and total time summed over the cores since boot. Unit: clock tick."""
    # The first line: user nice system idle iowait irq softirq steal guest guest_nice; guests are inside user and nice.
    times = [int(word) for word in stat.read(256).split(b"\n", 1)[0].split()[1:9]]
    total = sum(times)
    return total - times[3] - times[4], total


def _memory_used_bytes(memory: KernelFile) -> float:
    lines = dict(line.split(b":", 1) for line in memory.read(256).split(b"\n")[:3])
    return float(int(lines[b"MemTotal"].split()[0]) - int(lines[b"MemAvailable"].split()[0])) * KIB


def _network_bytes(net: KernelFile) -> tuple[int, int]:
    """Return bytes received and sent over all interfaces, loopback included: ranks on one host talk over it."""
    received = sent = 0
    for line in net.read(1 << 16).split(b"\n")[2:]:
        words = line.partition(b":")[2].split()
        if words:
            received, sent = received + int(words[0]), sent + int(words[8])
    return received, sent


def _hottest(root: Path) -> list[Path]:
    """Return the temperature inputs of the best CPU sensor."""
    found: dict[str, list[Path]] = {}
    for chip in sorted(root.glob("class/hwmon/hwmon*")):
        found.setdefault(read_text(chip / "name") or "", []).extend(sorted(chip.glob("temp*_input")))
    return next((found[name] for name in _CPU_CHIPS if found.get(name)), [])


def _labelled(root: Path) -> list[Path]:
    """Return the temperature input whose label best says that it is the inlet's."""
    labels = {path: (read_text(path) or "").lower() for path in sorted(root.glob("class/hwmon/hwmon*/temp*_label"))}
    for word in _INLET_LABELS:
        for path, label in labels.items():
            if word in label:
                return [path.with_name(path.name.replace("_label", "_input"))]
    return []
