"""How much slower a job is than if equal operations lasted equally long, and which of them are to blame.

The ideal of computation is the mean of its kind over workers, micro-batches and steps; that of communication the median
of its transfers by the byte, since one that shares the network may last far longer than the others. Where fewer than
eight workers do a kind, slow ones that stand out are left out of its mean: of two, one would make half of the ideal. Of
transfers among two groups of workers the faster group's median is taken, if they differ by more than their spread.

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
"""Share of workers that are looked at as the slowest. Source: OSDI'25, section 5.1."""
_MOST_CANDIDATES = 16
"""Workers that are replayed one by one, those of the slowest replicas and stages."""
_FEW_WORKERS = 8
"""Workers of a kind from which one that stands out counts in the mean, as in the published jobs of 8 and 16. Ours."""
_LEAST_STEPS = 3
"""Steps from which the spread of a difference is known. Our choice."""
_MOST_CELLS = 20_000_000
"""Operations times columns that are replayed at once: 160 MB an array."""
PIPELINE_KINDS: Mapping[str, str] = {
    f"{direction}-{end}": f"{direction}-pp-comm" for direction in ("forward", "backward") for end in ("send", "recv")
}
"""Both ends of transfers of the pipeline are one kind."""


@dataclass(frozen=True)
class Slowdown:
    """What a job loses.

    Attributes:
        step_time_s: Recorded time of every step. Unit: s.
        replayed_s: The same without the time that passes before operations start although they could. Unit: s.
        ideal_s: The same with ideal durations; as long in every step. Unit: s.
        by_kind: Slowdown with the durations of one kind as they were and all others ideal, largest first.
        by_dp: The same of one replica.
        by_stage: The same of one pipeline stage.
        by_worker: The same of one worker, as (dp, stage), of those that may be the slowest.
        top_workers: The slowest workers, 3 % of them and at least one, as (dp, stage).
        share_of_workers: Share of what the job loses that it would not lose if they had ideal durations.
        share_of_last_stage: The same of the last stage; NaN of one stage.
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
        """Replayed over ideal time, all steps together."""
        return float(self.replayed_s.mean() / self.ideal_s.mean())

    @property
    def of_steps(self) -> Float:
        """The same of every step."""
        return np.asarray(self.replayed_s / self.ideal_s)

    @property
    def launch_slowdown(self) -> float:
        """Recorded over replayed time: what passes although operations could start."""
        return float(self.step_time_s.mean() / self.replayed_s.mean())


def ideal_work_s(operations: Operations) -> Float:
    """Return ideal durations; shape (num_operations, num_steps). Unit: s."""
    work_s, ideal = operations.work_s, np.empty_like(operations.work_s)
    for alike in np.unique(operations.alike[~operations.is_comm]):
        own = ~operations.is_comm & (operations.alike == alike)
        ideal[own] = _usual_mean(operations.worker[own], work_s[own])
    partners, size_bytes = _partners(operations), operations.size_bytes[:, None]
    for alike in np.unique(operations.rate_class[operations.is_comm]):
        own = operations.is_comm & (operations.rate_class == alike)
        ideal[own] = size_bytes[own] * _usual_median(partners[own], work_s[own] / size_bytes[own])
    return ideal


def _partners(operations: Operations) -> Int64:
    """Return the number of the workers that take part in each operation, shape (num_operations,)."""
    members: dict[int, list[int]] = {}
    for group, worker in zip(operations.group.tolist(), operations.worker.tolist(), strict=True):
        members.setdefault(group, []).append(worker)
    who = {group: tuple(sorted(workers)) for group, workers in members.items()}
    return number_groups([who[group] for group in operations.group.tolist()])


def _usual_median(partners: Int64, values: Float) -> float:
    """Return the median of equal transfers, of two groups of partners that of the faster one where they differ."""
    numbers = np.unique(partners)
    if len(numbers) != 2:
        return float(np.median(values))
    by_group = np.array([np.median(values[partners == number], axis=0) for number in numbers])
    return float(np.median(values[np.isin(partners, numbers[~_stands_out(by_group)])]))


def _usual_mean(workers: Int64, values: Float) -> float:
    """Return the mean of equal computation, of few workers without slow ones that stand out.

    Args:
        workers: Worker of each operation, shape (num_operations,).
        values: Durations, shape (num_operations, num_steps). Unit: s.
    """
    numbers = np.unique(workers)
    if not 1 < len(numbers) < _FEW_WORKERS:
        return float(values.mean())
    by_worker = np.array([values[workers == number].mean(axis=0) for number in numbers])
    return float(values[np.isin(workers, numbers[~_stands_out(by_worker)])].mean())


def _stands_out(times_s: Float) -> Bool:
    """Return which workers are slow, shape (num_workers,), by times of shape (num_workers, num_steps).

    Of two it is the slower one if the difference is beyond its 90 % interval over steps, of few steps if it is large.
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
    """Return what a job loses, by replay; the order of its operations is found if not given."""
    order = order or find_order(operations)
    ideal_s = ideal_work_s(operations)
    kinds = [PIPELINE_KINDS.get(name, name) for name in operations.kinds]
    dp, stage = operations.of_worker("dp"), operations.of_worker("stage")
    cases: dict[tuple[str, Any], Bool] = {
        ("as it was", None): np.ones(len(dp), dtype=np.bool_),
        ("ideal", None): np.zeros(len(dp), dtype=np.bool_),
        ("without", "last stage"): stage != stage.max(),
    }
    of_kind = np.array(kinds)[operations.kind]
    cases |= {("kind", name): of_kind == name for name in dict.fromkeys(kinds)}
    cases |= {("dp", one): dp == one for one in np.unique(dp).tolist()}
    cases |= {("stage", one): stage == one for one in np.unique(stage).tolist()}
    times = _times(operations, order, ideal_s, list(cases.values()))
    found = dict(zip(cases, times, strict=True))
    original, ideal = found["as it was", None], found["ideal", None]
    by = {key: float(time.mean() / ideal.mean()) for key, time in found.items()}
    by_dp, by_stage = (_of(by, what) for what in ("dp", "stage"))
    places = sorted(
        {(worker.dp, worker.stage) for worker in operations.workers},
        key=lambda place: -min(by_dp[place[0]], by_stage[place[1]]),
    )
    by_worker = _by_worker(operations, order, ideal_s, places[:_MOST_CANDIDATES], float(ideal.mean()))
    top = list(by_worker)[: max(1, math.ceil(_TOP_SHARE * len(places)))]
    is_top = np.array([(worker.dp, worker.stage) in top for worker in operations.workers])[operations.worker]
    without_top = _times(operations, order, ideal_s, [~is_top])[0]
    lost = float(original.mean() - ideal.mean())

    def share(time: Float) -> float:
        return float(original.mean() - time.mean()) / lost if lost else math.nan

    return Slowdown(
        operations.step_time_s, original, ideal, _of(by, "kind"), by_dp, by_stage, by_worker, top, share(without_top),
        share(found["without", "last stage"]) if len(by_stage) > 1 else math.nan,
    )  # fmt: skip


