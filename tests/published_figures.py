"""The published study's figures beside what is predicted for the same points."""

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

from tests.synthetic import CONFIG
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.point import Point
from triplepoint.plan import select
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
"""Nodes of figure 17 that chassis parameters may be learned from; node 3 judges them."""


def read(name: str) -> list[dict[str, str]]:
    """Return the rows of a figure."""
    with (FIGURES / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def number(text: str) -> float:
    """Return the number in a cell; NaN for an empty one."""
    return float(text) if text else float("nan")


def layout_of(words: str) -> dict[str, Any]:
    """Return the settings a name such as `TP8-PP4` or `TP8-FSDP` states."""
    tp, other = words.split("-")
    is_fsdp = other == "FSDP"
    return {
        "tp": int(tp.removeprefix("TP")),
        "pp": 1 if is_fsdp else int(other.removeprefix("PP")),
    }


@cache
def points() -> tuple[Point, ...]:
    """Return the points of the published grid that can run, on H200, simulated."""
    entries = select(CONFIG, None, ["cpu-local"], ["h200x32"]).valid
    found = [entry.planned.point for entry in entries if entry.planned.point.engine == "simulated"]
    return tuple(point for point in found if point.cluster.name == CLUSTER and point.task == "pretrain")


def point_of(model: str, words: str, micro_batch_size: int, recompute: str) -> Point:
    """Return the point of the grid with a layout, without overlap."""
    wanted = layout_of(words)
    for point in points():
        if (
            point.model.name == model
            and point.micro_batch_size == micro_batch_size
            and point.recompute == recompute
            and not point.overlap
            and all(getattr(point.layout, key) == value for key, value in wanted.items())
        ):
            return point
    raise LookupError(f"{model} {words} micro-batch {micro_batch_size} {recompute}")


@cache
def prediction_of(point: Point) -> Prediction:
    """Return what is predicted of a point on the published cluster."""
    catalogue = Catalogue(CONFIG)
    return predict_job(job_of(point, catalogue), None, CONFIG, catalogue.cluster(CLUSTER))


@cache
def warm_of(point: Point) -> Warm[Any]:
    """Return the job of a point, warm."""
    catalogue = Catalogue(CONFIG)
    job, cluster = job_of(point, catalogue), catalogue.cluster(CLUSTER)
    constants = read_calibrations(CONFIG)[0].constants(job)

    def once_more(factor: dict[int, float]) -> Training[Any]:
        return Training(simulate_step(job, constants, CONFIG, factor))

    return warm_up(once_more({}), once_more, cluster, CONFIG)


@dataclass(frozen=True)
class Row:
    """A point of a figure: a published and a predicted value of each quantity."""

    name: str
    published: dict[str, float]
    predicted: dict[str, float]


def kernel_rows() -> Iterator[Row]:
    """Yield the points of figure 10 that ran: seconds of kernels of a step, mean over stages.

    A middling rank computes for less than the slowest, and waits for that one in collectives. Receives and all-reduces
    have all time that is left. Of FSDP all is one, since how long a rank waits in all-reduces depends on how fast its
    own gathers are. Which stage is published is not said: its all-reduces are about those of the last one in figure 3,
    its receives those of a stage in the middle.
    """
    for cells in read("kernel_time_h200_gpt3"):
        if cells["compute_s"] == "OOM":
            continue
        words, recompute = cells["parallelism"], "full" if cells["recompute"] == "on" else "none"
        spread = {name: number(cells[f"{name}_s"]) for name in ("allgather", "reducescatter", "sendrecv", "allreduce")}
        computed = number(cells["compute_s"]) + number(cells["memelem_other_s"])
        published = {
            "computation": computed,
            "tensor parallel": spread["allgather"] + spread["reducescatter"],
            "sends and waiting": spread["sendrecv"] + spread["allreduce"],
            "all": number(cells["total_s"]),
        }
        predicted = kernel_seconds(point_of("gpt3-175b", words, 1, recompute))
        if words.endswith("FSDP"):
            published, predicted = ({"all": seconds["all"]} for seconds in (published, predicted))
        yield Row(f"{words} {cells['recompute']}", published, predicted)


def kernel_seconds(point: Point) -> dict[str, float]:
    """Return predicted seconds of kernels of a step at the clocks of its GPUs, mean over stages."""
    step = warm_of(point).load.ran
    job, made_of = step.job, step.timeline.durations
    passes = [made_of.forward, made_of.backward_input, made_of.backward_weight]
    host, whole, comm = (
        job.num_microbatches * sum(float(times.mean(axis=0).sum()) for times in of_passes)
        for of_passes in (
            [one.compute * one.host_share for one in passes],
            [one.compute for one in passes],
            [one.comm for one in passes],
        )
    )
    computed = whole - host + float(made_of.optimizer.total.mean())
    waits = computed * (1 - 1 / slowest_gpu_factor(job.num_gpus))
    total = step.time_s - host
    return {
        "computation": computed - waits,
        "tensor parallel": comm + waits * (job.layout.tp > 1),
        "sends and waiting": total - computed - comm + waits * (job.layout.tp == 1),
        "all": total,
    }


def stage_rows() -> Iterator[Row]:
    """Yield the pipelines of figure 3: seconds in SendRecv of the median stage, in AllReduce of the stage with most.

    A stage that waits for another does so in a receive until its last pass, then in the all-reduce of the norm.
    """
    for cells in read("kernel_time_per_stage_h200_gpt3"):
        words = cells["parallelism"]
        if words.endswith("FSDP"):
            continue
        timeline = warm_of(point_of("gpt3-175b", words, 1, "full")).load.ran.timeline
        start, end, arrival = (times[:, :, 0] for times in (timeline.start, timeline.end, timeline.arrival))
        received = (start[:, 1:] - end[:, :-1]).sum(axis=1) + start[:, 0] + arrival[:, -1] - end[:, -1]
        reduced = timeline.optimizer_start - timeline.final_sync[:, 1]
        yield Row(
            words,
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
    """Yield the points of figure 13 that ran; time of a step is relative to the first layout's."""
    for cells in read("microbatch_h200_gpt3"):
        words = cells["config"].removeprefix("GPT3-175B ")
        if not cells["power_avg_w"]:
            continue
        point = point_of("gpt3-175b", words, int(cells["mbs"]), "full")
        found, trace = prediction_of(point), warm_of(point).trace
        efficiency = statistics.fmean(number(cells[f"norm_eff_{panel}"]) for panel in "PF")
        power_w = number(cells["power_avg_w"])
        step = (efficiency * power_w) ** -0.5 if efficiency > 0.02 else float("nan")
        yield Row(
            f"{words} mb{cells['mbs']}",
            {
                "mean power": power_w,
                "peak power": number(cells["power_peak_w"]),
                "clock": 1000.0 * number(cells["sm_ghz_avg"]),
                "mean temperature": number(cells["temp_avg_c"]),
                "highest temperature": number(cells["temp_peak_c"]),
                "step": step,
            },
            {
                "mean power": found.power.gpu_power_w,
                "peak power": found.power.gpu_power_peak_w,
                "clock": float(trace.clock_mhz.mean()),
                "mean temperature": float(trace.temp_c.mean()),
                "highest temperature": found.power.gpu_temp_max_c,
                "step": found.step_time_s,
            },
        )


def relative_steps(rows: Sequence[Row]) -> list[tuple[str, float, float]]:
    """Return published and predicted step times of pipelined points over their own medians."""
    kept = [row for row in rows if np.isfinite(row.published["step"])]
    middle = [statistics.median(getattr(row, which)["step"] for row in kept) for which in ("published", "predicted")]
    return [(row.name, row.published["step"] / middle[0], row.predicted["step"] / middle[1]) for row in kept]


def order_agrees(steps: Sequence[tuple[str, float, float]]) -> float:
    """Return Spearman's rank correlation of published and predicted step times."""
    return float(spearmanr([one for _, one, _ in steps], [one for _, _, one in steps]).statistic)


@dataclass(frozen=True)
class Slot:
    """A GPU of figure 17: published and predicted mean temperature, and the deviation it is known to. Unit: degC, K."""

    layout: str
    node: int
    gpu: int
    published_c: float
    predicted_c: float
    sigma_k: float

    @property
    def is_inside(self) -> bool:
        """Whether the published temperature is in the 90 % interval of the predicted one."""
        return abs(self.published_c - self.predicted_c) <= 1.645 * self.sigma_k


def floor_k(slots: Sequence[Slot], learned: Sequence[int]) -> float:
    """Return the mean error on nodes not learned from, if each row of a node were as warm as on the nodes learned from.

    So right in power, inlet and chassis; what is left are parts that touch their sinks differently, which no other
    node tells. With `learned` empty rows are as warm as they are on the node itself. Unit: K.
    """
    rows = read_airflow("hgx-8-fans", CONFIG).rows

    def is_alike(one: Slot, other: Slot) -> bool:
        row = next(row for row in rows if one.gpu in row)
        return other.layout == one.layout and other.gpu in row and other.node in (learned or (one.node,))

    judged = [slot for slot in slots if slot.node not in SLOTS_LEARNED]
    means = [statistics.fmean(other.published_c for other in slots if is_alike(one, other)) for one in judged]
    return statistics.fmean(abs(one.published_c - mean) for one, mean in zip(judged, means, strict=True))


def slot_rows() -> Iterator[Slot]:
    """Yield the GPUs of nodes 1 to 3 of figure 17, which ran without recomputation; predicted ones have equal parts."""
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
    """Return the standard deviation of the temperature of a GPU: of inlet and chassis, of its part and of power."""
    machine, power_w = warm.machine, warm.trace.power_w.mean(axis=0)
    weight = np.zeros(machine.shape)
    weight[node, gpu] = 1.0
    part_k = machine.heat.resistance_spread.value * machine.cooled_by.die_resistance.value * power_w[node, gpu]
    found = predict_power(warm, (warm.load.length_s, warm.load.length_s), CONFIG)
    power = (found.gpu_power_w - found.gpu_power_lo_w) / 1.645 / found.gpu_power_w
    rise_k = float(warm.trace.temp_c.mean(axis=0)[node, gpu] - machine.inlet_c[node])
    return math.hypot(mean_sigma_k(machine, power_w, weight), part_k, rise_k * power)
