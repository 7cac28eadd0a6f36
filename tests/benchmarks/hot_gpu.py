"""One hot GPU of 16: whether `why` finds it and its cause within 30 steps, and the error of the stated cost.

Sixteen H200 in two nodes train llama2-7b, data parallel. The heat sink of one GPU has 3.5 to 6 times its resistance, so
that heat holds its clock. The truth is what the simulator makes of the step against the same cluster without the fault.
Parts, place and severity are drawn; no case was in view while a threshold of `why` was chosen.
"""

import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc

from tests.made_up_clusters import Fault, planned_run, write_cluster
from triplepoint.config.plan import PlannedRun
from triplepoint.config.point import Layout
from triplepoint.tables import STEPS
from triplepoint.units import NS_PER_S
from triplepoint.why.answer import Answer, why_run

NUM_GPUS, PER_NODE, NUM_STEPS = 16, 8, 30
"""Number of steps within which `why` should find the GPU."""
NUM_CASES, SEED = 10, 2027
LEAST, MOST = 3.5, 6.0
"""Thermal resistance of the bad contact over that of a good one; at 6.5 the GPU shuts down."""


class Case(NamedTuple):
    """A cluster with one hot GPU."""

    seed: int
    rank: int
    factor: float

    @property
    def fault(self) -> Fault:
        """The bad contact."""
        node, gpu = divmod(self.rank, PER_NODE)
        return Fault("contact", (node, gpu), {"bad_contact": {f"node{node}.gpu{gpu}": self.factor}}, seed=self.seed)


class Judged(NamedTuple):
    """Stated and true cost of a case. Unit: s per step."""

    case: Case
    answer: Answer
    lost_s: float

    @property
    def error(self) -> float:
        """Stated over true cost, minus 1."""
        return sum(one.lost_s for one in self.answer.findings) / self.lost_s - 1

    @property
    def is_named(self) -> bool:
        """Whether the GPU and its contact come first."""
        found = self.answer.findings
        return bool(found) and (found[0].rank, found[0].cause) == (self.case.rank, "contact")


def hot_run(seed: int, num_profiled: int) -> PlannedRun:
    """Return the run with a number of profiled steps after the measured ones."""
    usual = planned_run(seed).point
    steps = usual.steps.model_copy(update={"warmup": 0, "measured": NUM_STEPS, "profiled": num_profiled})
    cluster = usual.cluster.model_copy(update={"gpus_per_node": PER_NODE})
    sizes = {"num_gpus": NUM_GPUS, "micro_batch_size": 2, "global_batch_size": 128}
    return planned_run(seed, layout=Layout(dp=NUM_GPUS), cluster=cluster, steps=steps, **sizes)


def sound_step_s(seed: int, folder: Path) -> float:
    """Return the step time of the cluster without a fault. Unit: s."""
    return _measured_s(write_cluster(folder, Fault(None, seed=seed), hot_run(seed, 0)))


def _measured_s(run: Path) -> float:
    """Return the mean of measured steps: the profiled one, which `why` reads, is not the truth. Unit: s."""
    steps = STEPS.read(run / "raw" / "steps.parquet")
    steps = steps.filter(pc.equal(steps["kind"], "measured"))
    return float(np.mean(steps["t_end_ns"].to_numpy() - steps["t_start_ns"].to_numpy())) / NS_PER_S


def judge(case: Case, sound_s: float, folder: Path) -> Judged:
    """Return the answer of `why` on a case, with traces of one profiled step."""
    run = write_cluster(folder, case.fault, hot_run(case.seed, 1))
    return Judged(case, why_run(run), _measured_s(run) - sound_s)


def draw(num: int, seed: int) -> list[Case]:
    """Return random cases."""
    random = np.random.default_rng(seed)
    return [
        Case(200 + index, int(random.integers(NUM_GPUS)), float(random.uniform(LEAST, MOST))) for index in range(num)
    ]


def main() -> None:
    """Print a line for each random case: `python -m tests.benchmarks.hot_gpu [CASES [SEED]]`."""
    num = int(sys.argv[1]) if len(sys.argv) > 1 else NUM_CASES
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else SEED
    found = []
    for case in draw(num, seed):
        with tempfile.TemporaryDirectory() as text:
            folder = Path(text)
            found.append(judge(case, sound_step_s(case.seed, folder / "sound"), folder / "hot"))
        one = found[-1]
        slower = one.answer.step_s / (one.answer.step_s - one.lost_s)
        print(
            f"seed {case.seed}, rank {case.rank}, contact {case.factor:.2f} times: step {slower:.2f} times as long, "
            f"{'named' if one.is_named else 'NOT named'}, cost {one.error:+.1%}"
        )
    worst = max(abs(one.error) for one in found)
    print(f"{sum(one.is_named for one in found)} of {num} named; cost within {worst:.1%}")


if __name__ == "__main__":
    main()
