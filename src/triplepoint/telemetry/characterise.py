"""Characterisation of a GPU's power sensors: a known load recorded by the sampler, and the resulting sensor card."""

import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from triplepoint.errors import UserError
from triplepoint.power_sensor import (
    counter_energy_j,
    find_updates,
    fit_response,
    integral_j,
    resolution,
    settling_time_s,
)
from triplepoint.recording import Recording, read_recording
from triplepoint.units import NS_PER_S, NS_PER_US

_SHORTEST_S, _LONGEST_S = 0.02, 0.5
"""Range of the random busy and idle times."""
_STEADY_S, _STEADY_EVERY = 2.5, 12
"""Length of the busy intervals in which power becomes steady, and every how many intervals there is one."""
_SEED = 6


def busy_intervals(duration_s: float) -> Iterator[tuple[int, int]]:
    """Alternate between busy and idle on the GPU, for random times; yield start and end of each busy interval in ns.

    Args:
        duration_s: Total time. Unit: s.
    """
    torch = _torch()
    matrix = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(matrix)
    call_s = _call_time_s(torch, lambda: torch.mm(matrix, matrix, out=out))
    generator = random.Random(_SEED)
    stop, number = time.monotonic() + duration_s, 0
    while time.monotonic() < stop:
        number += 1
        is_steady = number % _STEADY_EVERY == 0
        time.sleep(_STEADY_S / 2 if is_steady else generator.uniform(_SHORTEST_S, _LONGEST_S))
        start = time.monotonic_ns()
        busy_s = _STEADY_S if is_steady else generator.uniform(_SHORTEST_S, _LONGEST_S)
        for _ in range(max(1, round(busy_s / call_s))):
            torch.mm(matrix, matrix, out=out)
        torch.cuda.synchronize()
        yield start, time.monotonic_ns()


def _call_time_s(torch: Any, call: Callable[[], object]) -> float:
    """Return the mean time of a call on the GPU after a warm-up. Unit: s."""
    for _ in range(20):
        call()
    torch.cuda.synchronize()
    before = time.monotonic_ns()
    for _ in range(50):
        call()
    torch.cuda.synchronize()
    return (time.monotonic_ns() - before) / 50 / NS_PER_S


