"""Sensors of the host: processor, memory, temperatures, network, RAPL energy, InfiniBand and RoCE ports.

They read files of the kernel, which are kept open because reading an open file takes only microseconds.

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
from triplepoint.telemetry.sensor import ONCE_PER_FLUSH, PREAD, Counters, Sensor, Step, read_text, sysfs
from triplepoint.units import KIB, MEGA, MS_PER_S

_LONGEST = 1 << 16
"""Most bytes read of a file of any length."""


class KernelFile:
    """An open file of the kernel.

    Raises:
        OSError: If it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self, longest: int = 64) -> bytes:
        """Return the present content, at most `longest` bytes."""
        return os.pread(self._file, longest, 0)

    def number(self) -> int:
        """Return the present content as a number. Raises `OSError` or `ValueError` if it is not readable as one."""
        return int(self.read())

    def text(self) -> str:
        """Return the present content as text."""
        return self.read(_LONGEST).decode(errors="replace")

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    @property
    def descriptor(self) -> int:
        """File descriptor."""
        return self._file


class FileReads:
    """Reads of several files as steps of a sweep."""

    def __init__(self, files: Sequence[KernelFile], longest: int = 32, every: int | Sequence[int] = 1) -> None:
        """Set the files to read.

        Args:
            files: Open files.
            longest: Most bytes read of each file.
            every: Interval between reads in slots, see `Step.every`; one for all files, or one for each.
        """
        self._files = list(files)
        self._longest, self._every = longest, np.broadcast_to(every, len(self._files)).tolist()

    def allocate(self, num_slots: int) -> list[Step]:
        """Allocate buffers for `num_slots` reads and return their steps, one for each file."""
        self._texts = np.zeros((num_slots, len(self._files), self._longest), "u1")
        self._lengths = np.zeros((num_slots, len(self._files)), "i8")
        return [
            Step(
                PREAD,
                (file.descriptor, self._texts[:, index], self._longest, 0),
                self._lengths[:, index],
                self._every[index],
            )
            for index, file in enumerate(self._files)
        ]

    def texts(self, num_slots: int) -> Iterator[tuple[int, bytes]]:
        """Yield slot and content of the first file, for each of the first `num_slots` slots in which it was read."""
        for slot in np.flatnonzero(self._lengths[:num_slots, 0] > 0).tolist():
            yield slot, self._texts[slot, 0, : self._lengths[slot, 0]].tobytes()

    def numbers(self, num_slots: int) -> np.ndarray:
        """Return the contents as numbers, NaN where not read or no number. Shape (num_slots, num_files)."""
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
"""Names of RAPL zones, by column."""


class Rapl(Sensor):
    """Energy of all processor packages and, where reported, of their DRAM; missing metrics are in `absent`."""

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
        """Allocate buffers for `num_slots` reads and return their steps."""
        return [self._reads.allocate(num_slots)]

    def take(self, num_slots: int) -> np.ndarray:
        """Decode the first `num_slots` reads."""
        totals_uj = self._counters.advance(self._reads.numbers(num_slots), self._ranges_uj)
        return np.column_stack([totals_uj[:, part].sum(axis=1) for part in self._parts])[:, None] / MEGA


def _open_zones(root: Path, pattern: str) -> tuple[list[tuple[KernelFile, int]], str | None]:
    """Return counter and range of each zone with a matching name, or the reason why there is none."""
    if not root.is_dir():
        return [], f"this host has no {root}"
    # Psys zones include the packages, and intel-rapl-mmio mirrors intel-rapl: either would count energy twice.
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
    """Column of `tables.SAMPLES`."""
    file: str
    """File in the folder of the port."""
    scale: float = 1.0
    """Factor to the unit of the column."""
    every: int = ONCE_PER_FLUSH
    """Interval between reads in slots, see `Step.every`; counters of congestion need no high rate."""


_SOURCES = (
    _Source("infiniband_rx_bytes", "counters/port_rcv_data", _WORD_BYTES, every=1),
    _Source("infiniband_tx_bytes", "counters/port_xmit_data", _WORD_BYTES, every=1),
    _Source("infiniband_wait_ticks", "counters/port_xmit_wait"),
    _Source("rdma_congestion_marks", "hw_counters/np_cnp_sent"),
    _Source("rdma_out_of_sequence", "hw_counters/out_of_sequence"),
    _Source("rdma_retries", "hw_counters/rnr_nak_retry_err"),
)


