"""Rows of tables `points`, `gpus` and `step_energy`, and the energy columns of table `phases`."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from triplepoint import metrics
from triplepoint.aggregate.machines import Machines
from triplepoint.aggregate.phases import Spans, phase_energy, read_pattern, read_spans
from triplepoint.aggregate.power import Power
from triplepoint.aggregate.samples import DeviceKey
from triplepoint.aggregate.steps import RunSteps, explain
from triplepoint.config.gpu import GpuConfig
from triplepoint.config.mesh import RankMesh
from triplepoint.config.plan import PlanEntry, PlannedRun
from triplepoint.config.point import SETTINGS, Point, settings_of
from triplepoint.errors import UserError
from triplepoint.flops import model_flops_per_token, peak_flops
from triplepoint.manifest import Device, Manifest, Node
from triplepoint.status import Status
from triplepoint.units import NS_PER_S

_TIMES = ("step_time", "time_to_first_token", "time_per_output_token")
"""Times with intervals in simulated runs."""


def unfinished_row(entry: PlanEntry, manifest: Manifest | None) -> dict[str, Any]:
    """Return the row of a point without step times: invalid, or a result such as out of memory.

    Args:
        entry: The planned point.
        manifest: Manifest of its launch; None if the point is invalid.
    """
    row = _planned(entry)
    if manifest is None:
        origin = "simulated" if entry.planned.point.engine == "simulated" else "measured"
        return row | {"status": Status.INVALID, "reason": entry.invalid_because, "origin": origin}
    memory = {
        name: manifest.facts.get(name) for name in ("peak_memory_bytes", "reserved_memory_bytes", "memory_undecided")
    }
    return row | _launched(manifest) | {"reason": explain(manifest)} | memory


def finished_row(
    entry: PlanEntry, manifest: Manifest, steps: RunSteps, power: Power, gpu: GpuConfig | None
) -> dict[str, Any]:
    """Return the row of a finished run, without the columns from traces."""
    point = entry.planned.point
    times = _spread("step_time", steps.step_time_s) if steps.has_steps else {}
    throughput = metrics.tokens_per_s(steps.num_tokens, times["step_time_s"]) if times and steps.num_tokens else None
    flops = model_flops_per_token(point) if point.knows("model", "sequence_length") else None
    memory = [peak for peak in steps.peak_memory_bytes.values() if peak is not None]
    row = (
        _planned(entry)
        | _launched(manifest)
        | {
            "num_measured_steps": len(steps.measured) if steps.has_steps else None,
            "num_interrupted_steps": len(manifest.interrupted_steps) or None,
            "step_notes": "; ".join(manifest.step_notes) or None,
            **times,
            **_model_intervals(manifest),
            "tokens_per_s": throughput,
            "tokens_per_s_per_gpu": throughput and throughput / point.num_gpus,
            "flops_per_token": flops,
            "mfu": _mfu(entry.run, point, gpu, throughput, flops),
            **_limits(gpu),
            "loss_first": steps.losses[0],
            "loss_last": steps.losses[1],
            "peak_memory_bytes": max(memory, default=None),
            "reserved_memory_bytes": max(filter(None, steps.reserved_memory_bytes.values()), default=None),
            **_token_times(point, steps),
        }
        | _power_columns(power, throughput, point, times.get("step_time_s"))
        | _model_columns(manifest)
    )
    return row | _per_gpu_and_token(row, point.num_gpus, steps.num_tokens)


def _limits(gpu: GpuConfig | None) -> dict[str, float]:
    """Return power limit and, where published, throttling temperature of one GPU, which figures draw as lines."""
    if gpu is None:
        return {}
    temperature = {"gpu_throttle_temp_c": gpu.slowdown_temperature.value} if gpu.slowdown_temperature else {}
    return {"gpu_power_limit_w": gpu.package_power_limit.value / gpu.gpus_per_package, **temperature}


def _per_gpu_and_token(row: Mapping[str, Any], num_gpus: int, num_tokens: int | None) -> dict[str, Any]:
    """Return throughput, power of a GPU and energy per token at the percentiles and interval ends of time and power.

    Energy takes both at the same end, as if they were fully correlated, so its model interval covers more than 90 %.
    """
    columns: dict[str, Any] = {}
    if (power_w := row.get("job_gpu_power_w")) is not None:
        columns["gpu_power_w"] = power_w / num_gpus
    for end, opposite in (("p10", "p90"), ("p90", "p10"), ("lo", "hi"), ("hi", "lo")):
        if num_tokens and (opposite_s := row.get(f"step_time_{opposite}_s")):
            columns[f"tokens_per_s_{end}"] = num_tokens / opposite_s
            columns[f"tokens_per_s_per_gpu_{end}"] = num_tokens / num_gpus / opposite_s
        if (power_w := row.get(f"job_gpu_power_{end}_w")) is None:
            continue
        columns[f"gpu_power_{end}_w"] = power_w / num_gpus
        if num_tokens and (time_s := row.get(f"step_time_{end}_s")) is not None:
            columns[f"gpu_energy_per_token_{end}_j"] = power_w * time_s / num_tokens
    return columns


def _token_times(point: Point, steps: RunSteps) -> dict[str, Any]:
    """Return the time to the first token and per further token, over measured batches; empty in training."""
    if point.inference is None or steps.first_token_s is None:
        return {}
    columns = _spread("time_to_first_token", steps.first_token_s)
    if point.inference.output_tokens > 1:
        per_token_s = (steps.step_time_s - steps.first_token_s) / (point.inference.output_tokens - 1)
        columns |= _spread("time_per_output_token", per_token_s)
    return columns


def _spread(name: str, times_s: np.ndarray) -> dict[str, float]:
    """Return median, 10th and 90th percentile of times, by column."""
    spread = metrics.spread(times_s)
    return {f"{name}_s": spread.median, f"{name}_p10_s": spread.p10, f"{name}_p90_s": spread.p90}


_MODEL_COLUMNS = (
    "gpu_power_peak_w",
    "sm_clock_busy_mhz",
    *(f"lost_to_{cause}_fraction" for cause in ("power_limit", "heat", "brake")),
)


def _model_columns(manifest: Manifest) -> dict[str, Any]:
    """Return columns that a simulated run takes from its model of kernels, because samples are too coarse for them."""
    if manifest.origin != "simulated":
        return {}
    return {name: manifest.facts.get(name) for name in _MODEL_COLUMNS}


def _model_intervals(manifest: Manifest) -> dict[str, Any]:
    """Return the model's 90 % intervals of times, power, temperatures and clock of a simulated run, by column."""
    if manifest.origin != "simulated":
        return {}
    columns = {f"{time}_{end}_s": manifest.facts.get(f"{time}_{end}_s") for time in _TIMES for end in ("lo", "hi")}
    num_gpus = sum(len(node.devices) for node in manifest.nodes)
    for end in ("lo", "hi"):
        power_w = manifest.facts.get(f"gpu_power_{end}_w")
        columns[f"job_gpu_power_{end}_w"] = power_w * num_gpus if isinstance(power_w, float) else None
        for name in (f"gpu_temp_{end}_c", f"gpu_temp_max_{end}_c", f"sm_clock_{end}_mhz", f"gpu_power_peak_{end}_w"):
            columns[name] = manifest.facts.get(name)
    return columns


