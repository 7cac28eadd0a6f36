"""Cost of the sampler with 8 GPUs of the fake library: CPU time, memory, lateness, bytes per hour.

Run: python -m tests.benchmarks.telemetry_cost [SECONDS]

The load is a square wave of 0.7 s with pulses of throttling, so that most columns change at every refresh. CPU time is
that of the sampler's process between its fifth second and the end; what the fake library itself takes is measured
apart, since a real driver takes the place of it. A loop that only wakes up runs at the same time: what the machine
takes for waking, and how late it is, is no doing of the sampler.
"""

import ctypes
import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import psutil
import pyarrow as pa

from tests.fakes.host import Port, Rapl
from tests.fakes.node import FakeNode, fake_node
from tests.fakes.presets import hgx_h200
from tests.fakes.scenario import Scenario
from tests.fakes.wave import square
from triplepoint.recording import fast_path, read_recording
from triplepoint.telemetry.sampler import Lane, open_lanes

WARM_UP_S = 5.0
NS_PER_S = 1_000_000_000
T = TypeVar("T")


@dataclass(frozen=True)
class Case:
    """One setting of the sampler, and its budget."""

    name: str
    fast_hz: float
    slow_hz: float
    most_cpu: float
    """Share of a core."""


CASES = (
    Case("full set at 20 Hz", 20, 20, 0.01),
    Case("as the defaults have it", 20, 5, 0.01),
    Case("fast lane at 100 Hz, slow at 1 Hz", 100, 1, 0.015),
)


def node_of_eight() -> Scenario:
    """Return an H200 node with eight NICs and two packages under a changing load."""
    load = square(0.7, 0.6)
    scenario = hgx_h200().set_all(load=load, sw_thermal=square(3.1, 0.05), pcie_counter_bits=64)
    scenario.host.ports += [Port(f"mlx5_{index}", load=load) for index in range(8)]
    scenario.host.rapl += [Rapl("intel-rapl:0"), Rapl("intel-rapl:1", "package-1")]
    return scenario


def measure(case: Case, seconds: float) -> None:
    """Run the sampler as a separate process and print its cost."""
    with fake_node(node_of_eight()) as node, tempfile.TemporaryDirectory() as folder:
        node.sysfs.start()
        out = Path(folder) / "node0.arrow"
        command = [sys.executable, "-m", "triplepoint", "sample", str(out), "--device", "cuda"]
        rates = ["--period", repr(1 / case.slow_hz), "--fast-period", repr(1 / case.fast_hz)]
        with subprocess.Popen([*command, *rates], env=node.env) as run:
            process = psutil.Process(run.pid)
            time.sleep(WARM_UP_S)
            before, own_before_mb, calls_before = process.cpu_times(), own_memory_mb(run.pid), node.calls()
            begin_ns = time.monotonic_ns()
            empty_cpu, empty_late_us = alone(empty_loop, case.fast_hz, seconds)
            after, own_mb, calls = process.cpu_times(), own_memory_mb(run.pid), node.calls()
            resident_mb = process.memory_info().rss / 1e6
            elapsed_s = (time.monotonic_ns() - begin_ns) / NS_PER_S
            run.terminate()
            run.wait()
        cpu = (after.user + after.system - before.user - before.system) / elapsed_s
        library = _library_s(node, calls_before, calls) / elapsed_s
        late_us, size_mb_per_h = _lateness_us(out, case), _size_mb_per_h(out)
    print(f"{case.name}")
    print(
        f"  CPU                {cpu:8.2%} of a core (figure: {case.most_cpu:.1%}), the fake library about {library:.2%}"
    )
    print(f"  CPU, no sleeping   {back_to_back(case, seconds):8.2%} of a core")
    print(f"  CPU, empty loop    {empty_cpu:8.2%} of a core")
    grown = f"{own_mb - own_before_mb:+.1f} MB in {elapsed_s:.0f} s"
    print(f"  resident memory    {resident_mb:8.1f} MB (figure: 60), its own {own_mb:.1f} MB, {grown}")
    print(f"  stream             {size_mb_per_h:8.2f} MB/h (figure: 20 at 20 Hz)")
    for name, late in (("lateness", late_us), ("lateness, empty loop", empty_late_us)):
        p50, p99 = np.percentile(late, [50, 99])
        print(f"  {name:<21}{p50:6.0f} us median, {p99:.0f} us p99 (figure: 2000 at 20 Hz on an idle machine)")


def back_to_back(case: Case, seconds: float) -> float:
    """Return the share of a core of reads and flushes without sleep between them, so with warm caches."""
    with open_ahead(case) as lanes:
        begin = time.process_time()
        read_ahead(lanes, seconds)
        return (time.process_time() - begin) / seconds


def memory_after(case: Case, spans_s: Sequence[float]) -> list[float]:
    """Return the private memory of this process after each simulated span of reads and flushes. Unit: MB."""
    found = []
    with open_ahead(case) as lanes:
        for span_s in spans_s:
            read_ahead(lanes, span_s)
            found.append(own_memory_mb())
    return found


