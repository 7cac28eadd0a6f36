"""Errors of predictions against published measurements: `python -m tests.benchmarks.predict_accuracy [ROWS|--write]`.

Prints errors by group, then of protocols that leave out what is asked for, then the ROWS rows that are furthest off.
With `--write` it writes docs/validation.md instead, which a test holds against the calibration it was made from.
Takes some minutes: every row is simulated at several values of the constants.
"""

import hashlib
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

from triplepoint.calibrate.step_cases import Case, read_cases
from triplepoint.calibrate.step_time import fit, grouped, without
from triplepoint.published.table import predict_table, read_table
from triplepoint.simulate.calibration import Calibration
from triplepoint.simulate.intervals import interval

CONFIG = Path("config")
PAGE = Path("docs/validation.md")
PAGE_ABOUT = """\
How far predicted step times are off published ones: rows of `tests/data/throughput`, sources in their column `source`.
All rows were in view while the model was made. `python -m tests.benchmarks.predict_accuracy --write` writes this page.
Each cell has three numbers:

| number | asked for in every group |
|---|---|
| mean absolute error of the step time | 10 % where kernels are measured, 20 % where they are inferred |
| bias: geometric mean of predicted over measured, less 1 | under 5 % |
| share of rows in their 90 % interval | 85 to 95 % |

In `all fitted` constants are fitted to these rows; in `... left out` to the others alone, each in turn. Widths of
intervals, which are of many groups, stay those of all rows."""
DATA = Path(__file__).parents[1] / "data" / "throughput"
FEW_GPUS = 8
LEAST_ROWS = 8
"""Smallest number of rows of a displayed group."""
TABLES = ("training_throughput", "public_training", "public_megatron_bridge")
"""Tables with rows of several nodes."""
VTRAIN = "Megatron-DeepSpeed"


@dataclass(frozen=True)
class Judged:
    """A measured row and its prediction.

    Attributes:
        case: The row.
        predicted_s: Predicted time of a step.
        low_s: Lower end of the interval.
        high_s: Upper end.
    """

    case: Case
    predicted_s: float
    low_s: float
    high_s: float

    @property
    def error(self) -> float:
        """Predicted over measured value, minus 1."""
        return self.predicted_s / self.case.measured_s - 1

    @property
    def is_covered(self) -> bool:
        """Whether the interval includes the measurement."""
        return self.low_s <= self.case.measured_s <= self.high_s


@dataclass(frozen=True)
class Summary:
    """Errors of some rows, as fractions.

    Attributes:
        num_rows: How many.
        mape: Mean absolute error.
        p90: 90th percentile of absolute errors.
        bias: Geometric mean of predicted over measured.
        coverage: Share of rows in their interval.
    """

    num_rows: int
    mape: float
    p90: float
    bias: float
    coverage: float


def judge(cases: Sequence[Case], calibration: Calibration) -> list[Judged]:
    """Return predictions for measured rows."""
    found = []
    for case in cases:
        time = case.predicted_s(calibration.constants(case.job))
        width = calibration.scale(case.job, case.uncertainty)
        found.append(Judged(case, time, *interval(time, calibration.quantile, width)))
    return found


Key = Callable[[Case], Hashable]


def judge_left_out(cases: Sequence[Case], key: Key, calibration: Calibration) -> list[Judged]:
    """Return predictions where each row comes from constants fitted without rows of the same key.

    Widths, which are of many groups, stay those of all rows.
    """
    groups = grouped(cases, key).values()
    return [one for members in groups for one in judge(members, without(cases, members, calibration))]


def summarise(judged: Sequence[Judged]) -> Summary:
    """Return errors of some rows. Raises `ValueError` if there are none."""
    if not judged:
        raise ValueError("no rows, expected at least one")
    errors = np.array([abs(one.error) for one in judged])
    logs = [math.log(one.predicted_s / one.case.measured_s) for one in judged]
    return Summary(
        len(judged),
        float(errors.mean()),
        float(np.percentile(errors, 90)),
        math.exp(float(np.mean(logs))),
        float(np.mean([one.is_covered for one in judged])),
    )


def rank_correlation(judged: Sequence[Judged]) -> float:
    """Return Spearman's correlation of predicted and measured times."""
    return float(spearmanr([one.predicted_s for one in judged], [one.case.measured_s for one in judged]).statistic)


def show(name: str, judged: Sequence[Judged]) -> None:
    """Print one line of errors."""
    if judged:
        s = summarise(judged)
        print(
            f"{name:<52}{s.num_rows:5} rows  MAPE {s.mape:6.1%}  P90 {s.p90:6.1%}  bias {s.bias:.3f}  "
            f"coverage {s.coverage:.0%}"
        )


def groups_of(judged: Sequence[Judged]) -> dict[str, list[Judged]]:
    """Return rows by GPU type, precision and kind of model, and by stack, of groups that are not too small."""
    groups: dict[str, list[Judged]] = defaultdict(list)
    for one in judged:
        job = one.case.job
        groups[f"{job.gpu.name} {job.precision} {'MoE' if job.model.moe else 'dense'}"].append(one)
        groups[job.software.name].append(one)
    return {name: groups[name] for name in sorted(groups) if len(groups[name]) >= LEAST_ROWS}


def show_groups(title: str, judged: Sequence[Judged]) -> None:
    """Print errors of all rows, then by group."""
    show(f"{title}all", judged)
    for name, members in groups_of(judged).items():
        show(title + name, members)