def training_loop(device: str) -> Callable[[], None]:
    """Return a function that trains a small transformer for one step and waits for its end."""
    torch = _torch() if device == "cuda" else __import__("torch")
    width, tokens = (1024, (8, 1024)) if device == "cuda" else (64, (2, 64))
    layer = torch.nn.TransformerEncoderLayer(width, width // 64, 4 * width, 0.0, "gelu", batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).to(device)
    batch = torch.randn(*tokens, width, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        model(batch).square().mean().backward()
        optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()

    return step


def _torch() -> Any:
    """Import torch. Raises `UserError` if it finds no GPU."""
    import torch

    if not torch.cuda.is_available():
        raise UserError("torch finds no GPU here; characterise needs one, or --from a folder with what was recorded")
    return torch


POWERS = ("gpu_power_w", "gpu_power_average_w", "gpu_memory_power_w")
"""Columns of power sensors."""
_LEAST_SETTLING_S = 1.0
"""Shortest busy interval from which a settling time is determined."""


@dataclass(frozen=True)
class Load:
    """Busy intervals of a GPU that is idle otherwise, on the clock of the samples."""

    starts_s: np.ndarray
    """Starts of the intervals. Shape (num_intervals,). Unit: s."""
    ends_s: np.ndarray
    """Ends of the intervals. Shape (num_intervals,). Unit: s."""


def make_card(samples: pa.Table, device: str, load: Load) -> dict[str, Any]:
    """Return the sensor card of one GPU.

    Args:
        samples: Table `samples`, or a part of it, recorded under the load.
        device: Name of the GPU in column `device`.
        load: The load, with intervals of many lengths.

    Returns:
        For each power sensor its period, window, lag, duty, resolution and settling time, or why they are not known;
        period and resolution of the energy counter, and the integral of power over it; the latency of reads.
    """
    device_samples = samples.filter(pc.equal(samples["device"], device))
    return {
        "device": device,
        "sensors": {name: _sensor(device_samples, name, load) for name in POWERS},
        "energy_counter": _counter(device_samples),
        "read_latency_us": _latencies(device_samples),
    }


def series(samples: pa.Table, column: str) -> tuple[np.ndarray, np.ndarray]:
    """Return times in s and values of a column where it was read; empty if it never was."""
    if column not in samples.column_names:
        return np.array([]), np.array([])
    read = samples.select(["t_ns", column]).drop_null()
    return read["t_ns"].to_numpy() / NS_PER_S, read[column].to_numpy().astype(float)


def _sensor(samples: pa.Table, column: str, load: Load) -> dict[str, Any]:
    """Return the characteristics of a power sensor, or why they are not known."""
    times_s, power_w = series(samples, column)
    if not times_s.size:
        return {"unknown": "not measured here"}
    try:
        updates = find_updates(times_s, power_w)
        response = fit_response(updates, load.starts_s, load.ends_s)
    except ValueError as error:
        return {"unknown": str(error)}
    card = {"period_s": updates.period_s, **asdict(response), "resolution_w": resolution(power_w)}
    card["duty"] = min(1.0, response.window_s / updates.period_s)
    settling_times_s = [
        settling_time_s(times_s[inside], power_w[inside], start)
        for start, end in zip(load.starts_s, load.ends_s, strict=True)
        if end - start > _LEAST_SETTLING_S and (inside := (times_s >= start) & (times_s < end)).sum() > 10
    ]
    if settling_times_s:
        card["settling_time_s"] = float(np.median(settling_times_s))
    return card


def _counter(samples: pa.Table) -> dict[str, Any]:
    """Return the characteristics of the energy counter, or why they are not known."""
    times_s, energy_j = series(samples, "gpu_energy_j")
    power_t, power_w = series(samples, "gpu_power_w")
    try:
        updates = find_updates(times_s, energy_j)
        window = updates.times_s[1], updates.times_s[-2]
        counted_j = counter_energy_j(times_s, energy_j, *window)
    except (ValueError, IndexError) as error:
        return {"unknown": str(error)}
    integrated_j = integral_j(power_t, power_w, *window) if power_t.size else float("nan")
    return {
        "period_s": updates.period_s,
        "resolution_j": resolution(energy_j),
        "window_s": window[1] - window[0],
        "counted_j": counted_j,
        "integral_over_counter": integrated_j / counted_j,
    }


def _latencies(samples: pa.Table) -> dict[str, float]:
    """Return median, 99th percentile and maximum of the latency of one read of the fast lane. Unit: microsecond."""
    fast = samples.filter(pc.is_valid(samples["gpu_energy_j"])) if "gpu_energy_j" in samples.column_names else samples
    latency_us = fast["read_latency_ns"].to_numpy() / NS_PER_US
    if not latency_us.size:
        return {}
    return dict(zip(("p50", "p99", "max"), np.percentile(latency_us, [50, 99, 100]).tolist(), strict=True))


_FAST_S = 1 / 237.3
"""Period of the fast lane: short enough for sensors with a period of 20 ms, and no multiple of any sensor's rate."""
_SLOW_S = 1.0
_START_S = 30.0
"""Time limit for the start of the sampler."""
_MARGIN_S = 2.0
"""Samples before and after the load that are used."""


@contextmanager
def sampling(
    out: Path, device: str, fast_period_s: float, slow_period_s: float = _SLOW_S
) -> Iterator[subprocess.Popen[bytes]]:
    """Run the sampler alongside a block.

    Args:
        out: File to write.
        device: cuda, rocm or cpu.
        fast_period_s: Period of the fast lane. Unit: s.
        slow_period_s: Period of the slow lane. Unit: s.

    Raises:
        UserError: If the sampler does not start.
    """
    command = [sys.executable, "-m", "triplepoint", "sample", str(out), "--device", device]
    sampler = subprocess.Popen([*command, "--period", str(slow_period_s), "--fast-period", str(fast_period_s)])
    deadline = time.monotonic() + _START_S
    while not (out.exists() and out.stat().st_size):
        if sampler.poll() is not None or time.monotonic() > deadline:
            sampler.kill()
            raise UserError(f"the sampler did not start; try it alone: {' '.join(command)}")
        time.sleep(0.05)
    try:
        yield sampler
    finally:
        sampler.send_signal(signal.SIGCONT)
        sampler.terminate()
        sampler.wait()


def from_gpu(kind: str, device: str, seconds: float) -> dict[str, Any]:
    """Run the known load on the GPU and return its sensor card.

    Args:
        kind: cuda or rocm.
        device: Name of the GPU in column `device`.
        seconds: Duration of the load. Unit: s.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "node0.arrow"
        with sampling(out, kind, _FAST_S):
            intervals = np.array(list(busy_intervals(seconds))) / NS_PER_S
        recording = read_recording(out)
    card = make_card(recording.samples, device, Load(intervals[:, 0], intervals[:, 1]))
    return card | _identity(recording, device)


def _identity(recording: Recording, device: str) -> dict[str, Any]:
    """Return product, driver and metric sources of a GPU from the facts of a recording."""
    facts: dict[str, Any] = next((gpu for gpu in recording.facts.get("gpus", []) if gpu["device"] == device), {})
    return {name: facts.get(name) for name in ("product", "uuid", "driver", "sources", "latency_us")}


def from_folder(folder: Path, device: str) -> dict[str, Any]:
    """Return the sensor card of a GPU from `samples.parquet` and `windows.parquet` of `characterise --record`.

    Raises:
        UserError: If a file or a stage is missing.
    """
    try:
        samples, windows = (pq.read_table(folder / f"{name}.parquet") for name in ("samples", "windows"))
    except (OSError, pa.ArrowInvalid) as error:
        raise UserError(f"{folder}: no samples.parquet and windows.parquet to read ({error})") from None
    random_windows = windows.filter(pc.equal(windows["stage"], "random"))
    if not random_windows.num_rows:
        raise UserError(f"{folder / 'windows.parquet'}: has no stage 'random'; measure again")
    starts_s, ends_s = (random_windows[name].to_numpy() / NS_PER_S for name in ("t_start_ns", "t_end_ns"))
    t_s = samples["t_ns"].to_numpy() / NS_PER_S
    is_during = (t_s > starts_s[0] - _MARGIN_S) & (t_s < ends_s[-1] + _MARGIN_S)
    return make_card(samples.filter(pa.array(is_during)), device, Load(starts_s, ends_s))
