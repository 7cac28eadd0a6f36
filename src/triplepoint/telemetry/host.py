"""The node itself: processor, memory, temperatures and network."""

from pathlib import Path

import numpy as np

from triplepoint.telemetry.kernel_files import FileReads, KernelFile, read_text, sysfs
from triplepoint.telemetry.sensor import Sensor
from triplepoint.telemetry.sweep import RARELY, Step
from triplepoint.units import KIB, MS_PER_S

_CPU_CHIPS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "acpitz")
"""hwmon drivers whose readings are the processor's, best first. Source: Linux kernel documentation, hwmon."""
_INLET_LABELS = ("inlet", "intake", "ambient", "front", "systin")
"""What boards call the air that enters the chassis, or the board itself, best first."""
_FREQUENCIES = 8
"""Cores whose clock is read: all of a large node would take milliseconds."""
_ALWAYS = ("cpu_utilisation", "memory_used_bytes", "network_rx_bytes", "network_tx_bytes")
_LONGEST = 1 << 16


class Host(Sensor):
    """The host's own sensors; what it does not have is listed in `absent` with the reason.

    Memory and network are read each time. /proc/stat, which the kernel makes anew from all cores and interrupts,
    clocks, for which it asks other cores, and temperatures, for which it asks other chips, once a second.
    """

    devices = ("host",)

    def __init__(self, root: Path | None = None, proc: Path = Path("/proc")) -> None:
        """Open the sensors.

        Args:
            root: Root of sysfs; what the environment names by default.
            proc: Root of procfs.
        """
        root = root or sysfs()
        stat = KernelFile(proc / "stat")
        self._busy = _cpu_times(stat.read(256))
        self._stat = FileReads([stat], 256, every=RARELY)
        self._memory = FileReads([KernelFile(proc / "meminfo")], 256)
        self._net = FileReads([KernelFile(proc / "net/dev")], _LONGEST)
        self._network: tuple[int, int] | None = None
        self.absent: dict[str, str] = {}
        self._thousandths: dict[str, FileReads] = {}
        cores = sorted(root.glob("devices/system/cpu/cpu[0-9]*/cpufreq/scaling_cur_freq"))
        self._open("cpu_freq_mhz", cores[:: -(-len(cores) // _FREQUENCIES) or 1], "the kernel reports no CPU frequency")
        self._open("cpu_temp_c", _hottest(root), "no hwmon sensor of the processor")
        self._open("inlet_temp_c", _labelled(root), _no_inlet(root))
        self.columns = (*_ALWAYS, *self._thousandths)

    def _open(self, column: str, paths: list[Path], reason: str) -> None:
        files = []
        for path in paths:
            try:
                file = KernelFile(path)
                file.number()
            except (OSError, ValueError):
                continue
            files.append(file)
        if files:
            self._thousandths[column] = FileReads(files, every=RARELY)
        else:
            self.absent[column] = reason

    def allocate(self, num_slots: int, period_s: float) -> list[list[Step]]:
        """Make room for `num_slots` reads and return their calls."""
        reads = (self._stat, self._memory, self._net, *self._thousandths.values())
        return [[step for each in reads for step in each.allocate(num_slots)]]

    def take(self, num_slots: int) -> np.ndarray:
        """Return the first `num_slots` reads; utilisation is over the time since the one before."""
        found = np.full((num_slots, len(self.columns)), np.nan)
        for slot, text in self._stat.texts(num_slots):
            found[slot, 0] = self._utilisation(text)
        for slot, text in self._memory.texts(num_slots):
            found[slot, 1] = _memory_used_bytes(text)
        for slot, text in self._net.texts(num_slots):
            now = _network_bytes(text)
            first = self._network = self._network or now
            found[slot, 2:4] = now[0] - first[0], now[1] - first[1]
        for place, (column, reads) in enumerate(self._thousandths.items(), start=len(_ALWAYS)):
            join = np.mean if column == "cpu_freq_mhz" else np.max  # millidegrees, kHz
            found[:, place] = join(reads.numbers(num_slots), axis=1) / MS_PER_S
        return found[:, None]

    def _utilisation(self, stat: bytes) -> float:
        busy, total = _cpu_times(stat)
        (busy_before, total_before), self._busy = self._busy, (busy, total)
        elapsed = total - total_before
        return min(max((busy - busy_before) / elapsed, 0.0), 1.0) if elapsed > 0 else float("nan")


def _cpu_times(stat: bytes) -> tuple[int, int]:
    """Return busy and total time summed over the cores since boot. Unit: clock tick."""
    # The first line: user nice system idle iowait irq softirq steal guest guest_nice; guests are inside user and nice.
    times = [int(word) for word in stat.split(b"\n", 1)[0].split()[1:9]]
    total = sum(times)
    return total - times[3] - times[4], total


def _memory_used_bytes(memory: bytes) -> float:
    lines = dict(line.split(b":", 1) for line in memory.split(b"\n")[:3])
    return float(int(lines[b"MemTotal"].split()[0]) - int(lines[b"MemAvailable"].split()[0])) * KIB


def _network_bytes(net: bytes) -> tuple[int, int]:
    """Return bytes received and sent over all interfaces, loopback included: ranks on one host talk over it."""
    received = sent = 0
    for line in net.split(b"\n")[2:]:
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


def _no_inlet(root: Path) -> str:
    reason = "no hwmon sensor labelled as inlet, ambient or board"
    if any(root.glob("class/ipmi/ipmi*")):
        reason += "; the board's controller may have one, but the sampler does not wait for IPMI"
    return reason
