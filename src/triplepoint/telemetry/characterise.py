"""Characterisation of a GPU's power sensors: a known load, the real sampler, and the sensor card made from both."""

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
_LONG_S, _LONG_EVERY = 2.5, 12
"""Now and then an interval long enough for the power to become steady."""


def busy_intervals(seconds: float, seed: int = 6) -> Iterator[tuple[int, int]]:
    """Keep the GPU busy and idle in turn for random times and yield start and end of each busy time. Unit: ns.

    Args:
        seconds: How long in all. Unit: s.
        seed: Of the random lengths.
    """
    torch = _torch()
    matrix = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(matrix)
    call_s = _time_one(torch, lambda: torch.mm(matrix, matrix, out=out))
    chooser = random.Random(seed)
    stop, number = time.monotonic() + seconds, 0
    while time.monotonic() < stop:
        number += 1
        is_long = number % _LONG_EVERY == 0
        time.sleep(_LONG_S / 2 if is_long else chooser.uniform(_SHORTEST_S, _LONGEST_S))
        start = time.monotonic_ns()
        for _ in range(max(1, round((_LONG_S if is_long else chooser.uniform(_SHORTEST_S, _LONGEST_S)) / call_s))):
            torch.mm(matrix, matrix, out=out)
        torch.cuda.synchronize()
        yield start, time.monotonic_ns()


def _time_one(torch: Any, call: Callable[[], object]) -> float:
    for _ in range(20):
        call()
    torch.cuda.synchronize()
    before = time.monotonic_ns()
    for _ in range(50):
        call()
    torch.cuda.synchronize()
    return (time.monotonic_ns() - before) / 50 / NS_PER_S


def training_loop(device: str) -> Callable[[], None]:
    """Return a function that trains a small transformer for one step and waits until it is done."""
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
    import torch

    if not torch.cuda.is_available():
        raise UserError("torch finds no GPU here; characterise needs one, or --from a folder with what was recorded")
    return torch


POWERS = ("gpu_power_w", "gpu_power_average_w", "gpu_memory_power_w")
_SETTLING_S = 1.0
"""Busy intervals from which a settling time is read."""


@dataclass(frozen=True)
class Load:
    """Busy intervals of a GPU, everything else idle, on the clock of the samples."""

    starts_s: np.ndarray
    """Shape (num_intervals,). Unit: s."""
    ends_s: np.ndarray
    """Shape (num_intervals,). Unit: s."""


def make_card(samples: pa.Table, device: str, load: Load) -> dict[str, Any]:
    """Return the card of one GPU.

    Args:
        samples: Table `samples`, or a part of it, recorded under the load.
        device: Which GPU.
        load: The load, with intervals of many lengths.

    Returns:
        For each power sensor its period, window, lag, duty and resolution, or why they are not known; the period of the
        energy counter; how the integral of power compares with it; settling times; time a read takes.
    """
    mine = samples.filter(pc.equal(samples["device"], device))
    card: dict[str, Any] = {"device": device, "sensors": {name: _sensor(mine, name, load) for name in POWERS}}
    card["energy_counter"] = _counter(mine, load)
    card["read_latency_us"] = _latencies(mine)
    return card


def series(samples: pa.Table, column: str) -> tuple[np.ndarray, np.ndarray]:
    """Return times in s and values of a column where it was read; empty where it never was."""
    if column not in samples.column_names:
        return np.array([]), np.array([])
    kept = samples.select(["t_ns", column]).drop_null()
    return kept["t_ns"].to_numpy() / NS_PER_S, kept[column].to_numpy().astype(float)


def _sensor(samples: pa.Table, column: str, load: Load) -> dict[str, Any]:
    times_s, power_w = series(samples, column)
    if not times_s.size:
        return {"unknown": "not measured here"}
    try:
        updates = find_updates(times_s, power_w)
        response = fit_response(updates, load.starts_s, load.ends_s)
    except ValueError as error:
        return {"unknown": str(error)}
    found = {"period_s": updates.period_s, **asdict(response), "resolution_w": resolution(power_w)}
    found["duty"] = min(1.0, response.window_s / updates.period_s)
    settling = [
        settling_time_s(times_s[inside], power_w[inside], start)
        for start, end in zip(load.starts_s, load.ends_s, strict=True)
        if end - start > _SETTLING_S and (inside := (times_s >= start) & (times_s < end)).sum() > 10
    ]
    if settling:
        found["settling_time_s"] = float(np.median(settling))
    return found


def _counter(samples: pa.Table, load: Load) -> dict[str, Any]:
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
    """Return the time one read of all fast values takes. Unit: microsecond."""
    fast = samples.filter(pc.is_valid(samples["gpu_energy_j"])) if "gpu_energy_j" in samples.column_names else samples
    latency_us = fast["read_latency_ns"].to_numpy() / NS_PER_US
    if not latency_us.size:
        return {}
    return dict(zip(("p50", "p99", "max"), np.percentile(latency_us, [50, 99, 100]).tolist(), strict=True))


_FAST_S = 1 / 237.3
"""Often enough for sensors of 20 ms, and no multiple of any sensor's rate."""
_SLOW_S = 1.0
_START_S = 30.0
_EDGE_S = 2.0


@contextmanager
def sampling(
    out: Path, device: str, fast_period_s: float, slow_period_s: float = _SLOW_S
) -> Iterator[subprocess.Popen[bytes]]:
    """Run the sampler alongside a block.

    Args:
        out: Stream to write.
        device: cuda, rocm or cpu.
        fast_period_s: Time between samples of power. Unit: s.
        slow_period_s: Time between samples of the rest. Unit: s.

    Raises:
        UserError: If it does not start.
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
    """Load the GPU for a while and return its card.

    Args:
        kind: cuda or rocm.
        device: Which GPU.
        seconds: How long. Unit: s.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "node0.arrow"
        with sampling(out, kind, _FAST_S):
            intervals = np.array(list(busy_intervals(seconds))) / NS_PER_S
        found = read_recording(out)
    return make_card(found.samples, device, Load(intervals[:, 0], intervals[:, 1])) | _about(found, device)


def _about(found: Recording, device: str) -> dict[str, Any]:
    facts: dict[str, Any] = next((gpu for gpu in found.facts.get("gpus", []) if gpu["device"] == device), {})
    return {name: facts.get(name) for name in ("product", "uuid", "driver", "sources", "latency_us")}


def from_folder(folder: Path, device: str) -> dict[str, Any]:
    """Return the card of a GPU from `samples.parquet` and `windows.parquet`.

    Raises:
        UserError: If a file or a stage is missing.
    """
    try:
        samples, windows = (pq.read_table(folder / f"{name}.parquet") for name in ("samples", "windows"))
    except (OSError, pa.ArrowInvalid) as error:
        raise UserError(f"{folder}: no samples.parquet and windows.parquet to read ({error})") from None
    random = windows.filter(pc.equal(windows["stage"], "random"))
    if not random.num_rows:
        raise UserError(f"{folder / 'windows.parquet'}: has no stage 'random'; measure again")
    starts_s, ends_s = (random[name].to_numpy() / NS_PER_S for name in ("t_start_ns", "t_end_ns"))
    t_s = samples["t_ns"].to_numpy() / NS_PER_S
    during = (t_s > starts_s[0] - _EDGE_S) & (t_s < ends_s[-1] + _EDGE_S)
    return make_card(samples.filter(pa.array(during)), device, Load(starts_s, ends_s))
