"""Predictions against simulated runs, all simulated points: `python -m tests.benchmarks.predict_against_simulate`.

With a number N only every Nth point. Prints the mean and largest difference of each quantity, CPU time of both, and
every point beyond what is asked for: 0.5 % of step time, 1 % of power, 0.5 K, 0.01 of throttled share.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

from tests.synthetic import CONFIG
from triplepoint.config.plan import PlannedRun
from triplepoint.plan import select
from triplepoint.simulate.artefacts.simulate_run import simulate_run
from triplepoint.simulate.predict.point import predict_point

CLUSTERS = ("h200x32", "h100x64", "mi250x32", "h200x1")
ALLOWED = {
    "step_time_s": 0.005,
    "gpu_power_w": 0.01,
    "gpu_power_peak_w": 0.01,
    "node_power_w": 0.01,
    "gpu_temp_max_c": 0.5,
    "throttle_fraction": 0.01,
}
"""Largest allowed differences: relative for times and powers. Units: 1, K, 1."""


def differences(run: PlannedRun) -> tuple[dict[str, float], float, float] | None:
    """Return simulated minus predicted quantities, and CPU times (s); None for a point that does not run."""
    begin = time.process_time()
    found = predict_point(run.point, CONFIG)
    middle = time.process_time()
    with tempfile.TemporaryDirectory() as name:
        manifest = simulate_run(run, Path(name), CONFIG)
    end = time.process_time()
    if manifest.status != "ok":
        assert found.status == manifest.status, run.run
        return None
    apart = {}
    for name in ALLOWED:
        predicted = found.step_time_s if name == "step_time_s" else getattr(found.power, name)
        simulated = float(manifest.facts[name] or 0.0)
        is_relative = name.endswith(("_s", "_w"))
        apart[name] = simulated / predicted - 1.0 if is_relative else simulated - predicted
    return apart, middle - begin, end - middle


def main() -> None:
    """Print the differences over all points."""
    every = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    plan = select(CONFIG, None, ["cpu-local"], CLUSTERS)
    runs = [entry.planned for entry in plan.valid if entry.planned.point.engine == "simulated"][::every]
    rows = {run.run: row for run in runs if (row := differences(run))}
    print(f"{len(rows)} of {len(runs)} points run")
    for name, allowed in ALLOWED.items():
        sizes = [abs(apart[name]) for apart, _, _ in rows.values()]
        print(f"{name:<20}mean {statistics.mean(sizes):.5f}  largest {max(sizes):.5f}  allowed {allowed}")
    for index, what in ((1, "predicted"), (2, "simulated")):
        print(f"{what} in {1000 * statistics.mean(row[index] for row in rows.values()):.0f} ms of CPU")
    for run, (apart, _, _) in rows.items():
        if beyond := {name: value for name, value in apart.items() if abs(value) > ALLOWED[name]}:
            print(f"beyond: {run} {beyond}")


if __name__ == "__main__":
    main()
