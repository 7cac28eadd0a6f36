"""The nodes of a cluster under its conditions."""

import math
import zlib
from functools import lru_cache
from pathlib import Path

import numpy as np

from triplepoint.config.cluster import ConditionsConfig, place_of
from triplepoint.config.gpu import GpuConfig
from triplepoint.errors import UserError
from triplepoint.simulate.heat.devices import BadContact, BlockedAirflow, Fault, draw_devices, with_faults
from triplepoint.simulate.heat.machine import Machine
from triplepoint.simulate.heat.parameters import AirflowConfig, read_airflow, read_heat
from triplepoint.simulate.power.parameters import NodePowerConfig, PowerConfig, read_node_power, read_power

_NO_LIMIT = 100.0
"""Power limit over that of the GPU type that stands for none: no kernel comes near it."""


@lru_cache(maxsize=64)
def is_known(gpu: GpuConfig, config: Path) -> bool:
    """Return whether power and heat of a GPU type are known, and the chassis it stands in."""
    return gpu.chassis is not None and all((config / part / f"{gpu.name}.yaml").is_file() for part in ("power", "heat"))


def power_of(conditions: ConditionsConfig, gpu: GpuConfig, config: Path) -> PowerConfig:
    """Return the power of a GPU type, under the power limit of the conditions.

    Raises:
        UserError: If the driver takes no such limit.
    """
    power = read_power(gpu.name, config)
    least_w, most_w = power.least_limit.value, power.power_limit.value
    named = {f"power_limits_w.{name}": own for name, own in conditions.power_limits_w.items()}
    limit_w = conditions.power_limit_w
    if limit_w is not None and not math.isinf(limit_w):
        named["power_limit_w"] = limit_w
    for key, own in named.items():
        if not least_w <= own <= most_w:
            raise UserError(
                f"conditions.{key} is {own:g} W; the driver takes limits of {least_w:g} to {most_w:g} W for a "
                f"device of {gpu.name}: give one between"
            )
    if limit_w is None:
        return power
    limit_w = _NO_LIMIT * most_w if math.isinf(limit_w) else limit_w
    most = power.excursion_limit.value * limit_w / most_w
    return power.model_copy(update={
        "power_limit": power.power_limit.model_copy(update={"value": limit_w}),
        "excursion_limit": power.excursion_limit.model_copy(update={"value": most}),
    })  # fmt: skip


def airflow_of(name: str | None, gpu: GpuConfig, num_devices: int, config: Path) -> AirflowConfig:
    """Return the airflow of nodes, that of the chassis without a name; one of fewer devices has those that come first.

    Raises:
        UserError: If the nodes have more devices than the airflow, or other packages; or no airflow is named.
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
    kept = [
        [[device for device in some if device < num_devices] for some in of] for of in (airflow.rows, airflow.packages)
    ]
    rows, packages = ([some for some in of if some] for of in kept)
    return airflow.model_copy(update={"rows": rows, "packages": packages})


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
    conditions: ConditionsConfig, gpu: GpuConfig, shape: tuple[int, int], cluster: str, config: Path, draw: int = 0
) -> Machine:
    """Return the nodes of a cluster. Parts differ as parts do, by draw; bad contact is a condition.

    Args:
        conditions: Of the cluster.
        gpu: GPU type, with known power and heat.
        shape: Nodes, and devices in each.
        cluster: Name, which parts are drawn by.
        config: Folder of the configuration.
        draw: Which draw of parts.

    Raises:
        UserError: If the GPUs cannot have such an airflow or such a power limit.
    """
    power, heat = power_of(conditions, gpu, config), read_heat(gpu.name, config)
    none = heat.bad_contact_share.model_copy(update={"value": 0.0})
    seed = zlib.crc32(cluster.encode()) + draw
    drawn = draw_devices(heat.model_copy(update={"bad_contact_share": none}), power, shape, seed)
    limits_w = np.full(shape, power.power_limit.value) if conditions.power_limits_w else np.empty(0)
    by_gpu = (conditions.contact, drawn.die), (conditions.leakage, drawn.leakage), (conditions.power_limits_w, limits_w)
    for named, values in by_gpu:
        for name, own in named.items():
            if (place := place_of(name))[0] < shape[0]:
                values[place] = own
    drawn = with_faults(drawn, _faults(conditions, shape))
    brake = np.zeros(shape, dtype=np.bool_)
    brake[[node for node in conditions.braked_nodes if node < shape[0]]] = True
    return Machine(
        power, heat, airflow_of(conditions.airflow, gpu, shape[1], config), drawn,
        np.full(shape[0], conditions.inlet_temp_c), cooling=conditions.coolant, power_limit_w=limits_w, brake=brake,
        inlet_sigma_k=conditions.inlet_sigma_k,
    )  # fmt: skip


def _faults(conditions: ConditionsConfig, shape: tuple[int, int]) -> list[Fault]:
    faults: list[Fault] = [BadContact(*place_of(name), factor) for name, factor in conditions.bad_contact.items()]
    for name, share in conditions.blocked_airflow.items():
        node, gpu = place_of(name)
        faults.append(BlockedAirflow(node, (gpu,), share))
    return [fault for fault in faults if fault.node < shape[0]]
