"""Limits of configurations: time, energy, power, temperature and memory."""

import math
from dataclasses import dataclass
from types import MappingProxyType

from triplepoint.advise.search.candidate import Candidate
from triplepoint.units import KILO

DRIFT = 1.1
"""Factor by which the range `within` is extended for times without heat, because clocks change ratios. Measured: in
seven searches of five models on 32 H200 and 64 or 512 H100, what is within 25 % in the end was within 1.09 times
that before."""
POWER_BUDGETS = ("node_power_kw", "rack_power_kw", "power_kw")
"""Fields of `Limits` that lower power limits of GPUs can help to keep."""
NEED_POWER = ("energy_per_token_j", *POWER_BUDGETS, "temp_c")
"""Fields of `Limits` that need the power and heat of the GPU type."""
LIMIT_WORDS = MappingProxyType({
    "step_time_s": ("step time", "s", "--max-step-time"),
    "energy_per_token_j": ("energy of GPUs", "J/token", "--max-energy"),
    "node_power_kw": ("peak power of a node", "kW", "--max-node-power"),
    "rack_power_kw": ("peak power of a rack", "kW", "--max-rack-power"),
    "power_kw": ("peak power of all nodes", "kW", "--max-power"),
    "temp_c": ("hottest GPU", "degC", "--max-temp"),
    "memory_gib": ("memory", "GiB", "--max-memory"),
})  # fmt: skip
"""What each limit of `Limits` is of, its unit and its option."""


@dataclass(frozen=True)
class Limits:
    """Limits of a configuration; infinite: no limit.

    Attributes:
        step_time_s: Step time. Unit: s.
        energy_per_token_j: Energy of all GPUs per token. Unit: J.
        node_power_kw: Peak power of any node at the plug. Unit: kW.
        rack_power_kw: Peak power of any rack at the plug. Unit: kW.
        power_kw: Peak power of all nodes together. Unit: kW.
        temp_c: Temperature of the hottest GPU. Unit: degC.
        memory_gib: Peak memory of the fullest rank. Unit: GiB.
        fits_probability: Lowest probability of fitting in memory, 0 to 1.
    """

    step_time_s: float = math.inf
    energy_per_token_j: float = math.inf
    node_power_kw: float = math.inf
    rack_power_kw: float = math.inf
    power_kw: float = math.inf
    temp_c: float = math.inf
    memory_gib: float = math.inf
    fits_probability: float = 0.5

    def excesses(self, one: Candidate) -> dict[str, float]:
        """Return the factor by which a configuration exceeds each limit that it breaks."""
        power = one.prediction.power
        values = {
            "step_time_s": one.step_time_s,
            "energy_per_token_j": power.gpu_energy_per_token_j,
            "node_power_kw": one.node_power_peak_w / KILO,
            "rack_power_kw": one.rack_power_peak_w / KILO,
            "power_kw": one.job_power_peak_w / KILO,
            "temp_c": power.gpu_temp_max_c,
            "memory_gib": one.memory_gib,
        }
        limits = {name: float(getattr(self, name)) for name in values}
        return {name: value / limits[name] for name, value in values.items() if not value <= limits[name] < math.inf
                and limits[name] < math.inf}  # fmt: skip

    def power_excess(self, candidate: Candidate) -> float:
        """Return peak power over its budget, the largest of all budgets that are exceeded; 0 if none is."""
        return max((factor for name, factor in self.excesses(candidate).items() if name in POWER_BUDGETS), default=0.0)

    @property
    def has_power(self) -> bool:
        """Whether power has a limit."""
        return any(getattr(self, name) < math.inf for name in POWER_BUDGETS)

    def without_heat(self, one: Candidate) -> dict[str, float]:
        """Return the factor by which a configuration exceeds limits of time and memory, whatever its heat."""
        excess = {"step_time_s": one.step_time_s / self.step_time_s, "memory_gib": one.memory_gib / self.memory_gib}
        return {name: factor for name, factor in excess.items() if factor > (DRIFT if name == "step_time_s" else 1.0)}


UNLIMITED = Limits()
