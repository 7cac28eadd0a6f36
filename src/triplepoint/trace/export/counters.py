"""Power, temperature and clocks of a run as counter tracks, on the wall clock its traces are on."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from triplepoint.manifest import Manifest, Node
from triplepoint.trace.arrays import Int64
from triplepoint.trace.export.perfetto import CounterTrack, Process, node_process, rank_process
from triplepoint.units import NS_PER_S

_GPU = (
    ("gpu_power_w", "GPU power", "W"),
    ("gpu_temp_c", "GPU temperature", "degC"),
    ("sm_clock_mhz", "SM clock", "MHz"),
)
"""Column of `telemetry`, name of its track, unit."""

Floats = npt.NDArray[np.float64]


def wall_shift_ns(manifest: Manifest) -> int:
    """Return what to add to a time of table `telemetry` for the wall clock. Unit: ns.

    That table is on the first node's monotonic clock; the manifest holds one reading of both clocks of that node, taken
    together. Traces are on the wall clock of their own node: across nodes this is as good as their wall clocks agree.
    """
    first = manifest.nodes[0]
    return first.wall_ns - first.monotonic_ns


def rank_title(manifest: Manifest, rank: int) -> str:
    """Return what a rank is called: `rank 3 · node0 · gpu3`; a rank the manifest does not know has its number only."""
    for node in manifest.nodes:
        for device in node.devices:
            if device.rank == rank:
                return f"rank {rank} · {node.host} · {device.device}"
    return f"rank {rank}"


def telemetry_counters(telemetry: pa.Table, manifest: Manifest, start_ns: int, end_ns: int) -> list[CounterTrack]:
    """Return the counters of a run around a stretch of its time; what was not measured has no track.

    A GPU's counters belong to its rank, to its node where it had none; those of the host belong to the node.

    Args:
        telemetry: Table `telemetry` of the run.
        manifest: The run's manifest.
        start_ns: Start of the stretch; the last sample before it is kept, so that values reach it. Unit: ns since 1970.
        end_ns: End of the stretch. Unit: ns since 1970.
    """
    tracks = [track for node in manifest.nodes for track in _node_tracks(telemetry, manifest, node)]
    cut = (_cut(track, start_ns, end_ns) for track in tracks)
    return [track for track in cut if np.isfinite(track.value).any()]


def _node_tracks(telemetry: pa.Table, manifest: Manifest, node: Node) -> Iterator[CounterTrack]:
    own = telemetry.filter(pc.equal(telemetry["node"], node.node))
    ranks = {device.device: device.rank for device in node.devices}
    of_node = node_process(node.node, node.host)
    for device in sorted(set(own["device"].to_pylist()), key=lambda name: (len(name), name)):
        samples = own.filter(pc.equal(own["device"], device)).sort_by("t_ns")
        t_ns = samples["t_ns"].to_numpy() + wall_shift_ns(manifest)
        if device == "host":
            yield _host_power(samples, t_ns, of_node)
            continue
        has_rank = device in ranks
        process = rank_process(ranks[device], rank_title(manifest, ranks[device])) if has_rank else of_node
        for column, name, unit in _GPU:
            yield CounterTrack(process, name if has_rank else f"{device} {name}", unit, t_ns, _values(samples, column))


def _host_power(samples: pa.Table, t_ns: Int64, process: Process) -> CounterTrack:
    """Return the host's mean power from each sample to the next, from its energy counters."""
    cpu_j, dram_j = _values(samples, "cpu_energy_j"), _values(samples, "dram_energy_j")
    has_dram = bool(np.isfinite(dram_j).any())
    energy_j = cpu_j + dram_j if has_dram else cpu_j
    known = np.isfinite(energy_j)
    t_ns, energy_j = t_ns[known], energy_j[known]
    power_w = np.diff(energy_j) / (np.diff(t_ns) / NS_PER_S)
    return CounterTrack(process, f"CPU package{' and DRAM' if has_dram else ''} power", "W", t_ns[:-1], power_w)


def _values(samples: pa.Table, column: str) -> Floats:
    return np.asarray(samples[column].to_numpy(zero_copy_only=False), dtype=np.float64)


def _cut(track: CounterTrack, start_ns: int, end_ns: int) -> CounterTrack:
    """Return the samples of a stretch of time, and the last measured one before it at its start."""
    measured = np.isfinite(track.value)
    t_ns, value = track.t_ns[measured], track.value[measured]
    first = max(int(np.searchsorted(t_ns, start_ns, side="right")) - 1, 0)
    last = int(np.searchsorted(t_ns, end_ns, side="right"))
    kept_ns = np.maximum(t_ns[first:last], start_ns)
    return CounterTrack(track.process, track.name, track.unit, kept_ns, value[first:last])
