"""How well temperatures are known: by what is known of the inlet, of resistances, of the air and of its fans."""

import math
from dataclasses import replace
from functools import lru_cache

import numpy as np

from triplepoint.simulate.heat.machine import Machine
from triplepoint.simulate.heat.parameters import LEARNED, FanConfig
from triplepoint.simulate.power.gpu import Float
from triplepoint.simulate.power.parameters import Estimate

_PART = 0.1
"""Share of a standard deviation that a parameter is moved by: rises are not linear in the flow."""


def temperature_errors_k(machine: Machine, power_w: Float) -> Float:
    """Return by how much dies would be warmer if a parameter were larger by its standard deviation.

    Args:
        machine: The nodes, with fans as they run under this load.
        power_w: Mean power of every device; shape (num_nodes, num_devices). Unit: W.

    Returns:
        Shape (len(LEARNED), num_nodes, num_devices). Unit: K.
    """
    found = np.zeros((len(LEARNED), *machine.shape))
    found[0] = machine.inlet_sigma_k
    resistances = _errors_of_resistances(machine)
    found[1 : 1 + len(resistances)] = np.einsum("pnij,nj->pni", resistances, power_w)
    fans = machine.airflow.fans
    if fans is not None and np.any(machine.fan_flow):
        rise = _rise_k(machine, power_w)
        for place, name in ((4, "full_power"), (5, "least_flow")):
            known: Estimate = getattr(fans, name)
            moved = known.model_copy(update={"value": known.value + _PART * known.sigma})
            other = _with_fans(machine, fans.model_copy(update={name: moved})).under_load(power_w)
            found[place] = (_rise_k(other, power_w) - rise) / _PART
    return found


def mean_sigma_k(machine: Machine, power_w: Float, weight: Float) -> float:
    """Return the standard deviation of a weighted mean of temperatures, all parameters together. Unit: K.

    Args:
        machine: The nodes, with fans as they run under this load.
        power_w: Mean power of every device; shape (num_nodes, num_devices). Unit: W.
        weight: Of every device in the mean; same shape.
    """
    errors = temperature_errors_k(machine, power_w)
    mean = np.average(errors.reshape(len(LEARNED), -1), axis=1, weights=weight.reshape(-1))
    return math.sqrt(max(float(mean @ machine.airflow.correlations @ mean), 0.0))


@lru_cache(maxsize=64)
def _errors_of_resistances(machine: Machine) -> Float:
    """Return what a standard deviation more of both resistances and of the preheat adds to responses.

    Shape (3, num_nodes, num_devices, num_devices). Unit: K/W.
    """
    cooling, air = machine.cooled_by, machine.airflow
    usual, found = machine.responses, []
    for name, known in (
        ("die_resistance", cooling.die_resistance),
        ("sink_resistance", cooling.sink_resistance),
        ("preheat", air.preheat),
    ):
        moved = known.model_copy(update={"value": known.value + _PART * known.sigma})
        if name == "preheat":
            other = replace(machine, airflow=air.model_copy(update={name: moved}))
        else:
            heat = machine.heat.model_copy(
                update={"cooling": {machine.cooling: cooling.model_copy(update={name: moved})}}
            )
            lean = air.model_copy(update=dict.fromkeys(("die_resistance", "sink_resistance", "sink_time")))
            other = replace(machine, heat=heat, airflow=lean)
        found.append((other.responses - usual) / _PART)
    return np.stack(found)


def _rise_k(machine: Machine, power_w: Float) -> Float:
    return np.asarray(np.einsum("nij,nj->ni", machine.responses, power_w))


def _with_fans(machine: Machine, fans: FanConfig) -> Machine:
    return replace(machine, airflow=machine.airflow.model_copy(update={"fans": fans}))
