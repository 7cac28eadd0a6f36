"""Recording of one GPU under known work: kernels, power sensors, sampling overhead, heating and cooling.

It changes no settings of the GPU. Stages run in order of importance and write their results when they end, so a
recording cut short keeps the earlier stages. `characterise --from`, `overhead --from` and `calibrate --power` read its
files.
"""

import platform
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from triplepoint.files import write_json
from triplepoint.recording import fast_path, read_recording
from triplepoint.telemetry import gpu_kernels
from triplepoint.telemetry.characterise import sampling, training_loop
from triplepoint.telemetry.gpu_kernels import Batch, Kernel, Machine, gemm, prepare, repeat, time_calls
from triplepoint.telemetry.overhead import time_pairs
from triplepoint.units import NS_PER_S

Row = dict[str, Any]
_QUEUED_BATCHES = 3
"""Batches queued on the device, so that it is never idle while the host is busy otherwise."""
_FAST_S, _DEFAULT_FAST_S, _SLOW_S = 1 / 97.3, 0.05, 0.2
"""Sampling periods. The first is no multiple of a sensor's rate, so that updates fall anywhere between two reads."""
_PAIRS = {"training": 34, "churn": 12}
"""Pairs of blocks of the overhead stage, by loop."""
_BLOCK_S = 0.45
_KERNEL_S = 1.5
"""Duration of each kernel of the grid."""
_LEAST_LEFT = 0.45
"""Share of the total time that is kept for the stages after the grid of kernels."""
_HEATING_S, _COOLING_S, _SPARE_S = 150.0, 120.0, 12.0

Say = Callable[[str], None]


def run_steadily(batch: Batch, duration_s: float, machine: Machine) -> Row:
    """Run a batch back to back. Start and end are host times between which the device was busy throughout.

    Returns:
        `t_start_ns`, `t_end_ns`, `call_s` (median over batches), `call_p10_s`, `call_p90_s`, `num_calls`.
    """
    machine.wait()
    marks = [machine.mark()]
    start = time.monotonic_ns()
    while time.monotonic_ns() - start < duration_s * NS_PER_S:
        batch.launch()
        marks.append(machine.mark())
        if machine.is_gpu and len(marks) > _QUEUED_BATCHES:
            marks[-_QUEUED_BATCHES].synchronize()
    machine.wait()
    end = time.monotonic_ns()
    call_times_s = [machine.between_s(a, b) / batch.calls for a, b in zip(marks, marks[1:], strict=False)]
    p10, median, p90 = np.percentile(call_times_s, [10, 50, 90])
    return {
        "t_start_ns": start,
        "t_end_ns": end,
        "call_s": float(median),
        "call_p10_s": float(p10),
        "call_p90_s": float(p90),
        "num_calls": batch.calls * len(call_times_s),
        "is_graph": batch.is_graph,
    }


def measure_kernel(kernel: Kernel, duration_s: float, machine: Machine) -> Row:
    """Measure one kernel of the grid; the row of a failed kernel has the error."""
    row: Row = {
        "kernel": kernel.name,
        "family": kernel.family,
        "dtype": kernel.dtype,
        "operands": kernel.operands,
        "shape": kernel.shape,
        "flops": kernel.flops,
        "min_bytes": kernel.num_bytes,
        "error": None,
    }
    try:
        row |= run_steadily(prepare(kernel, machine), duration_s, machine)
    except (RuntimeError, ValueError, AttributeError) as error:
        row["error"] = str(error).splitlines()[0][:200]
    if machine.is_gpu:
        torch.cuda.empty_cache()
    return row


def idle(duration_s: float, name: str) -> Row:
    """Leave the device idle and return the row of that window."""
    start = time.monotonic_ns()
    time.sleep(duration_s)
    return {"stage": name, "period_s": None, "duty": None, "t_start_ns": start, "t_end_ns": time.monotonic_ns()}


SQUARES = (
    (8.0, 0.5, 1),
    (2.0, 0.5, 3),
    (1.0, 0.5, 4),
    (0.4, 0.5, 8),
    (0.25, 0.5, 12),
    (0.1, 0.25, 40),
    (0.125, 0.25, 32),
    (0.08, 0.25, 40),
    (0.05, 0.5, 60),
)
"""Period in s, busy share and number of cycles of each square wave. 0.1 s at 25 % is the reported update period and
duty of the sensors of A100 and H100, at which a plain mean of samples has the largest error. Source: arXiv:2312.02741.
"""


