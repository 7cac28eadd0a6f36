"""Fits steady temperatures to snapshots of nodes: resistance, preheat, and the inlet of each node.

    T = T_inlet(node) + R*P + preheat * mean P of the rows before

A node's inlet is not in its snapshot, so a node left out of the fit of R and preheat still gives its own.
"""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from triplepoint.errors import UserError
from triplepoint.simulate.heat.config import AirflowConfig
from triplepoint.simulate.power.model import Float


@dataclass(frozen=True, eq=False)
class Snapshot:
    """One node in thermal balance.

    Attributes:
        node: Name.
        temp_c: Of every device; shape (num_devices,). Unit: degC.
        power_w: Of every device. Unit: W.
        is_used: Devices in balance and sound.
    """

    node: str
    temp_c: Float
    power_w: Float
    is_used: np.ndarray


@dataclass(frozen=True, eq=False)
class SteadyFit:
    """What snapshots say.

    Attributes:
        resistance_k_per_w: Die to air.
        resistance_sigma: Its standard deviation. Unit: K/W.
        preheat_k_per_w: Air of a row for each watt of the mean device before.
        preheat_sigma: Its standard deviation. Unit: K/W.
        inlet_c: By node. Unit: degC.
        errors_k: Measured less fitted, of the devices used, by node. Unit: K.
    """

    resistance_k_per_w: float
    resistance_sigma: float
    preheat_k_per_w: float
    preheat_sigma: float
    inlet_c: dict[str, float]
    errors_k: dict[str, Float]


def read_snapshots(path: Path) -> list[Snapshot]:
    """Return the snapshots in a CSV with columns node, device, temp_c, power_w, left_out (a reason, or empty).

    Raises:
        UserError: If a column is missing or not a number.
    """
    nodes: dict[str, list[tuple[float, float, bool]]] = {}
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            for row in csv.DictReader(line for line in lines if not line.startswith("#")):
                value = float(row["temp_c"]), float(row["power_w"]), not row["left_out"]
                nodes.setdefault(row["node"], []).append(value)
    except (KeyError, ValueError) as error:
        raise UserError(f"{path}: {error}; expected columns node, device, temp_c, power_w, left_out") from None
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    return [Snapshot(name, *(np.array(column) for column in zip(*rows, strict=True))) for name, rows in nodes.items()]


def fit_steady(snapshots: Sequence[Snapshot], airflow: AirflowConfig) -> SteadyFit:
    """Return resistance, preheat and inlets that fit best.

    Args:
        snapshots: At least two devices used in each, and rows under load.
        airflow: Rows of the nodes; its numbers play no part.

    Raises:
        UserError: If snapshots are of another number of devices than rows are.
    """
    before = np.concatenate([_before(snapshot, airflow)[snapshot.is_used] for snapshot in snapshots])
    power = np.concatenate([snapshot.power_w[snapshot.is_used] for snapshot in snapshots])
    temp = np.concatenate([snapshot.temp_c[snapshot.is_used] for snapshot in snapshots])
    of = np.repeat(np.arange(len(snapshots)), [int(snapshot.is_used.sum()) for snapshot in snapshots])
    terms = np.column_stack([power, before, of[:, None] == np.arange(len(snapshots))])
    found, *_ = np.linalg.lstsq(terms, temp, rcond=None)
    errors = temp - terms @ found
    freedom = max(len(temp) - terms.shape[1], 1)
    sigma = np.sqrt(np.diag(np.linalg.pinv(terms.T @ terms)) * float(errors @ errors) / freedom)
    names = [snapshot.node for snapshot in snapshots]
    return SteadyFit(
        resistance_k_per_w=float(found[0]),
        resistance_sigma=float(sigma[0]),
        preheat_k_per_w=float(found[1]),
        preheat_sigma=float(sigma[1]),
        inlet_c=dict(zip(names, found[2:].tolist(), strict=True)),
        errors_k={name: errors[of == place] for place, name in enumerate(names)},
    )


def left_out_errors(snapshots: Sequence[Snapshot], airflow: AirflowConfig) -> dict[str, Float]:
    """Return measured less predicted temperatures of each node, by a fit to the others and its own inlet. Unit: K."""
    errors = {}
    for snapshot in snapshots:
        fit = fit_steady([other for other in snapshots if other is not snapshot], airflow)
        rise = fit.resistance_k_per_w * snapshot.power_w + fit.preheat_k_per_w * _before(snapshot, airflow)
        away = (snapshot.temp_c - rise)[snapshot.is_used]
        errors[snapshot.node] = away - away.mean()
    return errors


def _before(snapshot: Snapshot, airflow: AirflowConfig) -> Float:
    """Return for every device the sum over the rows before it of their mean power. Unit: W."""
    if len(snapshot.power_w) != airflow.num_devices:
        raise UserError(
            f"node {snapshot.node} has {len(snapshot.power_w)} devices, {airflow.name} {airflow.num_devices}"
        )
    before = np.zeros(len(snapshot.power_w))
    for index, row in enumerate(airflow.rows):
        before[row] = sum(float(snapshot.power_w[other].mean()) for other in airflow.rows[:index])
    return before
