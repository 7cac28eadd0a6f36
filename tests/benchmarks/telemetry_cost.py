"""What the sampler costs for 8 GPUs of the fake library: CPU, memory, lateness, bytes an hour.

Run: python -m tests.benchmarks.telemetry_cost [SECONDS]

The load is a square wave of 0.7 s with pulses of throttling, so that most columns change at every refresh. CPU time is
that of the sampler's process between its fifth second and the end; what the fake library itself takes is measured
beside it, since a real driver takes the place of it.
"""

import ctypes
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from tests.fakes.host import Port, Rapl
from tests.fakes.node import FakeNode, fake_node
from tests.fakes.presets import hgx_h200
from tests.fakes.scenario import Scenario
from tests.fakes.wave import square
from triplepoint.recording.read import read_recording
from triplepoint.recording.write import fast_path
from triplepoint.telemetry.sampler import open_lanes

WARM_UP_S = 5.0
NS_PER_S = 1_000_000_000


@dataclass(frozen=True)
class Case:
    """One setting of the sampler, and the figure it is held against."""

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
    """Run the sampler as its own process and print what it cost."""
    with fake_node(node_of_eight()) as node, tempfile.TemporaryDirectory() as folder:
        node.sysfs.start()
        out = Path(folder) / "node0.arrow"
        command = [sys.executable, "-m", "triplepoint", "sample", str(out), "--device", "cuda"]
        rates = ["--period", repr(1 / case.slow_hz), "--fast-period", repr(1 / case.fast_hz)]
        with subprocess.Popen([*command, *rates], env=node.env) as run:
            process = psutil.Process(run.pid)
            time.sleep(WARM_UP_S)
            before, rss_before, calls_before = process.cpu_times(), process.memory_info().rss, node.calls()
            size_before, begin_ns = _size(out), time.monotonic_ns()
            time.sleep(seconds)
            after, rss, calls = process.cpu_times(), process.memory_info().rss, node.calls()
            elapsed_s, size = (time.monotonic_ns() - begin_ns) / NS_PER_S, _size(out)
            run.terminate()
            run.wait()
        cpu = (after.user + after.system - before.user - before.system) / elapsed_s
        library = _library_s(node, calls_before, calls) / elapsed_s
        late_us = _lateness_us(out, case)
    per_hour = 3600 / elapsed_s / 1e6
    print(f"{case.name}")
    print(
        f"  CPU                {cpu:8.2%} of a core (figure: {case.most_cpu:.1%}), the fake library about {library:.2%}"
    )
    print(f"  CPU, no sleeping   {back_to_back(case, seconds):8.2%} of a core")
    print(f"  CPU, empty loop    {empty_loop(case.fast_hz):8.2%} of a core")
    grown = f"{(rss - rss_before) / 1e6:+.1f} MB in {elapsed_s:.0f} s"
    print(f"  resident memory    {rss / 1e6:8.1f} MB (figure: 60), {grown}")
    print(f"  stream             {(size - size_before) * per_hour:8.2f} MB/h (figure: 20 at 20 Hz)")
    p50, p99 = np.percentile(late_us, [50, 99])
    print(f"  lateness           {p50:8.0f} us median, {p99:.0f} us p99 (figure: 2000 at 20 Hz on an idle machine)")


def back_to_back(case: Case, seconds: float) -> float:
    """Return the share of a core of the reads and flushes alone, without sleeping in between: caches stay warm."""
    with fake_node(node_of_eight()), tempfile.TemporaryDirectory() as folder:
        lanes = open_lanes(Path(folder) / "node0.arrow", "cuda", 1 / case.slow_hz, 1 / case.fast_hz)
        begin = time.process_time()
        for lane in lanes:
            ahead_ns = time.monotonic_ns() + round(1e12)  # never late: each tick moves the deadline by one period
            lane.start(ahead_ns)
            while lane.deadline_ns < ahead_ns + seconds * NS_PER_S:
                lane.tick()
            lane.flush()
        spent_s = time.process_time() - begin
        for lane in lanes:
            lane.close()
    return spent_s / seconds


def empty_loop(rate_hz: float, seconds: float = 5.0) -> float:
    """Return the share of a core of a loop that wakes up and does nothing: what the machine takes for waking."""
    begin, deadline = time.process_time(), time.monotonic()
    for _ in range(round(rate_hz * seconds)):
        deadline += 1 / rate_hz
        time.sleep(max(0.0, deadline - time.monotonic()))
    return (time.process_time() - begin) / seconds


def _size(out: Path) -> int:
    return sum(path.stat().st_size for path in (out, fast_path(out)))


def _lateness_us(out: Path, case: Case) -> np.ndarray:
    """Return how far behind its deadline each sweep over the GPUs began. Unit: us.

    Deadlines have one phase, which no read comes before: it is the one after the longest stretch without a read.
    """
    samples = read_recording(out).samples.select(["t_ns", "device", "gpu_power_w"]).drop_null()
    first = np.array(samples["device"].to_pylist()) == "gpu0"
    period_ns = NS_PER_S / case.fast_hz
    phases_ns = samples["t_ns"].to_numpy()[first] % period_ns
    around_ns = np.sort(phases_ns)
    stretches_ns = np.diff(around_ns, prepend=around_ns[-1] - period_ns)
    return (phases_ns - around_ns[stretches_ns.argmax()]) % period_ns / 1e3


def _library_s(node: FakeNode, before: dict[str, int], after: dict[str, int]) -> float:
    """Return about how long the fake library itself took for the calls between two counts. Unit: s."""
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


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 60)