def gpu_rows(
    planned: PlannedRun, manifest: Manifest, steps: RunSteps, power: Power, machines: Machines | None
) -> list[dict[str, Any]]:
    """Return one row per rank, in numeric order; `machines` is None on cpu."""
    rows, mesh = [], RankMesh(planned.point.layout)
    for node in manifest.nodes:
        for device in node.devices:
            rows.append(
                {
                    "run": planned.run,
                    "rank": device.rank,
                    "stage": mesh.place(device.rank).pp if planned.point.knows("pp") else None,
                    "node": node.node,
                    "host": node.host,
                    "device": device.device,
                    "slot": device.slot,
                    "uuid": device.uuid,
                    **(
                        _spread("step_time", steps.rank_time_s[device.rank])
                        if steps.has_steps and device.rank in steps.marked_ranks
                        else {}
                    ),
                    "peak_memory_bytes": steps.peak_memory_bytes[device.rank],
                    "reserved_memory_bytes": steps.reserved_memory_bytes[device.rank],
                    **_device_columns(power, (node.node, device.device)),
                    **(machines.place_of(int(device.device.removeprefix("gpu"))) if machines else {}),
                }
            )
            if manifest.origin == "simulated":
                rows[-1].pop("gpu_power_peak_w", None)
    return sorted(rows, key=lambda row: int(row["rank"]))


