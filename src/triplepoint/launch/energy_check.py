"""The energy Zeus found set beside the sampler's, for the manifest."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from triplepoint.manifest import ZeusWindow
from triplepoint.recording.counter import EnergyCounter
from triplepoint.recording.read import Recording
from triplepoint.units import NS_PER_S

_NEAR_S = 0.25
"""Around a window, moves of the counter count as near it."""
ON_CPU = "the ranks compute on the CPU"
_TOLERANCE = 0.01
"""Two readings of one counter agree within this, beside one update of it (ml-energy/zeus issue 12: 1 %)."""


def compare_with_zeus(path: Path, recording: Recording | None) -> tuple[tuple[ZeusWindow, ...], str | None]:
    """Return Zeus's windows with the sampler's energy of the same time, and why there are none, or not all.

    Args:
        path: What the process beside the sampler left.
        recording: The node's recording; None if there is none.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return (), "the process that runs Zeus left nothing"
    if recording is None:
        return (), "the sampler left no recording to compare with"
    windows = [compared for window in found["windows"] for compared in _compare(window, recording)]
    return tuple(windows), found["absent"]


def _compare(window: dict[str, Any], recording: Recording) -> Iterator[ZeusWindow]:
    samples = recording.samples.select(["t_ns", "device", "gpu_energy_j"]).drop_null()
    devices = samples["device"].to_numpy(zero_copy_only=False)
    times_s, counter_j = samples["t_ns"].to_numpy() / NS_PER_S, samples["gpu_energy_j"].to_numpy()
    ends_s = np.array([window["t_start_ns"], window["t_end_ns"]]) / NS_PER_S
    length_s = float(ends_s[1] - ends_s[0])
    for device, zeus_j in window["energy_j"].items():
        mine = devices == device
        counter = EnergyCounter(times_s[mine], counter_j[mine])
        found: dict[str, Any] = {"sampler_j": None, "difference": None, "tolerance": None, "agrees": None}
        with contextlib.suppress(ValueError):  # it did not move around the window
            found = _difference(zeus_j, counter, ends_s)
        length_s = float(ends_s[1] - ends_s[0])
        yield ZeusWindow(kind=window["kind"], device=device, duration_s=length_s, zeus_j=zeus_j, **found)


def _difference(zeus_j: float, counter: EnergyCounter, ends_s: np.ndarray) -> dict[str, Any]:
    first_j, last_j = counter.at(ends_s)
    if (counted_j := float(last_j - first_j)) <= 0:
        raise ValueError("the energy counter stood still")
    near = (counter.moved_s > ends_s[0] - _NEAR_S) & (counter.moved_s < ends_s[1] + _NEAR_S)
    difference = zeus_j / counted_j - 1
    tolerance = _TOLERANCE + float(np.diff(counter.values_j[near]).max(initial=0.0)) / counted_j
    agrees = abs(difference) <= tolerance
    return {"sampler_j": counted_j, "difference": difference, "tolerance": tolerance, "agrees": agrees}