def square_waves(machine: Machine, scale: float) -> Iterator[Row]:
    """Yield a row for each busy interval of square waves of several periods, then of random intervals."""
    size = 4096 if machine.is_gpu else 64
    call = gemm(size, size, size).make(machine.device)
    repeat(call, 20)
    machine.wait()
    call_s = time_calls(call, 100, machine)
    for period_s, duty, cycles in SQUARES:
        time.sleep(0.5 * scale)
        start = time.monotonic()
        for cycle in range(max(1, round(cycles * scale))):
            _sleep_until(start + cycle * period_s)
            busy_s = period_s * duty * min(1.0, 5 * scale)
            yield _busy(call, call_s, busy_s, machine, f"square_{period_s}_{duty}", period_s, duty)
    generator = random.Random(6)
    stop = time.monotonic() + 16 * scale
    while time.monotonic() < stop:
        time.sleep(generator.uniform(0.02, 0.5))
        yield _busy(call, call_s, generator.uniform(0.02, 0.5), machine, "random", None, None)


def _busy(
    call: Callable[[], object],
    call_s: float,
    busy_s: float,
    machine: Machine,
    stage: str,
    period_s: float | None,
    duty: float | None,
) -> Row:
    """Keep the device busy with repeated calls for a time and return the row of that window."""
    num = max(1, round(busy_s / call_s))
    start = time.monotonic_ns()
    repeat(call, num)
    machine.wait()
    end = time.monotonic_ns()
    return {"stage": stage, "period_s": period_s, "duty": duty, "t_start_ns": start, "t_end_ns": end}


def _sleep_until(deadline_s: float) -> None:
    left = deadline_s - time.monotonic()
    if left > 0.002:
        time.sleep(left - 0.001)
    while time.monotonic() < deadline_s:
        pass


def churn_loop(device: str) -> Callable[[], None]:
    """Return a function that allocates and frees device memory, which needs the same driver lock as the sampler."""
    num_bytes = 64 << 20 if device != "cpu" else 1 << 10

    def step() -> None:
        block = torch.empty(num_bytes, dtype=torch.uint8, device=device)
        block.zero_()
        del block
        if device != "cpu":
            torch.cuda.empty_cache()
            torch.cuda.synchronize()

    return step


