"""Published and predicted power of whole nodes during training. README: tests/data/node_power."""

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
_NUM_NICS = 8
_NUM_ITERATIONS = 12
_GEMM_EFFICIENCY = 0.9
"""Share of the peak rate at its clock that a large bf16 GEMM reaches. Same assumption as in `config/power/`."""
_FP8_OF_BF16 = 1660.83 / 853.29
"""Rate of fp8 over that of bf16 without a power limit. Source: github xzwgit/gpu-flops-bench, H200 NVL."""
_NO_FANS = Estimate(value=0.0, unit="W", sigma=0.0, source="nodes in a bath of oil have none")


@dataclass(frozen=True)
class Judged:
    """Measured and predicted power of a node at one meter.

    Attributes:
        id: Identifier of the row.
        meter: `dc` in front of the boards, or `ac` at the plug.
        measured_w: Measured power. Unit: W.
        at_predicted_w: Predicted power with the predicted step time. Unit: W.
        at_measured_w: Predicted power with the measured step time. Unit: W.
        gpu_w: Predicted power of a GPU with the measured step time. Unit: W.
        step_error: Predicted over measured step time, minus 1.
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
        """Relative error with the predicted step time."""
        return self.at_predicted_w / self.measured_w - 1

    @property
    def error_at_measured(self) -> float:
        """Relative error with the measured step time."""
        return self.at_measured_w / self.measured_w - 1


@lru_cache(maxsize=1)
def judge_nodes() -> tuple[Judged, ...]:
    """Return measured and predicted power for all rows of GPUs with a power model, one element per meter."""
    judged = []
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
                watts = [_predict_node_w(node, power, meter) for power in powers]
                measured = float(cells[f"{meter}_power_w"])
                error = predicted.time_s / step_s - 1
                judged.append(Judged(row.id, meter, measured, *watts, powers[1].gpu_power_w, error))
    return tuple(judged)


def step_of(job: Job, step_s: float) -> Step:
    """Return the step of a job with the factor on kernel times with which it takes `step_s`. Unit: s."""
    factor = 1.2
    for _ in range(_NUM_ITERATIONS):
        factor *= step_s / simulate_step(job, Constants(factor=factor), CONFIG).time_s
    return simulate_step(job, Constants(factor=factor), CONFIG)


def product_tflops(gpu: str, limit_w: float, precision: str = "bf16", randomness: float = 1.0) -> float:
    """Return the rate of a large GEMM at a power limit, with the die at 60 degC. Unit: TFLOP/s.

    Args:
        gpu: H100 or H200, which have 132 SMs with 4096 bf16 FLOP per clock.
        limit_w: Power limit. Unit: W.
        precision: bf16 or fp8.
        randomness: Content of the operands: 1 for random bits, 0 for zeros.
    """
    power = read_power(gpu, CONFIG)
    max_mhz = power.clocks.max_clock.value
    rate = _GEMM_EFFICIENCY * 132 * 4096 * max_mhz * 1e6 * (_FP8_OF_BF16 if precision == "fp8" else 1.0)
    tensor = rate / 989.4e12 * (FP8_ENERGY if precision == "fp8" else 1.0)
    activity = Activity(1.0, tensor, 0.0, 0.15, randomness=randomness, clock_bound=1.0)
    return float(rate * clock_at_limit(power, activity, limit_w, 60.0) / max_mhz / 1e12)


def _power(step: Step) -> PowerPrediction:
    if not is_known(step.job.gpu, CONFIG):
        return PowerPrediction()
    return predict_power(warm_up_anywhere(Training(step), CONFIG), (step.time_s, step.time_s), CONFIG)


def _predict_node_w(node: NodePowerConfig, power: PowerPrediction, meter: str) -> float:
    predict = board_power_w if meter == "dc" else node_power_w
    return float(predict(node, np.full(8, power.gpu_power_w), 1.0, _NUM_NICS))
