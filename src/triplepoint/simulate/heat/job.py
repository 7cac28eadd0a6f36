"""The machines of a job under their conditions, and what a step of it does to them once they are as warm as they get.

Step times are those of kernels as they were measured and of clusters as they were calibrated with: power limits had
taken clocks down there. So the step's profile is what it would be at the highest clocks, such that sound GPUs under
usual conditions give the step time back; the loop then adds what other conditions, faults and places make of it.
"""

import zlib
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from triplepoint.config.conditions import ConditionsConfig, place_of
from triplepoint.config.gpu import GpuConfig
from triplepoint.errors import UserError
from triplepoint.simulate.heat.devices import BadContact, BlockedAirflow, Fault, draw_devices
from triplepoint.simulate.heat.loop import Steady, Trace, run, settle
from triplepoint.simulate.heat.machine import Machine, Profile
from triplepoint.simulate.heat.parameters import AirflowConfig, read_airflow, read_heat
from triplepoint.simulate.power.gpu import Activity, Float, gpu_power_w
from triplepoint.simulate.power.parameters import NodePowerConfig, PowerConfig, read_node_power, read_power

_SAMPLED_CLOCKS = 12
_SETTLED_K, _MOST_LEAPS = 0.2, 24
"""A machine is warm once a leap changes no temperature by more; sensors show whole degrees."""
_LIKE, _MOST_STEPS = 0.001, 20
"""Steps are alike once their mean power differs by less than this share; and how many there may be until then."""
_COARSE_BINS = 64
_FINE_BINS = 800
"""Control periods of a step while the machine warms up, and of the one step that is shown. A longer step has longer
periods: its powers are means of more than 50 ms."""


@lru_cache(maxsize=64)
def is_known(gpu: GpuConfig, config: Path) -> bool:
    """Return whether power and heat of a GPU type are known, and the chassis it stands in."""
    return gpu.chassis is not None and all((config / part / f"{gpu.name}.yaml").is_file() for part in ("power", "heat"))


def power_of(conditions: ConditionsConfig, gpu: GpuConfig, config: Path) -> PowerConfig:
    """Return the power of a GPU type, under the power limit of the conditions.

    Raises:
        UserError: If the GPU takes more than the limit at rest, or the limit is higher than it can be.
    """
    power = read_power(gpu.name, config)
    limit_w = conditions.power_limit_w
    if limit_w is None:
        return power
    rest_w, most_w = gpu.idle_power.value / gpu.gpus_per_package, power.power_limit.value
    if not rest_w <= limit_w <= most_w:
        raise UserError(
            f"conditions.power_limit_w is {limit_w:g} W; a device of {gpu.name} takes {rest_w:g} W at rest and is held "
            f"at {most_w:g} W at most: give a limit between"
        )
    return power.model_copy(update={"power_limit": power.power_limit.model_copy(update={"value": limit_w})})


def airflow_of(name: str | None, gpu: GpuConfig, num_devices: int, config: Path) -> AirflowConfig:
    """Return the airflow of nodes, that of the chassis without a name; one of fewer devices has those that come first.

    Raises:
        UserError: If the nodes have more devices than the airflow, or other packages; or no airflow is named.
    """
    found = read_airflow(name or _chassis_of(gpu), config)
    if {len(package) for package in found.packages} != {gpu.gpus_per_package}:
        raise UserError(
            f"airflow {found.name} is of other packages than those of {gpu.name}, which hold {gpu.gpus_per_package}; "
            "name another one in conditions.airflow"
        )
    if num_devices > found.num_devices:
        raise UserError(
            f"airflow {found.name} has {found.num_devices} devices, nodes of the cluster have {num_devices}; "
            "name one with as many in conditions.airflow"
        )
    kept = [[[device for device in some if device < num_devices] for some in of] for of in (found.rows, found.packages)]
    rows, packages = ([some for some in of if some] for of in kept)
    return found.model_copy(update={"rows": rows, "packages": packages})


