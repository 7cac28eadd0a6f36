"""InfiniBand and RoCE ports: what RDMA moved, which no counter of a network interface holds.

Source: Linux kernel, ABI/stable/sysfs-class-infiniband: port_rcv_data and port_xmit_data count words of 4 bytes;
hw_counters as the mlx5 driver names them.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from triplepoint.tables.telemetry import FABRIC_METRICS
from triplepoint.telemetry.kernel_files import FileReads, KernelFile, read_text, sysfs
from triplepoint.telemetry.sensor import Counters, Sensor
from triplepoint.telemetry.sweep import RARELY, Step

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
        """Open the counters.

        Args:
            root: Root of sysfs; what the environment names by default.
        """
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
