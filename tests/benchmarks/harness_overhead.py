"""Overhead of the harness on a training step without profiler: `python -m tests.benchmarks.harness_overhead`.

One rank of the native engine trains on the CPU. In half of the blocks the sampler reads the host and the markers of
phases and steps are active, as in steps that are not profiled; in the other half both are off. The order within a pair
is random. The output is the change of the step time, as the harness reports it and with the row it writes, with the
95 % interval of a bootstrap over pairs; in wall time and in CPU time of the rank, which alone is meaningful on a busy
machine. It also prints the CPU time of the sampler, of one marker and of one row.
"""

import argparse
import contextlib
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import psutil
import torch
import torch.distributed as dist

from triplepoint.config.catalogue import Catalogue
from triplepoint.config.point import Layout, Point, PointCluster
from triplepoint.launch.engines import RankContext, StepRecorder
from triplepoint.launch.engines.loop import marker
from triplepoint.launch.engines.native import trainer as trainer_module
from triplepoint.launch.engines.native.parallel import build_mesh
from triplepoint.launch.engines.native.trainer import Trainer
from triplepoint.telemetry.characterise import sampling
from triplepoint.telemetry.overhead import compare

SEED = 8
BLOCK_S = 0.5
SWITCH_S = 0.05
Times = tuple[float, float, float, float]
"""Wall time of a step and of a step with its row, CPU time of both. Unit: s."""


def make_point(batch_size: int) -> Point:
    """Return a point of one rank; a sequence takes about ten milliseconds."""
    model = Catalogue(Path("config")).model("tiny-llama")
    cluster = PointCluster(name="cpu-local", device="cpu", gpu=None, gpus_per_node=8)
    return Point(
        model=model, cluster=cluster, engine="native", num_gpus=1, layout=Layout(), micro_batch_size=batch_size,
        global_batch_size=batch_size, sequence_length=model.sequence_length, precision="fp32",
    )  # fmt: skip


def harnessed(step: Callable[[], Any], recorder: StepRecorder, point: Point) -> Times:
    """Run a step with the harness."""
    cpu, start = time.process_time(), time.perf_counter()
    recorder.begin(0, "measured")
    with marker("ProfilerStep#0"):
        step()
    recorder.end()
    middle, middle_cpu = time.perf_counter(), time.process_time()
    recorder.write(1.0, point.num_tokens, 1)
    return middle - start, time.perf_counter() - start, middle_cpu - cpu, time.process_time() - cpu


def bare(step: Callable[[], Any]) -> Times:
    """Run a step without the harness."""
    cpu, start = time.process_time(), time.perf_counter()
    step()
    took, took_cpu = time.perf_counter() - start, time.process_time() - cpu
    return took, took, took_cpu, took_cpu


def block(one: Callable[[], Times]) -> list[Times]:
    """Run steps for half a second."""
    stop, times = time.perf_counter() + BLOCK_S, []
    while time.perf_counter() < stop:
        times.append(one())
    return times


def measure(folder: Path, point: Point, num_pairs: int, part: str) -> tuple[list[tuple[int, bool, *Times]], float]:
    """Return a row of every step, pair, whether harnessed, its times; and the sampler's share of a core.

    Args:
        folder: For what is written.
        point: What is trained.
        num_pairs: Pairs of blocks.
        part: What differs between the blocks of a pair: all, markers, sampler, or none, which shows the method's bias.
    """
    context = RankContext(0, 1, 0, folder)
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=0, world_size=1)
    torch.set_num_threads(1)
    trainer = Trainer(point, build_mesh(point.layout, "cpu"), torch.device("cpu"))
    tokens = torch.randint(point.model.vocab_size, (point.global_batch_size, point.sequence_length + 1))
    recorder, rows, chooser = StepRecorder(context), [], random.Random(SEED)
    silent = patch.object(trainer_module, "marker", lambda _: contextlib.nullcontext())

    def step() -> None:
        trainer.step(tokens[:, :-1], tokens[:, 1:])

    with sampling(folder / "node0.arrow", "cpu", 0.05) as sampler:
        block(lambda: bare(step))
        began_s, ran_s = sum(psutil.Process(sampler.pid).cpu_times()[:2]), 0.0
        for pair in range(num_pairs):
            for is_on in chooser.sample((True, False), 2):
                is_sampled, is_marked = is_on and part in ("all", "sampler"), is_on and part in ("all", "markers")
                sampler.send_signal(signal.SIGCONT if is_sampled else signal.SIGSTOP)
                time.sleep(SWITCH_S)
                with contextlib.nullcontext() if is_marked else silent:
                    found = block(lambda: harnessed(step, recorder, point)) if is_marked else block(lambda: bare(step))
                rows += [(pair, is_on, *times) for times in found]
                ran_s += is_on * (SWITCH_S + sum(times[1] for times in found))
        share = (sum(psutil.Process(sampler.pid).cpu_times()[:2]) - began_s) / ran_s
    dist.destroy_process_group()
    return rows, share


def alone_us(folder: Path, count: int = 2000) -> tuple[float, float]:
    """Return the CPU time of one marker and of one row. Unit: us."""
    recorder, found = StepRecorder(RankContext(0, 1, 0, folder)), []

    def mark() -> None:
        with marker("forward stage=0 microbatch=0"):
            pass

    def write() -> None:
        recorder.begin(0, "measured")
        recorder.end()
        recorder.write(1.0, 1, 1)

    for one in (mark, write):
        start = time.process_time()
        for _ in range(count):
            one()
        found.append(1e6 * (time.process_time() - start) / count)
    return found[0], found[1]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=1, help="sequences in a step")
    parser.add_argument("--part", choices=("all", "markers", "sampler", "none"), default="all")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows, share = measure(Path(folder), make_point(arguments.batch_size), arguments.pairs, arguments.part)
        marker_us, row_us = alone_us(Path(folder))
    pair, is_on, *times = (np.array(column) for column in zip(*rows, strict=True))
    print("load of the machine: {:.1f}, {:.1f}, {:.1f}".format(*os.getloadavg()))
    wall_ms, cpu_ms = (1e3 * np.median(times[place][~is_on]) for place in (0, 2))
    print(f"{len(rows)} steps, median {wall_ms:.1f} ms, {cpu_ms:.1f} ms of CPU time, without the harness")
    for name, column in zip(("step, wall", "step and row, wall", "step, CPU", "step and row, CPU"), times, strict=True):
        found = compare(pair, is_on, column)
        print(f"{name:20s} {found.change:+.2%}, 95 % interval {found.low:+.2%} to {found.high:+.2%}, "
              f"{found.num_pairs} pairs")  # fmt: skip
    print(f"sampler: {share:.2%} of a core; a marker: {marker_us:.1f} us; a row: {row_us:.1f} us of CPU time")
    return 0


if __name__ == "__main__":
    sys.exit(main())