def usual_devices(gpu: GpuConfig, config: Path) -> int:
    """Return how many devices the chassis of a GPU type holds."""
    return read_airflow(_chassis_of(gpu), config).num_devices


def node_power_of(gpu: GpuConfig, config: Path) -> NodePowerConfig:
    """Return the power of a node of a GPU type without that of its GPUs."""
    return read_node_power(_chassis_of(gpu), config)


def _chassis_of(gpu: GpuConfig) -> str:
    if gpu.chassis is None:
        raise UserError(f"gpu {gpu.name} has no chassis; name one in its file or in that of the cluster")
    return gpu.chassis


def machine_of(
    conditions: ConditionsConfig, gpu: GpuConfig, shape: tuple[int, int], cluster: str, config: Path
) -> Machine:
    """Return the nodes of a cluster. Its parts differ as parts do, the same for all runs; bad contact is a condition.

    Args:
        conditions: Of the cluster.
        gpu: GPU type, with known power and heat.
        shape: Nodes, and devices in each.
        cluster: Name, which parts are drawn by.
        config: Folder of the configuration.

    Raises:
        UserError: If the GPUs cannot have such an airflow or such a power limit.
    """
    power, heat = power_of(conditions, gpu, config), read_heat(gpu.name, config)
    none = heat.bad_contact_share.model_copy(update={"value": 0.0})
    seed = zlib.crc32(cluster.encode())
    drawn = draw_devices(
        heat.model_copy(update={"bad_contact_share": none}), power, shape, seed, _faults(conditions, shape)
    )
    brake = np.zeros(shape, dtype=np.bool_)
    brake[[node for node in conditions.braked_nodes if node < shape[0]]] = True
    return Machine(
        power, heat, airflow_of(conditions.airflow, gpu, shape[1], config), drawn,
        np.full(shape[0], conditions.inlet_temp_c), cooling=conditions.coolant, brake=brake,
    )  # fmt: skip


def _faults(conditions: ConditionsConfig, shape: tuple[int, int]) -> list[Fault]:
    found: list[Fault] = [BadContact(*place_of(name), factor) for name, factor in conditions.bad_contact.items()]
    for name, share in conditions.blocked_airflow.items():
        node, gpu = place_of(name)
        found.append(BlockedAirflow(node, (gpu,), share))
    return [fault for fault in found if fault.node < shape[0]]


def num_bins(step_s: float) -> int:
    """Return into how many bins a step is cut: control periods, but no more than `_FINE_BINS`."""
    return int(min(max(np.ceil(step_s / Machine.period_s), 1), _FINE_BINS))


def at_highest_clocks(profile: Profile, usual: Machine, most_share: Float | float = 1.0) -> Profile:
    """Return a step as if clocks were at their highest, from one at the clocks that sound GPUs take it at.

    In each bin the device whose clock is lowest under the power limit sets the time of all.

    Args:
        profile: With rates and times as they are at those clocks.
        usual: The nodes under usual conditions.
        most_share: Highest share of the highest clock that devices are known to have had; shape (num_nodes,
            num_devices).
    """
    power, bound = usual.power, np.asarray(profile.activity.clock_bound)
    _, watts = power_at_limit(profile.activity, power, power.leakage_temperature.value)
    mean_w = np.average(watts, axis=0, weights=profile.duration_s)
    warm_c = usual.network.die_c(usual.network.steady(mean_w), usual.inlet_c[:, None])
    share = np.minimum(power_at_limit(profile.activity, power, warm_c)[0], most_share)
    own = bound * share + 1.0 - bound
    together = own.min(axis=(1, 2), keepdims=True)
    faster = profile.activity.at_rate(1.0 / together)
    return Profile(profile.duration_s * together[:, 0, 0], replace(faster, clock_bound=bound * share / own))


