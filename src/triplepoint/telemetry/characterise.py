"""Characterisation of a GPU's power sensors: a known load, the real sampler, and a card made of what was recorded."""

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from triplepoint.errors import UserError
from triplepoint.recording.read import Recording, read_recording
from triplepoint.telemetry.card import Load, make_card
from triplepoint.telemetry.loads import busy_intervals
from triplepoint.units import NS_PER_S

_FAST_S = 1 / 237.3
"""Often enough for sensors of 20 ms, and no multiple of any sensor's rate."""
_SLOW_S = 1.0
_START_S = 30.0
_EDGE_S = 2.0


@contextmanager
def sampling(out: Path, device: str, fast_period_s: float) -> Iterator[subprocess.Popen[bytes]]:
    """Run the sampler beside a block.

    Args:
        out: Stream to write.
        device: cuda, rocm or cpu.
        fast_period_s: Time between samples of power. Unit: s.

    Raises:
        UserError: If it does not start.
    """
    command = [sys.executable, "-m", "triplepoint", "sample", str(out), "--device", device]
    sampler = subprocess.Popen([*command, "--period", str(_SLOW_S), "--fast-period", str(fast_period_s)])
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

    Args:
        folder: Where they are: what `tests/hardware/h200/measure.py` left.
        device: Which GPU.

    Raises:
        UserError: If a file or a stage is missing.
    """
    try:
        samples, windows = (pq.read_table(folder / f"{name}.parquet") for name in ("samples", "windows"))
    except (OSError, pa.ArrowInvalid) as error:
        raise UserError(f"{folder}: no samples.parquet and windows.parquet to read ({error})") from None
    random = windows.filter(pc.equal(windows["stage"], "random"))
    if not random.num_rows:
        raise UserError(f"{folder / 'windows.parquet'}: no stage 'random', whose busy times vary; measure again")
    starts_s, ends_s = (random[name].to_numpy() / NS_PER_S for name in ("t_start_ns", "t_end_ns"))
    t_s = samples["t_ns"].to_numpy() / NS_PER_S
    during = (t_s > starts_s[0] - _EDGE_S) & (t_s < ends_s[-1] + _EDGE_S)
    return make_card(samples.filter(pa.array(during)), device, Load(starts_s, ends_s))