class Fabric(Sensor):
    """Sums over all active InfiniBand and RoCE ports of this node."""

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
        # Counters of old adapters have 32 bits and wrap within 0.35 s at 50 GB/s, slowly enough for the lane's period.
        self._wraps_at = np.full(len(self._files), _WRAP_32)

    def _open(self, source: _Source, ports: list[Path]) -> str | None:
        """Open one counter of every port; return the reason if a port lacks it, because the sum would be incomplete."""
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
        """Allocate buffers for `num_slots` reads and return their steps."""
        return [self._reads.allocate(num_slots)]

    def take(self, num_slots: int) -> np.ndarray:
        """Decode the first `num_slots` reads, summed over ports."""
        values = self._reads.numbers(num_slots)
        # A counter with a value beyond 32 bits has 64 bits, so a decrease is a reset.
        self._wraps_at = np.where((values >= _WRAP_32).any(axis=0), 0.0, self._wraps_at)
        totals = self._counters.advance(values, self._wraps_at)
        sums = np.zeros((num_slots, len(self.columns)))
        for index, source in enumerate(self._sources):
            sums[:, self.columns.index(source.column)] += totals[:, index] * source.scale
        return sums[:, None]


def _is_active(port: Path) -> bool:
    return "ACTIVE" in (read_text(port / "state") or "")


_CPU_CHIPS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "acpitz")
"""hwmon drivers of processor temperatures, best first. Source: Linux kernel documentation, hwmon."""
_INLET_LABELS = ("inlet", "intake", "ambient", "front", "systin")
"""Labels of sensors of the inlet air, or of the board, best first."""
_MOST_CLOCKS = 8
"""Number of cores whose clock is read: reading all of a large node would take milliseconds."""
_ALWAYS = ("cpu_utilisation", "memory_used_bytes", "network_rx_bytes", "network_tx_bytes")
"""Columns that every host has."""


