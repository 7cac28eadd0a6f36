"""Overhead of sampling on training: step times with the sampler running and stopped, in random order."""

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

_DRAWS = 4000
_SEED = 6
_BLOCK_S = 0.5
_SWITCH_S = 0.02
_COLUMNS = ("pair", "is_sampled", "step_s")


@dataclass(frozen=True)
class Overhead:
    """Relative change of step time by sampling, with its uncertainty."""

    num_pairs: int
    """Pairs of blocks."""
    change: float
    """Median over pairs of step time with sampling over step time without, minus 1."""
    low: float
    """Lower end of the 95 % interval."""
    high: float
    """Upper end of the 95 % interval."""


def compare(pair: np.ndarray, is_sampled: np.ndarray, step_s: np.ndarray) -> Overhead:
    """Return how much longer steps take while they are sampled.

    The median step of each block stands for it; a pair is two neighbouring blocks, one sampled; the interval is that of
    the median over pairs drawn again and again with replacement (percentile bootstrap).

    Args:
        pair: Pair of each step. Shape (num_steps,).
        is_sampled: Whether the sampler ran. Shape (num_steps,).
        step_s: Time of each step. Shape (num_steps,). Unit: s.

    Raises:
        ValueError: If no pair has steps of both kinds.
    """
    changes = []
    for number in np.unique(pair):
        on, off = (step_s[(pair == number) & (is_sampled == kind)] for kind in (True, False))
        if on.size and off.size:
            changes.append(float(np.median(on) / np.median(off)) - 1)
    if not changes:
        raise ValueError("no pair of blocks, one sampled and one not")
    drawn = np.random.default_rng(_SEED).choice(changes, (_DRAWS, len(changes)))
    low, high = np.percentile(np.median(drawn, axis=1), [2.5, 97.5])
    return Overhead(len(changes), float(np.median(changes)), float(low), float(high))


def from_loop(kind: str, num_pairs: int, fast_period_s: float) -> dict[str, Overhead]:
    """Train a small model while the sampler runs and stops, and return the change of its step time.

    Args:
        kind: cuda, rocm or cpu.
        num_pairs: Pairs of blocks, one sampled.
        fast_period_s: Time between samples of power. Unit: s.
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
    """Yield pair, whether the sampler ran, and time of steps, in pairs of blocks in random order. Unit: s.

    Args:
        step: Does one step and waits for it.
        num_pairs: Pairs of blocks, one sampled.
        sampler: Stopped for the other block.
        block_s: Length of a block. Unit: s.
    """
    chooser = random.Random(_SEED)
    _steps(step, 2 * block_s)
    for pair in range(num_pairs):
        for is_sampled in chooser.sample((True, False), 2):
            # A stopped process keeps its devices open and reads nothing.
            sampler.send_signal(signal.SIGCONT if is_sampled else signal.SIGSTOP)
            time.sleep(_SWITCH_S)
            yield from ((pair, is_sampled, step_s) for step_s in _steps(step, block_s))
    sampler.send_signal(signal.SIGCONT)


def _steps(step: Callable[[], None], duration_s: float) -> list[float]:
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
    """Return the change of step time of each loop in `overhead.parquet`.

    Raises:
        UserError: If it is missing, or is no such recording.
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
