"""`triplepoint frontier`: savings on six trainings, time of the linear program, and a comparison with lowtime.

Run from the repository: python -m tests.benchmarks.frontier [--lowtime | --coverage]
Nothing is fitted here. Energy is that of all GPUs in a step that is 1 % longer, over that of the present step.
"""

import sys
import time
from pathlib import Path

import numpy as np

from tests.lowtime_solver import least_energy_j
from tests.unit.advise.frontier.test_frontier import job_of
from tests.unit.advise.frontier.test_solve import UNIT_S, choices_of, of_tasks, solved
from triplepoint.advise.frontier.frontier import FrontierAnswer, advise
from triplepoint.advise.frontier.interval import Interval, drawn_changes, simulate_locked
from triplepoint.simulate.predict.draws import draw_unknowns, time_sigma_of
from triplepoint.simulate.predict.prediction import read_calibrations
from triplepoint.simulate.timeline.schedule import make_order

CONFIG = Path("config")
USUAL = {"cluster": "h200x32", "num_gpus": 32}
TRAININGS = {
    "Mixtral 8x7B TP4 PP8, 32": USUAL | {"model": "mixtral-8x7b", "tp": 4, "pp": 8, "global_batch_size": 32},
    "GPT-3 175B TP8 PP4, 128": USUAL | {"model": "gpt3-175b", "tp": 8, "pp": 4, "global_batch_size": 128},
    "GPT-3 175B TP2 PP16, 128": USUAL | {"model": "gpt3-175b", "tp": 2, "pp": 16, "global_batch_size": 128},
    "Llama 3 70B TP4 PP8, 32": USUAL | {"model": "llama3-70b", "tp": 4, "pp": 8, "global_batch_size": 32},
    "Llama 3 70B TP8 PP4, 16": USUAL | {"model": "llama3-70b", "tp": 8, "pp": 4, "global_batch_size": 16},
    "Llama 3 70B TP8 PP8, 32, H100": {
        "cluster": "h100x64", "num_gpus": 64, "model": "llama3-70b", "tp": 8, "pp": 8, "global_batch_size": 32,
    },
}  # fmt: skip
SIZES = ((2, 4), (3, 4), (4, 8))
"""Numbers of stages and micro-batches that lowtime solves within a minute."""


def main() -> None:
    """Print the tables."""
    if "--lowtime" in sys.argv:
        compare()
        return
    if "--coverage" in sys.argv:
        cover()
        return
    print("| training, batch | bubble | limit costs | step | plan saves | all one clock | direction | pass |")
    print("|---|---|---|---|---|---|---|---|")
    for name, settings in TRAININGS.items():
        print(_row(name, advise(name, *job_of(settings), CONFIG)), flush=True)
    order, choices = make_order("1f1b", 16, 128), choices_of(16, 110)
    begin = time.process_time()
    solved(order, choices, "pass", 1.01)
    print(f"16 stages x 128 micro-batches, a clock for each pass: {time.process_time() - begin:.2f} s of a core")


def _row(name: str, found: FrontierAnswer) -> str:
    present = found.present
    finer = [
        f"{1.0 - found.energy_j(plan) / present.gpu_energy_j:.1%}" if plan else "-"
        for plan in (found.chosen.get(sharing) for sharing in ("job", "direction", "pass"))
    ]
    cells = [
        name, f"{found.bubble_fraction:.1%}", f"{present.lost_to_power_limit_fraction:.1%}",
        _within(found.change.longer, found.intervals["plan"].longer),
        _within(found.change.saved, found.intervals["plan"].saved), *finer,
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _within(value: float, interval: Interval) -> str:
    return f"{value:.1%} [{100 * interval.lo:.1f}, {100 * interval.hi:.1f}]"


def cover() -> None:
    """Print how many of 100 draws of what is unknown the 90 % intervals hold."""
    for name, settings in TRAININGS.items():
        found = advise(name, *job_of(settings), CONFIG)
        site, within, like = found.site, found.intervals["plan"], simulate_locked(found.site, found.plan)
        sigma = time_sigma_of(site.job, site.warm.load.ran.uncertainty, read_calibrations(CONFIG)[0])
        draws = draw_unknowns(site.job, site.cluster, CONFIG, sigma, number=100, seed=77)
        truths = [drawn_changes(site, draw, found.plan, like, {})["plan"] for draw in draws]
        held = [
            sum(interval.lo <= value <= interval.hi for value in values)
            for interval, values in (
                (within.saved, [truth.saved for truth in truths]), (within.longer, [truth.longer for truth in truths]),
            )
        ]  # fmt: skip
        losses = sum(truth.saved <= 0.0 for truth in truths)
        print(f"{name}: holds {held[0]} savings, {held[1]} steps of 100; advised: {found.is_useful}, losses: {losses}")


def compare() -> None:
    """Print energies and CPU times of both solvers on the same pipelines."""
    for num_stages, num_microbatches in SIZES:
        order, choices = make_order("1f1b", num_stages, num_microbatches), choices_of(num_stages)
        for times in (1.02, 1.2):
            begin = time.process_time()
            clock, most_s = solved(order, choices, "pass", times)
            middle = time.process_time()
            theirs_j = least_energy_j(order, choices, 0.0, most_s + 1e-9, UNIT_S)
            end = time.process_time()
            ours_j = float(np.sum(of_tasks(order, choices.active_j, clock)))
            print(
                f"{num_stages} x {num_microbatches}, {times:g} times the shortest: {ours_j / theirs_j - 1.0:+.2%} of "
                f"energy, {middle - begin:.2f} s against {end - middle:.1f} s"
            )


if __name__ == "__main__":
    main()
