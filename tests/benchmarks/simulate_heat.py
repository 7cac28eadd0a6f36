"""CPU time of power, heat and clocks in runs and predictions: `python -m tests.benchmarks.simulate_heat`."""

import statistics
import tempfile
import time
from pathlib import Path
from unittest import mock

from tests.synthetic import CONFIG
from triplepoint.config.plan import PlannedRun
from triplepoint.plan import select
from triplepoint.simulate.artefacts import simulate_run as run
from triplepoint.simulate.predict.point import predict_point

EVERY = 9
"""Every ninth run of the paper's grid."""


def simulated(planned: PlannedRun) -> tuple[float, float] | None:
    """Return the CPU time of a run and the size of its recordings in kB; None if it does not run."""
    with tempfile.TemporaryDirectory() as name:
        begin = time.process_time()
        manifest = run.simulate_run(planned, Path(name), CONFIG)
        taken = time.process_time() - begin
        size = sum(path.stat().st_size for path in Path(name).glob("telemetry/*")) / 1000
    return (taken, size) if manifest.status == "ok" else None


def main() -> None:
    entries = select(CONFIG, None, ["cpu-local"], ["h200x32", "h100x64", "mi250x32"]).valid
    points = [one.planned for one in entries if one.planned.point.engine == "simulated"]
    points = [one for one in points if one.point.task == "pretrain"][::EVERY]
    simulated(points[0])
    with mock.patch.object(run, "is_known", return_value=False):
        without = [simulated(one) for one in points]
    both = [pair for one, other in zip(points, without, strict=True) if other and (pair := (other, simulated(one)))[1]]
    for index, what in ((0, "CPU s"), (1, "kB of recordings")):
        old, new = ([found[index] for found in column] for column in zip(*both, strict=True))
        more = [b - a for a, b in zip(old, new, strict=True)]
        means = f"{statistics.mean(old):.2f} without, {statistics.mean(new):.2f} with power and heat"
        print(f"{len(both)} runs, {what}: {means}; {statistics.mean(more):.2f} more, {max(more):.2f} at most")
    print(f"prediction: {predicted(points, True):.1f} ms with power and heat, {predicted(points, False):.1f} without")


def predicted(points: list[PlannedRun], with_power: bool) -> float:
    """Return the CPU time of a prediction after a first one. Unit: ms."""
    taken = 0.0
    for _ in range(2):
        begin = time.process_time()
        for one in points:
            predict_point(one.point, CONFIG, with_power=with_power)
        taken = time.process_time() - begin
    return 1000 * taken / len(points)


if __name__ == "__main__":
    main()
