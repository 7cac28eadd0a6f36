"""Uncertainty of temperatures, from that of inlet, thermal resistances, air flow and fans."""

import math
from dataclasses import replace
from functools import lru_cache

import numpy as np

from triplepoint.simulate.heat.machine import Machine
from triplepoint.simulate.heat.parameters import LEARNED, FanConfig
from triplepoint.simulate.power.gpu import Float
from triplepoint.simulate.power.parameters import Estimate

_PART = 0.1
"""Share of a standard deviation by which a parameter is varied; temperature rises are not linear in the flow."""


def temperature_errors_k(machine: Machine, power_w: Float) -> Float:
    """Return the change of die temperatures if a parameter were larger by its standard deviation.

    Args:
        machine: The nodes, with fans as they run under this load.
        power_w: Mean power of every device; shape (num_nodes, num_devices). Unit: W.

    Returns:
        Changes; shape (len(LEARNED), num_nodes, num_devices). Unit: K.
    """
    errors_k = np.zeros((len(LEARNED), *machine.shape))
    errors_k[0] = machine.inlet_sigma_k
    by_resistance = _response_errors(machine)
    errors_k[1 : 1 + len(by_resistance)] = np.einsum("pnij,nj->pni", by_resistance, power_w)
    fans = machine.airflow.fans
    if fans is not None and np.any(machine.fan_flow):
        rise_k = _rise_k(machine, power_w)
        for name in ("full_power", "least_flow"):
            varied = fans.model_copy(update={name: _varied(getattr(fans, name))})
            other = _with_fans(machine, varied).under_load(power_w)
            errors_k[LEARNED.index(name)] = (_rise_k(other, power_w) - rise_k) / _PART
    return errors_k


def mean_sigma_k(machine: Machine, power_w: Float, weight: Float) -> float:
    """Return the standard deviation of a weighted mean of temperatures, due to all parameters together. Unit: K.

    Args:
        machine: The nodes, with fans as they run under this load.
        power_w: Mean power of every device; shape (num_nodes, num_devices). Unit: W.
        weight: Weight of every device in the mean; same shape.
    """
    errors = temperature_errors_k(machine, power_w)
    mean = np.average(errors.reshape(len(LEARNED), -1), axis=1, weights=weight.reshape(-1))
    return math.sqrt(max(float(mean @ machine.airflow.correlations @ mean), 0.0))


@lru_cache(maxsize=64)
def _response_errors(machine: Machine) -> Float:
    """Return the change of `Machine.responses` per standard deviation of both resistances and of the preheat.

    Shape (3, num_nodes, num_devices, num_devices). Unit: K/W.
    """
    cooling, air = machine.cooled_by, machine.airflow
    errors = []
    for name in ("die_resistance", "sink_resistance"):
        varied = cooling.model_copy(update={name: _varied(getattr(cooling, name))})
        heat = machine.heat.model_copy(update={"cooling": {machine.cooling: varied}})
        # The airflow's own values would replace the varied ones.
        other_air = air.model_copy(update=dict.fromkeys(("die_resistance", "sink_resistance", "sink_time")))
        errors.append((replace(machine, heat=heat, airflow=other_air).responses - machine.responses) / _PART)
    other = replace(machine, airflow=air.model_copy(update={"preheat": _varied(air.preheat)}))
    errors.append((other.responses - machine.responses) / _PART)
    return np.stack(errors)


def _varied(estimate: Estimate) -> Estimate:
    """Return an estimate moved by `_PART` of its standard deviation."""
    return estimate.model_copy(update={"value": estimate.value + _PART * estimate.sigma})


def _rise_k(machine: Machine, power_w: Float) -> Float:
    """Return the temperature rise of dies over the inlet; shape (num_nodes, num_devices). Unit: K."""
    return np.asarray(np.einsum("nij,nj->ni", machine.responses, power_w))


def _with_fans(machine: Machine, fans: FanConfig) -> Machine:
    return replace(machine, airflow=machine.airflow.model_copy(update={"fans": fans}))
