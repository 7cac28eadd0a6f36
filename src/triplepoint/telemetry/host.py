"""Sensors of the host: processor, memory, temperatures, network, RAPL energy, InfiniBand and RoCE ports.

Files of the kernel are kept open: reading one again costs microseconds.

Source: Linux kernel documentation: admin-guide/pm/powercap (`energy_uj` counts microjoules and wraps at
`max_energy_range_uj`; AMD processors use the same folder names); ABI/stable/sysfs-class-infiniband (port_rcv_data and
port_xmit_data count words of 4 bytes); hw_counters as the mlx5 driver names them.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from triplepoint.tables.telemetry import FABRIC_METRICS
from triplepoint.telemetry.sensor import PREAD, RARELY, Counters, Sensor, Step, read_text, sysfs
from triplepoint.units import KIB, MEGA, MS_PER_S

_LONGEST = 1 << 16


class KernelFile:
    """One open file of the kernel.

    Raises:
        OSError: If it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self, longest: int = 64) -> bytes:
        """Return its content now, of at most `longest` bytes."""
        return os.pread(self._file, longest, 0)

    def number(self) -> int:
        """Return its content as a number. Raises OSError or ValueError where there is none."""
        return int(self.read())

    def text(self) -> str:
        """Return its whole content."""
        return self.read(_LONGEST).decode(errors="replace")

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    @property
    def descriptor(self) -> int:
        """The open file's number."""
        return self._file


class FileReads:
    """Several files read in a sweep."""

    def __init__(self, files: Sequence[KernelFile], longest: int = 32, every: int | Sequence[int] = 1) -> None:
        """Choose what to read.

        Args:
            files: The files, kept open.
            longest: How much of each is read. Unit: byte.
            every: As that of `Step`; one for all, or one for each file.
        """
        self._files = list(files)
        self._longest, self._every = longest, np.broadcast_to(every, len(self._files)).tolist()

    def allocate(self, num_slots: int) -> list[Step]:
        """Make room for `num_slots` reads and return their calls."""
        self._texts = np.zeros((num_slots, len(self._files), self._longest), "u1")
        self._lengths = np.zeros((num_slots, len(self._files)), "i8")
        return [
            Step(
                PREAD,
                (file.descriptor, self._texts[:, place], self._longest, 0),
                self._lengths[:, place],
                self._every[place],
            )
            for place, file in enumerate(self._files)
        ]

    def texts(self, num_slots: int) -> Iterator[tuple[int, bytes]]:
        """Yield each of the first `num_slots` slots in which the first file was read, and what it held."""
        for slot in np.flatnonzero(self._lengths[:num_slots, 0] > 0).tolist():
            yield slot, self._texts[slot, 0, : self._lengths[slot, 0]].tobytes()

    def numbers(self, num_slots: int) -> np.ndarray:
        """Return what the files held, NaN where that was no number. Shape (num_slots, num_files)."""
        lengths = self._lengths[:num_slots]
        texts = np.where(np.arange(self._longest) < lengths[..., None], self._texts[:num_slots], 0)
        words = texts.view(f"S{self._longest}")[..., 0]
        words[lengths <= 0] = b"nan"
        try:
            return np.asarray(words.astype(float))
        except ValueError:
            return np.array([[_number(word) for word in row] for row in words.tolist()], float)


def _number(word: bytes) -> float:
    try:
        return float(word)
    except ValueError:
        return float("nan")


_ZONES = {"cpu_energy_j": "package-*", "dram_energy_j": "dram"}


class Rapl(Sensor):
    """All packages of the host, and their DRAM where the processor reports it; what it lacks is in `absent`."""

    devices = ("host",)

    def __init__(self, root: Path | None = None) -> None:
        self.absent: dict[str, str] = {}
        files: list[KernelFile] = []
        ranges_uj: list[int] = []
        self._parts: list[slice] = []
        for metric, zones in _ZONES.items():
            counters, reason = _open_zones(root or sysfs() / "class/powercap", zones)
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


def _open_zones(root: Path, pattern: str) -> tuple[list[tuple[KernelFile, int]], str | None]:
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


_WORD_BYTES = 4
_WRAP_32 = float(1 << 32)


@dataclass(frozen=True)
class _Source:
    """One counter of a port."""

    column: str
    file: str
    scale: float = 1.0
    every: int = RARELY
    """As that of `Step`: congestion is counted, not followed."""


_SOURCES = (
    _Source("infiniband_rx_bytes", "counters/port_rcv_data", _WORD_BYTES, every=1),
    _Source("infiniband_tx_bytes", "counters/port_xmit_data", _WORD_BYTES, every=1),
    _Source("infiniband_wait_ticks", "counters/port_xmit_wait"),
    _Source("rdma_congestion_marks", "hw_counters/np_cnp_sent"),
    _Source("rdma_out_of_sequence", "hw_counters/out_of_sequence"),
    _Source("rdma_retries", "hw_counters/rnr_nak_retry_err"),
)


