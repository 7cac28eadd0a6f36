"""`triplepoint search`: whether the few to measure include the measured best, and whether the first is the best of all.

Run from the repository: python -m tests.benchmarks.search [--published | --first | --speed]
--first predicts every configuration of two small searches, on all nodes. --speed says what 2,000 configurations cost.
Grids are trainings of `tests/data/throughput` (one model, batch, GPU type, number of GPUs and stack) with four or more
measured layouts. Their widths are fitted to other trainings; all rows were in view while the time model was made, its
constants are fitted to all of them, and so is the quantile.
"""

import resource
import sys
import time
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.benchmarks.predict_accuracy import CONFIG, DATA, TABLES
from triplepoint.advise.search.front import few_to_measure, may_reach_front
from triplepoint.advise.search.limits import Limits
from triplepoint.advise.search.search import search
from triplepoint.advise.search.space import Question, groups_of
from triplepoint.calibrate.layout_pairs import Pair, left_out, pairs_of
from triplepoint.calibrate.step_cases import read_cases
from triplepoint.config.catalogue import Catalogue
from triplepoint.predictions import predict
from triplepoint.simulate.calibration import Calibration
from triplepoint.simulate.layouts import LayoutWidths, recomputes_more
from triplepoint.simulate.predict.prediction import read_calibrations

LEAST_LAYOUTS = 4
MOST_MEASURED = 6
OF_OBJECTIVE = {"time": "step_time_s", "energy": "gpu_energy_per_token_j"}
FEW = {"tp": [2, 4, 8], "vp": [1], "micro_batch_size": [1, 2], "recompute": ["none", "full"], "overlap": [[]]}
SETS = {"micro_batch_size": [1, 2, 4], "recompute": ["none", "selective", "full"]}
WITH_MORE: dict[str, dict[str, list[int]]] = {"llama3-70b": {}, "mixtral-8x22b": {"vp": [1, 2]}}


@dataclass(frozen=True)
class Grid:
    """Result for one training with several measured layouts.

    Attributes:
        num_layouts: How many.
        num_worth: Those worth measuring.
        is_held: Whether the measured best is among them.
        num_few: Those that `few_to_measure` chooses.
        regret: Measured time of the best of the few over that of the best of all, less 1.
        regret_of_first: The same of the first.
    """

    num_layouts: int
    num_worth: int
    is_held: bool
    num_few: int
    regret: float
    regret_of_first: float


def grids(calibration: Calibration) -> list[Grid]:
    """Return the result for each training with four or more measured layouts."""
    cases = [case for name in (*TABLES, "vtrain_single_node") for case in read_cases(DATA / f"{name}.csv", CONFIG)]
    by_training: dict[Hashable, list[tuple[Pair, LayoutWidths]]] = defaultdict(list)
    for pair, widths in left_out(pairs_of(cases, calibration)):
        by_training[pair.training].append((pair, widths))
    found = [_grid(pairs, calibration) for pairs in by_training.values()]
    return [grid for grid in found if grid.num_layouts >= LEAST_LAYOUTS]


def _grid(pairs: Sequence[tuple[Pair, LayoutWidths]], calibration: Calibration) -> Grid:
    rows = list(dict.fromkeys(case for pair, _ in pairs for case in (pair.one, pair.other)))
    place = {case: number for number, case in enumerate(rows)}
    constants = calibration.constants(rows[0].job)
    measured = np.array([case.measured_s for case in rows])
    logs = np.log(measured) - np.array([case.log_error(constants) for case in rows])
    widths = np.zeros((len(rows), len(rows)))
    for pair, fitted in pairs:
        one, other = place[pair.one], place[pair.other]
        jobs = pair.one.job, pair.other.job
        is_slower = recomputes_more(*jobs) or recomputes_more(*jobs[::-1])
        width = 0.0 if is_slower else calibration.fitted.layouts.quantile * pair.scale(fitted)
        widths[one, other] = widths[other, one] = width
    first, best_s = int(logs.argmin()), measured.min()
    worth = may_reach_front(logs[:, None], logs[[first]][:, None], widths[:, [first], None])
    among = np.flatnonzero(worth)
    few = few_to_measure(logs[among], widths[np.ix_(among, among)], MOST_MEASURED)
    chosen = among[few.rows]
    return Grid(
        len(rows), len(among), bool(worth[measured.argmin()]), len(chosen),
        float(measured[chosen].min() / best_s - 1), float(measured[first] / best_s - 1),
    )  # fmt: skip


def published() -> None:
    """Print the results of all grids."""
    found = grids(Calibration.load(CONFIG))
    held, worth = np.mean([grid.is_held for grid in found]), np.mean([g.num_worth / g.num_layouts for g in found])
    print(f"{len(found)} grids of {LEAST_LAYOUTS} or more layouts: the measured best is worth measuring in ", end="")
    print(f"{sum(grid.is_held for grid in found)} ({held:.1%}); worth measuring are {worth:.0%} of layouts in the mean")
    for words, regrets in (
        ("the first", [grid.regret_of_first for grid in found]),
        (f"the best of up to {MOST_MEASURED} measured", [grid.regret for grid in found]),
    ):
        print(f"{words}: slower than the best by {np.mean(regrets):.2%} in the mean, {max(regrets):.1%} at most")
    print(f"{np.mean([grid.num_few for grid in found]):.1f} are measured in the mean")


def first() -> None:
    """Print the loss of the first choice against the best of all configurations, predicted on all nodes."""
    catalogue = Catalogue(CONFIG)
    for model, more in (("llama3-70b", {}), ("mixtral-8x22b", {"ep": [1, 8]})):
        question = Question(model, "h200x32", 128, FEW | more)
        table = predict([row for group in groups_of(question, catalogue) for row in group], CONFIG)
        known = table[table["status"].isin(["ok", "undecided"])].drop_duplicates("run").set_index("run")
        sure = known[known["status"] == "ok"]
        for objective, column in OF_OBJECTIVE.items():
            run = search(question, CONFIG, objective).chosen[0].candidate.run
            over = known[column][run] / sure[column].min() - 1
            print(f"{model}, {objective}: the first is {over:+.2%} off the best of {len(sure)} that fit", flush=True)


def speed() -> None:
    """Print the CPU time of searches for a dense model, and for one with experts, without and with power budgets."""
    read_calibrations(Path(CONFIG))
    dense, experts = (Question(model, "h100x512", 1024, SETS | more) for model, more in WITH_MORE.items())
    few = Question("llama3-70b", "h200x32", 128, {"tp": [4, 8], "pp": [2, 4], "vp": [1, 2]})
    for question, budget in (
        (dense, {}), (experts, {}), (dense, {"node_power_kw": 6.0}), (experts, {"node_power_kw": 6.0}),
        (dense, {"power_kw": 350.0}), (experts, {"power_kw": 350.0}), (few, {"power_kw": 20.0}),
    ):  # fmt: skip
        before, wall = _cpu_s(), time.monotonic()
        found = search(question, CONFIG, limits=Limits(**budget))
        number = sum(found.counts.get(word, 0) for word in ("ok", "oom", "undecided", "invalid", "unsupported"))
        took_s = time.monotonic() - wall
        print(f"{question.model}, {question.cluster}, {budget or 'no budget'}: {number} configurations, ", end="")
        print(f"{_cpu_s() - before:.1f} CPU s, {took_s:.1f} s; {dict(found.counts)}", flush=True)


def _cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


if __name__ == "__main__":
    asked = [do for do in (published, first, speed) if f"--{do.__name__}" in sys.argv]
    for do in asked or (published, first, speed):
        do()
