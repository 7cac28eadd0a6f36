"""Measure one GPU: what its driver answers, power of a grid of kernels, sensors, cost of sampling, heating and cooling.

    PYTHONPATH=src python tests/hardware/h200/measure.py OUT --budget-s 500

Nothing on the card is set. Stages run in order of worth and each writes its result when it ends, so a run cut short
keeps what it had. `--dry` takes every step on a CPU with small sizes.
"""

import argparse
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

BEGAN = time.monotonic()
FAST_S, DEFAULT_FAST_S, SLOW_S = 1 / 97.3, 0.05, 0.2
"""The first is no multiple of a sensor's rate: its updates then fall anywhere between two reads."""
PAIRS = {"training": 34, "churn": 12}
BLOCK_S = 0.45


class Session:
    """The folder results go to, the samplers, and the time left."""

    def __init__(self, out: Path, budget_s: float, is_dry: bool) -> None:
        """Start."""
        out.mkdir(parents=True, exist_ok=True)
        self.out, self.budget_s = out, budget_s
        self.scale = 0.02 if is_dry else 1.0
        self.streams = Path(tempfile.mkdtemp(prefix="samples-"))
        self.account: dict[str, Any] = {"date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "stages": []}

    @property
    def left_s(self) -> float:
        """Time left."""
        return self.budget_s - (time.monotonic() - BEGAN)

    def log(self, text: str) -> None:
        """Say what happens."""
        print(f"[{time.monotonic() - BEGAN:6.1f} s] {text}", flush=True)

    def write_json(self, name: str, content: Any) -> None:
        """Write one result."""
        (self.out / name).write_text(json.dumps(content, indent=None, default=str))

    def write_rows(self, name: str, rows: list[dict[str, Any]]) -> None:
        """Write one table."""
        pq.write_table(pa.Table.from_pylist(rows), self.out / name, compression="zstd")

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Run one stage; a failure is written down and the next one begins."""
        self.log(name)
        start = time.monotonic_ns()
        entry: dict[str, Any] = {"stage": name, "t_start_ns": start, "error": None}
        try:
            yield
        except Exception as error:  # device time is dear: the other stages must still run
            entry["error"] = f"{type(error).__name__}: {error}"
            self.log(f"{name} failed: {entry['error']}")
        entry["t_end_ns"] = time.monotonic_ns()
        self.account["stages"].append(entry)
        self.write_json("account.json", self.account)
        self.save_samples()

    @contextmanager
    def sampling(self, name: str, fast_s: float) -> Iterator[subprocess.Popen[bytes]]:
        """Run the project's sampler beside a block."""
        out = self.streams / f"{name}.arrow"
        command = [sys.executable, "-m", "triplepoint", "sample", str(out), "--device", "cuda"]
        command += ["--period", str(SLOW_S), "--fast-period", str(fast_s)]
        sampler = subprocess.Popen(command)
        deadline = time.monotonic() + 20
        while not out.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(1.2)
        before = _cpu_s(sampler.pid)
        began = time.monotonic()
        try:
            yield sampler
        finally:
            used = {"cpu_s": _cpu_s(sampler.pid) - before, "wall_s": time.monotonic() - began}
            used |= {"rss_bytes": _rss_bytes(sampler.pid), "fast_period_s": fast_s}
            self.account[f"sampler_{name}"] = used
            sampler.send_signal(signal.SIGCONT)
            sampler.terminate()
            sampler.wait(10)

    def save_samples(self) -> None:
        """Write what the samplers have recorded so far."""
        from triplepoint.recording.read import read_recording

        tables = []
        for path in sorted(self.streams.glob("*.arrow")):
            if path.name.count(".") > 1:
                continue
            found = read_recording(path)
            self.account[f"gpus_{path.stem}"] = found.facts
            table = found.samples.append_column("recording", pa.array([path.stem] * found.samples.num_rows))
            tables.append(table)
        if tables:
            joined = pa.concat_tables(tables)
            joined = joined.select([n for n in joined.column_names if joined[n].null_count < joined.num_rows])
            pq.write_table(joined, self.out / "samples.parquet", compression="zstd", compression_level=9)


def _cpu_s(pid: int) -> float:
    if not Path(f"/proc/{pid}").exists():
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _rss_bytes(pid: int) -> int:
    if not Path(f"/proc/{pid}").exists():
        return 0
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def describe(session: Session) -> None:
    """Write every field and call of the driver, before the GPU has any work."""
    import dump

    from triplepoint.telemetry.nvml_library import Nvml, NvmlError

    try:
        nvml = Nvml()
        handle = nvml.device(0)
    except (OSError, NvmlError) as error:
        session.write_json("fields.json", {"absent": str(error)})
        return
    found: dict[str, Any] = {}
    for name, part in (
        ("fields", lambda: dump.dump_fields(nvml, handle, 20)),
        ("calls", lambda: dump.dump_calls(nvml, handle, 20)),
        ("activity", lambda: dump.dump_activity(nvml, handle)),
        ("driver_samples", lambda: dump.driver_samples(nvml, handle)),
    ):
        found[name] = part()
        session.write_json("fields.json", found)
    nvml.close()


def driver_samples() -> dict[str, Any]:
    """Return the driver's own buffers after the square waves."""
    import dump

    from triplepoint.telemetry.nvml_library import Nvml

    nvml = Nvml()
    found = dump.driver_samples(nvml, nvml.device(0))
    nvml.close()
    return found


def kernel_grid(session: Session, machine: Any) -> None:
    """Run the grid and write time and windows of each kernel; power is joined afterwards."""
    import kernels
    import stages

    rows = []
    chosen = kernels.grid() if machine.is_gpu else kernels.small(kernels.grid())
    for kernel in chosen:
        if session.left_s < 0.45 * session.budget_s:
            session.log(f"grid cut short before {kernel.name}")
            break
        rows.append(stages.measure_kernel(kernel, 1.5 * max(session.scale, 0.1), machine))
        session.write_rows("kernels.parquet", rows)


def overhead(session: Session, machine: Any, sampler: subprocess.Popen[bytes]) -> None:
    """Write step times of randomised pairs of blocks with the sampler running and stopped."""
    import stages

    chooser = random.Random(6)
    rows = []
    for name, pairs in PAIRS.items():
        loop = stages.Training(machine) if name == "training" else stages.Churn(machine)
        stages.timed_block(loop, 1.5 * session.scale, machine)
        for pair in range(pairs):
            for is_on in chooser.sample((True, False), 2):
                sampler.send_signal(signal.SIGCONT if is_on else signal.SIGSTOP)
                time.sleep(0.02)
                for step_s in stages.timed_block(loop, BLOCK_S * session.scale, machine):
                    rows.append({"loop": name, "pair": pair, "is_sampled": is_on, "step_s": step_s})
        sampler.send_signal(signal.SIGCONT)
        session.write_rows("overhead.parquet", rows)


def heat(session: Session, machine: Any, rows: list[dict[str, Any]]) -> None:
    """Heat the GPU with products for 150 s or half the time left, then let it cool."""
    import kernels
    import stages

    size = 8192 if machine.is_gpu else 64
    batch = stages.prepare(kernels.gemm(size, size, size), machine)
    rows.append(stages.idle(5 * session.scale, "before_heating"))
    left_s = session.left_s - 12 if machine.is_gpu else 2.0
    heating_s = min(150.0, 0.55 * left_s)
    rows.append({"stage": "heating", "period_s": None, "duty": None, **stages.run_steadily(batch, heating_s, machine)})
    session.write_rows("windows.parquet", rows)
    rows.append(stages.idle(max(0.0, min(120.0, left_s - heating_s)), "cooling"))
    session.write_rows("windows.parquet", rows)


def main() -> None:
    """Run all stages."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--budget-s", type=float, default=500.0)
    parser.add_argument("--dry", action="store_true")
    arguments = parser.parse_args()
    session = Session(arguments.out, arguments.budget_s, arguments.dry)
    rows: list[dict[str, Any]] = []
    with session.stage("describe"):
        describe(session)
    with session.sampling("quick", FAST_S):
        import stages
        import torch

        rows.append(stages.idle(5 * session.scale, "idle_without_context"))
        machine = stages.Machine("cpu" if arguments.dry else "cuda")
        session.account |= {"torch": torch.__version__, "python": platform.python_version()}
        if machine.is_gpu:
            session.account |= {"product": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
            torch.zeros(1, device="cuda")
        with session.stage("idle"):
            rows.append(stages.idle(15 * session.scale, "idle"))
            session.write_rows("windows.parquet", rows)
        with session.stage("kernels"):
            kernel_grid(session, machine)
        with session.stage("squares"):
            rows.extend(stages.square_waves(machine, session.scale))
            session.write_rows("windows.parquet", rows)
        with session.stage("driver_samples"):
            session.account["driver_samples"] = driver_samples()
    with session.sampling("default", DEFAULT_FAST_S) as sampler:
        with session.stage("overhead"):
            overhead(session, machine, sampler)
        with session.stage("heat"):
            heat(session, machine, rows)
    session.save_samples()
    session.write_json("account.json", session.account)
    session.log(f"done; {sum(path.stat().st_size for path in session.out.iterdir()) / 1e6:.1f} MB in {session.out}")


if __name__ == "__main__":
    main()
