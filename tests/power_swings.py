"""Measured and simulated power of 64 nodes over time. README: tests/data/power_swings."""

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
"""Period of the grid that readings are resampled to. Unit: s."""
METER = Meter(period_s=2.005, window_s=2.0)
"""Meter with readings about every 2.005 s. That a reading is the mean since the reading before is an assumption: the
readings contain the whole energy of a dip of half a second."""
BLOCK = 12
"""Number of steps between evaluations: 24,576 sequences. Source: rules of MLPerf Training, GPT-3."""
NUM_BLOCKS = 24
EVALUATED = 11_590_004 / 2048
"""Number of sequences in an evaluation: tokens (EVAL_SAMPLES of NVIDIA's implementation of GPT-3) over their length."""
STEP_S = 10.776
"""Measured time between starts of steps: median over the ends in steps.csv. Unit: s."""
FITTED_STEPS = 96
"""Number of steps whose energy was used to fit the pause of the stack."""
_BAND_HZ = (0.05, 0.249)


@dataclass(frozen=True)
class MeteredJob:
    """Power of a job as its meters show it.

    Attributes:
        node_power_w: Mean power of a node. Unit: W.
        swing: Difference of the 1st and 99th percentile of the job's power, over its mean.
        line: Strongest spectral line of the job's power.
        coherence: Coherence of nodes at that line.
        correlation: Mean correlation over pairs of nodes.
        node_spread: Standard deviation of the mean power of nodes, over their mean.
        ramps_w_per_s: Fastest rise and fall of the job's power. Unit: W/s.
    """

    node_power_w: float
    swing: float
    line: swings.Line
    coherence: float
    correlation: float
    node_spread: float
    ramps_w_per_s: tuple[float, float]


def analyse(nodes_w: Float, period_s: float = PERIOD_S) -> MeteredJob:
    """Analyse readings of meters.

    Args:
        nodes_w: Readings on a regular grid; shape (num_readings, num_nodes). Unit: W.
        period_s: Period of the grid. Unit: s.
    """
    job_w = nodes_w.sum(axis=1)
    swing, line = swings.swing(job_w, period_s), swings.strongest_line(job_w, period_s, *_BAND_HZ)
    return MeteredJob(
        swing.mean_w / nodes_w.shape[1],
        swing.fraction,
        line,
        swings.coherence(nodes_w, period_s, line.frequency_hz),
        swings.correlation(nodes_w),
        float(nodes_w.mean(axis=0).std() / nodes_w.mean()),
        (swing.ramp_up_w_per_s, swing.ramp_down_w_per_s),
    )


def measured(first_s: float = 0.0) -> MeteredJob:
    """Return the power of the job in the public log, from `first_s` on. Unit: s."""
    table = pq.read_table(FOLDER / "nodes.parquet")
    nodes_w = np.stack([table[name].to_numpy() for name in table.column_names[1:]], axis=1).astype(float)
    return analyse(nodes_w[table["t_s"].to_numpy() >= first_s])


def ends_of_steps_s() -> Float:
    """Return the ends of steps in the log; shape (288,). Unit: s."""
    return np.loadtxt(FOLDER / "steps.csv", delimiter=",", skiprows=1)[:, 0]


def block_s() -> float:
    """Return the measured mean time of a block of steps with its evaluation, from the second block on. Unit: s."""
    return float(np.diff(ends_of_steps_s()[BLOCK - 1 :: BLOCK])[1:].mean())


def simulated(seed: int = 0, step_s: float | None = None) -> MeteredJob:
    """Return the power that meters would show of the simulated job: 24 times 12 steps and an evaluation.

    Args:
        seed: Seed of manufacturing spread, jitter of steps, and times of readings.
        step_s: Step time to stretch all times to. If None, the simulated step time. Unit: s.
    """
    unstretched = job_power(seed)
    factor = step_s / unstretched.step.length_s if step_s else 1.0
    stretched = replace(unstretched, step=unstretched.step.lasting(factor), passed=unstretched.passed.lasting(factor))
    power = over_steps(stretched, BLOCK * NUM_BLOCKS, Evaluations(BLOCK, round(EVALUATED)), METER, seed)
    return analyse(power.nodes_w, power.period_s)


@lru_cache(maxsize=8)
def job_power(draw: int) -> SimulatedPower:
    """Return the simulated power of a step and of the forward passes of an evaluation.

    Args:
        draw: Seed of manufacturing spread.
    """
    (request,) = read_points(CONFIG / "studies" / "swings.yaml", CONFIG, [CLUSTER])
    return simulate_power(request, CONFIG, draw=draw)
