"""Find broken and slow GPUs of a gang in the telemetry of its training.

Each GPU is compared with the median of its peers. If all GPUs are alike, none is a suspect, however slow they are.
"""

import statistics
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from triplepoint.manifest import HELD_SHARE, USUAL_SHARE, Suspect
from triplepoint.metrics import modified_z_scores
from triplepoint.text import percent
from triplepoint.units import NS_PER_S

HARDWARE_XIDS = frozenset({48, 54, 62, 64, 74, 79, 95, 119, 120, 136, 140})
"""XID errors that a restart of the program does not cure: memory errors that reach beyond it, lost power, a controller
that halted or does not answer, memory rows that could not be remapped, NVLink, a GPU off the bus.
Source: NVIDIA, Xid catalog (docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html)."""

SLOW_CLOCK = 0.8
"""Clock over the median clock of the peers, below which a GPU is stuck or throttled. Our choice: GPUs of one type
differ by up to a tenth at the same power limit."""
ODD = 3.5
"""Modified z-score of an outlier. Source: Iglewicz and Hoaglin 1993, "How to Detect and Handle Outliers"."""
FEWEST_PEERS = 5
"""Smallest number of GPUs with an outlier among them: of four, none can reach the score `ODD`."""

_CAUSES = {
    "heat, by the driver": ("gpu_sw_thermal_s", 0x20),
    "heat, by the hardware": ("gpu_hw_thermal_s", 0x40),
    "a power brake": ("gpu_power_brake_s", 0x80),
}
"""Reasons for which a GPU is throttled for its protection: column of the time counter, and bit of the throttle reasons.

The power limit is not among them, since every GPU in training runs at it. Neither is the sync boost group, which is the
fault of another GPU. Source: nvml.h 13, nvmlClocksEventReasons.
"""

_COLUMNS = (
    *("t_ns", "device", "sm_clock_mhz", "gpu_throttle_reasons", "gpu_ecc_uncorrected", "gpu_xid"),
    *(counter for counter, _ in _CAUSES.values()),
)


@dataclass(frozen=True)
class Health:
    """Health of one GPU from its telemetry.

    Attributes:
        sm_clock_mhz: Median clock in the measured steps; None if not measured. Unit: MHz.
        held: Share of the measured time with clocks throttled, by cause, 0-1.
        num_uncorrected: Uncorrected memory errors during the recording.
        xids: XID errors during the recording.
    """

    sm_clock_mhz: float | None
    held: dict[str, float]
    num_uncorrected: int
    xids: tuple[int, ...]


@dataclass(frozen=True)
class Seat:
    """Place of a GPU in the gang."""

    rank: int
    host: str
    device: str
    uuid: str | None
    stage: int
    """Pipeline rank; GPUs with the same one do the same work."""


def read_health(samples: pa.Table, window_ns: tuple[int, int] | None) -> dict[str, Health]:
    """Return the health of each GPU of a node.

    Args:
        samples: `tables.SAMPLES` of the node.
        window_ns: Begin and end of the measured steps on the node's monotonic clock; None if there are none.
    """
    samples = samples.select(_COLUMNS)
    devices = samples["device"].to_numpy(zero_copy_only=False)
    names = sorted(name for name in set(devices) if name.startswith("gpu"))
    return {name: _health(samples.filter(pa.array(devices == name)), window_ns) for name in names}


def find_suspects(gang: Mapping[Seat, Health]) -> tuple[Suspect, ...]:
    """Return the broken GPUs, followed by those that are far slower than their peers."""
    broken = {seat: errors for seat, health in gang.items() if (errors := _hardware_errors(health))}
    throttled, slow = _throttled(gang), _slow(gang)
    suspects = [_suspect(seat, errors, True) for seat, errors in broken.items()]
    for seat in gang:
        message = "; ".join(filter(None, (throttled.get(seat), slow.get(seat))))
        if message and seat not in broken:
            suspects.append(_suspect(seat, message, False))
    return tuple(suspects)


def _suspect(seat: Seat, message: str, is_broken: bool) -> Suspect:
    return Suspect(
        rank=seat.rank, host=seat.host, device=seat.device, uuid=seat.uuid, message=message, is_broken=is_broken
    )


