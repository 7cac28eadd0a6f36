"""The nodes of a cluster under its conditions, from the configuration."""

import math
import zlib
from functools import lru_cache
from pathlib import Path

import numpy as np

from triplepoint.config.cluster import USUAL, ConditionsConfig, place_of
from triplepoint.config.gpu import GpuConfig
from triplepoint.errors import UserError
from triplepoint.simulate.heat.devices import (
    BadContact,
    BlockedAirflow,
    Fault,
    draw_devices,
    equal_devices,
    with_faults,
)
from triplepoint.simulate.heat.machine import Machine
from triplepoint.simulate.heat.parameters import AirflowConfig, read_airflow, read_heat
from triplepoint.simulate.power.gpu import Float
from triplepoint.simulate.power.parameters import NodePowerConfig, PowerConfig, read_node_power, read_power

_NO_LIMIT = 100.0
"""Power limit over that of the GPU type that stands for no limit: no kernel comes near it."""


@lru_cache(maxsize=64)
def is_known(gpu: GpuConfig, config: Path) -> bool:
    """Return whether power, heat and chassis of a GPU type are known."""
    return gpu.chassis is not None and all((config / part / f"{gpu.name}.yaml").is_file() for part in ("power", "heat"))


def power_of(conditions: ConditionsConfig, gpu: GpuConfig, config: Path, cluster: str = "") -> PowerConfig:
    """Return the power parameters of a GPU type, with the power limit of the conditions.

    Args:
        conditions: Conditions of the cluster.
        gpu: GPU type with known power.
        config: Folder of the configuration.
        cluster: Name of the cluster, for errors; empty for none.

    Raises:
        UserError: If the driver does not accept a power limit.
    """
    power = read_power(gpu.name, config)
    most_w = power.power_limit.value
    limits_w = {f"power_limits_w.{name}": gpu_limit_w for name, gpu_limit_w in conditions.power_limits_w.items()}
    limit_w = conditions.power_limit_w
    if limit_w is not None and not math.isinf(limit_w):
        limits_w["power_limit_w"] = limit_w
    where = f"clusters/{cluster}.yaml: " if cluster else ""
    for key, given_w in limits_w.items():
        check_power_limit(f"{where}conditions.{key}", given_w, gpu, config)
    if limit_w is None:
        return power
    limit_w = _NO_LIMIT * most_w if math.isinf(limit_w) else limit_w
    excursion_w = power.excursion_limit.value * limit_w / most_w
    changes = {
        "power_limit": power.power_limit.model_copy(update={"value": limit_w}),
        "excursion_limit": power.excursion_limit.model_copy(update={"value": excursion_w}),
    }
    return power.model_copy(update=changes)


def check_power_limit(what: str, limit_w: float, gpu: GpuConfig, config: Path) -> None:
    """Refuse a power limit that the driver does not accept.

    Args:
        what: Name of the limit, for the error.
        limit_w: Power limit of a device. Unit: W.
        gpu: GPU type with known power.
        config: Folder of the configuration.

    Raises:
        UserError: If the driver does not accept it.
    """
    power = read_power(gpu.name, config)
    least_w, most_w = power.least_limit.value, power.power_limit.value
    if not least_w <= limit_w <= most_w:
        raise UserError(
            f"{what} is {limit_w:g} W; the driver takes limits of {least_w:g} to {most_w:g} W for a device of "
            f"{gpu.name}: give one between"
        )


def airflow_of(name: str | None, gpu: GpuConfig, num_devices: int, config: Path) -> AirflowConfig:
    """Return the airflow of nodes with `num_devices` devices, the first ones of the chassis.

    Args:
        name: Name of the airflow; None for that of the chassis.
        gpu: The GPU type.
        num_devices: Devices of a node.
        config: Folder of the configuration.

    Raises:
        UserError: If the nodes have more devices than the airflow, or other packages, or no airflow is known.
    """
    airflow = read_airflow(name or _chassis_of(gpu), config)
    if {len(package) for package in airflow.packages} != {gpu.gpus_per_package}:
        raise UserError(
            f"airflow {airflow.name} is of other packages than those of {gpu.name}, which hold {gpu.gpus_per_package}; "
            "name another one in conditions.airflow"
        )
    if num_devices > airflow.num_devices:
        raise UserError(
            f"airflow {airflow.name} has {airflow.num_devices} devices, nodes of the cluster have {num_devices}; "
            "name one with as many in conditions.airflow"
        )

    def present(groups: list[list[int]]) -> list[list[int]]:
        kept = ([device for device in group if device < num_devices] for group in groups)
        return [group for group in kept if group]

    return airflow.model_copy(update={"rows": present(airflow.rows), "packages": present(airflow.packages)})


