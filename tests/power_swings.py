"""Power of 64 nodes over time, measured and simulated from their configuration. README: tests/data/power_swings."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from triplepoint import swings
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.cluster import ClusterConfig
from triplepoint.plan import select
from triplepoint.simulate.artefacts.simulate_run import job_of, simulate
from triplepoint.simulate.artefacts.simulated import Simulated
from triplepoint.simulate.calibration import Calibration
from triplepoint.simulate.heat.nodes import node_power_of
from triplepoint.simulate.heat.warm import Warm, warm_up
from triplepoint.simulate.job import Job
from triplepoint.simulate.power.load import Training
from triplepoint.simulate.power.over_time import Meter, Stretch, read_meters, with_jitter
from triplepoint.simulate.predict.power import nodes_power_w
from triplepoint.simulate.step import costs_of
from triplepoint.simulate.timeline.durations import Float, Pass

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
_BAND_HZ = (0.05, 0.25)


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


def find(nodes_w: Float) -> Found:
    """Return what meters show; readings on the grid, shape (num_readings, num_nodes). Unit: W."""
    job_w = nodes_w.sum(axis=1)
    whole, line = swings.swing(job_w, PERIOD_S), swings.strongest_line(job_w, PERIOD_S, *_BAND_HZ)
    return Found(
        whole.mean_w / nodes_w.shape[1],
        whole.fraction,
        line,
        swings.coherence(nodes_w, PERIOD_S, line.frequency_hz),
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
    step, passed, jitter = job_power(seed)
    factor = step_s / step.length_s if step_s else 1.0
    num_passes = -(-EVALUATED // 2048)
    block = [step.lasting(factor)] * BLOCK + [passed.lasting(factor)] * int(num_passes)
    stretches = with_jitter(block * NUM_BLOCKS, jitter, seed)
    read_s, nodes_w = read_meters(stretches, METER, seed)
    first_s = read_s[0].max()
    grid_s = np.arange(first_s, read_s[-1].min(), PERIOD_S)
    columns = zip(read_s.T, nodes_w.T, strict=True)
    return find(np.stack([np.interp(grid_s, when_s, power_w) for when_s, power_w in columns], axis=1))


@lru_cache(maxsize=8)
def job_power(draw: int) -> tuple[Stretch, Stretch, float]:
    """Return a step, the forward passes of as many sequences, and the jitter of steps, for a draw of parts."""
    point = select(CONFIG, ["swings"], [CLUSTER]).valid[0].planned.point
    catalogue = Catalogue(CONFIG)
    cluster = catalogue.cluster(CLUSTER)
    job = replace(job_of(point, catalogue), draw=draw)
    warm, passed = _warm(job, cluster, is_training=True), _warm(job, cluster, is_training=False)
    jitter = job.software.step_jitter
    assert jitter is not None
    return _stretch(warm), _stretch(passed), jitter.value


def _stretch(warm: Warm[Training[Simulated]]) -> Stretch:
    return Stretch(nodes_power_w(warm, node_power_of(warm.load.job.gpu, CONFIG)), warm.load.length_s)


def _warm(job: Job, cluster: ClusterConfig, is_training: bool) -> Warm[Training[Simulated]]:
    costs = costs_of(job, Calibration.load(CONFIG).constants(job), CONFIG)

    def once_more(slow: Mapping[int, float]) -> Training[Simulated]:
        step = simulate(job, costs, [0.0] * job.layout.pp, slow)
        return Training(step if is_training else forward_only(step))

    return warm_up(once_more({}), once_more, cluster, CONFIG)


def forward_only(step: Simulated) -> Simulated:
    """Return the forward passes of a step, as an evaluation runs them."""
    chunks = (
        tuple(replace(chunk, backward_input=(), backward_weight=()) for chunk in stage.chunks) for stage in step.stages
    )
    stages = [
        replace(stage, chunks=of_stage, gradient_sync=(), optimizer=())
        for stage, of_stage in zip(step.stages, chunks, strict=True)
    ]
    took = step.durations
    durations = replace(
        took,
        backward_input=_nothing(took.backward_input),
        backward_weight=_nothing(took.backward_weight),
        optimizer=_nothing(took.optimizer),
        sync_overlapped=np.zeros_like(took.sync_overlapped),
        sync_exposed=np.zeros_like(took.sync_exposed),
        gather_overlapped=np.zeros_like(took.gather_overlapped),
        pause_s=0.0,
    )
    return replace(step, stages=stages, durations=durations)


def _nothing(like: Pass) -> Pass:
    return Pass(np.zeros_like(like.compute), np.zeros_like(like.comm))