def _device_columns(power: Power, key: DeviceKey) -> dict[str, Any]:
    """Return power, heat and throttling of one device, by column of `gpus`."""
    columns: dict[str, Any] = power.device_heat.get(key, {}) | power.device_throttle.get(key, {})
    if energy := power.device_energy.get(key):
        columns |= {"gpu_power_w": energy.mean_w, "gpu_power_source": energy.source}
    return columns


def _planned(entry: PlanEntry) -> dict[str, Any]:
    """Return the columns of `points` that describe the configuration."""
    point = entry.planned.point
    values = settings_of(point)
    return {name: values[name] for name, setting in SETTINGS.items() if setting.has_column} | {
        "run": entry.run,
        "studies": list(entry.studies),
        "model": point.model.name,
        "cluster": point.cluster.name,
        "gpu": point.cluster.gpu,
        "device_type": point.cluster.device,
        "num_gpus": point.num_gpus,
        "num_microbatches": (
            point.num_microbatches if point.knows("global_batch_size", "micro_batch_size", "dp") else None
        ),
        "repeat": point.repeat,
    }


def _launched(manifest: Manifest) -> dict[str, Any]:
    """Return the columns of `points` about outcome and provenance of a launch."""
    return {
        "status": manifest.status,
        "origin": manifest.origin,
        "engine": manifest.engine,
        "host": ",".join(node.host for node in manifest.nodes) or None,
        "git_commit": manifest.git_commit,
        "torch_version": manifest.versions.get("torch"),
        "stack": manifest.facts.get("stack"),
    }


def _mfu(run: str, point: Point, gpu: GpuConfig | None, throughput: float | None, flops: float | None) -> float | None:
    """Return the MFU; None where it is not defined. Raises `UserError` if it is above 1."""
    peak = None if gpu is None or not point.knows("precision") else peak_flops(gpu, point.precision)
    if gpu is None or peak is None or throughput is None or flops is None:
        return None
    mfu = metrics.mfu(throughput, flops, point.num_gpus, peak)
    if mfu > 1:
        raise UserError(
            f"run {run}: model FLOP/s are {mfu:.4g} times the {point.precision} peak of {gpu.name}, more than is "
            f"possible; check config/gpus/{gpu.name}.yaml and the cluster of the study"
        )
    return mfu


