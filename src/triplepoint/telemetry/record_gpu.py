"""Recording of one GPU under known work: power of a grid of kernels, sensors, cost of sampling, heating and cooling.

Nothing on the card is set. Stages run in order of worth and each writes its result when it ends, so a recording cut
short keeps what it had. Its files are what `characterise --from`, `overhead --from` and `calibrate --power` read.
"""

import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from triplepoint.files import write_json
from triplepoint.recording import fast_path, read_recording
from triplepoint.telemetry import gpu_kernels, gpu_loads
from triplepoint.telemetry.characterise import sampling, training_loop
from triplepoint.telemetry.gpu_loads import Machine, Row
from triplepoint.telemetry.overhead import time_pairs

_FAST_S, _DEFAULT_FAST_S, _SLOW_S = 1 / 97.3, 0.05, 0.2
"""The first is no multiple of a sensor's rate: its updates then fall anywhere between two reads."""
_PAIRS = {"training": 34, "churn": 12}
_BLOCK_S = 0.45
_KERNEL_S = 1.5
_GRID_SHARE = 0.45
"""Share of the time that is kept for the stages after the grid of kernels."""
_HEATING_S, _COOLING_S, _SPARE_S = 150.0, 120.0, 12.0

Say = Callable[[str], None]


class _Session:
    """The folder results go to, the samplers, and the time left."""

    def __init__(self, out: Path, budget_s: float, machine: Machine, say: Say) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self.out, self.machine = out, machine
        self.scale = 1.0 if machine.is_gpu else 0.02
        self.budget_s, self._began = budget_s, time.monotonic()
        self.windows: list[Row] = []
        self.account: dict[str, Any] = {"date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "stages": []}
        self.account |= {"torch": torch.__version__, "python": platform.python_version()}
        self._streams = tempfile.TemporaryDirectory(prefix="samples-")
        self._say = say

    @property
    def left_s(self) -> float:
        """Return the time left. Unit: s."""
        return self.budget_s - (time.monotonic() - self._began)

    def write_rows(self, name: str, rows: list[Row]) -> None:
        pq.write_table(pa.Table.from_pylist(rows), self.out / f"{name}.parquet", compression="zstd")

    def add_windows(self, *rows: Row) -> None:
        self.windows += rows
        self.write_rows("windows", self.windows)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Run one stage; a failure is written down and the next one begins."""
        self._say(f"{name}, {self.left_s:.0f} s left")
        entry: dict[str, Any] = {"stage": name, "t_start_ns": time.monotonic_ns(), "error": None}
        try:
            yield
        except Exception as error:  # device time is dear: the other stages must still run
            entry["error"] = f"{type(error).__name__}: {error}"
            self._say(f"{name} failed: {entry['error']}")
        entry["t_end_ns"] = time.monotonic_ns()
        self.account["stages"].append(entry)
        write_json(self.out / "account.json", self.account)
        self.save_samples()

    @contextmanager
    def sampling(self, name: str, kind: str, fast_s: float) -> Iterator[Any]:
        """Run the sampler alongside a block and note what it used."""
        with sampling(Path(self._streams.name) / f"{name}.arrow", kind, fast_s, _SLOW_S) as sampler:
            process = psutil.Process(sampler.pid)
            before, began = process.cpu_times(), time.monotonic()
            try:
                yield sampler
            finally:
                now = process.cpu_times()
                self.account[f"sampler_{name}"] = {
                    "cpu_s": now.user + now.system - before.user - before.system,
                    "wall_s": time.monotonic() - began,
                    "rss_bytes": process.memory_info().rss,
                    "fast_period_s": fast_s,
                }

    def save_samples(self) -> None:
        """Write what the samplers have recorded so far."""
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
            joined = joined.select([n for n in joined.column_names if joined[n].null_count < joined.num_rows])
            pq.write_table(joined, self.out / "samples.parquet", compression="zstd", compression_level=9)


def record_gpu(out: Path, kind: str, budget_s: float, say: Say, device: str = "cuda") -> None:
    """Record the first GPU under known work.

    Args:
        out: Folder to write: `kernels`, `windows`, `samples` and `overhead` as Parquet files, and `account.json`.
        kind: cuda or rocm, whose sensors to read.
        budget_s: How long in all. Unit: s.
        say: Told of each stage.
        device: What computes; `cpu` with sizes of a few kilobytes, to try every stage.
    """
    session = _Session(out, budget_s, Machine(device), say)
    with session.sampling("quick", kind, _FAST_S):
        session.add_windows(gpu_loads.idle(5 * session.scale, "idle_without_context"))
        if session.machine.is_gpu:
            session.account |= {"product": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
            torch.zeros(1, device="cuda")
        with session.stage("idle"):
            session.add_windows(gpu_loads.idle(15 * session.scale, "idle"))
        with session.stage("kernels"):
            _run_grid(session)
        with session.stage("squares"):
            session.add_windows(*gpu_loads.square_waves(session.machine, session.scale))
    with session.sampling("default", kind, _DEFAULT_FAST_S) as sampler:
        with session.stage("overhead"):
            _measure_overhead(session, sampler)
        with session.stage("heat"):
            _heat(session)
    session.save_samples()
    write_json(out / "account.json", session.account)


def _run_grid(session: _Session) -> None:
    """Run the grid and write time and windows of each kernel; power is joined by who reads them."""
    rows = []
    machine = session.machine
    grid = gpu_kernels.grid() if machine.is_gpu else gpu_kernels.small(gpu_kernels.grid())
    for kernel in grid:
        if session.left_s < _GRID_SHARE * session.budget_s:
            break
        rows.append(gpu_loads.measure_kernel(kernel, _KERNEL_S * max(session.scale, 0.1), machine))
        session.write_rows("kernels", rows)


def _measure_overhead(session: _Session, sampler: Any) -> None:
    """Write step times of randomised pairs of blocks with the sampler running and stopped."""
    device, rows = session.machine.device, []
    for name, loop in (("training", training_loop(device)), ("churn", gpu_loads.churn_loop(device))):
        num_pairs = max(2, round(_PAIRS[name] * session.scale))
        for pair, is_sampled, step_s in time_pairs(loop, num_pairs, sampler, _BLOCK_S * session.scale):
            rows.append({"loop": name, "pair": pair, "is_sampled": is_sampled, "step_s": step_s})
        session.write_rows("overhead", rows)


def _heat(session: _Session) -> None:
    """Heat the GPU with GEMMs for 150 s or half the time left, then let it cool."""
    machine = session.machine
    size = 8192 if machine.is_gpu else 64
    batch = gpu_loads.prepare(gpu_kernels.gemm(size, size, size), machine)
    session.add_windows(gpu_loads.idle(5 * session.scale, "before_heating"))
    left_s = session.left_s - _SPARE_S if machine.is_gpu else 2.0
    heating_s = min(_HEATING_S, 0.55 * left_s)
    heating = gpu_loads.run_steadily(batch, heating_s, machine)
    session.add_windows({"stage": "heating", "period_s": None, "duty": None, **heating})
    session.add_windows(gpu_loads.idle(max(0.0, min(_COOLING_S, left_s - heating_s)), "cooling"))
