"""Power by kernel class, fitted to a part of the shapes of a table and judged on the others."""

import numpy as np
import pytest

from tests.kernel_power import CHARGED, JudgedKernels, judge_kernels, unpaused_spread
from triplepoint.calibrate.kernel_power import (
    LIMIT_W,
    REST_W,
    KernelPower,
    KernelTests,
    find_pauses,
    fit_kernel_power,
    readings_w,
)


@pytest.fixture(scope="module")
def judged() -> dict[str, JudgedKernels]:
    return {table: judge_kernels(table) for table in CHARGED}


def made_up(num_rows: int, seed: int = 1) -> tuple[KernelTests, np.ndarray, np.ndarray]:
    """Return tests of one GPU with a reading of 0, their power by 200 W and 1.2 pJ, and their pauses."""
    random = np.random.default_rng(seed)
    rates = random.uniform(0.0, 500.0, (num_rows, 1))
    test_s = random.choice([0.3, 0.5, 1.0], num_rows)
    # As a worker has them: short ones, then long ones.
    pause_s = np.repeat(random.choice([0.02, 0.5], num_rows // 20), 20)
    order = np.zeros(num_rows, dtype=np.int64)
    is_fitted = np.arange(num_rows) % 3 > 0
    tests = KernelTests(order, order, 0.01 * test_s, test_s, rates, np.zeros(num_rows), is_fitted)
    return tests, KernelPower(200.0, (1.2,)).power_w(rates), pause_s


def with_readings(tests: KernelTests, readings: np.ndarray) -> KernelTests:
    return KernelTests(tests.series, tests.kind, tests.warm_s, tests.test_s, tests.rates, readings, tests.is_fitted)


def test_readings_of_a_test_after_rest() -> None:
    """Reads at 0, 0.1003 ... 0.9027 s of running means of 1 s: half of what it draws, less the half of an interval."""
    zero = np.zeros(1, dtype=np.int64)
    tests = KernelTests(zero, zero, np.zeros(1), np.array([0.95]), np.zeros((1, 1)), np.zeros(1), np.array([True]))
    risen = np.mean(np.arange(10) * 0.1003)
    shown = readings_w(tests, np.array([700.0]), np.zeros(1))
    assert shown == pytest.approx([REST_W + (700.0 - REST_W) * risen])


def test_readings_hold_the_test_before() -> None:
    """A test of one read shows what was before: 0.4 s of a kernel, 0.1 s of rest and 0.5 s of the rest before it."""
    zero = np.zeros(2, dtype=np.int64)
    tests = KernelTests(
        zero, zero, np.zeros(2), np.array([0.4, 0.05]), np.zeros((2, 1)), np.zeros(2), np.ones(2, dtype=bool)
    )  # fmt: skip
    shown = readings_w(tests, np.array([600.0, 200.0]), np.array([0.0, 0.1]))
    assert shown[1] == pytest.approx(0.4 * 600.0 + 0.6 * REST_W)


def test_find_pauses_as_made_up() -> None:
    tests, power_w, pause_s = made_up(400)
    tests = with_readings(tests, readings_w(tests, power_w, pause_s))
    found = pause_s * 0.0 + 0.1
    for _ in range(4):
        found = find_pauses(tests, power_w, found)
    inside = np.arange(400) % 20
    # At a change of pauses the two neighbours disagree.
    assert np.abs(found - pause_s)[(inside > 1) & (inside < 18)].mean() < 0.02


def test_fit_kernel_power_as_made_up() -> None:
    tests, power_w, pause_s = made_up(600)
    noise = np.random.default_rng(2).normal(1.0, 0.01, 600)
    fitted, error = fit_kernel_power(
        with_readings(tests, readings_w(tests, power_w, pause_s) * noise), KernelPower(150.0, (0.8,))
    )
    assert fitted.awake_w == pytest.approx(200.0, rel=0.1)
    assert fitted.energy_pj[0] == pytest.approx(1.2, rel=0.1)
    assert np.abs(error[~tests.is_fitted]).mean() < 0.05


def test_power_of_kernels_is_at_most_the_limit() -> None:
    assert KernelPower(200.0, (1.0,)).power_w(np.array([[100.0], [900.0]])) == pytest.approx([300.0, LIMIT_W])


@pytest.mark.parametrize("kind", ["bfloat16", "fp8_block"])
def test_gemms_left_out(judged: dict[str, JudgedKernels], kind: str) -> None:
    """1.9 and 2.6 % of 457 and 433 rows of 0.1 to 5 ms; nearly all of them are at the power limit."""
    rows = judged["gemm"].left_out()
    error = rows.error[rows["class"] == kind]
    assert len(error) > 400
    assert error.abs().mean() < 0.03
    assert abs(error.mean()) < 0.02


@pytest.mark.parametrize("kind", ["bfloat16", "fp8_block"])
def test_long_gemms_left_out(judged: dict[str, JudgedKernels], kind: str) -> None:
    """Over 5 ms, which the driver's mean shows too low."""
    rows = judged["gemm"].left_out(5.0, 1000.0)
    error = rows.error[rows["class"] == kind]
    assert len(error) >= 30
    assert error.abs().mean() < 0.04


@pytest.mark.parametrize("kind", ["bfloat16", "fp8_block"])
def test_gemms_left_out_under_the_limit(judged: dict[str, JudgedKernels], kind: str) -> None:
    """Shorter GEMMs, of which many stay under the limit: 5.4 and 3.6 % of 347 and 817 rows."""
    rows = judged["gemm"].left_out(0.005, 0.1)
    error = rows.error[(rows["class"] == kind) & (rows.power_w < 0.99 * LIMIT_W)]
    assert len(error) > 300
    assert error.abs().mean() < 0.06


_ATTENTION = [(table, kind) for table in ("context_attention", "generation_attention") for kind in ("bfloat16", "fp8")]


@pytest.mark.parametrize(("table", "kind"), _ATTENTION)
def test_attention_left_out(judged: dict[str, JudgedKernels], table: str, kind: str) -> None:
    """8 to 10 %: pauses before tests are known by the tests beside them alone."""
    rows = judged[table].left_out()
    error = rows.error[rows["class"] == kind]
    assert len(error) > 70
    assert error.abs().mean() < 0.105
    assert abs(error.mean()) < 0.05


@pytest.mark.xfail(strict=True, reason="8 to 10 %: nobody wrote down the pauses, which move readings by 16 %")
@pytest.mark.parametrize(("table", "kind"), _ATTENTION)
def test_attention_left_out_as_wanted(judged: dict[str, JudgedKernels], table: str, kind: str) -> None:
    rows = judged[table].left_out()
    assert rows.error[rows["class"] == kind].abs().mean() < 0.05


def test_readings_that_only_pauses_tell_apart(judged: dict[str, JudgedKernels]) -> None:
    """What attention at the power limit reads, test after test: 16 % for the same power, but 1 % in GEMMs."""
    assert unpaused_spread(judged["context_attention"].rows) > 0.1
    assert unpaused_spread(judged["gemm"].rows) < 0.02


def test_energy_of_a_byte_and_of_an_operation(judged: dict[str, JudgedKernels]) -> None:
    """What `hbm` and `tensor` of H200 stand on: 100 to 115 pJ a byte from memory, 1.2 pJ an operation."""
    bf16, fp8, memory, byte = judged["gemm"].power.energy_pj
    assert 100.0 < memory + byte < 120.0
    assert 1.15 < bf16 < 1.3
    assert fp8 > 0.5
