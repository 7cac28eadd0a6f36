"""What sensors and kernels say of every GPU of a run, cut to its measured steps."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from triplepoint.aggregate.power import throttle_shares
from triplepoint.aggregate.samples import sample_weights_ns
from triplepoint.manifest import Manifest, Node
from triplepoint.tables import INTERVALS, STEPS, TELEMETRY
from triplepoint.units import NS_PER_S

_MEANS = {
    "clock_mhz": "sm_clock_mhz",
    "power_w": "gpu_power_w",
    "limit_w": "gpu_power_limit_w",
    "temp_c": "gpu_temp_c",
}
"""Fields of `Sensed` that are means of a column of table `telemetry`."""
_WITHOUT_INSTANT = "gpu_power_average_w"
"""Power where a driver has no instantaneous one."""


@dataclass(frozen=True)
class Sensed:
    """One GPU; NaN is what nothing measured.

    Attributes:
        rank: Global rank.
        host: Its host.
        device: gpu0, gpu1, ... on its host; empty where traces alone are known.
        node: Index of its node.
        uuid: Identity of the device, where it has one.
        stage: Pipeline stage: GPUs of others do other work.
        clock_mhz: Mean clock of its compute units. Unit: MHz.
        power_w: Mean power. Unit: W.
        limit_w: Power limit in force. Unit: W.
        temp_c: Mean temperature of its die. Unit: degC.
        inlet_c: Air or liquid that enters its node. Unit: degC.
        throttled: Share of the time that each cause held its clock down, by `<cause>_share`; nothing if not counted.
        compute_s: Its own computation in a profiled step, waits left out. Unit: s.
        host_s: Time of a profiled step in which its host was late with launches. Unit: s.
    """

    rank: int
    host: str
    device: str
    node: int
    uuid: str | None = None
    stage: int = 0
    clock_mhz: float = math.nan
    power_w: float = math.nan
    limit_w: float = math.nan
    temp_c: float = math.nan
    inlet_c: float = math.nan
    throttled: Mapping[str, float] = field(default_factory=dict)
    compute_s: float = math.nan
    host_s: float = math.nan

    @property
    def name(self) -> str:
        """The GPU in words, with its identity where it has one: of simulated hosts the node's number."""
        if not self.device:
            return f"rank {self.rank}"
        return f"{self.device} of {self.host if self.host != 'simulated' else f'node {self.node}'} (rank {self.rank})"


def sense(run: Path, manifest: Manifest, stage_of: Callable[[int], int]) -> list[Sensed]:
    """Return what is known of every rank's GPU, by rank.

    Args:
        run: Folder of the run.
        manifest: Its manifest.
        stage_of: Pipeline stage of a rank.

    Raises:
        UserError: If a table is damaged.
    """
    telemetry = TELEMETRY.read(run / "telemetry.parquet") if (run / "telemetry.parquet").is_file() else None
    steps = STEPS.read(run / "raw" / "steps.parquet")
    work = _work(run)
    found = []
    for node in manifest.nodes:
        windows_ns = _windows_ns(steps, [device.rank for device in node.devices])
        windows_ns = manifest.on_first_clock(node, windows_ns) if len(windows_ns) else windows_ns
        of_node = None if telemetry is None else telemetry.filter(pc.equal(telemetry["node"], node.node))
        sensors = _sensors(of_node, node, windows_ns) if of_node is not None and len(windows_ns) else {}
        for device in node.devices:
            known = sensors.get(device.device, {}) | work.get(device.rank, {})
            stage = stage_of(device.rank)
            found.append(Sensed(device.rank, node.host, device.device, node.node, device.uuid, stage, **known))
    return sorted(found, key=lambda one: one.rank)


def sense_traces(folder: Path, ranks: Sequence[int]) -> dict[int, Sensed]:
    """Return what the tables of loose traces say of every rank."""
    work = _work(folder)
    names = ("compute_s", "host_s")
    known = {rank: [work.get(rank, {}).get(name, math.nan) for name in names] for rank in ranks}
    return {rank: Sensed(rank, "", "", 0, compute_s=known[rank][0], host_s=known[rank][1]) for rank in ranks}


def _windows_ns(steps: pa.Table, ranks: list[int]) -> np.ndarray:
    """Return start and end of measured steps on a node; shape (num_steps, 2). Unit: ns."""
    own = steps.filter(pc.and_(pc.is_in(steps["rank"], pa.array(ranks)), pc.equal(steps["kind"], "measured")))
    found = own.group_by("step").aggregate([("t_start_ns", "min"), ("t_end_ns", "max")]).sort_by("step")
    return np.stack([found[name].to_numpy() for name in ("t_start_ns_min", "t_end_ns_max")], axis=1)


def _sensors(telemetry: pa.Table, node: Node, windows_ns: np.ndarray) -> dict[str, dict[str, Any]]:
    """Return the fields that telemetry gives, by device."""
    devices = np.array(telemetry["device"].to_pylist())
    names = ["t_ns", "inlet_temp_c", _WITHOUT_INSTANT, *_MEANS.values(), *_THROTTLED]
    columns = {name: telemetry[name].to_numpy(zero_copy_only=False).astype(float) for name in names}

    def mean(name: str, device: str) -> float:
        own = (devices == device) & np.isfinite(columns[name])
        weights = sample_weights_ns(columns["t_ns"][own], windows_ns)
        return float(np.average(columns[name][own], weights=weights)) if weights.sum() > 0 else math.nan

    inlet_c = mean("inlet_temp_c", "host")
    found = {}
    for device in node.devices:
        values: dict[str, Any] = {key: mean(column, device.device) for key, column in _MEANS.items()}
        if math.isnan(values["power_w"]):
            values["power_w"] = mean(_WITHOUT_INSTANT, device.device)
        own = {name: values[devices == device.device] for name, values in columns.items()}
        shares = throttle_shares(own, int(windows_ns[0, 0]), int(windows_ns[-1, 1]))
        found[device.device] = values | {"inlet_c": inlet_c, "throttled": shares}
    return found


_THROTTLED = ("gpu_power_cap_s", "gpu_sync_boost_s", "gpu_sw_thermal_s", "gpu_hw_thermal_s", "gpu_power_brake_s")


def _work(run: Path) -> dict[int, dict[str, float]]:
    """Return each rank's own computation and the lateness of its host in a profiled step, by field."""
    if not (run / "intervals.parquet").is_file():
        return {}
    table = INTERVALS.read(run / "intervals.parquet")
    num_steps = max(1, len(pc.unique(table["step"])))
    is_late = pc.and_(pc.equal(table["category"], "idle"), pc.equal(table["kind"], "host"))
    found: dict[int, dict[str, float]] = {}
    for name, wanted in (("compute_s", pc.equal(table["category"], "compute")), ("host_s", is_late)):
        own = table.filter(wanted).group_by("rank").aggregate([("exposed_ns", "sum")]).to_pylist()
        times = {row["rank"]: row["exposed_ns_sum"] / NS_PER_S / num_steps for row in own}
        for rank in pc.unique(table["rank"]).to_pylist():
            found.setdefault(rank, {})[name] = times.get(rank, 0.0)
    return found
