"""GPUs whose hardware holds down their clocks most of the time: power brake, hardware slowdown, hardware thermal."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from triplepoint.manifest import HELD_SHARE, USUAL_SHARE
from triplepoint.text import percent
from triplepoint.why.sensed import Sensed

HARDWARE_REASONS: Mapping[str, str] = {
    "power_brake": "power brake",
    "hw_thermal": "hardware thermal slowdown",
    "hw_slowdown": "hardware slowdown",
}
"""Reasons in words, by the name of their share in `Sensed.throttled`. The slowdown is active along with the two others,
so it comes last."""
THERMAL = "hw_thermal"


class Hold(NamedTuple):
    """What holds down the clock of a GPU.

    Attributes:
        reason: A key of `HARDWARE_REASONS`.
        share: Share of the measured time. Unit: 1.
        clock_mhz: Mean clock. Unit: MHz.
        usual_mhz: Median clock of the GPUs that are not held; NaN if none is known. Unit: MHz.
    """

    reason: str
    share: float
    clock_mhz: float
    usual_mhz: float

    @property
    def evidence(self) -> str:
        """Reason, its share of time, and the clock, in words."""
        words = f"{HARDWARE_REASONS[self.reason]} for {percent(self.share, 0)} of the time"
        if not np.isfinite(self.clock_mhz):
            return words
        against = f" against {self.usual_mhz:.0f} MHz of GPUs without it" if np.isfinite(self.usual_mhz) else ""
        return f"{words}, {self.clock_mhz:.0f} MHz{against}"

    @property
    def slower(self) -> float:
        """How much lower the clock is, as the time of computation over the usual one, minus 1; NaN if not known."""
        return self.usual_mhz / self.clock_mhz - 1.0 if self.clock_mhz > 0 else float("nan")


def find_held(sensed: Mapping[int, Sensed]) -> dict[int, Hold]:
    """Return what holds down the clocks of GPUs, by rank; empty if no other GPU is free of it.

    GPUs of all stages are compared, since the stage of a pipeline is often one node, which has one power supply.

    Args:
        sensed: Measurements of all GPUs of the job, by rank.
    """
    reasons = {rank: reason for rank, gpu in sensed.items() if (reason := _reason(gpu)) is not None}
    free = [gpu for gpu in sensed.values() if max(_shares(gpu).values(), default=0.0) <= USUAL_SHARE]
    if not free:
        return {}
    clocks = [gpu.clock_mhz for gpu in free if np.isfinite(gpu.clock_mhz)]
    usual_mhz = float(np.median(clocks)) if clocks else float("nan")
    return {
        rank: Hold(reason, _shares(sensed[rank])[reason], sensed[rank].clock_mhz, usual_mhz)
        for rank, reason in reasons.items()
    }


def _shares(gpu: Sensed) -> dict[str, float]:
    """Return the share of time of each reason that was measured."""
    return {
        reason: gpu.throttled[f"{reason}_share"] for reason in HARDWARE_REASONS if f"{reason}_share" in gpu.throttled
    }


def _reason(gpu: Sensed) -> str | None:
    """Return the reason that holds down the clock of a GPU most of the time; None without one."""
    return next((reason for reason, share in _shares(gpu).items() if share >= HELD_SHARE), None)


def whole_nodes(held: Mapping[int, Hold], sensed: Mapping[int, Sensed]) -> dict[int, Sequence[int]]:
    """Return the ranks of each node all of whose GPUs are held, by node; a node of one GPU does not count."""
    of_node: dict[int, list[int]] = {}
    for rank, gpu in sensed.items():
        of_node.setdefault(gpu.node, []).append(rank)
    return {node: ranks for node, ranks in of_node.items() if len(ranks) > 1 and all(rank in held for rank in ranks)}