PROTOCOLS: dict[str, Key] = {
    "model size": lambda case: case.model_size,
    "version": lambda case: case.job.stack,
    "stack": lambda case: case.job.software.name,
    "GPU type": lambda case: case.job.gpu.name,
    "architecture": lambda case: case.job.gpu.architecture,
}
"""Keys by which rows are left out in turn."""


def show_protocols(multi: list[Case], single: list[Case], calibration: Calibration) -> None:
    """Print errors of rows that were left out of the fit."""
    everything = multi + single
    for name, key in PROTOCOLS.items():
        judged = judge_left_out(everything, key, calibration)
        show(f"{name} left out: single node", [one for one in judged if one.case in single])
        show_groups(f"{name} left out: ", [one for one in judged if one.case in multi])
    few = fit([case for case in everything if case.job.num_gpus <= FEW_GPUS], "8 GPUs or fewer", CONFIG)
    many = judge([case for case in multi if 64 <= case.job.num_gpus <= 512], few)
    show("calibrated on 8 GPUs or fewer, 64 to 512 asked", many)
    show("  of these vTrain", [one for one in many if one.case.job.stack == VTRAIN])


def show_order(judged: Sequence[Judged]) -> None:
    """Print rank correlations over the layouts of one model on one number of GPUs."""
    groups: dict[str, list[Judged]] = defaultdict(list)
    for one in judged:
        if one.case.job.stack == VTRAIN:
            groups[f"{one.case.job.model.name} on {one.case.job.num_gpus}"].append(one)
    for name, members in sorted(groups.items()):
        if len(members) >= 5:
            print(f"rank correlation {name:<40}{len(members):5} layouts  {rank_correlation(members):.3f}")


def show_worst(judged: Sequence[Judged], number: int) -> None:
    """Print the rows with the largest errors."""
    for one in sorted(judged, key=lambda one: -abs(one.error))[:number]:
        case, layout = one.case, one.case.job.layout
        print(
            f"{case.id} {case.job.stack[:20]:<20} {case.job.model.name[:24]:<24} {case.job.precision} "
            f"n={case.job.num_gpus} tp={layout.tp} pp={layout.pp} dp={layout.dp} mbs={case.job.micro_batch_size} "
            f"seq={case.job.sequence_length} measured {case.measured_s:.3f} "
            f"predicted {one.predicted_s:.3f} {one.error:+.0%}"
        )


def digest() -> str:
    """Return a digest of the calibration and the rows of its fit."""
    tables = (DATA / f"{name}.csv" for name in (*TABLES, "vtrain_single_node"))
    content = b"".join(path.read_bytes() for path in (CONFIG / "calibration" / "fitted.yaml", *tables))
    return hashlib.sha256(content).hexdigest()[:12]


def page(cases: Sequence[Case], calibration: Calibration) -> str:
    """Return the page of the docs."""
    ways = {"all fitted": judge(cases, calibration)}
    ways |= {f"{name} left out": judge_left_out(cases, key, calibration) for name, key in PROTOCOLS.items()}
    groups = {name: {"all": judged} | groups_of(judged) for name, judged in ways.items()}
    lines = [
        "# Validation of step times",
        "",
        f"{PAGE_ABOUT} Calibration {digest()}.",
        "",
        f"| rows | number | {' | '.join(ways)} |",
        f"|---|---|{'---|' * len(ways)}",
    ]
    for name, members in groups["all fitted"].items():
        cells = []
        for way in ways:
            one = summarise(groups[way][name])
            cells.append(f"{one.mape:.1%}, {one.bias - 1:+.0%}, {one.coverage:.0%}")
        lines.append(f"| {name} | {len(members)} | {' | '.join(cells)} |")
    return "\n".join([*lines, *experts_over_nodes(), ""])


def experts_over_nodes() -> list[str]:
    """Return the part of the page on experts over nodes: published and predicted tokens per second, and memory."""
    source = DATA / "experts_over_nodes.csv"
    predicted = dict(predict_table(source, CONFIG, lambda _: None, with_power=False))
    lines = [
        "",
        "## Experts over nodes",
        "",
        "Runs of `tests/data/throughput/experts_over_nodes.csv`, dispatch and overlap as their sources say. Four of",
        "the five, or other cells of the same runs, are among the rows constants were fitted to.",
        "",
        "| run | GPUs | published tokens/s/GPU | predicted | 90 % interval | step time | memory, GiB | status |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in read_table(source):
        one, published = predicted[row["id"]], float(row["tokens_per_s_per_gpu"])
        rates = (one.tokens_per_s_per_gpu * one.step_time_s / end for end in (one.step_time_hi_s, one.step_time_lo_s))
        cells = (
            *(row["id"], row["n_gpus"], f"{published:.0f}", f"{one.tokens_per_s_per_gpu:.0f}"),
            *("{:.0f} to {:.0f}".format(*rates), f"{published / one.tokens_per_s_per_gpu - 1:+.0%}"),
            *(f"{one.memory_gib:.1f}", str(one.status)),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main(words: Sequence[str]) -> None:
    """Print all errors, or write the page of the docs."""
    multi = [case for name in TABLES for case in read_cases(DATA / f"{name}.csv", CONFIG)]
    single = read_cases(DATA / "vtrain_single_node.csv", CONFIG)
    if list(words) == ["--write"]:
        PAGE.write_text(page(multi + single, Calibration.load(CONFIG)))
        return
    calibration = fit(multi + single, "all rows", CONFIG)
    judged = judge(multi, calibration)
    show("single node", judge(single, calibration))
    show_groups("", judged)
    show_protocols(multi, single, calibration)
    show_order(judged)
    show_worst([*judged, *judge(single, calibration)], int(words[0]) if words else 10)


if __name__ == "__main__":
    main(sys.argv[1:])
