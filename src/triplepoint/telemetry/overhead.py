"""Overhead of sampling on training, from step times with the sampler running and paused in random order."""

import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from triplepoint.errors import UserError
from triplepoint.telemetry.characterise import sampling, training_loop

_NUM_RESAMPLES = 4000
_SEED = 6
_BLOCK_S = 0.5
_SWITCH_S = 0.02
"""Pause after the sampler is paused or resumed. Unit: s."""
_COLUMNS = ("pair", "is_sampled", "step_s")


@dataclass(frozen=True)
class Overhead:
    """Relative change of the step time by sampling, with its uncertainty."""

    num_pairs: int
    """Pairs of blocks."""
    change: float
    """Median over pairs of the step time with sampling over the step time without, minus 1."""
    low: float
    """Lower end of the 95 % interval."""
    high: float
    """Upper end of the 95 % interval."""


def compare(pair: np.ndarray, is_sampled: np.ndarray, step_s: np.ndarray) -> Overhead:
    """Return the relative change of the step time by sampling.

    A pair is two consecutive blocks of steps, one of them sampled; each block counts with its median step time. The
    interval is that of the median over pairs, by a percentile bootstrap.

    Args:
        pair: Pair of each step. Shape (num_steps,).
        is_sampled: Whether the sampler ran. Shape (num_steps,).
        step_s: Time of each step. Shape (num_steps,). Unit: s.

    Raises:
        ValueError: If no pair has steps of both kinds.
    """
    changes = []
    for number in np.unique(pair):
        sampled_s, unsampled_s = (step_s[(pair == number) & (is_sampled == kind)] for kind in (True, False))
        if sampled_s.size and unsampled_s.size:
            changes.append(float(np.median(sampled_s) / np.median(unsampled_s)) - 1)
    if not changes:
        raise ValueError("no pair of blocks, one sampled and one not")
    resamples = np.random.default_rng(_SEED).choice(changes, (_NUM_RESAMPLES, len(changes)))
    low, high = np.percentile(np.median(resamples, axis=1), [2.5, 97.5])
    return Overhead(len(changes), float(np.median(changes)), float(low), float(high))


def from_loop(kind: str, num_pairs: int, fast_period_s: float) -> dict[str, Overhead]:
    """Measure the overhead on the training of a small model.

    Args:
        kind: cuda, rocm or cpu.
        num_pairs: Number of pairs of blocks.
        fast_period_s: Period of the fast lane. Unit: s.
    """
    step = training_loop("cpu" if kind == "cpu" else "cuda")
    with (
        tempfile.TemporaryDirectory() as folder,
        sampling(Path(folder) / "node0.arrow", kind, fast_period_s) as sampler,
    ):
        rows = list(time_pairs(step, num_pairs, sampler, _BLOCK_S))
    pair_of, sampled, step_s = (np.array(column) for column in zip(*rows, strict=True))
    return {"training": compare(pair_of, sampled, step_s)}


def time_pairs(
    step: Callable[[], None], num_pairs: int, sampler: subprocess.Popen[bytes], block_s: float
) -> Iterator[tuple[int, bool, float]]:
    """Yield for each step its pair, whether the sampler ran, and its time in s; the order in a pair is random.

    Args:
        step: Function that makes one step and waits for its end.
        num_pairs: Number of pairs of blocks.
        sampler: The sampler, paused during one block of each pair.
        block_s: Duration of a block. Unit: s.
    """
    generator = random.Random(_SEED)
    _steps(step, 2 * block_s)
    for pair in range(num_pairs):
        for is_sampled in generator.sample((True, False), 2):
            # A stopped process keeps its devices open but reads nothing.
            sampler.send_signal(signal.SIGCONT if is_sampled else signal.SIGSTOP)
            time.sleep(_SWITCH_S)
            yield from ((pair, is_sampled, step_s) for step_s in _steps(step, block_s))
    sampler.send_signal(signal.SIGCONT)


def _steps(step: Callable[[], None], duration_s: float) -> list[float]:
    """Make steps for a time and return the time of each. Unit: s."""
    times = []
    before = time.perf_counter()
    stop = before + duration_s
    while before < stop:
        step()
        now = time.perf_counter()
        times.append(now - before)
        before = now
    return times


def from_folder(folder: Path) -> dict[str, Overhead]:
    """Return the overhead of each training loop recorded in `overhead.parquet`.

    Raises:
        UserError: If the file is missing, or is not such a recording.
    """
    try:
        table = pq.read_table(folder / "overhead.parquet")
    except (OSError, pa.ArrowInvalid) as error:
        raise UserError(f"{folder}: no overhead.parquet to read ({error})") from None
    if absent := {"loop", *_COLUMNS} - set(table.column_names):
        raise UserError(f"{folder / 'overhead.parquet'}: no column {', '.join(sorted(absent))}; record it again")
    columns = {name: table[name].to_numpy() for name in table.column_names}
    try:
        return {
            loop: compare(*(columns[name][columns["loop"] == loop] for name in _COLUMNS))
            for loop in dict.fromkeys(columns["loop"].tolist())
        }
    except ValueError as error:
        raise UserError(f"{folder / 'overhead.parquet'}: {error}; record it again") from None
