"""How long clocks were held down, by cause: from counters, which are exact at any rate of sampling."""

from collections.abc import Mapping

import numpy as np

from triplepoint.units import NS_PER_S

CAUSES = ("power_cap", "sync_boost", "sw_thermal", "hw_thermal", "power_brake")


def throttle_shares(samples: Mapping[str, np.ndarray], start_ns: int, end_ns: int) -> dict[str, float]:
    """Return the share of time each cause held a GPU's clocks down, by `<cause>_share`; none that is not counted.

    The time runs from the last sample before the start to the first one after the end, between which the counters are
    exact; where there is no sample before or after, from the first or to the last one.

    Args:
        samples: Columns of table `telemetry`, rows of one GPU by time.
        start_ns: Start, on the clock of the samples. Unit: ns.
        end_ns: End. Unit: ns.
    """
    found = {}
    for cause in CAUSES:
        held_s = samples[f"gpu_{cause}_s"].astype(float)
        known = np.isfinite(held_s)
        t_ns, held_s = samples["t_ns"][known], held_s[known]
        if t_ns.size < 2:
            continue
        first = max(int(np.searchsorted(t_ns, start_ns, side="right")) - 1, 0)
        last = min(int(np.searchsorted(t_ns, end_ns, side="left")), t_ns.size - 1)
        if last > first:
            passed_s = float(t_ns[last] - t_ns[first]) / NS_PER_S
            found[f"{cause}_share"] = min(1.0, float(held_s[last] - held_s[first]) / passed_s)
    return found