def own_memory_mb(process: int | str = "self") -> float:
    """Return the resident memory of a process without mapped files. Unit: MB."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:")) * 1024 / 1e6


@contextmanager
def open_ahead(case: Case) -> Iterator[list[Lane]]:
    """Open the lanes of a case on deadlines far ahead, so that no tick is ever late."""
    pool = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())  # as `triplepoint sample` does
    with fake_node(node_of_eight()), tempfile.TemporaryDirectory() as folder:
        lanes = open_lanes(Path(folder) / "node0.arrow", "cuda", 1 / case.slow_hz, 1 / case.fast_hz)
        for lane in lanes:
            lane.start(time.monotonic_ns() + 1_000_000 * NS_PER_S)
        yield lanes
        for lane in lanes:
            lane.close()
    pa.set_memory_pool(pool)


def read_ahead(lanes: list[Lane], seconds: float) -> None:
    """Do the reads and flushes of a time span as fast as possible."""
    for _ in range(round(seconds)):
        for lane in lanes:
            end_ns = lane.deadline_ns + NS_PER_S
            while lane.deadline_ns < end_ns:
                lane.tick()
            lane.flush()


def empty_loop(rate_hz: float, seconds: float) -> tuple[float, np.ndarray]:
    """Return the share of a core and the lateness of a loop that only wakes up. Units: 1, us."""
    late_us = np.zeros(round(rate_hz * seconds))
    begin, deadline_ns = time.process_time(), time.monotonic_ns()
    for place in range(len(late_us)):
        deadline_ns += round(NS_PER_S / rate_hz)
        time.sleep(max(0, deadline_ns - time.monotonic_ns()) / NS_PER_S)
        late_us[place] = (time.monotonic_ns() - deadline_ns) / 1e3
    return (time.process_time() - begin) / seconds, late_us


def _size_mb_per_h(out: Path) -> float:
    """Return the size of the recording per hour, without the description of its columns at the beginning."""
    t_ns = read_recording(out).samples["t_ns"].to_numpy()
    lanes = (out, fast_path(out))
    size = sum(path.stat().st_size - len(pa.ipc.open_stream(path).schema.serialize()) for path in lanes)
    return size / 1e6 / ((t_ns[-1] - t_ns[0]) / NS_PER_S / 3600)


def _lateness_us(out: Path, case: Case) -> np.ndarray:
    """Return the lateness of the start of each sweep over the GPUs. Unit: us.

    Deadlines are whole periods after the first sweep, which begins when the sampler is ready.
    """
    samples = read_recording(out).samples.select(["t_ns", "device", "gpu_power_w"]).drop_null()
    t_ns = samples["t_ns"].to_numpy()[np.array(samples["device"].to_pylist()) == "gpu0"]
    period_ns, sooner_ns = NS_PER_S / case.fast_hz, NS_PER_S / 1000
    return ((t_ns - t_ns[0] + sooner_ns) % period_ns - sooner_ns) / 1e3


def alone(function: Callable[..., T], *arguments: object) -> T:
    """Call a function in a fresh process."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def _library_s(node: FakeNode, before: dict[str, int], after: dict[str, int]) -> float:
    """Return the approximate time of the calls of the fake library between two counts. Unit: s."""
    library = ctypes.CDLL("libnvidia-ml.so.1")
    library.nvmlInit_v2()
    handle, buffer = ctypes.c_void_p(), ctypes.create_string_buffer(40 * 64)
    library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle))
    fields = sorted(number for number, _ in node.fields())[:16]
    words = ctypes.cast(buffer, ctypes.POINTER(ctypes.c_uint32))
    for place, number in enumerate(fields):
        words[place * 10] = number
    batch_s = _each_s(lambda: library.nvmlDeviceGetFieldValues(handle, len(fields), buffer))
    single_s = _each_s(lambda: library.nvmlDeviceGetTemperature(handle, 0, buffer))
    empty_s = _each_s(lambda: library.nvmlErrorString(0))
    library.nvmlShutdown()
    made = {name: count - before.get(name, 0) for name, count in after.items()}
    batches = made.pop("nvmlDeviceGetFieldValues", 0)
    return batches * max(0.0, batch_s - empty_s) + sum(made.values()) * max(0.0, single_s - empty_s)


def _each_s(call, times: int = 20_000) -> float:
    begin = time.process_time()
    for _ in range(times):
        call()
    return (time.process_time() - begin) / times


def main(seconds: float) -> None:
    """Print the cost of each case."""
    print(
        f"load average {psutil.getloadavg()[0]:.1f} on {psutil.cpu_count()} cores: CPU shares hold, lateness may not\n"
    )
    for case in CASES:
        measure(case, seconds)
    hours = alone(memory_after, CASES[0], [60.0, 3600.0, 3600.0])
    print(f"memory of its own after a minute, an hour and two of {CASES[0].name}, simulated:")
    print("  " + ", ".join(f"{memory:.2f} MB" for memory in hours))


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 60)