def _of(by: Mapping[tuple[str, Any], float], what: str) -> dict[Any, float]:
    """Return the slowdowns of one way of looking, largest first."""
    own = {key[1]: value for key, value in by.items() if key[0] == what}
    return dict(sorted(own.items(), key=lambda item: -item[1]))


def _by_worker(
    operations: Operations, order: Order, ideal_s: Float, places: Sequence[tuple[int, int]], ideal_mean_s: float
) -> dict[tuple[int, int], float]:
    dp, stage = operations.of_worker("dp"), operations.of_worker("stage")
    times = _times(operations, order, ideal_s, [(dp == one) & (stage == other) for one, other in places])
    slow = {place: float(time.mean()) / ideal_mean_s for place, time in zip(places, times, strict=True)}
    return dict(sorted(slow.items(), key=lambda item: -item[1]))


def _times(operations: Operations, order: Order, ideal_s: Float, kept: Sequence[Bool]) -> list[Float]:
    """Return times of steps where the operations that are kept last as long as they did, the others ideally."""
    at_once = max(1, _MOST_CELLS // ideal_s.size)
    times: list[Float] = []
    for low in range(0, len(kept), at_once):
        part = [np.where(one[:, None], operations.work_s, ideal_s) for one in kept[low : low + at_once]]
        replayed = replay(operations, order, np.concatenate(part, axis=1))
        times += np.split(replayed.step_time_s, len(part))
    return times
