"""Fits the power of kernel classes to tables of short tests, read by a sensor that averages over a window.

A test repeats one kernel for a second or less, and its reading is the mean of a few running means of the driver. These
also hold what ran before: the pause in which the test was prepared, and earlier tests of the same GPU. So a table is
read as a series. Each kernel draws

    P = min(limit, awake + sum(energy per operation or byte * rate))

Nobody wrote down how long a pause was. That of a row is taken from the readings of the two tests beside it on the same
GPU, never from its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from triplepoint.calibrate.protocol import Optimum, least_squares
from triplepoint.power_sensor import mean_before
from triplepoint.simulate.power.gpu import Float, Int64

WINDOW_S = 1.0
"""Of `nvmlDeviceGetPowerUsage` on Hopper. Source: arXiv:2312.02741; tests of known length agree."""
READ_EVERY_S = 0.1003
"""Between two reads of a test; the number of reads follows from decimals of the means."""
LIMIT_W = 700.0
"""Power limit in the tables. Unit: W."""
REST_W = 130.0
"""With clocks up and nothing running: what the shortest tests after long pauses read. Unit: W."""
_NOISE = 0.05
"""Relative error from which a reading counts less: beyond it, mostly a pause was judged wrongly. Assumption."""
_PRIOR = 1.0
"""Standard deviation of the logarithm of a number before the fit: what no row says something of stays where it was."""
_ROUNDS = 4
_PAUSES_S = np.concatenate([np.arange(0.015, 0.045, 0.005), np.arange(0.06, 0.3, 0.04), np.arange(0.3, 0.85, 0.05),
                            [0.9, 1.0, 1.2]])  # fmt: skip
"""Pauses that are tried; beyond the window, longer ones are all the same."""
_FIRST_PAUSE_S = 3.0


@dataclass(frozen=True, eq=False)
class KernelTests:
    """Tests of kernels, in the order in which each GPU ran them; arrays of shape (num_rows,) unless said otherwise.

    Attributes:
        series: Numbered series of tests on one GPU with nothing missing; rows of a series are together.
        kind: Numbered kinds of tests that are prepared alike: a pause is taken from tests of the same kind.
        warm_s: Time of runs before the first read. Unit: s.
        test_s: Time from the first read to the end. Unit: s.
        rates: What a kernel does in a second, by what is charged; shape (num_rows, num_charged). Unit: 1e12/s.
        reading_w: Mean of the reads. Unit: W.
        is_fitted: Whether the fit may see the reading.
    """

    series: Int64
    kind: Int64
    warm_s: Float
    test_s: Float
    rates: Float
    reading_w: Float
    is_fitted: npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class KernelPower:
    """Power of a kernel class.

    Attributes:
        awake_w: Power of a GPU on which a kernel runs that does nothing else. Unit: W.
        energy_pj: Energy of each operation or byte, in the order of `KernelTests.rates`. Unit: pJ.
        sigma: Standard deviations of both, in their order.
    """

    awake_w: float
    energy_pj: tuple[float, ...]
    sigma: tuple[float, ...] = ()

    def power_w(self, rates: Float) -> Float:
        """Return the mean power of kernels under the limit; `rates` as `KernelTests` has them. Unit: W."""
        return np.asarray(np.minimum(self.awake_w + rates @ np.array(self.energy_pj), LIMIT_W))


def readings_w(tests: KernelTests, power_w: Float, pause_s: Float) -> Float:
    """Return what the sensor shows as the mean of each test.

    Args:
        tests: The tests.
        power_w: Power of each kernel; shape (num_rows,). Unit: W.
        pause_s: Time at rest before each test; shape (num_rows,). Unit: s.
    """
    is_first = np.append(True, tests.series[1:] != tests.series[:-1])
    pause_s = np.where(is_first, _FIRST_PAUSE_S, pause_s)
    lasts_s = np.stack([pause_s, tests.warm_s + tests.test_s], axis=1).ravel()
    ends_s = np.cumsum(lasts_s)
    watts = np.stack([np.full_like(power_w, REST_W), power_w], axis=1).ravel()
    start_s = ends_s[1::2] - tests.test_s
    num_reads = np.floor(tests.test_s / READ_EVERY_S).astype(int) + 1
    row = np.repeat(np.arange(len(power_w)), num_reads)
    within = np.arange(len(row)) - np.repeat(np.cumsum(num_reads) - num_reads, num_reads)
    shown = mean_before(ends_s, watts, start_s[row] + within * READ_EVERY_S, WINDOW_S)
    return np.asarray(np.bincount(row, shown) / num_reads)


def find_pauses(tests: KernelTests, power_w: Float, pause_s: Float) -> Float:
    """Return the pauses before tests that explain the tests beside them; shape (num_rows,). Unit: s.

    Args:
        tests: The tests.
        power_w: Power of each kernel. Unit: W.
        pause_s: Where to begin. Unit: s.
    """
    own = pause_s.copy()
    # In turns, so that a pause is not changed together with the one before it.
    for turn in (0, 1):
        is_turn = np.arange(len(own)) % 2 == turn
        shown = [readings_w(tests, power_w, np.where(is_turn, one, own)) for one in _PAUSES_S]
        error = np.abs(np.log(np.stack(shown) / tests.reading_w))
        own = np.where(is_turn, _PAUSES_S[np.argmin(error, axis=0)], own)
    return _of_neighbours(tests, own)


def _of_neighbours(tests: KernelTests, own: Float) -> Float:
    """Return the mean of the tests of the same kind next before and after each one; of one of them at an end."""
    order = np.lexsort([np.arange(len(own)), tests.kind, tests.series])
    place, ordered = tests.series[order] * (tests.kind.max() + 1) + tests.kind[order], own[order]
    is_same = place[1:] == place[:-1]
    total, count = np.zeros_like(own), np.zeros_like(own)
    total[1:] += np.where(is_same, ordered[:-1], 0.0)
    total[:-1] += np.where(is_same, ordered[1:], 0.0)
    count[1:] += is_same
    count[:-1] += is_same
    found = np.empty_like(own)
    found[order] = np.where(count > 0, total / np.maximum(count, 1.0), np.median(own))
    return found


def fit_kernel_power(tests: KernelTests, start: KernelPower) -> tuple[KernelPower, Float]:
    """Return the power of a kernel class fitted to the rows that may be seen, and the error of every row.

    Args:
        tests: The tests.
        start: Where the search begins.

    Returns:
        The power, and modelled over measured reading less 1, also of rows left out of the fit; shape (num_rows,).
    """
    first = np.log([start.awake_w, *start.energy_pj])
    at, pause_s = first, np.full(len(tests.reading_w), 0.05)
    optimum = Optimum(at, np.eye(len(at)))
    for _ in range(_ROUNDS):
        power_w = _power(at).power_w(tests.rates)
        pause_s = find_pauses(tests, power_w, find_pauses(tests, power_w, pause_s))

        def residuals(at: Float, pause_s: Float = pause_s) -> Float:
            shown = readings_w(tests, _power(at).power_w(tests.rates), pause_s)
            error = _softened(np.log(shown / tests.reading_w)[tests.is_fitted] / _NOISE)
            return np.concatenate([error, (at - first) / _PRIOR])

        optimum = least_squares(residuals, at)
        at = optimum.at
    sigma = np.sqrt(np.diag(optimum.covariance)) * np.exp(at)
    fitted = _power(at)
    error = readings_w(tests, fitted.power_w(tests.rates), pause_s) / tests.reading_w - 1.0
    return KernelPower(fitted.awake_w, fitted.energy_pj, tuple(sigma.tolist())), np.asarray(error)


def _power(at: Float | Sequence[float]) -> KernelPower:
    awake_w, *energy_pj = np.exp(at).tolist()
    return KernelPower(awake_w, tuple(energy_pj))


def _softened(residual: Float) -> Float:
    """Return residuals whose squares grow in a straight line where they are large."""
    return np.asarray(np.sign(residual) * np.sqrt(2.0 * (np.sqrt(1.0 + residual**2) - 1.0)))