class Host(Sensor):
    """Sensors of the host; missing metrics are in `absent` with the reason.

    Memory and network are read each time. The others are read once a second, because they are slow: /proc/stat (the
    kernel sums over all cores and interrupts), clocks (it asks other cores) and temperatures (it asks other chips).
    """

    devices = ("host",)

    def __init__(self, root: Path | None = None, proc: Path = Path("/proc")) -> None:
        root = root or sysfs()
        stat = KernelFile(proc / "stat")
        self._busy = _cpu_times(stat.read(256))
        self._stat = FileReads([stat], 256, every=ONCE_PER_FLUSH)
        self._memory = FileReads([KernelFile(proc / "meminfo")], 256)
        self._net = FileReads([KernelFile(proc / "net/dev")], _LONGEST)
        self._network: tuple[int, int] | None = None
        self.absent: dict[str, str] = {}
        self._scaled: dict[str, FileReads] = {}
        cores = sorted(root.glob("devices/system/cpu/cpu[0-9]*/cpufreq/scaling_cur_freq"))
        self._open("cpu_freq_mhz", cores[:: -(-len(cores) // _MOST_CLOCKS) or 1], "the kernel reports no CPU frequency")
        self._open("cpu_temp_c", _cpu_temperatures(root), "no hwmon sensor of the processor")
        self._open("inlet_temp_c", _inlet_temperature(root), _why_no_inlet(root))
        self._open("node_power_w", _node_power(root), "the kernel knows no power meter of this host (ACPI)")
        self.columns = (*_ALWAYS, *self._scaled)

    def _open(self, column: str, paths: list[Path], reason: str) -> None:
        """Open the readable files of a column; if there are none, the column is absent for the reason."""
        files = []
        for path in paths:
            try:
                file = KernelFile(path)
                file.number()
            except (OSError, ValueError):
                continue
            files.append(file)
        if files:
            self._scaled[column] = FileReads(files, every=ONCE_PER_FLUSH)
        else:
            self.absent[column] = reason

    def allocate(self, num_slots: int, period_s: float) -> list[list[Step]]:
        """Allocate buffers for `num_slots` reads and return their steps."""
        reads = (self._stat, self._memory, self._net, *self._scaled.values())
        return [[step for each in reads for step in each.allocate(num_slots)]]

    def take(self, num_slots: int) -> np.ndarray:
        """Decode the first `num_slots` reads; utilisation is that of the time since the previous read."""
        values = np.full((num_slots, len(self.columns)), np.nan)
        for slot, text in self._stat.texts(num_slots):
            values[slot, 0] = self._utilisation(text)
        for slot, text in self._memory.texts(num_slots):
            values[slot, 1] = _memory_used_bytes(text)
        for slot, text in self._net.texts(num_slots):
            now = _network_bytes(text)
            first = self._network = self._network or now
            values[slot, 2:4] = now[0] - first[0], now[1] - first[1]
        for index, (column, reads) in enumerate(self._scaled.items(), start=len(_ALWAYS)):
            reduce = np.mean if column == "cpu_freq_mhz" else np.max
            per_unit = MEGA if column == "node_power_w" else MS_PER_S  # microwatts; kHz, millidegrees
            values[:, index] = reduce(reads.numbers(num_slots), axis=1) / per_unit
        return values[:, None]

    def _utilisation(self, stat: bytes) -> float:
        """Return the busy share of all cores since the previous call, from the content of /proc/stat."""
        busy, total = _cpu_times(stat)
        (busy_before, total_before), self._busy = self._busy, (busy, total)
        elapsed = total - total_before
        return min(max((busy - busy_before) / elapsed, 0.0), 1.0) if elapsed > 0 else float("nan")


def _node_power(root: Path) -> list[Path]:
    """Return the file of the first power meter of the node. Source: Linux kernel documentation, acpi_power_meter."""
    chips = [name.parent for name in sorted(root.glob("class/hwmon/hwmon*/name")) if read_text(name) == "power_meter"]
    return [chip / "power1_average" for chip in chips[:1]]


def _cpu_times(stat: bytes) -> tuple[int, int]:
    """Return busy and total time since boot, summed over the cores. Unit: clock tick."""
    # First line: user nice system idle iowait irq softirq steal guest guest_nice; user and nice include the guests.
    times = [int(word) for word in stat.split(b"\n", 1)[0].split()[1:9]]
    total = sum(times)
    return total - times[3] - times[4], total


def _memory_used_bytes(memory: bytes) -> float:
    lines = dict(line.split(b":", 1) for line in memory.split(b"\n")[:3])
    return float(int(lines[b"MemTotal"].split()[0]) - int(lines[b"MemAvailable"].split()[0])) * KIB


def _network_bytes(net: bytes) -> tuple[int, int]:
    """Return bytes received and sent over all interfaces, with the loopback, which ranks on one host use."""
    received = sent = 0
    for line in net.split(b"\n")[2:]:
        words = line.partition(b":")[2].split()
        if words:
            received, sent = received + int(words[0]), sent + int(words[8])
    return received, sent


def _cpu_temperatures(root: Path) -> list[Path]:
    """Return the files of the processor's temperatures, from the best driver in `_CPU_CHIPS`."""
    by_driver: dict[str, list[Path]] = {}
    for chip in sorted(root.glob("class/hwmon/hwmon*")):
        by_driver.setdefault(read_text(chip / "name") or "", []).extend(sorted(chip.glob("temp*_input")))
    return next((by_driver[name] for name in _CPU_CHIPS if by_driver.get(name)), [])


def _inlet_temperature(root: Path) -> list[Path]:
    """Return the file of the temperature with the best label in `_INLET_LABELS`."""
    labels = {path: (read_text(path) or "").lower() for path in sorted(root.glob("class/hwmon/hwmon*/temp*_label"))}
    for word in _INLET_LABELS:
        for path, label in labels.items():
            if word in label:
                return [path.with_name(path.name.replace("_label", "_input"))]
    return []


def _why_no_inlet(root: Path) -> str:
    """Return the reason for a missing inlet temperature."""
    reason = "no hwmon sensor labelled as inlet, ambient or board"
    if any(root.glob("class/ipmi/ipmi*")):
        reason += "; the board's controller may have one, but the sampler does not wait for IPMI"
    return reason