def _power_columns(power: Power, throughput: float | None, point: Point, step_time_s: float | None) -> dict[str, Any]:
    """Return the columns of `points` from telemetry: power, energy per token, heat and utilisation."""
    columns: dict[str, Any] = {"power_absent": power.absent, "gpu_power_source": power.gpu_source}
    columns |= power.heat | power.plug
    for name, mean_w, spread in (
        ("gpu", power.gpu_power_w, power.gpu_spread_w),
        ("host", power.host_power_w, power.host_spread_w),
    ):
        if mean_w is not None:
            columns[f"job_{name}_power_w"] = mean_w
            if throughput is not None:
                columns[f"{name}_energy_per_token_j"] = metrics.energy_per_token_j(mean_w, throughput)
        if spread is not None:
            columns |= {f"job_{name}_power_p10_w": spread.p10, f"job_{name}_power_p90_w": spread.p90}
    if power.gpu_power_w and step_time_s is not None and point.knows("global_batch_size"):
        columns["job_gpu_samples_per_s_mj"] = metrics.samples_per_s_mj(
            point.global_batch_size, step_time_s, power.gpu_power_w
        )
    for name, samples in (("cpu", power.cpu_utilisation), ("gpu", power.gpu_utilisation)):
        if samples.size:
            p10, p90 = (float(value) for value in np.percentile(samples, [10, 90]))
            columns[f"{name}_utilisation"] = float(samples.mean())
            columns |= {f"{name}_utilisation_p10": p10, f"{name}_utilisation_p90": p90}
    return columns


def step_energy_rows(run: str, manifest: Manifest, steps: RunSteps, power: Power) -> list[dict[str, Any]]:
    """Return the rows of table `step_energy`, for GPUs with power and steps with samples."""
    rows: list[dict[str, Any]] = []
    if not steps.has_steps:
        return rows
    for node, device in _ranks(manifest):
        energy = power.device_energy.get((node.node, device.device))
        if energy is None:
            continue
        length_s = np.diff(steps.windows_ns[node.node], axis=1)[:, 0] / NS_PER_S
        for step, time_s, power_w in zip(steps.measured, length_s.tolist(), energy.power_w.tolist(), strict=True):
            if np.isfinite(power_w):
                row = {"run": run, "rank": device.rank, "step": step, "step_time_s": time_s, "source": energy.source}
                rows.append(row | {"gpu_power_w": power_w, "gpu_energy_j": power_w * time_s})
    return sorted(rows, key=lambda row: (row["rank"], row["step"]))


def add_phase_energy(
    phases: list[dict[str, Any]],
    manifest: Manifest,
    steps: RunSteps,
    power: Power,
    timeline: pa.Table,
    gpu: GpuConfig | None,
) -> None:
    """Add energy and power to the rows of table `phases`, for ranks whose GPU has an energy counter of its own.

    Args:
        phases: Rows of the table, changed in place.
        manifest: Manifest of the run.
        steps: Steps of the run.
        power: Power from the telemetry.
        timeline: Table `timeline` of the run, with the first profiled step of each rank.
        gpu: GPU type; None on cpu. Dies that share a counter get no energy.
    """
    if gpu is None or gpu.gpus_per_package > 1 or steps.profiled_time_s is None:
        return
    if manifest.interrupted_steps:
        return  # the model needs consecutive steps
    spans, rank = read_spans(timeline), timeline["rank"].to_numpy()
    for node, device in _ranks(manifest):
        energy = power.device_energy.get((node.node, device.device))
        rank_rows = [row for row in phases if row["rank"] == device.rank]
        if energy is None or energy.counter is None or not rank_rows:
            continue
        exposed_s = {(row["phase"], row["category"]): row["exposed_s"] for row in rank_rows}
        rank_spans = Spans(*(values[rank == device.rank] for values in spans))
        pattern = read_pattern(rank_spans, steps.profiled_time_s * NS_PER_S, exposed_s)
        windows_s = manifest.on_first_clock(node, steps.windows_ns[node.node]) / NS_PER_S
        cells = phase_energy(energy.counter, windows_s, pattern, gpu.package_power_limit.value)
        for row in rank_rows:
            if cell := cells.get((row["phase"], row["category"])):
                row |= {"gpu_energy_j": cell.energy_j, "gpu_power_w": cell.power_w, "gpu_power_sigma_w": cell.error_w}


def _ranks(manifest: Manifest) -> Iterable[tuple[Node, Device]]:
    return ((node, device) for node in manifest.nodes for device in node.devices)
