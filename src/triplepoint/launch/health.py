"""Broken and slow GPUs of a gang, from what the sampler measured while it trained.

A gang whose GPUs are all alike accuses nobody, however slow it is: each GPU is compared with the median of its peers.
"""

import statistics
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from triplepoint.manifest import Suspect
from triplepoint.metrics import modified_z_scores
from triplepoint.units import NS_PER_S

HARDWARE_XIDS = frozenset({48, 54, 62, 64, 74, 79, 95, 119, 120, 136, 140})
"""Errors that starting the program again does not cure: memory errors that reach beyond it, lost power, a controller
halted or silent, rows that could not be remapped, NVLink, a GPU off the bus.
Source: NVIDIA, Xid catalog (docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html)."""

HELD_SHARE = 0.5
"""Of the measured time that a GPU's clocks are throttled to protect it; from there on it is taken for badly cooled or
badly fed. Our choice: half, where hot positions of a healthy node differ by a few percent."""
USUAL_SHARE = 0.05
"""Highest throttled share of the median GPU; above it the room is hot and no GPU is to blame. Our choice."""
SLOW_CLOCK = 0.8
"""Of the median clock of its peers; below, a GPU is stuck or throttled. Our choice: GPUs of one type differ by up to a
tenth at one power limit."""
ODD = 3.5
"""Modified z-score of an outlier. Source: Iglewicz and Hoaglin 1993, "How to Detect and Handle Outliers"."""
FEWEST_PEERS = 5
"""GPUs, itself among them, among which one can be called odd: of four, none can be so far from the others."""

_CAUSES = {
    "heat, by the driver": ("gpu_sw_thermal_s", 0x20),
    "heat, by the hardware": ("gpu_hw_thermal_s", 0x40),
    "a power brake": ("gpu_power_brake_s", 0x80),
}
"""What protects a GPU: its counter, and its bit among the reasons. The power limit is not there, under which every GPU
in training runs, nor boost held equal, which is the fault of another. Source: nvml.h 13, nvmlClocksEventReasons."""

_COLUMNS = (
    *("t_ns", "device", "sm_clock_mhz", "gpu_throttle_reasons", "gpu_ecc_uncorrected", "gpu_xid"),
    *(counter for counter, _ in _CAUSES.values()),
)


@dataclass(frozen=True)
class Health:
    """Health of one GPU from its telemetry.

    Attributes:
        sm_clock_mhz: Median clock in the measured steps; None where it was not measured. Unit: MHz.
        held: Share of the measured time each cause throttled the clocks, 0-1.
        num_uncorrected: Uncorrected memory errors during the recording.
        xids: Errors the driver reported meanwhile.
    """

    sm_clock_mhz: float | None
    held: dict[str, float]
    num_uncorrected: int
    xids: tuple[int, ...]


@dataclass(frozen=True)
class Seat:
    """A GPU in the gang: where it is, and which others do the same work."""

    rank: int
    host: str
    device: str
    uuid: str | None
    stage: int
    """Stage of the pipeline."""


def read_health(samples: pa.Table, window_ns: tuple[int, int] | None) -> dict[str, Health]:
    """Return the health of each GPU of a node.

    Args:
        samples: `tables.SAMPLES` of the node.
        window_ns: Begin and end of the measured steps on the node's monotonic clock; None if it did not come to them.
    """
    samples = samples.select(_COLUMNS)
    devices = samples["device"].to_numpy(zero_copy_only=False)
    names = sorted(name for name in set(devices) if name.startswith("gpu"))
    return {name: _health(samples.filter(pa.array(devices == name)), window_ns) for name in names}


def find_suspects(gang: Mapping[Seat, Health]) -> tuple[Suspect, ...]:
    """Return GPUs that are broken, then those far slower than their peers; each once."""
    broken = {seat: told for seat, health in gang.items() if (told := _broken(health))}
    held, slow = _held_down(gang), _slow(gang)
    found = [_suspect(seat, told, True) for seat, told in broken.items()]
    for seat in gang:
        told = "; ".join(filter(None, (held.get(seat), slow.get(seat))))
        if told and seat not in broken:
            found.append(_suspect(seat, told, False))
    return tuple(found)