class Fabric(Sensor):
    """All active ports of this node, summed."""

    devices = ("host",)

    def __init__(self, root: Path | None = None) -> None:
        self.absent: dict[str, str] = {}
        self._files: list[KernelFile] = []
        self._sources: list[_Source] = []
        root = root or sysfs()
        ports = [port for port in sorted(root.glob("class/infiniband/*/ports/*")) if _is_active(port)]
        self.ports = [f"{port.parent.parent.name}/{port.name}" for port in ports]
        for source in _SOURCES:
            reason = self._open(source, ports)
            if reason:
                self.absent[source.column] = reason
        if not ports:
            self.absent = dict.fromkeys(FABRIC_METRICS, f"no active InfiniBand or RoCE port in {root}/class/infiniband")
        self.columns = tuple(dict.fromkeys(source.column for source in self._sources))
        self._reads = FileReads(self._files, every=[source.every for source in self._sources])
        self._counters = Counters(len(self._files))
        # The legacy counters of old adapters have 32 bits: at 50 GB/s those wrap within 0.35 s, which the lane follows.
        self._wraps_at = np.full(len(self._files), _WRAP_32)

    def _open(self, source: _Source, ports: list[Path]) -> str | None:
        """Open one counter of every port; a sum over some of them would be no sum."""
        files = []
        for port in ports:
            try:
                files.append(KernelFile(port / source.file))
                files[-1].number()
            except (OSError, ValueError) as error:
                return f"{port / source.file}: {error.strerror if isinstance(error, OSError) else error}"
        self._files += files
        self._sources += [source] * len(files)
        return None

    def allocate(self, num_slots: int, period_s: float) -> list[list[Step]]:
        """Make room for `num_slots` reads and return their calls."""
        return [self._reads.allocate(num_slots)]

    def take(self, num_slots: int) -> np.ndarray:
        """Return the first `num_slots` reads, summed over ports."""
        values = self._reads.numbers(num_slots)
        # A counter beyond 32 bits has 64, and a fall of it is a reset.
        self._wraps_at = np.where((values >= _WRAP_32).any(axis=0), 0.0, self._wraps_at)
        totals = self._counters.advance(values, self._wraps_at)
        found = np.zeros((num_slots, len(self.columns)))
        for place, source in enumerate(self._sources):
            found[:, self.columns.index(source.column)] += totals[:, place] * source.scale
        return found[:, None]


def _is_active(port: Path) -> bool:
    return "ACTIVE" in (read_text(port / "state") or "")


_CPU_CHIPS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "acpitz")
"""hwmon drivers whose readings are the processor's, best first. Source: Linux kernel documentation, hwmon."""
_INLET_LABELS = ("inlet", "intake", "ambient", "front", "systin")
"""What boards call the air that enters the chassis, or the board itself, best first."""
_FREQUENCIES = 8
"""Cores whose clock is read: all of a large node would take milliseconds."""
_ALWAYS = ("cpu_utilisation", "memory_used_bytes", "network_rx_bytes", "network_tx_bytes")


class Host(Sensor):
    """The host's own sensors; what it does not have is listed in `absent` with the reason.

    Memory and network are read each time. /proc/stat, which the kernel makes anew from all cores and interrupts,
    clocks, for which it asks other cores, and temperatures, for which it asks other chips, once a second.
    """

    devices = ("host",)

    def __init__(self, root: Path | None = None, proc: Path = Path("/proc")) -> None:
        root = root or sysfs()
        stat = KernelFile(proc / "stat")
        self._busy = _cpu_times(stat.read(256))
        self._stat = FileReads([stat], 256, every=RARELY)
        self._memory = FileReads([KernelFile(proc / "meminfo")], 256)
        self._net = FileReads([KernelFile(proc / "net/dev")], _LONGEST)
        self._network: tuple[int, int] | None = None
        self.absent: dict[str, str] = {}
        self._scaled: dict[str, FileReads] = {}
        cores = sorted(root.glob("devices/system/cpu/cpu[0-9]*/cpufreq/scaling_cur_freq"))
        self._open("cpu_freq_mhz", cores[:: -(-len(cores) // _FREQUENCIES) or 1], "the kernel reports no CPU frequency")
        self._open("cpu_temp_c", _hottest(root), "no hwmon sensor of the processor")
        self._open("inlet_temp_c", _labelled(root), _no_inlet(root))
        self._open("node_power_w", _plug(root), "the kernel knows no power meter of this host (ACPI)")
        self.columns = (*_ALWAYS, *self._scaled)

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
            self._scaled[column] = FileReads(files, every=RARELY)
        else:
            self.absent[column] = reason

    def allocate(self, num_slots: int, period_s: float) -> list[list[Step]]:
        """Make room for `num_slots` reads and return their calls."""
        reads = (self._stat, self._memory, self._net, *self._scaled.values())
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
        for place, (column, reads) in enumerate(self._scaled.items(), start=len(_ALWAYS)):
            join = np.mean if column == "cpu_freq_mhz" else np.max
            parts = MEGA if column == "node_power_w" else MS_PER_S  # microwatts; kHz, millidegrees
            found[:, place] = join(reads.numbers(num_slots), axis=1) / parts
        return found[:, None]

    def _utilisation(self, stat: bytes) -> float:
        busy, total = _cpu_times(stat)
        (busy_before, total_before), self._busy = self._busy, (busy, total)
        elapsed = total - total_before
        return min(max((busy - busy_before) / elapsed, 0.0), 1.0) if elapsed > 0 else float("nan")


def _plug(root: Path) -> list[Path]:
    """Return the file of the first meter of the node's power. Source: Linux kernel documentation, acpi_power_meter."""
    chips = [name.parent for name in sorted(root.glob("class/hwmon/hwmon*/name")) if read_text(name) == "power_meter"]
    return [chip / "power1_average" for chip in chips[:1]]


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