class _Session:
    """State of a recording: output folder, samplers, and remaining time."""

    def __init__(self, out: Path, budget_s: float, machine: Machine, say: Say) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self.out, self.machine = out, machine
        self.scale = 1.0 if machine.is_gpu else 0.02
        self.budget_s, self._start_s = budget_s, time.monotonic()
        self.windows: list[Row] = []
        self.account: dict[str, Any] = {"date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "stages": []}
        self.account |= {"torch": torch.__version__, "python": platform.python_version()}
        self._streams = tempfile.TemporaryDirectory(prefix="samples-")
        self._say = say

    @property
    def left_s(self) -> float:
        """Remaining time. Unit: s."""
        return self.budget_s - (time.monotonic() - self._start_s)

    def write_rows(self, name: str, rows: list[Row]) -> None:
        """Write rows to a Parquet file."""
        pq.write_table(pa.Table.from_pylist(rows), self.out / f"{name}.parquet", compression="zstd")

    def add_windows(self, *rows: Row) -> None:
        """Append rows to `windows.parquet`."""
        self.windows += rows
        self.write_rows("windows", self.windows)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Run one stage; an error is recorded, and the next stage runs."""
        self._say(f"{name}, {self.left_s:.0f} s left")
        entry: dict[str, Any] = {"stage": name, "t_start_ns": time.monotonic_ns(), "error": None}
        try:
            yield
        except Exception as error:  # device time is expensive, so the other stages must still run
            entry["error"] = f"{type(error).__name__}: {error}"
            self._say(f"{name} failed: {entry['error']}")
        entry["t_end_ns"] = time.monotonic_ns()
        self.account["stages"].append(entry)
        write_json(self.out / "account.json", self.account)
        self.save_samples()

    @contextmanager
    def sampling(self, name: str, kind: str, fast_s: float) -> Iterator[Any]:
        """Run the sampler alongside a block and record its CPU time and memory."""
        with sampling(Path(self._streams.name) / f"{name}.arrow", kind, fast_s, _SLOW_S) as sampler:
            process = psutil.Process(sampler.pid)
            before, start_s = process.cpu_times(), time.monotonic()
            try:
                yield sampler
            finally:
                now = process.cpu_times()
                self.account[f"sampler_{name}"] = {
                    "cpu_s": now.user + now.system - before.user - before.system,
                    "wall_s": time.monotonic() - start_s,
                    "rss_bytes": process.memory_info().rss,
                    "fast_period_s": fast_s,
                }

    def save_samples(self) -> None:
        """Write the samples recorded so far to `samples.parquet`."""
        tables = []
        for path in sorted(Path(self._streams.name).glob("*.arrow")):
            if path in {fast_path(other) for other in path.parent.glob("*.arrow")}:
                continue
            recording = read_recording(path)
            self.account[f"gpus_{path.stem}"] = recording.facts
            names = pa.array([path.stem] * recording.samples.num_rows, pa.string())
            tables.append(recording.samples.append_column("recording", names))
        if tables:
            joined = pa.concat_tables(tables)
            measured = [name for name in joined.column_names if joined[name].null_count < joined.num_rows]
            joined = joined.select(measured)
            pq.write_table(joined, self.out / "samples.parquet", compression="zstd", compression_level=9)


def record_gpu(out: Path, kind: str, budget_s: float, say: Say, device: str = "cuda") -> None:
    """Record the first GPU under known work.

    Args:
        out: Folder to write: `kernels`, `windows`, `samples` and `overhead` as Parquet files, and `account.json`.
        kind: cuda or rocm, for the sensors.
        budget_s: Total time. Unit: s.
        say: Called with a line for each stage.
        device: Device to run on; `cpu` runs every stage with sizes of a few kilobytes, as a dry run.
    """
    session = _Session(out, budget_s, Machine(device), say)
    with session.sampling("quick", kind, _FAST_S):
        session.add_windows(idle(5 * session.scale, "idle_without_context"))
        if session.machine.is_gpu:
            session.account |= {"product": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
            torch.zeros(1, device="cuda")
        with session.stage("idle"):
            session.add_windows(idle(15 * session.scale, "idle"))
        with session.stage("kernels"):
            _run_grid(session)
        with session.stage("squares"):
            session.add_windows(*square_waves(session.machine, session.scale))
    with session.sampling("default", kind, _DEFAULT_FAST_S) as sampler:
        with session.stage("overhead"):
            _measure_overhead(session, sampler)
        with session.stage("heat"):
            _heat(session)
    session.save_samples()
    write_json(out / "account.json", session.account)


def _run_grid(session: _Session) -> None:
    """Run the grid of kernels and write time and window of each; readers join the power from the samples."""
    rows = []
    machine = session.machine
    grid = gpu_kernels.grid() if machine.is_gpu else gpu_kernels.small(gpu_kernels.grid())
    for kernel in grid:
        if session.left_s < _LEAST_LEFT * session.budget_s:
            break
        rows.append(measure_kernel(kernel, _KERNEL_S * max(session.scale, 0.1), machine))
        session.write_rows("kernels", rows)


def _measure_overhead(session: _Session, sampler: Any) -> None:
    """Write step times of randomised pairs of blocks with the sampler running and paused."""
    device, rows = session.machine.device, []
    for name, loop in (("training", training_loop(device)), ("churn", churn_loop(device))):
        num_pairs = max(2, round(_PAIRS[name] * session.scale))
        for pair, is_sampled, step_s in time_pairs(loop, num_pairs, sampler, _BLOCK_S * session.scale):
            rows.append({"loop": name, "pair": pair, "is_sampled": is_sampled, "step_s": step_s})
        session.write_rows("overhead", rows)


def _heat(session: _Session) -> None:
    """Heat the GPU with GEMMs for 150 s, or about half of the remaining time, then let it cool."""
    machine = session.machine
    size = 8192 if machine.is_gpu else 64
    batch = prepare(gpu_kernels.gemm(size, size, size), machine)
    session.add_windows(idle(5 * session.scale, "before_heating"))
    left_s = session.left_s - _SPARE_S if machine.is_gpu else 2.0
    heating_s = min(_HEATING_S, 0.55 * left_s)
    heating = run_steadily(batch, heating_s, machine)
    session.add_windows({"stage": "heating", "period_s": None, "duty": None, **heating})
    session.add_windows(idle(max(0.0, min(_COOLING_S, left_s - heating_s)), "cooling"))