def _hardware_errors(health: Health) -> str:
    errors = [f"XID {xid}" for xid in health.xids if xid in HARDWARE_XIDS]
    errors += [f"{health.num_uncorrected} uncorrected memory errors"] if health.num_uncorrected else []
    return ", ".join(errors)


def _throttled(gang: Mapping[Seat, Health]) -> dict[Seat, str]:
    """Return a message for each GPU that is throttled for its protection while its peers are not."""
    messages = {}
    for cause in _CAUSES:
        shares = {seat: health.held[cause] for seat, health in gang.items() if cause in health.held}
        usual = statistics.median(shares.values()) if len(shares) >= FEWEST_PEERS else 1.0
        for seat, share in shares.items():
            if usual <= USUAL_SHARE and share >= HELD_SHARE:
                messages[seat] = (
                    f"clocks throttled by {cause} for {percent(share, 0)} of the measured time, "
                    f"the median of {len(shares)} GPUs is {percent(usual, 0)}"
                )
    return messages


def _slow(gang: Mapping[Seat, Health]) -> dict[Seat, str]:
    """Return a message for each GPU with a clock far below the others of its pipeline rank, which do the same work."""
    stages: dict[int, dict[Seat, float]] = defaultdict(dict)
    for seat, health in gang.items():
        if health.sm_clock_mhz is not None:
            stages[seat.stage][seat] = health.sm_clock_mhz
    messages = {}
    for clocks in stages.values():
        median_mhz = statistics.median(clocks.values())
        for seat in _low_outliers(clocks):
            if clocks[seat] < SLOW_CLOCK * median_mhz:
                messages[seat] = (
                    f"{clocks[seat]:.0f} MHz in measured steps, "
                    f"the median of {len(clocks)} GPUs with the same work is {median_mhz:.0f} MHz"
                )
    return messages


def _low_outliers(values: Mapping[Seat, float]) -> list[Seat]:
    """Return the GPUs whose value is an outlier below the median."""
    if len(values) < FEWEST_PEERS:
        return []
    scores = modified_z_scores(list(values.values()))
    return [seat for seat, score in zip(values, scores, strict=True) if score < -ODD]


def _health(samples: pa.Table, window_ns: tuple[int, int] | None) -> Health:
    """Return the health of one GPU from its samples."""
    uncorrected = _non_null(samples, "gpu_ecc_uncorrected")[1]
    measured = _in_window(samples, window_ns)
    clocks = _non_null(measured, "sm_clock_mhz")[1]
    return Health(
        sm_clock_mhz=float(np.median(clocks)) if len(clocks) else None,
        held={cause: share for cause in _CAUSES if (share := _time_share(measured, *_CAUSES[cause])) is not None},
        num_uncorrected=int(uncorrected[-1] - uncorrected[0]) if len(uncorrected) else 0,
        xids=tuple(int(xid) for xid in np.unique(_non_null(samples, "gpu_xid")[1])),
    )


def _in_window(samples: pa.Table, window_ns: tuple[int, int] | None) -> pa.Table:
    if window_ns is None:
        return samples.slice(0, 0)
    t_ns = samples["t_ns"].to_numpy()
    return samples.filter(pa.array((t_ns >= window_ns[0]) & (t_ns <= window_ns[1])))


def _time_share(samples: pa.Table, counter: str, bit: int) -> float | None:
    """Return the share of time, 0-1, throttled by a cause: by its counter, else by the reasons in each sample."""
    t_ns, values = _non_null(samples, counter)
    if len(values) > 1:
        return min(1.0, float(values[-1] - values[0]) / (float(t_ns[-1] - t_ns[0]) / NS_PER_S))
    reasons = _non_null(samples, "gpu_throttle_reasons")[1].astype("i8")
    return float(np.mean((reasons & bit) != 0)) if len(reasons) else None


def _non_null(table: pa.Table, column: str) -> tuple[np.ndarray, np.ndarray]:
    """Return times and values of a column, without rows in which it is null."""
    rows = table.select(["t_ns", column]).drop_null()
    return rows["t_ns"].to_numpy(), rows[column].to_numpy()
