"""Numbers with a unit, a source, and how far they can be trusted: what the models of power and heat are made of."""

from typing import Annotated

from pydantic import Field

from triplepoint.config.base import Quantity, unit_is


class Estimate(Quantity):
    """A number with its unit, where it comes from, and how far it can be trusted."""

    sigma: Annotated[float, Field(ge=0)]
    """Standard deviation of `value`, in `unit`; of an assumption, how sure it is."""


Watt = Annotated[Estimate, unit_is("W")]
Volt = Annotated[Estimate, unit_is("V")]
Megahertz = Annotated[Estimate, unit_is("MHz")]
Ratio = Annotated[Estimate, unit_is("1")]
PerKelvin = Annotated[Estimate, unit_is("1/K")]
Celsius = Annotated[Estimate, unit_is("degC")]
Kelvin = Annotated[Estimate, unit_is("K")]
KelvinPerWatt = Annotated[Estimate, unit_is("K/W")]
Seconds = Annotated[Estimate, unit_is("s")]
