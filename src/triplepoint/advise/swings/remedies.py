"""Remedies for power swings, with their cost: staggered jobs, a power floor, a power cap, storage."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from triplepoint import swings
from triplepoint.advise.swings.spec import SwingSpec, is_met
from triplepoint.text import percent
from triplepoint.units import KILO, S_PER_HOUR

_J_PER_KWH = KILO * S_PER_HOUR
_HALVINGS = 40
"""Bisections of the range of a floor or a clip: to 1e-12 of it."""
_GROWTH = 1.3
"""Factor between the windows tried, before the first sufficient one is refined to a sample."""
_JUST_INSIDE = 1.0 - 1e-6
"""Factor on an allowed range that keeps it despite rounding."""
_NEVER_LESS = {
    "node": "the node never draws", "rack": "the rack never draws", "job": "all nodes together never draw",
}  # fmt: skip
"""Whose power a floor holds up, by level of the specification."""
_DRAWS = 200
"""Number of random draws of the start times of independent jobs."""


@dataclass(frozen=True)
class Remedy:
    """One way to smooth power.

    Attributes:
        name: `stagger`, `floor`, `cap` or `storage`.
        passes: Whether power keeps to the specification with the remedy; None if that is unknown.
        numbers: Size and cost by name, with the unit in the name.
        text: Size and cost in a sentence.
    """

    name: str
    passes: bool | None
    numbers: dict[str, float]
    text: str


@dataclass(frozen=True, eq=False)
class Course:
    """Power at the level of a specification.

    Attributes:
        power_w: Samples; shape (num_samples,). Unit: W.
        period_s: Time between samples. Unit: s.
        window_s: Averaging window of a sample. Unit: s.
    """

    power_w: np.ndarray
    period_s: float
    window_s: float

    @property
    def range_fraction(self) -> float:
        """Range from the 1st to the 99th percentile over the mean."""
        return swings.swing(self.power_w, self.period_s).fraction

    def with_power(self, power_w: np.ndarray) -> "Course":
        """Return other power at the same times."""
        return Course(power_w, self.period_s, self.window_s)

    def meets(self, spec: SwingSpec) -> bool:
        """Return whether power keeps to a specification."""
        return is_met(spec, self.power_w, self.period_s, self.window_s)


def floor(course: Course, spec: SwingSpec) -> Remedy:
    """Return the lowest sufficient power floor: GPUs do useless work when they would draw less."""

    def raised(least_w: float) -> Course:
        return course.with_power(np.maximum(course.power_w, least_w))

    low_w, high_w = float(course.power_w.min()), float(course.power_w.max())
    for _ in range(_HALVINGS):
        middle_w = (low_w + high_w) / 2
        low_w, high_w = (low_w, middle_w) if raised(middle_w).meets(spec) else (middle_w, high_w)
    found = raised(high_w)
    extra_w = float((found.power_w - course.power_w).mean())
    fraction = extra_w / float(course.power_w.mean())
    return Remedy(
        "floor",
        found.meets(spec),
        {"floor_kw": high_w / KILO, "extra_kw": extra_w / KILO, "extra_energy_fraction": fraction},
        f"{_NEVER_LESS[spec.level]} less than {high_w / KILO:.4g} kW; {extra_w / KILO:.3g} kW more on average, "
        f"{percent(fraction, 2)} more energy",
    )


def storage(course: Course, spec: SwingSpec) -> Remedy:
    """Return sufficient storage: power is clipped to the allowed range and smoothed by the shortest running mean.

    The running mean is centred, so the controller knows power half a window ahead, which is possible for repeating
    steps. Storage has no losses.
    """
    clipped_w = _clipped(course, spec)

    def smooth(num_samples: int) -> Course:
        return course.with_power(running_mean(clipped_w, num_samples))

    number = _shortest(lambda samples: smooth(samples).meets(spec), len(clipped_w) // 2)
    if number is None:
        return Remedy("storage", False, {}, "no running mean over up to half of the recording smooths it enough")
    difference_w = course.power_w - smooth(number).power_w
    stored_j = np.cumsum(difference_w) * course.period_s
    energy_kwh, power_kw = (
        float(np.ptp(np.append(0.0, stored_j))) / _J_PER_KWH,
        float(np.abs(difference_w).max()) / KILO,
    )
    window_s = number * course.period_s if number > 1 else 0.0
    return Remedy(
        "storage",
        True,
        {"energy_kwh": energy_kwh, "power_kw": power_kw, "window_s": window_s},
        f"{energy_kwh:.3g} kWh that give and take up to {power_kw:.3g} kW, without losses; power is then "
        + (f"its mean over {window_s:.3g} s" if number > 1 else "cut to the range that is allowed"),
    )


def running_mean(power_w: np.ndarray, num_samples: int) -> np.ndarray:
    """Return the centred mean over an odd number of samples; power is mirrored at both ends."""
    half = num_samples // 2
    sums = np.cumsum(np.append(0.0, np.pad(power_w, half, mode="reflect")))
    return np.asarray((sums[2 * half + 1 :] - sums[: -2 * half - 1]) / (2 * half + 1))


def _clipped(course: Course, spec: SwingSpec) -> np.ndarray:
    """Return power clipped to the allowed range at the position that keeps the mean."""
    power_w, mean_w = course.power_w, float(course.power_w.mean())
    allowed = [spec.range_fraction and spec.range_fraction * mean_w, spec.range_kw and spec.range_kw * KILO]
    range_w = min((each for each in allowed if each), default=np.inf) * _JUST_INSIDE
    if not range_w < np.ptp(power_w):
        return power_w
    low_w, high_w = float(power_w.min()), float(power_w.max()) - range_w
    for _ in range(_HALVINGS):
        middle_w = (low_w + high_w) / 2
        is_low = np.clip(power_w, middle_w, middle_w + range_w).mean() < mean_w
        low_w, high_w = (middle_w, high_w) if is_low else (low_w, middle_w)
    return np.asarray(np.clip(power_w, high_w, high_w + range_w))


def _shortest(is_enough: Callable[[int], bool], most: int) -> int | None:
    """Return the smallest sufficient odd number up to `most`, if all larger ones are too; None if none tried is."""
    tried = [1]
    while not is_enough(tried[-1]):
        longer = max(tried[-1] + 2, int(tried[-1] * _GROWTH) // 2 * 2 + 1)
        if longer > most:
            return None
        tried.append(longer)
    low, high = next(reversed(list(pairwise(tried))), (1, 1))
    while high - low > 2:
        middle = (low + high) // 4 * 2 + 1
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def stagger(course: Course, num_jobs: int, line_hz: float, spec: SwingSpec | None, seed: int = 0) -> Remedy:
    """Return the power of independent jobs in one hall, with steps spread evenly and with random starts.

    Args:
        course: Power of one job.
        num_jobs: Number of jobs like it in the hall; one job cannot be staggered.
        line_hz: Frequency of its strongest line, over whose period the jobs are spread. Unit: Hz.
        spec: Specification of all jobs together. None: no limits.
        seed: Seed of the random starts.
    """
    if num_jobs < 2:
        text = (
            "not possible with one synchronous job, whose nodes wait for each other in every step; --jobs N asks about "
            "N independent jobs in one hall"
        )
        return Remedy("stagger", None, {"num_jobs": 1}, text)
    period = 1.0 / line_hz / course.period_s
    even = course.with_power(_together(course.power_w, period * np.arange(num_jobs) / num_jobs))
    draws = np.random.default_rng(seed).random((_DRAWS, num_jobs)) * len(course.power_w)
    by_chance = [course.with_power(_together(course.power_w, each)).range_fraction for each in draws]
    numbers = {
        "num_jobs": num_jobs,
        "in_step_range_fraction": course.range_fraction,
        "even_range_fraction": even.range_fraction,
        "by_chance_range_fraction": float(np.median(by_chance)),
    }
    text = (
        f"{num_jobs} independent jobs like this one have a range of {percent(course.range_fraction)} in step, of "
        f"{percent(numbers['by_chance_range_fraction'])} as they happen to start (median), and of "
        f"{percent(even.range_fraction)} with steps spread evenly over {1.0 / line_hz:.3g} s, if they do not drift"
    )
    return Remedy("stagger", even.meets(spec) if spec else None, numbers, text)


def _together(power_w: np.ndarray, shifts: np.ndarray) -> np.ndarray:
    """Return the sum of copies, each shifted cyclically by a number of samples."""
    return np.asarray(sum(np.roll(power_w, round(float(shift))) for shift in shifts))


def cap(power_limit_w: float, longer: float, capped: Course, course: Course, spec: SwingSpec | None) -> Remedy:
    """Return the simulated effect of a power limit of GPUs.

    Args:
        power_limit_w: The limit. Unit: W.
        longer: Step time over that without the limit.
        capped: Power under the limit.
        course: Power without the limit.
        spec: Specification of power. None: no limits.
    """
    energy = longer * float(capped.power_w.mean() / course.power_w.mean())
    numbers = {
        "power_limit_w": power_limit_w,
        "time_fraction": longer - 1.0,
        "energy_fraction": energy - 1.0,
        "range_fraction": capped.range_fraction,
    }
    text = (
        f"GPUs limited to {power_limit_w:.0f} W: step time {100 * (longer - 1.0):+.1f} %, energy "
        f"{100 * (energy - 1.0):+.1f} %, range {percent(capped.range_fraction)}"
    )
    return Remedy("cap", capped.meets(spec) if spec else None, numbers, text)
