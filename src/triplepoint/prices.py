"""Money: the prices of energy and of GPU hours, and what some work costs at them."""

import math
from dataclasses import dataclass

from triplepoint.units import KILO, S_PER_HOUR

TOKENS_PRICED = 1e6
"""Tokens that costs and energies of tokens are of."""
S_PER_DAY = 24 * S_PER_HOUR
J_PER_KWH = KILO * S_PER_HOUR


@dataclass(frozen=True)
class Prices:
    """What is paid, in any currency; None where it is not given.

    Attributes:
        kwh: Of a kilowatt hour. Unit: currency/kWh.
        gpu_hour: Of a GPU for an hour, without its energy. Unit: currency/h.
        currency: What the currency is called; nothing is converted.
        pue: Power usage effectiveness of the hall: what it takes over what its nodes take at their plugs; 1: nothing is
            paid for cooling and distribution.
    """

    kwh: float | None = None
    gpu_hour: float | None = None
    currency: str = "currency"
    pue: float = 1.0

    @property
    def are_given(self) -> bool:
        """Whether anything has a price."""
        return self.kwh is not None or self.gpu_hour is not None

    @property
    def words(self) -> str:
        """The prices as text, such as `0.15 EUR/kWh, PUE 1.2, 2.5 EUR per GPU hour`; empty without any."""
        of_energy = [] if self.kwh is None else [f"{self.kwh:g} {self.currency}/kWh, PUE {self.pue:g}"]
        of_gpus = [] if self.gpu_hour is None else [f"{self.gpu_hour:g} {self.currency} per GPU hour"]
        return ", ".join([*of_energy, *of_gpus])

    def cost(self, gpu_s: float, energy_j: float) -> float:
        """Return what work costs; NaN without prices, or where its energy has a price and is not known.

        Args:
            gpu_s: GPUs times the time that they are taken. Unit: s.
            energy_j: What nodes take for it at their plugs. Unit: J.
        """
        if not self.are_given:
            return math.nan
        of_energy = 0.0 if self.kwh is None else self.kwh * self.pue * energy_j / J_PER_KWH
        return of_energy + (self.gpu_hour or 0.0) * gpu_s / S_PER_HOUR


UNPRICED = Prices()
"""No price is given: there is no cost."""
