"""Fit of the power of kernel classes to tables of short tests, measured by a sensor that averages over a window.

A test repeats one kernel for a second or less, and its reading is the mean of a few running means of the driver. The
running means include time before the test: the pause in which it was prepared, and earlier tests of the same GPU. A
table is therefore modelled as a series. Each kernel draws

    P = min(limit, awake + sum(energy per operation or byte * rate))

The tables do not give the pauses. The pause of a row follows from the readings of the previous and the next test on the
same GPU, never from its own reading.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from triplepoint.calibrate.protocol import Optimum, least_squares, soft
from triplepoint.power_sensor import mean_before
from triplepoint.simulate.power.gpu import Float, Int64

WINDOW_S = 1.0
"""Window of `nvmlDeviceGetPowerUsage` on Hopper. Source: arXiv:2312.02741; tests of known length agree. Unit: s."""
READ_EVERY_S = 0.1003
"""Time between two reads of a test. The number of reads follows from the decimals of the means. Unit: s."""
LIMIT_W = 700.0
"""Power limit in the tables. Unit: W."""
REST_W = 130.0
"""Power at high clocks without a kernel: the reading of the shortest tests after long pauses. Unit: W."""
_NOISE = 0.05
"""Relative error above which a reading counts less, as its pause is then mostly wrong. Assumption."""
_PRIOR = 1.0
"""Prior standard deviation of the logarithm of a parameter, which keeps parameters that no row determines."""
_ITERATIONS = 4
"""Iterations between pauses and power."""
_PAUSES_S = np.concatenate([np.arange(0.015, 0.045, 0.005), np.arange(0.06, 0.3, 0.04), np.arange(0.3, 0.85, 0.05),
                            [0.9, 1.0, 1.2]])  # fmt: skip
"""Pauses to try. Pauses longer than the window all have the same effect. Unit: s."""
_FIRST_PAUSE_S = 3.0
"""Pause before the first test of a series. Unit: s."""


@dataclass(frozen=True, eq=False)
class KernelTests:
    """Tests of kernels, in the order in which each GPU ran them; arrays of shape (num_rows,) unless stated.

    Attributes:
        series: Number of the series of consecutive tests on one GPU; rows of a series are contiguous.
        kind: Number of the kind of preparation. Tests of one kind have similar pauses.
        warm_s: Run time before the first read. Unit: s.
        test_s: Time from the first read to the end. Unit: s.
        rates: Rate of each kind of operation or byte that has an energy; shape (num_rows, num_charged). Unit: 1e12/s.
        reading_w: Mean of the reads. Unit: W.
        is_fitted: Whether the fit uses the reading; the others are held out.
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
        awake_w: Power of a GPU that runs a kernel without operations or memory traffic. Unit: W.
        energy_pj: Energy of each kind of operation or byte, in the order of `KernelTests.rates`. Unit: pJ.
        sigma: Standard deviations of `awake_w` and then `energy_pj`.
    """

    awake_w: float
    energy_pj: tuple[float, ...]
    sigma: tuple[float, ...] = ()

    def power_w(self, rates: Float) -> Float:
        """Return the mean power of kernels under the power limit; `rates` as in `KernelTests`. Unit: W."""
        return np.asarray(np.minimum(self.awake_w + rates @ np.array(self.energy_pj), LIMIT_W))


def readings_w(tests: KernelTests, power_w: Float, pause_s: Float) -> Float:
    """Return the modelled mean reading of each test; shape (num_rows,). Unit: W.

    Args:
        tests: Tests of kernels.
        power_w: Power of each kernel; shape (num_rows,). Unit: W.
        pause_s: Idle time before each test; shape (num_rows,). Unit: s.
    """
    is_first = np.append(True, tests.series[1:] != tests.series[:-1])
    pause_s = np.where(is_first, _FIRST_PAUSE_S, pause_s)
    durations_s = np.stack([pause_s, tests.warm_s + tests.test_s], axis=1).ravel()
    ends_s = np.cumsum(durations_s)
    watts = np.stack([np.full_like(power_w, REST_W), power_w], axis=1).ravel()
    start_s = ends_s[1::2] - tests.test_s
    num_reads = np.floor(tests.test_s / READ_EVERY_S).astype(int) + 1
    row = np.repeat(np.arange(len(power_w)), num_reads)
    index_in_test = np.arange(len(row)) - np.repeat(np.cumsum(num_reads) - num_reads, num_reads)
    read_w = mean_before(ends_s, watts, start_s[row] + index_in_test * READ_EVERY_S, WINDOW_S)
    return np.asarray(np.bincount(row, read_w) / num_reads)


def find_pauses(tests: KernelTests, power_w: Float, pause_s: Float) -> Float:
    """Find the pauses before tests that explain the readings of neighbouring tests; shape (num_rows,). Unit: s.

    Args:
        tests: Tests of kernels.
        power_w: Power of each kernel; shape (num_rows,). Unit: W.
        pause_s: Pauses to start from; shape (num_rows,). Unit: s.
    """
    best_s = pause_s.copy()
    # Even and odd rows take turns, so that a pause and the previous one do not change together.
    for parity in (0, 1):
        is_turn = np.arange(len(best_s)) % 2 == parity
        modelled = [readings_w(tests, power_w, np.where(is_turn, tried_s, best_s)) for tried_s in _PAUSES_S]
        error = np.abs(np.log(np.stack(modelled) / tests.reading_w))
        best_s = np.where(is_turn, _PAUSES_S[np.argmin(error, axis=0)], best_s)
    return _neighbour_mean(tests, best_s)


def _neighbour_mean(tests: KernelTests, values: Float) -> Float:
    """Return for each test the mean over the previous and the next test of its kind and series; shape (num_rows,).

    The median over all tests where there is no such neighbour.
    """
    order = np.lexsort([np.arange(len(values)), tests.kind, tests.series])
    group, ordered = tests.series[order] * (tests.kind.max() + 1) + tests.kind[order], values[order]
    is_same = group[1:] == group[:-1]
    total, count = np.zeros_like(values), np.zeros_like(values)
    total[1:] += np.where(is_same, ordered[:-1], 0.0)
    total[:-1] += np.where(is_same, ordered[1:], 0.0)
    count[1:] += is_same
    count[:-1] += is_same
    means = np.empty_like(values)
    means[order] = np.where(count > 0, total / np.maximum(count, 1.0), np.median(values))
    return means


def fit_kernel_power(tests: KernelTests, start: KernelPower) -> tuple[KernelPower, Float]:
    """Fit the power of a kernel class to the tests that are not held out.

    Args:
        tests: Tests of kernels.
        start: Power at which the search starts; also the mean of the prior.

    Returns:
        The fitted power, and modelled over measured reading less 1 of all rows, held-out ones too; shape (num_rows,).
    """
    first = np.log([start.awake_w, *start.energy_pj])
    at, pause_s = first, np.full(len(tests.reading_w), 0.05)
    optimum = Optimum(at, np.eye(len(at)))
    for _ in range(_ITERATIONS):
        power_w = _power(at).power_w(tests.rates)
        pause_s = find_pauses(tests, power_w, find_pauses(tests, power_w, pause_s))

        def residuals(at: Float, pause_s: Float = pause_s) -> Float:
            modelled_w = readings_w(tests, _power(at).power_w(tests.rates), pause_s)
            error = soft(np.log(modelled_w / tests.reading_w)[tests.is_fitted] / _NOISE)
            return np.concatenate([error, (at - first) / _PRIOR])

        optimum = least_squares(residuals, at)
        at = optimum.at
    sigma = np.sqrt(np.diag(optimum.covariance)) * np.exp(at)
    fitted = _power(at)
    error = readings_w(tests, fitted.power_w(tests.rates), pause_s) / tests.reading_w - 1.0
    return KernelPower(fitted.awake_w, fitted.energy_pj, tuple(sigma.tolist())), np.asarray(error)


def _power(at: Float | Sequence[float]) -> KernelPower:
    """Return the power whose parameters have the given logarithms."""
    awake_w, *energy_pj = np.exp(at).tolist()
    return KernelPower(awake_w, tuple(energy_pj))
