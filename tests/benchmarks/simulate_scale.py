"""Time of a simulated step by the number of GPUs and of distinct ranks.

Run from the repository: python -m tests.benchmarks.simulate_scale [--out docs/simulate_scale]

GPT-3 175B, TP8; work, times, order, timeline and accounts are timed together, the caches empty of this configuration.
`distinct` replicas differ in speed, so that none can stand for another. Times are of the processor, so that others on
the machine count less; the least of some calls. `--out` writes what is drawn as CSV, and the picture as PNG.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.unit.simulate.stand_ins import representatives, simulated
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.model import ModelConfig
from triplepoint.config.point import Layout
from triplepoint.simulate.artefacts.simulated import Simulated, ns
from triplepoint.simulate.artefacts.write import write_traces
from triplepoint.simulate.operations import Communication
from triplepoint.simulate.timeline import schedule
from triplepoint.simulate.timeline.expand import lay_out
from triplepoint.simulate.timeline.schedule import BACKWARD, FORWARD

LAYOUTS = {
    "64 GPUs: TP8 PP4 DP2, 32 micro-batches": Layout(tp=8, pp=4, dp=2, schedule="1f1b"),
    "8,192 GPUs: TP8 PP16 DP64, 64 micro-batches": Layout(tp=8, pp=16, dp=64, schedule="1f1b"),
    "8,192 GPUs, interleaved 3 times": Layout(tp=8, pp=16, dp=64, vp=3, schedule="interleaved_1f1b"),
    "100,096 GPUs: TP8 PP16 DP782": Layout(tp=8, pp=16, dp=782, schedule="1f1b"),
}
REPEATS = 5
MODEL = Catalogue(Path("config")).model("gpt3-175b")


def simulate(layout: Layout, num_distinct: int = 1, model: ModelConfig = MODEL) -> Simulated:
    """Return a job with its timeline and accounts."""
    schedule._make_order.cache_clear()
    count = 32 if layout.pp < 16 else 64
    slow = tuple(1 + 0.1 * one / num_distinct for one in range(num_distinct))
    found = simulated(layout, slow=slow, model=model, global_batch_size=count * layout.dp)
    _ = found.timeline.accounts
    return found


def operation_times(found: Simulated) -> int:
    """Compute first start and last end of each operation class in each task of each rank class; return their number."""
    order, durations, number = found.timeline.order, found.durations, 0
    for stage, work in enumerate(found.stages):
        passes = ((FORWARD, work.chunks[0].forward, durations.forward),)
        passes += ((BACKWARD, work.chunks[0].backward_input, durations.backward_input),)
        passes += ((BACKWARD, work.chunks[0].backward_weight, durations.backward_weight),)
        for kind, operations, took in passes:
            laid = lay_out(
                operations, found.time_of, *(int(ns(part[stage, 0, 0])) for part in (took.compute, took.comm))
            )
            begin = ns(found.timeline.start[stage, order.kind[stage] == kind])
            if operations is work.chunks[0].backward_weight:
                begin = begin + ns(durations.backward_input.total[stage, 0])
            names = [f"comm {op.group}" if isinstance(op, Communication) else op.cls for op in laid.operations]
            name = np.array(names, dtype=object)[laid.which]
            for runs in (np.flatnonzero(name == cls) for cls in dict.fromkeys(name.tolist())):
                start, end = begin + laid.start[runs].min(), begin + laid.end[runs].max()
                number += (start.size + end.size) // 2
    return number


def best_ms(action: Callable[[], object]) -> float:
    """Return the shortest time of some calls. Unit: ms."""
    times = []
    for _ in range(REPEATS):
        begin = time.process_time()
        action()
        times.append(time.process_time() - begin)
    return min(times) * 1e3


def main() -> None:
    """Print all measurements."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, help="write time over GPUs and over distinct replicas, .csv and .png")
    out = parser.parse_args().out
    simulate(LAYOUTS["64 GPUs: TP8 PP4 DP2, 32 micro-batches"])
    for name, layout in LAYOUTS.items():
        print(f"{name}: {best_ms(lambda layout=layout: simulate(layout)):.1f} ms")
    large = LAYOUTS["8,192 GPUs: TP8 PP16 DP64, 64 micro-batches"]
    found = simulate(large)
    print(f"8,192 GPUs, start and end by operation class: {best_ms(lambda: operation_times(found)):.1f} ms more")
    with tempfile.TemporaryDirectory() as folder:
        took = best_ms(lambda: write_traces(Path(folder), found, representatives(found), [0]))
        print(f"8,192 GPUs, {len(representatives(found))} traces: {took:.0f} ms more")
    gpus = [128 * dp for dp in (1, 4, 16, 64, 256, 782)]
    by_gpus = [best_ms(lambda n=n: simulate(Layout(tp=8, pp=16, dp=n // 128, schedule="1f1b"))) for n in gpus]
    distinct = [1, 4, 16, 64, 256, 782]
    most = LAYOUTS["100,096 GPUs: TP8 PP16 DP782"]
    by_distinct = [best_ms(lambda n=n: simulate(most, n)) for n in distinct]
    deep = Layout(tp=8, pp=16, dp=782, vp=4, schedule="interleaved_1f1b")
    took = best_ms(lambda: simulate(deep, 782, MODEL.model_copy(update={"num_layers": 128})))
    print(f"100,096 GPUs, 128 layers interleaved 4 times, 782 distinct replicas: {took:.0f} ms")
    for number, took in zip(gpus, by_gpus, strict=True):
        print(f"{number} GPUs, replicas alike: {took:.1f} ms")
    for number, took in zip(distinct, by_distinct, strict=True):
        print(f"100,096 GPUs, {number} distinct replicas: {took:.1f} ms")
    if out:
        rows = [("gpus", *one) for one in zip(gpus, by_gpus, strict=True)]
        rows += [("distinct_replicas", *one) for one in zip(distinct, by_distinct, strict=True)]
        text = "".join(f"{over},{number},{took:.1f}\n" for over, number, took in rows)
        out.with_suffix(".csv").write_text(f"over,number,cpu_ms\n{text}")
        draw(out.with_suffix(".png"), gpus, by_gpus, distinct, by_distinct)


def draw(path: Path, gpus: list[int], by_gpus: list[float], distinct: list[int], by_distinct: list[float]) -> None:
    """Draw both curves."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    axes[0].loglog(gpus, by_gpus, marker="o")
    axes[0].set(xlabel="GPUs, all replicas alike", ylabel="CPU time to simulate a step [ms]")
    axes[1].loglog(distinct, by_distinct, marker="o")
    axes[1].set(xlabel="distinct replicas of 100,096 GPUs")
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