def power_at_limit(activity: Activity, power: PowerConfig, temp_c: Float | float) -> tuple[Float, Float]:
    """Return the share of the highest clock that work of given rates leaves under the power limit, and its power.

    Args:
        activity: What runs, with the rates it has.
        power: Of the GPU type.
        temp_c: Die temperature. Unit: degC.
    """
    low, high = power.clocks.min_clock.value, power.clocks.max_clock.value
    limit, clocks = power.power_limit.value, np.linspace(low, high, _SAMPLED_CLOCKS)
    shape = np.broadcast_shapes(np.shape(activity.tensor), np.shape(temp_c))
    watts = gpu_power_w(power, activity, clocks.reshape(-1, *(1 for _ in shape)), temp_c)
    last = np.clip((watts <= limit).sum(axis=0), 1, _SAMPLED_CLOCKS - 1)
    before, after = (np.take_along_axis(watts, index[None], axis=0)[0] for index in (last - 1, last))
    part = np.clip((limit - before) / np.maximum(after - before, 1e-9), 0.0, 1.0)
    clock = clocks[last - 1] + part * (clocks[1] - clocks[0])
    return np.asarray(clock / high), np.asarray(before + part * (after - before))


def stretched(profile: Profile, factor: float) -> Profile:
    """Return the same work in a step that is `factor` times as long."""
    return Profile(profile.duration_s * factor, profile.activity.at_rate(1.0 / factor))


def warm_up(machine: Machine, profile: Profile) -> Steady:
    """Return a job that has run for long, a step of it in few control periods.

    Args:
        machine: The nodes.
        profile: Of a step at the highest clocks.
    """
    coarse = replace(machine, period_s=max(machine.period_s, profile.step_s / _COARSE_BINS))
    return settle(coarse, profile, _SETTLED_K, _MOST_LEAPS)


def compute_slowdown(steady: Steady, compute_share: Float) -> Float:
    """Return the time that the computation of every device takes over that at the highest clock.

    Args:
        steady: A warm job.
        compute_share: Of the step, computation, by device; shape (num_nodes, num_devices).
    """
    excess = (steady.slowdown - 1.0) / np.maximum(compute_share, 1e-6)
    return np.asarray(1.0 + np.where(compute_share > 0.0, excess, 0.0))


def one_step(machine: Machine, profile: Profile, steady: Steady, step_s: float) -> tuple[Trace, bool]:
    """Return a step of a warm job, which repeats, at the control period; and whether the step before was like it.

    Args:
        machine: The nodes.
        profile: Of a step at the highest clocks.
        steady: The job, warm.
        step_s: Length the step has by the timeline; the loop's own differs by what its governor dithers. Unit: s.

    Raises:
        UserError: If a GPU would shut down.
    """
    fine = replace(machine, period_s=max(machine.period_s, profile.step_s / _FINE_BINS))
    state = replace(steady.state, position_s=0.0)
    trace, is_like = run(fine, profile, steady.step_s, state), False
    for _ in range(_MOST_STEPS):
        before, trace = trace, run(fine, profile, steady.step_s, state)
        is_like = abs(float(trace.power_w.mean() / before.power_w.mean()) - 1.0) < _LIKE
        if is_like:
            break
    _check_shutdown(trace, machine)
    return replace(trace, period_s=step_s / len(trace.rate), repeats=True), is_like


def _check_shutdown(trace: Trace, machine: Machine) -> None:
    # The mean: hardware cuts clocks within less than the control period that lets a die overshoot here.
    hottest = trace.temp_c.mean(axis=0)
    node, gpu = np.unravel_index(hottest.argmax(), hottest.shape)
    most_c = machine.heat.limits.shutdown_temperature.value
    if hottest[node, gpu] >= most_c:
        raise UserError(
            f"node{node}.gpu{gpu} comes to {hottest[node, gpu]:.0f} degC under the conditions of its cluster and shuts "
            f"down at {most_c:g} degC; no job runs on it, ease them"
        )
