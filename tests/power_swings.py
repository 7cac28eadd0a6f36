"""Power of 64 nodes over time, measured and simulated from their configuration. README: tests/data/power_swings."""

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from triplepoint import swings
from triplepoint.advise.swings.point import Evaluations, SimulatedPower, over_steps, simulate_power
from triplepoint.predictions import read_points
from triplepoint.simulate.power.over_time import Meter
from triplepoint.simulate.timeline.durations import Float

CONFIG, FOLDER = Path("config"), Path(__file__).parent / "data" / "power_swings"
CLUSTER = "h100x512"
PERIOD_S = 2.0
"""Of the grid that readings are moved to. Unit: s."""
METER = Meter(period_s=2.005, window_s=2.0)
"""Read about every 2.005 s; that a reading is the mean since the last one is assumed: the energy of a dip of half a
second is whole in its readings."""
BLOCK = 12
"""Steps between evaluations: 24,576 sequences (rules of MLPerf Training, GPT-3)."""
NUM_BLOCKS = 24
EVALUATED = 11_590_004 / 2048
"""Sequences of an evaluation: tokens (EVAL_SAMPLES of NVIDIA's implementation of GPT-3) over the length of one."""
STEP_S = 10.776
"""Measured time from one step's start to the next: median of the ends of steps.csv. Unit: s."""
FITTED_STEPS = 96
"""Steps whose energy the pause of the stack was fitted to."""
_BAND_HZ = (0.05, 0.249)


@dataclass(frozen=True)
class Found:
    """What meters show of a job.

    Attributes:
        node_power_w: Mean of a node. Unit: W.
        swing: 1st to 99th percentile of the job's power over its mean. Unit: 1.
        line: The strongest line.
        coherence: Of nodes at it.
        correlation: Mean over pairs of nodes.
        node_spread: Standard deviation of the mean power of nodes, over their mean. Unit: 1.
        ramps_w_per_s: Fastest rise and fall of the job. Unit: W/s.
    """

    node_power_w: float
    swing: float
    line: swings.Line
    coherence: float
    correlation: float
    node_spread: float
    ramps_w_per_s: tuple[float, float]


def find(nodes_w: Float, period_s: float = PERIOD_S) -> Found:
    """Return what meters show; readings on the grid, shape (num_readings, num_nodes). Unit: W."""
    job_w = nodes_w.sum(axis=1)
    whole, line = swings.swing(job_w, period_s), swings.strongest_line(job_w, period_s, *_BAND_HZ)
    return Found(
        whole.mean_w / nodes_w.shape[1],
        whole.fraction,
        line,
        swings.coherence(nodes_w, period_s, line.frequency_hz),
        swings.correlation(nodes_w),
        float(nodes_w.mean(axis=0).std() / nodes_w.mean()),
        (whole.ramp_up_w_per_s, whole.ramp_down_w_per_s),
    )


def measured(first_s: float = 0.0) -> Found:
    """Return what the public log shows, from a time on. Unit: s."""
    table = pq.read_table(FOLDER / "nodes.parquet")
    nodes_w = np.stack([table[name].to_numpy() for name in table.column_names[1:]], axis=1).astype(float)
    return find(nodes_w[table["t_s"].to_numpy() >= first_s])


def ends_of_steps_s() -> Float:
    """Return when the log has the ends of steps; shape (288,). Unit: s."""
    return np.loadtxt(FOLDER / "steps.csv", delimiter=",", skiprows=1)[:, 0]


def block_s() -> float:
    """Return the measured time of a block of steps with its evaluation: mean, from the second on. Unit: s."""
    return float(np.diff(ends_of_steps_s()[BLOCK - 1 :: BLOCK])[1:].mean())


def simulated(seed: int = 0, step_s: float | None = None) -> Found:
    """Return what meters would show of the simulated job: 24 times 12 steps and an evaluation.

    Args:
        seed: Draw of parts, jitter of steps, and moments at which meters read.
        step_s: Time of a step to stretch everything to; None: what is simulated. Unit: s.
    """
    found = job_power(seed)
    factor = step_s / found.step.length_s if step_s else 1.0
    stretched = replace(found, step=found.step.lasting(factor), passed=found.passed.lasting(factor))
    power = over_steps(stretched, BLOCK * NUM_BLOCKS, Evaluations(BLOCK, round(EVALUATED)), METER, seed)
    return find(power.nodes_w, power.period_s)


@lru_cache(maxsize=8)
def job_power(draw: int) -> SimulatedPower:
    """Return a step, the forward passes of as many sequences, and the jitter of steps, for a draw of parts."""
    (request,) = read_points(CONFIG / "studies" / "swings.yaml", CONFIG, [CLUSTER])
    return simulate_power(request, CONFIG, draw=draw)
