"""Measurements of each GPU of a run: means of its sensors over the measured steps, and its computation in traces."""

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
"""Column of table `telemetry` whose mean is a field of `Sensed`, by field."""
_AVERAGE_POWER = "gpu_power_average_w"
"""Power column that is used if the driver has no instantaneous power."""
_THROTTLED = ("gpu_power_cap_s", "gpu_sync_boost_s", "gpu_sw_thermal_s", "gpu_hw_thermal_s", "gpu_power_brake_s")
_REASONS = "gpu_throttle_reasons"
_BITS = {"hw_slowdown_share": 0x8, "hw_thermal_share": 0x40, "power_brake_share": 0x80}
"""Bits of the throttle reasons that are read where no counter has the time: the driver does not count the slowdown.
Source: nvml.h 13, nvmlClocksEventReasons."""


@dataclass(frozen=True)
class Sensed:
    """Measurements of one GPU; NaN if not measured.

    Attributes:
        rank: Global rank.
        host: Name of its host.
        device: gpu0, gpu1, ... on its host; empty if only traces are known.
        node: Index of its node.
        uuid: UUID of the device, if it has one.
        stage: Pipeline stage; GPUs of different stages do different work.
        clock_mhz: Mean SM clock. Unit: MHz.
        power_w: Mean power. Unit: W.
        limit_w: Mean of the enforced power limit. Unit: W.
        temp_c: Mean temperature of the die. Unit: degC.
        inlet_c: Mean temperature of the air or liquid that enters its node. Unit: degC.
        throttled: Share of time that each cause throttles the clock, by `<cause>_share`; empty if not known.
        compute_s: Computation time per profiled step, without waits. Unit: s.
        host_s: Idle time per profiled step because the host launches late. Unit: s.
        passes_s: Time per profiled step inside of forward and backward passes without communication: kernels, copies,
            and gaps between them. Unit: s.
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
    passes_s: float = math.nan

    @property
    def name(self) -> str:
        """Name in messages: device, host (of a simulated host the node's number) and rank."""
        if not self.device:
            return f"rank {self.rank}"
        return f"{self.device} of {self.node_name} (rank {self.rank})"

    @property
    def node_name(self) -> str:
        """Host in messages; of a simulated host the node's number."""
        return self.host if self.host != "simulated" else f"node {self.node}"


def sense(run: Path, manifest: Manifest, stage_of: Callable[[int], int]) -> list[Sensed]:
    """Return the measurements of all GPUs of a run, sorted by rank.

    Args:
        run: Folder of the run.
        manifest: Manifest of the run.
        stage_of: Returns the pipeline stage of a rank.

    Raises:
        UserError: If a table is damaged.
    """
    telemetry = TELEMETRY.read(run / "telemetry.parquet") if (run / "telemetry.parquet").is_file() else None
    steps = STEPS.read(run / "raw" / "steps.parquet")
    times_s = _trace_times(run)
    gpus = []
    for node in manifest.nodes:
        windows_ns = _windows_ns(steps, [device.rank for device in node.devices])
        windows_ns = manifest.on_first_clock(node, windows_ns) if len(windows_ns) else windows_ns
        of_node = None if telemetry is None else telemetry.filter(pc.equal(telemetry["node"], node.node))
        sensors = _sensors(of_node, node, windows_ns) if of_node is not None and len(windows_ns) else {}
        for device in node.devices:
            fields = sensors.get(device.device, {}) | times_s.get(device.rank, {})
            stage = stage_of(device.rank)
            gpus.append(Sensed(device.rank, node.host, device.device, node.node, device.uuid, stage, **fields))
    return sorted(gpus, key=lambda gpu: gpu.rank)


def sense_traces(folder: Path, ranks: Sequence[int]) -> dict[int, Sensed]:
    """Return the measurements that tables of traces alone hold, by rank."""
    times_s = _trace_times(folder)
    return {rank: Sensed(rank, "", "", 0, **times_s.get(rank, {})) for rank in ranks}


def _windows_ns(steps: pa.Table, ranks: list[int]) -> np.ndarray:
    """Return start and end of the measured steps of a node's ranks; shape (num_steps, 2). Unit: ns."""
    measured = steps.filter(pc.and_(pc.is_in(steps["rank"], pa.array(ranks)), pc.equal(steps["kind"], "measured")))
    windows = measured.group_by("step").aggregate([("t_start_ns", "min"), ("t_end_ns", "max")]).sort_by("step")
    return np.stack([windows[name].to_numpy() for name in ("t_start_ns_min", "t_end_ns_max")], axis=1)


def _sensors(telemetry: pa.Table, node: Node, windows_ns: np.ndarray) -> dict[str, dict[str, Any]]:
    """Return the fields of `Sensed` that come from telemetry, by device.

    Args:
        telemetry: Rows of table `telemetry` of the node.
        node: The node.
        windows_ns: Start and end of the measured steps; shape (num_steps, 2). Unit: ns.
    """
    devices = np.array(telemetry["device"].to_pylist())
    names = ["t_ns", "inlet_temp_c", _AVERAGE_POWER, _REASONS, *_MEANS.values(), *_THROTTLED]
    columns = {name: telemetry[name].to_numpy(zero_copy_only=False).astype(float) for name in names}

    def mean(name: str, device: str) -> float:
        is_known = (devices == device) & np.isfinite(columns[name])
        weights = sample_weights_ns(columns["t_ns"][is_known], windows_ns)
        return float(np.average(columns[name][is_known], weights=weights)) if weights.sum() > 0 else math.nan

    inlet_c = mean("inlet_temp_c", "host")
    by_device = {}
    for device in node.devices:
        fields: dict[str, Any] = {field: mean(column, device.device) for field, column in _MEANS.items()}
        if math.isnan(fields["power_w"]):
            fields["power_w"] = mean(_AVERAGE_POWER, device.device)
        of_device = {name: values[devices == device.device] for name, values in columns.items()}
        shares = _reason_shares(of_device, windows_ns)
        shares |= throttle_shares(of_device, int(windows_ns[0, 0]), int(windows_ns[-1, 1]))
        by_device[device.device] = fields | {"inlet_c": inlet_c, "throttled": shares}
    return by_device


def _reason_shares(samples: Mapping[str, np.ndarray], windows_ns: np.ndarray) -> dict[str, float]:
    """Return the share of the measured steps in which each of `_BITS` was set on a GPU; empty without samples.

    Args:
        samples: Columns of table `telemetry`, rows of one GPU.
        windows_ns: Start and end of the measured steps; shape (num_steps, 2). Unit: ns.
    """
    is_known = np.isfinite(samples[_REASONS])
    weights = sample_weights_ns(samples["t_ns"][is_known], windows_ns)
    if not weights.sum() > 0:
        return {}
    reasons = samples[_REASONS][is_known].astype(np.int64)
    return {name: float(np.average((reasons & bit) != 0, weights=weights)) for name, bit in _BITS.items()}


def _trace_times(run: Path) -> dict[int, dict[str, Any]]:
    """Return `compute_s`, `host_s` and `passes_s` of each traced rank; empty without a table of intervals."""
    if not (run / "intervals.parquet").is_file():
        return {}
    table = INTERVALS.read(run / "intervals.parquet")
    num_steps = max(1, len(pc.unique(table["step"])))
    counted = {
        "compute_s": pc.equal(table["category"], "compute"),
        "host_s": pc.and_(pc.equal(table["category"], "idle"), pc.equal(table["kind"], "host")),
        "passes_s": pc.and_(
            pc.is_in(table["phase"], pa.array(["forward", "backward"])), pc.not_equal(table["category"], "comm")
        ),
    }
    by_rank: dict[int, dict[str, Any]] = {}
    for field_name, is_counted in counted.items():
        sums = table.filter(is_counted).group_by("rank").aggregate([("exposed_ns", "sum")]).to_pylist()
        times_s = {row["rank"]: row["exposed_ns_sum"] / NS_PER_S / num_steps for row in sums}
        for rank in pc.unique(table["rank"]).to_pylist():
            by_rank.setdefault(rank, {})[field_name] = times_s.get(rank, 0.0)
    return by_rank
