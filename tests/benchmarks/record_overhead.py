"""What `triplepoint record` costs a loop it watches: `python -m tests.benchmarks.record_overhead [PAIRS]`.

The loop of `tests/loops/plain.py` under torchrun with two ranks is run in pairs, alone and watched, in turns of order.
Its own clock times the steps, so that both are timed alike.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from triplepoint.recorded.marks import Marks

ROOT = Path(__file__).parents[2]
STEPS, EXTRA_S = 60, 0.1
_LOOP = f"""
import sys, time
import torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(512, 512))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
times = []
for _ in range({STEPS}):
    begun = time.perf_counter()
    end = begun + {EXTRA_S}
    while time.perf_counter() < end:
        model.module(torch.ones(64, 512))
    model(torch.ones(64, 512)).sum().backward()
    optimizer.step()
    times.append(time.perf_counter() - begun)
if dist.get_rank() == 0:
    open(sys.argv[1], "w").write(str(sorted(times[5:])[len(times[5:]) // 2]))
"""


def step_s(folder: Path, is_watched: bool) -> float:
    """Return the median step of the loop, alone or watched. Unit: s."""
    loop, out = folder / "loop.py", folder / "median"
    loop.write_text(_LOOP)
    watch = ["-m", "triplepoint", "record", "--results", str(folder / "results"), "--", sys.executable]
    job = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(loop), str(out)]
    command = [sys.executable, *(watch if is_watched else []), *job]
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    subprocess.run(command, check=True, capture_output=True, env=os.environ | {"PYTHONPATH": paths})
    return float(out.read_text())


def mark_us(folder: Path, num: int = 10_000) -> float:
    """Return what one mark takes. Unit: us."""
    marks = Marks(folder, 0, "calls")
    marks.mark("calls")
    begun = time.perf_counter()
    for _ in range(num):
        marks.mark("calls")
    return (time.perf_counter() - begun) / num * 1e6


def main(pairs: int) -> None:
    """Print cost of a mark, and of each pair the step alone and watched."""
    shares = []
    with tempfile.TemporaryDirectory() as name:
        print(f"a mark: {mark_us(Path(name) / 'marks'):.1f} us")
        for pair in range(pairs):
            order = (False, True) if pair % 2 == 0 else (True, False)
            found = {is_watched: step_s(Path(name), is_watched) for is_watched in order}
            shares.append(found[True] / found[False] - 1)
            print(f"pair {pair + 1}: {found[False]:.4f} s alone, {found[True]:.4f} s watched, {shares[-1]:+.2%}")
    if pairs > 1:
        error = statistics.stdev(shares) / len(shares) ** 0.5
        print(f"mean {statistics.fmean(shares):+.2%}, standard error {error:.2%}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 4)
