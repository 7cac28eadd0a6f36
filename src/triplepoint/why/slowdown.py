"""Slowdown: step time over that of an ideal job, in which equal operations last equally long, and what contributes.

The ideal duration of computation is the mean over workers, micro-batches and steps. That of communication is the median
time per byte, since a transfer that shares the network may last far longer than the others. If fewer than eight workers
have a class of computation, outliers are left out of its mean; one of two workers would else make half of the ideal.
If a class of transfers has two sets of partners that differ by more than their spread, the median of the faster set is
taken.

Source:
    Lin et al. 2025, Understanding Stragglers in Large Model Training Using What-if Analysis, OSDI'25, sections 3 and 4.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from triplepoint.effects.samples import paired
from triplepoint.why.operations import Bool, Float, Int64, Operations, number_groups
from triplepoint.why.replay import Order, find_order, replay
from triplepoint.why.suspects import LEAST_EXCESS, LEAST_Z, PAIR_EXCESS, outlier_scores

_TOP_SHARE = 0.03
"""Share of workers that count as the slowest. Source: OSDI'25, section 5.1."""
_MOST_CANDIDATES = 16
"""Workers that are replayed one by one: those of the slowest replicas and stages."""
_FEW_WORKERS = 8
"""Number of workers from which outliers count in the mean, as in the published jobs of 8 and 16. Our choice."""
_LEAST_STEPS = 3
"""Steps from which the spread of a difference is known. Our choice."""
_MOST_CELLS = 20_000_000
"""Operations times columns that are replayed together: 160 MB per array."""
PIPELINE_KINDS: Mapping[str, str] = {
    f"{direction}-{end}": f"{direction}-pp-comm" for direction in ("forward", "backward") for end in ("send", "recv")
}
"""Kind by operation: both ends of a pipeline transfer are one kind."""


@dataclass(frozen=True)
class Slowdown:
    """Slowdown of a job and its contributions.

    Attributes:
        step_time_s: Recorded time of each step; shape (num_steps,). Unit: s.
        replayed_s: Step time without gaps: every operation starts as soon as it can; same shape. Unit: s.
        ideal_s: Step time without gaps and with ideal durations, equal in all steps; same shape. Unit: s.
        by_kind: Slowdown with recorded durations of one kind and ideal ones of all others, by kind; largest first.
        by_dp: The same by replica.
        by_stage: The same by pipeline stage.
        by_worker: The same by (dp, stage), for the candidates for the slowest worker.
        top_workers: The slowest workers, 3 % of them and at least one, as (dp, stage).
        share_of_workers: Share of the lost time that would be saved if `top_workers` had ideal durations; NaN if no
            time is lost.
        share_of_last_stage: The same for the last stage; also NaN if there is one stage.
    """

    step_time_s: Float
    replayed_s: Float
    ideal_s: Float
    by_kind: dict[str, float]
    by_dp: dict[int, float]
    by_stage: dict[int, float]
    by_worker: dict[tuple[int, int], float]
    top_workers: list[tuple[int, int]]
    share_of_workers: float
    share_of_last_stage: float

    @property
    def slowdown(self) -> float:
        """Mean replayed time over mean ideal time."""
        return float(self.replayed_s.mean() / self.ideal_s.mean())

    @property
    def of_steps(self) -> Float:
        """Slowdown of each step; shape (num_steps,)."""
        return np.asarray(self.replayed_s / self.ideal_s)

    @property
    def launch_slowdown(self) -> float:
        """Mean recorded time over mean replayed time: the slowdown by late starts."""
        return float(self.step_time_s.mean() / self.replayed_s.mean())


