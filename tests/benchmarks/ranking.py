"""Ranking of the layouts of one training: coverage of differences, ties, and loss by choosing the first.

Run from the repository: python -m tests.benchmarks.ranking
Published rows of `tests/data/throughput`, all in view while the model was made; coverage of trainings left out is of
widths fitted to the others.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from tests.benchmarks.predict_accuracy import CONFIG, DATA, TABLES
from triplepoint.calibrate.layout_pairs import left_out, pairs_of
from triplepoint.calibrate.step_cases import read_cases
from triplepoint.published.rows import read_row, settle
from triplepoint.published.table import read_table
from triplepoint.published.words import UnreadableError
from triplepoint.simulate.calibration import Calibration
from triplepoint.simulate.layouts import Laid, same_training
from triplepoint.simulate.step import simulate_step

ALL_TABLES = (*TABLES, "vtrain_single_node")
LEAST_PAIRS = 10
"""Smallest number of pairs of a displayed stack."""


@dataclass(frozen=True, eq=False)
class Layout:
    """A measured layout.

    Attributes:
        laid: What ran.
        measured_s: Measured time of a step.
        predicted_s: Predicted.
    """

    laid: Laid
    measured_s: float
    predicted_s: float


@dataclass(frozen=True)
class Ranking:
    """Result of the ranking of trainings with several measured layouts.

    Attributes:
        num_trainings: How many.
        covered_by_stack: Of each stack, whether each difference of two layouts is in its 90 % interval.
        covered_first: The same, of differences to the layout predicted fastest.
        tied: Of each layout but the first, whether it is tied with it.
        apart: Of each layout that is not tied with the first, whether it was no faster.
        regrets: Of each training, the measured time of the first over that of the fastest, less 1.
        regrets_of_3: The same, of the fastest of the first three.
    """

    num_trainings: int
    covered_by_stack: dict[str, list[bool]]
    covered_first: list[bool]
    tied: list[bool]
    apart: list[bool]
    regrets: list[float]
    regrets_of_3: list[float]

    @property
    def coverage(self) -> float:
        """Share of differences within their intervals."""
        return float(np.mean(list(itertools.chain(*self.covered_by_stack.values()))))


def trainings(tables: Sequence[str], calibration: Calibration) -> dict[Hashable, list[Layout]]:
    """Return the measured layouts of each training that has several."""
    jobs = defaultdict(list)
    for name in tables:
        for number, cells in enumerate(read_table(DATA / f"{name}.csv"), 1):
            row = read_row(cells, number, CONFIG)
            if row.job is None or not cells.get("step_time_s"):
                continue
            try:
                job = settle(row)
            except UnreadableError:
                continue
            jobs[same_training(job)].append((job, float(cells["step_time_s"])))
    found = {}
    for training, rows in jobs.items():
        if len(rows) > 1:
            steps = [simulate_step(job, calibration.constants(job), CONFIG) for job, _ in rows]
            found[training] = [
                Layout(Laid(step.job, step.gradient_share), measured_s, step.time_s)
                for step, (_, measured_s) in zip(steps, rows, strict=True)
            ]
    return found


def judge(by_training: dict[Hashable, list[Layout]], calibration: Calibration) -> Ranking:
    """Rank the layouts of trainings."""
    covered, first_covered, tied, apart, regrets = defaultdict(list), [], [], [], []
    for layouts in by_training.values():
        ordered = sorted(layouts, key=lambda layout: layout.predicted_s)
        for one, other in itertools.combinations(ordered, 2):
            slower = math.log(other.predicted_s / one.predicted_s)
            width = calibration.layout_width(one.laid, other.laid)
            is_covered = abs(math.log(other.measured_s / one.measured_s) - slower) <= width
            covered[one.laid.job.stack].append(is_covered)
            if one is ordered[0]:
                first_covered.append(is_covered)
                is_tied = calibration.is_tied(one.laid, other.laid, slower)
                tied.append(is_tied)
                if not is_tied:
                    apart.append(other.measured_s >= one.measured_s)
        fastest_s = min(layout.measured_s for layout in layouts)
        regrets.append([min(layout.measured_s for layout in ordered[:few]) / fastest_s - 1 for few in (1, 3)])
    columns = [list(column) for column in zip(*regrets, strict=True)]
    return Ranking(len(by_training), dict(covered), first_covered, tied, apart, columns[0], columns[1])


def main() -> None:
    """Print the results, of all and by stack."""
    calibration = Calibration.load(CONFIG)
    found = judge(trainings(ALL_TABLES, calibration), calibration)
    print(f"{found.num_trainings} trainings: {found.coverage:.1%} of differences covered, to the first ", end="")
    print(f"{np.mean(found.covered_first):.1%}; tied with the first {np.mean(found.tied):.1%}")
    print(f"not tied: {len(found.apart)}, of which no faster than the first: {np.mean(found.apart):.1%}")
    for few, regrets in (("first", found.regrets), ("first three", found.regrets_of_3)):
        print(f"regret of the {few}: {np.mean(regrets):.2%} in the mean, {max(regrets):.1%} at most")
    cases = [case for name in ALL_TABLES for case in read_cases(DATA / f"{name}.csv", CONFIG)]
    judged, quantile = defaultdict(list), calibration.fitted.layouts.quantile
    for pair, widths in left_out(pairs_of(cases, calibration)):
        width = quantile * pair.scale(widths)
        judged[pair.one.job.stack].append((abs(pair.log_error) <= width, width))
    for stack, pairs in sorted(judged.items()):
        if len(pairs) >= LEAST_PAIRS:
            share, width = np.mean([is_in for is_in, _ in pairs]), np.median([width for _, width in pairs])
            print(f"left out: {stack:<40}{len(pairs):5} pairs  coverage {share:.0%}  width {width:.3f}")


if __name__ == "__main__":
    main()
