"""`triplepoint project`: held-out sizes, 100 draws of 8,192 GPUs, the public 512-H100 run, and mean times to failure.

Run from the repository: python -m tests.benchmarks.projection [--scaling]. With `--scaling` it fits to rows of up to 64
GPUs and predicts the larger ones once more, which takes some minutes, and also prints which of them are furthest off;
without, it prints what is in the configuration.
"""

import math
import resource
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tests.benchmarks.predict_accuracy import CONFIG, DATA, TABLES
from triplepoint.advise.project.failures import FLEET_RATES, PUBLISHED_MTTF_H, Failures, best_checkpoints, mttf_h
from triplepoint.advise.project.network import Network, scale_job
from triplepoint.advise.project.project import Question, draws, project
from triplepoint.calibrate.scaling import Scaling, fit_few, scaling_known, split
from triplepoint.calibrate.step_cases import Case
from triplepoint.calibrate.step_ratios import grouped
from triplepoint.predictions import read_points
from triplepoint.processes import on_all_cores
from triplepoint.simulate.calibration import Calibration
from triplepoint.simulate.job import Job
from triplepoint.simulate.scaling import read_scaling
from triplepoint.units import KILO, S_PER_HOUR

POINT = CONFIG / "studies" / "swings.yaml"
SHARES = [range(50), range(50, 100)]
FEWEST_ROWS = 10
"""Of a group of larger rows whose errors are printed."""
STEP_S, NODE_W = 10.63, 438e3 / 64
"""Of the public log of 512 H100 (MLPerf Training v4.0): mean of its steps, and of its 64 nodes over 57 minutes, which
hold evaluations too. In view while power was modelled."""


def scaling() -> None:
    """Print errors of rows with more GPUs than those of the fit."""
    procedure = Scaling([DATA / f"{name}.csv" for name in TABLES], CONFIG)
    if "--scaling" not in sys.argv:
        print("\n".join(procedure.report(read_scaling(CONFIG))))
        return
    few, many = split(procedure.read())
    fitted = fit_few(few, CONFIG)
    print("\n".join(procedure.report(scaling_known(few, many, fitted, ", ".join(TABLES)))))
    furthest_off({case.job.stack for case in few}, many, fitted)


def furthest_off(known: set[str], many: Sequence[Case], fitted: Calibration) -> None:
    """Print measured over predicted step times of larger rows, of groups of ten rows or more.

    Args:
        known: Stacks with rows that were fitted to.
        many: The larger rows.
        fitted: Calibration fitted to the smaller rows.
    """
    groups = grouped(many, lambda case: _description(case.job, known))
    for name, rows in groups.items():
        if len(rows) < FEWEST_ROWS:
            continue
        errors = sorted(case.log_error(fitted.constants(case.job)) for case in rows)
        low, middle, high = (math.exp(errors[int(share * (len(rows) - 1))]) - 1 for share in (0.1, 0.5, 0.9))
        print(f"  {len(rows)} rows, {name}: {middle:+.1%} from predicted, 80 % within {low:+.1%} to {high:+.1%}")


def _description(job: Job, known: set[str]) -> str:
    kind = "dense" if job.model.moe is None else "with experts"
    return f"{job.family} on {job.gpu.name}, {kind}, stack {'known' if job.stack in known else 'not known'}"


def joint() -> None:
    """Print time, node power and energy of a step of the 512-H100 run against the log."""
    (request,) = read_points(POINT, CONFIG)
    row = project(Question(request, (512,), num_draws=20), CONFIG).rows[0]
    node_w = row.power_w.value / 64
    energy = row.step_time_s.value * node_w / (STEP_S * NODE_W) - 1
    print(
        f"512 H100: step {row.step_time_s.value:.2f} s ({row.step_time_s.value / STEP_S - 1:+.1%}), node "
        f"{node_w / KILO:.2f} kW ({node_w / NODE_W - 1:+.1%}), energy of a step {energy:+.1%}"
    )


def speed() -> None:
    """Print the CPU time of 100 draws of 8,192 GPUs."""
    (request,) = read_points(POINT, CONFIG)
    scaled = scale_job(request, Network(), "grown", 8192, CONFIG)
    before, wall = _cpu_s(), time.monotonic()
    excess = [one.slowest for share in on_all_cores(partial(draws, scaled, config=CONFIG), SHARES, 2) for one in share]
    took = f"{_cpu_s() - before:.1f} CPU s, {time.monotonic() - wall:.1f} s"
    print(f"100 draws of 8,192 GPUs: {took}; slowest GPU +{min(excess):.1%} to +{max(excess):.1%}")


def failures() -> None:
    """Print the curve of mean times to failure, and the goodput of the Llama 3 run (over 90 % published)."""
    usual = Failures()
    for size, hours in PUBLISHED_MTTF_H.items():
        low, high = (usual.mttf_s(size, end) / S_PER_HOUR for end in ("lo", "hi"))
        print(f"{size} GPUs: MTTF {mttf_h(size):.3g} h [{low:.3g}, {high:.3g}], published {hours:.3g} h")
    mttf_s = Failures(rate=FLEET_RATES["Llama 3"]).mttf_s(16384)
    best = best_checkpoints(mttf_s, usual.checkpoint_s, usual.restart_s)
    print(f"16,384 GPUs at the rate of Llama 3: goodput {best.goodput:.1%}")


def _cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


if __name__ == "__main__":
    assert Path(POINT).is_file(), "run it from the repository"
    scaling()
    joint()
    speed()
    failures()