def _suspect(seat: Seat, told: str, is_broken: bool) -> Suspect:
    return Suspect(
        rank=seat.rank, host=seat.host, device=seat.device, uuid=seat.uuid, message=told, is_broken=is_broken
    )


def _broken(health: Health) -> str:
    told = [f"XID {xid}" for xid in health.xids if xid in HARDWARE_XIDS]
    told += [f"{health.num_uncorrected} uncorrected memory errors"] if health.num_uncorrected else []
    return ", ".join(told)


def _held_down(gang: Mapping[Seat, Health]) -> dict[Seat, str]:
    """Return GPUs whose clocks are throttled to protect them, where that is not usual."""
    found = {}
    for cause in _CAUSES:
        shares = {seat: health.held[cause] for seat, health in gang.items() if cause in health.held}
        usual = statistics.median(shares.values()) if len(shares) >= FEWEST_PEERS else 1.0
        for seat, share in shares.items():
            if usual <= USUAL_SHARE and share >= HELD_SHARE:
                found[seat] = (
                    f"clocks throttled by {cause} for {share:.0%} of the measured time, "
                    f"the median of {len(shares)} GPUs is {usual:.0%}"
                )
    return found


def _slow(gang: Mapping[Seat, Health]) -> dict[Seat, str]:
    """Return GPUs whose clock is far below that of the others of their pipeline stage, which do the same work."""
    stages: dict[int, dict[Seat, float]] = defaultdict(dict)
    for seat, health in gang.items():
        if health.sm_clock_mhz is not None:
            stages[seat.stage][seat] = health.sm_clock_mhz
    found = {}
    for clocks in stages.values():
        usual = statistics.median(clocks.values())
        for seat in _odd(clocks):
            if clocks[seat] < SLOW_CLOCK * usual:
                found[seat] = (
                    f"{clocks[seat]:.0f} MHz in measured steps, "
                    f"the median of {len(clocks)} GPUs with the same work is {usual:.0f} MHz"
                )
    return found


def _odd(values: Mapping[Seat, float]) -> list[Seat]:
    """Return those far below the median, measured by the spread of all."""
    if len(values) < FEWEST_PEERS:
        return []
    scores = modified_z_scores(list(values.values()))
    return [seat for seat, score in zip(values, scores, strict=True) if score < -ODD]


def _health(mine: pa.Table, window_ns: tuple[int, int] | None) -> Health:
    ecc = _known(mine, "gpu_ecc_uncorrected")[1]
    inside = _inside(mine, window_ns)
    clocks = _known(inside, "sm_clock_mhz")[1]
    return Health(
        sm_clock_mhz=float(np.median(clocks)) if len(clocks) else None,
        held={cause: share for cause in _CAUSES if (share := _share(inside, *_CAUSES[cause])) is not None},
        num_uncorrected=int(ecc[-1] - ecc[0]) if len(ecc) else 0,
        xids=tuple(int(xid) for xid in np.unique(_known(mine, "gpu_xid")[1])),
    )


def _inside(mine: pa.Table, window_ns: tuple[int, int] | None) -> pa.Table:
    if window_ns is None:
        return mine.slice(0, 0)
    t_ns = mine["t_ns"].to_numpy()
    return mine.filter(pa.array((t_ns >= window_ns[0]) & (t_ns <= window_ns[1])))


def _share(inside: pa.Table, counter: str, bit: int) -> float | None:
    """Return the share of the time a cause was in force: by its counter, else by the reasons of each sample."""
    t_ns, values = _known(inside, counter)
    if len(values) > 1:
        return min(1.0, float(values[-1] - values[0]) / (float(t_ns[-1] - t_ns[0]) / NS_PER_S))
    bits = _known(inside, "gpu_throttle_reasons")[1].astype("i8")
    return float(np.mean((bits & bit) != 0)) if len(bits) else None


def _known(table: pa.Table, column: str) -> tuple[np.ndarray, np.ndarray]:
    """Return times and values of a column where it has one."""
    known = table.select(["t_ns", column]).drop_null()
    return known["t_ns"].to_numpy(), known[column].to_numpy()
