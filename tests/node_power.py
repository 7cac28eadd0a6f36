"""Published power of whole nodes that train, beside what is predicted of it. README: tests/data/node_power."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from triplepoint.published.rows import read_row, settle
from triplepoint.published.table import read_table
from triplepoint.simulate.calibration import Calibration
from triplepoint.simulate.costs import Constants
from triplepoint.simulate.heat.nodes import is_known, node_power_of
from triplepoint.simulate.heat.warm import warm_up_anywhere
from triplepoint.simulate.job import Job
from triplepoint.simulate.power.gpu import Activity, clock_at_limit
from triplepoint.simulate.power.load import Training
from triplepoint.simulate.power.node import board_power_w, node_power_w
from triplepoint.simulate.power.parameters import Estimate, NodePowerConfig, read_power
from triplepoint.simulate.power.work import FP8_ENERGY
from triplepoint.simulate.predict.power import PowerPrediction, predict_power
from triplepoint.simulate.step import Step, simulate_step

CONFIG = Path("config")
FOLDER = Path(__file__).parent / "data" / "node_power"
_NUM_NICS, _TURNS = 8, 12
_OF_CLOCK = 0.9
"""Share of what its clock allows that a large bf16 product reaches, as `config/power/` assumes it."""
_FP8_OF_BF16 = 1660.83 / 853.29
"""FP8 over bf16 where power holds neither: github xzwgit/gpu-flops-bench, H200 NVL."""
_NO_FANS = Estimate(value=0.0, unit="W", sigma=0.0, source="nodes in a bath of oil have none")


@dataclass(frozen=True)
class Judged:
    """Power of a node, measured and predicted, on one meter.

    Attributes:
        id: Of the row.
        meter: `dc` in front of the boards, `ac` at the plug.
        measured_w: Measured power.
        at_predicted_w: Predicted, with the predicted time of a step.
        at_measured_w: Predicted, with the measured time of a step.
        gpu_w: Power of a GPU that `at_measured_w` has.
        step_error: Predicted time of a step over the measured one, less 1.
    """

    id: str
    meter: str
    measured_w: float
    at_predicted_w: float
    at_measured_w: float
    gpu_w: float
    step_error: float

    @property
    def error(self) -> float:
        """Error with the predicted time of a step."""
        return self.at_predicted_w / self.measured_w - 1

    @property
    def error_at_measured(self) -> float:
        """Error with the measured time of a step."""
        return self.at_measured_w / self.measured_w - 1


@lru_cache(maxsize=1)
def judge_nodes() -> tuple[Judged, ...]:
    """Return all rows of GPUs whose power is modelled, a row for every meter."""
    found = []
    calibration = Calibration.load(CONFIG)
    for number, cells in enumerate(read_table(FOLDER / "training.csv"), 1):
        row = read_row(cells, number, CONFIG)
        assert row.job is not None, row.reason
        job, step_s = settle(row), float(cells["step_time_s"])
        predicted = simulate_step(job, calibration.constants(job), CONFIG)
        powers = [_power(step) for step in (predicted, step_of(job, step_s))]
        if not powers[0].gpu_power_w > 0:
            continue
        node = node_power_of(job.gpu, CONFIG)
        if cells["node"] == "immersed":
            node = node.model_copy(update={"fan_idle": _NO_FANS, "fan_full": _NO_FANS})
        for meter in ("dc", "ac"):
            if cells[f"{meter}_power_w"]:
                watts = [_node(node, power, meter) for power in powers]
                measured = float(cells[f"{meter}_power_w"])
                error = predicted.time_s / step_s - 1
                found.append(Judged(row.id, meter, measured, *watts, powers[1].gpu_power_w, error))
    return tuple(found)


def step_of(job: Job, step_s: float) -> Step:
    """Return a job's step with the factor on kernels at which it takes the given time. Unit: s."""
    factor = 1.2
    for _ in range(_TURNS):
        factor *= step_s / simulate_step(job, Constants(factor=factor), CONFIG).time_s
    return simulate_step(job, Constants(factor=factor), CONFIG)


def product_tflops(gpu: str, limit_w: float, what: str = "bf16", randomness: float = 1.0) -> float:
    """Return what a large product reaches at a power limit, die at 60 degC. Unit: TFLOP/s.

    Args:
        gpu: H100 or H200: 132 SMs of 4096 bf16 FLOP a clock.
        limit_w: Power limit. Unit: W.
        what: bf16 or fp8.
        randomness: Of operands: 1 random bits, 0 zeros.
    """
    power = read_power(gpu, CONFIG)
    highest = power.clocks.max_clock.value
    rate = _OF_CLOCK * 132 * 4096 * highest * 1e6 * (_FP8_OF_BF16 if what == "fp8" else 1.0)
    tensor = rate / 989.4e12 * (FP8_ENERGY if what == "fp8" else 1.0)
    busy = Activity(1.0, tensor, 0.0, 0.15, randomness=randomness, clock_bound=1.0)
    return float(rate * clock_at_limit(power, busy, limit_w, 60.0) / highest / 1e12)


def _power(step: Step) -> PowerPrediction:
    if not is_known(step.job.gpu, CONFIG):
        return PowerPrediction()
    return predict_power(warm_up_anywhere(Training(step), CONFIG), (step.time_s, step.time_s), CONFIG)


def _node(node: NodePowerConfig, power: PowerPrediction, meter: str) -> float:
    gpus = np.full(8, power.gpu_power_w)
    at = board_power_w if meter == "dc" else node_power_w
    return float(at(node, gpus, 1.0, _NUM_NICS))