def ideal_work_s(operations: Operations) -> Float:
    """Return ideal durations; shape (num_operations, num_steps). Unit: s."""
    work_s, ideal_s = operations.work_s, np.empty_like(operations.work_s)
    # All ranks of a tensor parallel group wait for its slowest: they are one worker.
    places = number_groups([*zip(*(operations.of_worker(name).tolist() for name in ("dp", "stage")), strict=True)])
    for number in np.unique(operations.duration_class[~operations.is_comm]):
        of_class = ~operations.is_comm & (operations.duration_class == number)
        ideal_s[of_class] = _usual_mean(places[of_class], work_s[of_class])
    partners, size_bytes = _partners(operations), operations.size_bytes[:, None]
    for number in np.unique(operations.rate_class[operations.is_comm]):
        of_class = operations.is_comm & (operations.rate_class == number)
        s_per_byte = _usual_median(partners[of_class], work_s[of_class] / size_bytes[of_class])
        ideal_s[of_class] = size_bytes[of_class] * s_per_byte
    return ideal_s


def _partners(operations: Operations) -> Int64:
    """Return the number of the set of workers of each operation's transfer; shape (num_operations,)."""
    members: dict[int, list[int]] = {}
    for transfer, worker in zip(operations.transfer.tolist(), operations.worker.tolist(), strict=True):
        members.setdefault(transfer, []).append(worker)
    workers_of = {transfer: tuple(sorted(workers)) for transfer, workers in members.items()}
    return number_groups([workers_of[transfer] for transfer in operations.transfer.tolist()])


def _usual_median(partners: Int64, values: Float) -> float:
    """Return the median of equal transfers; of two sets of partners that differ, the median of the faster set.

    Args:
        partners: Set of workers of each transfer; shape (num_operations,).
        values: Time per byte; shape (num_operations, num_steps). Unit: s/byte.
    """
    sets = np.unique(partners)
    if len(sets) != 2:
        return float(np.median(values))
    by_set = np.array([np.median(values[partners == number], axis=0) for number in sets])
    return float(np.median(values[np.isin(partners, sets[~_are_slow(by_set)])]))


def _usual_mean(workers: Int64, values: Float) -> float:
    """Return the mean of equal computation; of few workers without those that are outliers.

    Args:
        workers: Worker of each operation; shape (num_operations,).
        values: Durations; shape (num_operations, num_steps). Unit: s.
    """
    numbers = np.unique(workers)
    if not 1 < len(numbers) < _FEW_WORKERS:
        return float(values.mean())
    by_worker = np.array([values[workers == number].mean(axis=0) for number in numbers])
    return float(values[np.isin(workers, numbers[~_are_slow(by_worker)])].mean())


def _are_slow(times_s: Float) -> Bool:
    """Return which rows are slow outliers; shape (num_rows,).

    The slower of two rows is one if the difference is beyond its 90 % interval over steps; with too few steps for an
    interval, if the difference is large.

    Args:
        times_s: Times of workers, or of sets of workers; shape (num_rows, num_steps). Unit: s.
    """
    means_s = times_s.mean(axis=1)
    if len(means_s) > 2:
        usual_s = float(np.median(means_s))
        if usual_s <= 0:
            return np.zeros(len(means_s), dtype=np.bool_)
        return np.asarray((outlier_scores(means_s / usual_s) > LEAST_Z) & (means_s >= (1 + LEAST_EXCESS) * usual_s))
    fast, slow = np.argsort(means_s)
    if times_s.shape[1] >= _LEAST_STEPS:
        is_slow = paired(times_s[fast].tolist(), times_s[slow].tolist(), "steps").low > 0
    else:
        is_slow = bool(means_s[slow] >= (1 + PAIR_EXCESS) * means_s[fast])
    return np.asarray(is_slow & (np.arange(2) == slow))


