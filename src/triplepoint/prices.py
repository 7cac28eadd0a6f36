"""Prices of energy and GPU hours, and the cost of work."""

import math
from dataclasses import dataclass

from triplepoint.units import KILO, S_PER_HOUR

TOKENS_PRICED = 1e6
"""Number of tokens for which costs and energies are reported."""
S_PER_DAY = 24 * S_PER_HOUR
J_PER_KWH = KILO * S_PER_HOUR


@dataclass(frozen=True)
class Prices:
    """Prices in any currency; None where not given.

    Attributes:
        kwh: Price of a kilowatt hour. Unit: currency/kWh.
        gpu_hour: Price of a GPU hour, without energy. Unit: currency/h.
        currency: Name of the currency; nothing is converted.
        pue: Power usage effectiveness of the data centre: its power over the power of its nodes at the plug. 1: cooling
            and distribution are free.
    """

    kwh: float | None = None
    gpu_hour: float | None = None
    currency: str = "currency"
    pue: float = 1.0

    @property
    def are_given(self) -> bool:
        """Whether any price is given."""
        return self.kwh is not None or self.gpu_hour is not None

    @property
    def words(self) -> str:
        """The prices as text, such as `0.15 EUR/kWh, PUE 1.2, 2.5 EUR per GPU hour`; empty without any."""
        energy_price = [] if self.kwh is None else [f"{self.kwh:g} {self.currency}/kWh, PUE {self.pue:g}"]
        gpu_price = [] if self.gpu_hour is None else [f"{self.gpu_hour:g} {self.currency} per GPU hour"]
        return ", ".join([*energy_price, *gpu_price])

    def cost(self, gpu_s: float, energy_j: float) -> float:
        """Return the cost of work; NaN without prices, or if energy has a price but is not known. Unit: currency.

        Args:
            gpu_s: Time of the work times its GPUs. Unit: s.
            energy_j: Energy of the nodes at the plug; NaN if not known. Unit: J.
        """
        if not self.are_given:
            return math.nan
        energy_cost = 0.0 if self.kwh is None else self.kwh * self.pue * energy_j / J_PER_KWH
        return energy_cost + (self.gpu_hour or 0.0) * gpu_s / S_PER_HOUR


UNPRICED = Prices()
"""No prices, so no cost."""
