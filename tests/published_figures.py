"""Published figures of the reference study, and predictions for the same points."""

import csv
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from scipy.stats import spearmanr

from tests.points import simulated_plan
from tests.synthetic import CONFIG
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.point import Point
from triplepoint.simulate.artefacts.simulate_run import job_of
from triplepoint.simulate.costs import slowest_gpu_factor
from triplepoint.simulate.heat import nodes
from triplepoint.simulate.heat.devices import equal_devices
from triplepoint.simulate.heat.known import mean_sigma_k
from triplepoint.simulate.heat.parameters import read_airflow
from triplepoint.simulate.heat.warm import Warm, warm_up
from triplepoint.simulate.power.load import Training
from triplepoint.simulate.predict.power import predict_power
from triplepoint.simulate.predict.prediction import Prediction, predict_job, read_calibrations
from triplepoint.simulate.step import simulate_step

FIGURES = Path("config/published/figures")
CLUSTER = "h200x32"
SLOTS_LEARNED = (1, 2)
"""Nodes of figure 17 to which chassis parameters may be fitted. Node 3 is for validation."""


def read(name: str) -> list[dict[str, str]]:
    """Return the rows of a figure."""
    with (FIGURES / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def number(text: str) -> float:
    """Return the number in a cell, NaN if the cell is empty."""
    return float(text) if text else float("nan")


def layout_of(name: str) -> dict[str, Any]:
    """Return the settings of a layout's name, such as `TP8-PP4` or `TP8-FSDP`."""
    tp, other = name.split("-")
    is_fsdp = other == "FSDP"
    return {
        "tp": int(tp.removeprefix("TP")),
        "pp": 1 if is_fsdp else int(other.removeprefix("PP")),
    }


@cache
def points() -> tuple[Point, ...]:
    """Return the simulated training points of the published grid on H200 that can run."""
    entries = simulated_plan("h200x32").valid
    simulated = [entry.planned.point for entry in entries if entry.planned.point.engine == "simulated"]
    return tuple(point for point in simulated if point.cluster.name == CLUSTER and point.task == "pretrain")


def point_of(model: str, layout: str, micro_batch_size: int, recompute: str) -> Point:
    """Return the point of the grid with these settings, without overlap.

    Args:
        model: Name of the model.
        layout: Name of the layout, such as `TP8-PP4`.
        micro_batch_size: Micro-batch size.
        recompute: Recomputation.
    """
    settings = layout_of(layout)
    for point in points():
        if (
            point.model.name == model
            and point.micro_batch_size == micro_batch_size
            and point.recompute == recompute
            and not point.overlap
            and all(getattr(point.layout, key) == value for key, value in settings.items())
        ):
            return point
    raise LookupError(f"{model} {layout} micro-batch {micro_batch_size} {recompute}")


@cache
def prediction_of(point: Point) -> Prediction:
    """Return the prediction of a point on the published cluster."""
    catalogue = Catalogue(CONFIG)
    return predict_job(job_of(point, catalogue), None, CONFIG, catalogue.cluster(CLUSTER))


@cache
def warm_of(point: Point) -> Warm[Any]:
    """Return the job of a point in thermal steady state."""
    catalogue = Catalogue(CONFIG)
    job, cluster = job_of(point, catalogue), catalogue.cluster(CLUSTER)
    constants = read_calibrations(CONFIG)[0].constants(job)

    def simulate(factor: dict[int, float]) -> Training[Any]:
        return Training(simulate_step(job, constants, CONFIG, factor))

    return warm_up(simulate({}), simulate, cluster, CONFIG)


@dataclass(frozen=True)
class Row:
    """A point of a figure: a published and a predicted value of each quantity."""

    name: str
    published: dict[str, float]
    predicted: dict[str, float]


def kernel_rows() -> Iterator[Row]:
    """Yield the points of figure 10 that ran: kernel time of a step in s, mean over stages.

    A median rank computes for less time than the slowest rank, and waits for it in collectives. Receives and
    all-reduces take the rest of the step. For FSDP only the total is compared, because the wait of a rank in
    all-reduces depends on the speed of its gathers. The study does not state the stage: its all-reduces are about
    those of the last stage in figure 3, its receives about those of a middle stage.
    """
    for cells in read("kernel_time_h200_gpt3"):
        if cells["compute_s"] == "OOM":
            continue
        layout, recompute = cells["parallelism"], "full" if cells["recompute"] == "on" else "none"
        comm_s = {name: number(cells[f"{name}_s"]) for name in ("allgather", "reducescatter", "sendrecv", "allreduce")}
        published = {
            "computation": number(cells["compute_s"]) + number(cells["memelem_other_s"]),
            "tensor parallel": comm_s["allgather"] + comm_s["reducescatter"],
            "sends and waiting": comm_s["sendrecv"] + comm_s["allreduce"],
            "all": number(cells["total_s"]),
        }
        predicted = kernel_seconds(point_of("gpt3-175b", layout, 1, recompute))
        if layout.endswith("FSDP"):
            published, predicted = ({"all": seconds["all"]} for seconds in (published, predicted))
        yield Row(f"{layout} {cells['recompute']}", published, predicted)


def kernel_seconds(point: Point) -> dict[str, float]:
    """Return the predicted kernel time of a step at the clocks of its GPUs, mean over stages. Unit: s."""
    step = warm_of(point).load.ran
    job, durations = step.job, step.timeline.durations
    passes = [durations.forward, durations.backward_input, durations.backward_weight]
    host_s, compute_s, comm_s = (
        job.num_microbatches * sum(float(times.mean(axis=0).sum()) for times in pass_times)
        for pass_times in (
            [part.compute * part.host_share for part in passes],
            [part.compute for part in passes],
            [part.comm for part in passes],
        )
    )
    kernel_s = compute_s - host_s + float(durations.optimizer.total.mean())
    waits_s = kernel_s * (1 - 1 / slowest_gpu_factor(job.num_gpus))
    total_s = step.time_s - host_s
    return {
        "computation": kernel_s - waits_s,
        "tensor parallel": comm_s + waits_s * (job.layout.tp > 1),
        "sends and waiting": total_s - kernel_s - comm_s + waits_s * (job.layout.tp == 1),
        "all": total_s,
    }


def stage_rows() -> Iterator[Row]:
    """Yield the pipelines of figure 3: time in SendRecv of the median stage, largest time in AllReduce. Unit: s.

    A stage waits for other stages in receives until its last pass, then in the all-reduce of the gradient norm.
    """
    for cells in read("kernel_time_per_stage_h200_gpt3"):
        layout = cells["parallelism"]
        if layout.endswith("FSDP"):
            continue
        timeline = warm_of(point_of("gpt3-175b", layout, 1, "full")).load.ran.timeline
        start, end, arrival = (times[:, :, 0] for times in (timeline.start, timeline.end, timeline.arrival))
        received = (start[:, 1:] - end[:, :-1]).sum(axis=1) + start[:, 0] + arrival[:, -1] - end[:, -1]
        reduced = timeline.optimizer_start - timeline.final_sync[:, 1]
        yield Row(
            layout,
            {
                "SendRecv, median stage": number(cells["sendrecv_s_median"]),
                "AllReduce, last stage": number(cells["allreduce_s_range"].split("-")[1]),
            },
            {
                "SendRecv, median stage": float(np.median(received)),
                "AllReduce, last stage": float(reduced.max()),
            },
        )


def microbatch_rows() -> Iterator[Row]:
    """Yield the points of figure 13 that ran. Published step times are relative to that of the first layout."""
    for cells in read("microbatch_h200_gpt3"):
        layout = cells["config"].removeprefix("GPT3-175B ")
        if not cells["power_avg_w"]:
            continue
        point = point_of("gpt3-175b", layout, int(cells["mbs"]), "full")
        prediction, trace = prediction_of(point), warm_of(point).trace
        efficiency = statistics.fmean(number(cells[f"norm_eff_{panel}"]) for panel in "PF")
        power_w = number(cells["power_avg_w"])
        step = (efficiency * power_w) ** -0.5 if efficiency > 0.02 else float("nan")
        yield Row(
            f"{layout} mb{cells['mbs']}",
            {
                "mean power": power_w,
                "peak power": number(cells["power_peak_w"]),
                "clock": 1000.0 * number(cells["sm_ghz_avg"]),
                "mean temperature": number(cells["temp_avg_c"]),
                "highest temperature": number(cells["temp_peak_c"]),
                "step": step,
            },
            {
                "mean power": prediction.power.gpu_power_w,
                "peak power": prediction.power.gpu_power_peak_w,
                "clock": float(trace.clock_mhz.mean()),
                "mean temperature": float(trace.temp_c.mean()),
                "highest temperature": prediction.power.gpu_temp_max_c,
                "step": prediction.step_time_s,
            },
        )


def relative_steps(rows: Sequence[Row]) -> list[tuple[str, float, float]]:
    """Return name, published and predicted step time of pipelined points, each time over its median."""
    pipelined = [row for row in rows if np.isfinite(row.published["step"])]
    published_median = statistics.median(row.published["step"] for row in pipelined)
    predicted_median = statistics.median(row.predicted["step"] for row in pipelined)
    return [
        (row.name, row.published["step"] / published_median, row.predicted["step"] / predicted_median)
        for row in pipelined
    ]


def rank_correlation(steps: Sequence[tuple[str, float, float]]) -> float:
    """Return Spearman's rank correlation of published and predicted step times."""
    _, published, predicted = zip(*steps, strict=True)
    return float(spearmanr(published, predicted).statistic)


@dataclass(frozen=True)
class Slot:
    """A GPU of figure 17.

    Attributes:
        layout: Name of the layout.
        node: Number of the node, from 1.
        gpu: Number of the GPU in its node.
        published_c: Published mean temperature. Unit: degC.
        predicted_c: Predicted mean temperature. Unit: degC.
        sigma_k: Standard deviation of the prediction. Unit: K.
    """

    layout: str
    node: int
    gpu: int
    published_c: float
    predicted_c: float
    sigma_k: float

    @property
    def is_inside(self) -> bool:
        """Whether the published temperature lies in the 90 % interval of the prediction."""
        return abs(self.published_c - self.predicted_c) <= 1.645 * self.sigma_k


def floor_k(slots: Sequence[Slot], learned: Sequence[int]) -> float:
    """Return the mean error on validation nodes if each row of GPUs had its mean temperature on the nodes learned from.

    Such a prediction is exact in power, inlet and chassis. Its error comes from differences between parts in the
    contact to their heat sinks, which other nodes say nothing about. Unit: K.

    Args:
        slots: GPUs of all nodes.
        learned: Nodes learned from. If empty, each row has its mean temperature on the validation node itself.
    """
    rows = read_airflow("hgx-8-fans", CONFIG).rows

    def is_in_same_row(slot: Slot, other: Slot) -> bool:
        row = next(row for row in rows if slot.gpu in row)
        return other.layout == slot.layout and other.gpu in row and other.node in (learned or (slot.node,))

    judged = [slot for slot in slots if slot.node not in SLOTS_LEARNED]
    means = [statistics.fmean(other.published_c for other in slots if is_in_same_row(slot, other)) for slot in judged]
    return statistics.fmean(abs(slot.published_c - mean) for slot, mean in zip(judged, means, strict=True))


def slot_rows() -> Iterator[Slot]:
    """Yield the GPUs of nodes 1 to 3 of figure 17, which ran without recomputation.

    Predictions have no manufacturing spread.
    """
    with mock.patch.object(nodes, "draw_devices", lambda heat, power, shape, *_: equal_devices(*shape)):
        yield from _slot_rows()


def _slot_rows() -> Iterator[Slot]:
    for cells in read("temperature_throttling_h200_gpt3"):
        if cells["metric"] != "avg_gpu_temperature_c":
            continue
        tp, pp = cells["config"].removeprefix("G175_T").split("P")
        point = point_of("gpt3-175b", f"TP{tp}-PP{pp}", 1, "none")
        node, gpu = int(cells["node"]), int(cells["local_gpu"])
        warm = warm_of.__wrapped__(point)
        mean_c, sigma_k = warm.trace.temp_c.mean(axis=0)[node - 1, gpu], _sigma_k(warm, node - 1, gpu)
        yield Slot(f"TP{tp}-PP{pp}", node, gpu, number(cells["value"]), float(mean_c), sigma_k)


def _sigma_k(warm: Warm[Any], node: int, gpu: int) -> float:
    """Return the standard deviation of a GPU's temperature due to inlet, chassis, manufacturing and power. Unit: K."""
    machine, power_w = warm.machine, warm.trace.power_w.mean(axis=0)
    weight = np.zeros(machine.shape)
    weight[node, gpu] = 1.0
    part_k = machine.heat.resistance_spread.value * machine.cooled_by.die_resistance.value * power_w[node, gpu]
    power = predict_power(warm, (warm.load.length_s, warm.load.length_s), CONFIG)
    relative_power_sigma = (power.gpu_power_w - power.gpu_power_lo_w) / 1.645 / power.gpu_power_w
    rise_k = float(warm.trace.temp_c.mean(axis=0)[node, gpu] - machine.inlet_c[node])
    return math.hypot(mean_sigma_k(machine, power_w, weight), part_k, rise_k * relative_power_sigma)