def usual_devices(gpu: GpuConfig, config: Path) -> int:
    """Return the number of devices that the chassis of a GPU type holds."""
    return read_airflow(_chassis_of(gpu), config).num_devices


def node_power_of(gpu: GpuConfig, config: Path) -> NodePowerConfig:
    """Return the power parameters of a node of a GPU type, without its GPUs."""
    return read_node_power(_chassis_of(gpu), config)


def _chassis_of(gpu: GpuConfig) -> str:
    if gpu.chassis is None:
        raise UserError(f"gpu {gpu.name} has no chassis; name one in its file or in that of the cluster")
    return gpu.chassis


def machine_of(
    conditions: ConditionsConfig, gpu: GpuConfig, shape: tuple[int, int], cluster: str, config: Path, draw: int = 0
) -> Machine:
    """Return the nodes of a cluster, with random part-to-part spread; bad contact comes only from the conditions.

    Args:
        conditions: Conditions of the cluster.
        gpu: GPU type with known power and heat.
        shape: Number of nodes, and of devices in each.
        cluster: Name of the cluster, a seed of the spread.
        config: Folder of the configuration.
        draw: Number of the random draw.

    Raises:
        UserError: If the GPUs cannot have such an airflow or power limit.
    """
    power, heat = power_of(conditions, gpu, config, cluster), read_heat(gpu.name, config)
    no_bad_contact = heat.bad_contact_share.model_copy(update={"value": 0.0})
    seed = zlib.crc32(cluster.encode()) + draw
    devices = draw_devices(heat.model_copy(update={"bad_contact_share": no_bad_contact}), power, shape, seed)
    limits_w = np.full(shape, power.power_limit.value) if conditions.power_limits_w else np.empty(0)
    for values_by_gpu, array in (
        (conditions.contact, devices.die),
        (conditions.leakage, devices.leakage),
        (conditions.power_limits_w, limits_w),
    ):
        for name, value in values_by_gpu.items():
            if (place := place_of(name))[0] < shape[0]:
                array[place] = value
    brake = np.zeros(shape, dtype=np.bool_)
    brake[[node for node in conditions.braked_nodes if node < shape[0]]] = True
    return Machine(
        power,
        heat,
        airflow_of(conditions.airflow, gpu, shape[1], config),
        with_faults(devices, _faults(conditions, shape)),
        inlet_c=np.full(shape[0], conditions.inlet_temp_c),
        cooling=conditions.coolant,
        power_limit_w=limits_w,
        brake=brake,
        inlet_sigma_k=conditions.inlet_sigma_k,
    )


@lru_cache(maxsize=64)
def usual_machine(gpu: GpuConfig, gpus_per_node: int, num_nodes: int, config: Path) -> tuple[Machine, Float]:
    """Return usual nodes with equal parts and one package per row of the air stream.

    Args:
        gpu: GPU type with known power and heat.
        gpus_per_node: Devices of a node; at most those of the chassis are used.
        num_nodes: Number of nodes.
        config: Folder of the configuration.

    Returns:
        The nodes; and the number of devices of a node that each device represents, shape (num_devices,).
    """
    num_devices = min(gpus_per_node, usual_devices(gpu, config))
    airflow = airflow_of(None, gpu, num_devices, config)
    package_of = {device: package for package in airflow.packages for device in package}
    packages, num_alike = list[list[int]](), list[float]()
    for row in airflow.rows:
        first_package, num_before = package_of[row[0]], sum(map(len, packages))
        packages.append([num_before + index for index in range(len(first_package))])
        num_alike += [len(row) / len(first_package)] * len(first_package)
    machine = Machine(
        power_of(USUAL, gpu, config),
        read_heat(gpu.name, config),
        airflow.model_copy(update={"rows": packages, "packages": packages}),
        equal_devices(num_nodes, len(num_alike)),
        inlet_c=np.full(num_nodes, USUAL.inlet_temp_c),
        cooling=USUAL.coolant,
    )
    return machine, np.array(num_alike)


def _faults(conditions: ConditionsConfig, shape: tuple[int, int]) -> list[Fault]:
    faults: list[Fault] = [BadContact(*place_of(name), factor) for name, factor in conditions.bad_contact.items()]
    for name, share in conditions.blocked_airflow.items():
        node, gpu = place_of(name)
        faults.append(BlockedAirflow(node, (gpu,), share))
    return [fault for fault in faults if fault.node < shape[0]]