def find_slowdown(operations: Operations, order: Order | None = None) -> Slowdown:
    """Return the slowdown of a job, by replay.

    Args:
        operations: Operations of the job.
        order: Order of their events; determined here if not given.
    """
    order = order or find_order(operations)
    ideal_s = ideal_work_s(operations)
    kinds = [PIPELINE_KINDS.get(name, name) for name in operations.kinds]
    dp, stage = operations.of_worker("dp"), operations.of_worker("stage")
    cases: dict[tuple[str, Any], Bool] = {
        ("as it was", None): np.ones(len(dp), dtype=np.bool_),
        ("ideal", None): np.zeros(len(dp), dtype=np.bool_),
        ("without", "last stage"): stage != stage.max(),
    }
    kind_of = np.array(kinds)[operations.kind]
    cases |= {("kind", kind): kind_of == kind for kind in dict.fromkeys(kinds)}
    cases |= {("dp", replica): dp == replica for replica in np.unique(dp).tolist()}
    cases |= {("stage", number): stage == number for number in np.unique(stage).tolist()}
    times = dict(zip(cases, _step_times(operations, order, ideal_s, list(cases.values())), strict=True))
    original, ideal = times["as it was", None], times["ideal", None]
    slowdowns = {key: float(time.mean() / ideal.mean()) for key, time in times.items()}
    by_dp, by_stage = (_of(slowdowns, what) for what in ("dp", "stage"))
    places = sorted(
        {(worker.dp, worker.stage) for worker in operations.workers},
        key=lambda place: -min(by_dp[place[0]], by_stage[place[1]]),
    )
    by_worker = _by_worker(operations, order, ideal_s, places[:_MOST_CANDIDATES], float(ideal.mean()))
    top = list(by_worker)[: max(1, math.ceil(_TOP_SHARE * len(places)))]
    is_top = np.array([(worker.dp, worker.stage) in top for worker in operations.workers])[operations.worker]
    without_top = _step_times(operations, order, ideal_s, [~is_top])[0]
    lost_s = float(original.mean() - ideal.mean())

    def share(time: Float) -> float:
        return float(original.mean() - time.mean()) / lost_s if lost_s else math.nan

    return Slowdown(
        operations.step_time_s, original, ideal, _of(slowdowns, "kind"), by_dp, by_stage, by_worker, top,
        share(without_top), share(times["without", "last stage"]) if len(by_stage) > 1 else math.nan,
    )  # fmt: skip


def _of(slowdowns: Mapping[tuple[str, Any], float], what: str) -> dict[Any, float]:
    """Return the slowdowns by kind, dp or stage, largest first."""
    chosen = {key[1]: value for key, value in slowdowns.items() if key[0] == what}
    return dict(sorted(chosen.items(), key=lambda item: -item[1]))


def _by_worker(
    operations: Operations, order: Order, ideal_s: Float, places: Sequence[tuple[int, int]], ideal_mean_s: float
) -> dict[tuple[int, int], float]:
    """Return the slowdown by (dp, stage), largest first."""
    dp, stage = operations.of_worker("dp"), operations.of_worker("stage")
    recorded = [(dp == replica) & (stage == number) for replica, number in places]
    times = _step_times(operations, order, ideal_s, recorded)
    slowdowns = {place: float(time.mean()) / ideal_mean_s for place, time in zip(places, times, strict=True)}
    return dict(sorted(slowdowns.items(), key=lambda item: -item[1]))


def _step_times(operations: Operations, order: Order, ideal_s: Float, recorded: Sequence[Bool]) -> list[Float]:
    """Return the step times of several cases; each of shape (num_steps,). Unit: s.

    Args:
        operations: The operations.
        order: Order of their events.
        ideal_s: Ideal durations; shape (num_operations, num_steps). Unit: s.
        recorded: For each case the operations that have recorded durations; shape (num_operations,).
    """
    cases_at_once = max(1, _MOST_CELLS // ideal_s.size)
    times: list[Float] = []
    for low in range(0, len(recorded), cases_at_once):
        part = [np.where(case[:, None], operations.work_s, ideal_s) for case in recorded[low : low + cases_at_once]]
        replayed = replay(operations, order, np.concatenate(part, axis=1))
        times += np.split(replayed.step_time_s, len(part))
    return times
