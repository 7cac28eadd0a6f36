"""The hottest GPU and the one of the lowest clock against the others, at equal power or not."""

from dataclasses import replace

from triplepoint.why.gpus import describe_gpus, lowest_clock
from triplepoint.why.sensed import Sensed


def gpus(num: int = 8, **odd: float) -> dict[int, Sensed]:
    """Return GPUs alike but for gpu3, which has some other values."""
    usual = {"clock_mhz": 1900.0, "power_w": 600.0, "temp_c": 60.0}
    return {
        rank: Sensed(rank, "a", f"gpu{rank}", 0, **(usual | {"temp_c": 60.0 + rank % 3} | (odd if rank == 3 else {})))
        for rank in range(num)
    }


def test_hot_gpu_at_equal_power_has_worse_cooling() -> None:
    hottest, _ = describe_gpus(gpus(temp_c=75.0))
    assert hottest == (
        "hottest: gpu3 of a (rank 3), 75 degC, 14.0 K above the median of the 7 others at equal power (600 W against "
        "600 W): its cooling or its air is worse"
    )


def test_hot_gpu_that_draws_more_may_be_hot_by_its_load() -> None:
    hottest, _ = describe_gpus(gpus(temp_c=75.0, power_w=720.0))
    assert "at +20 % power (720 W against 600 W): it draws more" in hottest


def test_low_clock_at_equal_power_and_at_less() -> None:
    _, slowest = describe_gpus(gpus(clock_mhz=1710.0))
    assert "1710 MHz, 10.0 % below the median of the 7 others at equal power" in slowest
    assert "less clock for its power" in slowest
    assert "it draws less" in list(describe_gpus(gpus(clock_mhz=1710.0, power_w=500.0)))[1]


def test_lowest_clock_that_the_hardware_holds_is_not_compared_with_its_stage() -> None:
    held = {"clock_mhz": 990.0, "throttled": {"power_brake_share": 1.0}}
    free = {rank: replace(one, stage=1, throttled={"power_brake_share": 0.0}) for rank, one in gpus().items()}
    sensed = free | {rank: replace(one, stage=0, **held) for rank, one in free.items() if rank < 4}
    assert list(describe_gpus(sensed))[1] == (
        "lowest clock: gpu0 of a (rank 0): power brake for 100 % of the time, 990 MHz against 1900 MHz of GPUs "
        "without it"
    )


def test_alike_gpus_are_said_to_be_alike() -> None:
    assert all(line.endswith("as GPUs of one type differ") for line in describe_gpus(gpus()))


def test_two_gpus_are_compared_and_one_is_not() -> None:
    two = {rank: one for rank, one in gpus(temp_c=75.0).items() if rank in (0, 3)}
    assert "15.0 K above that of the other at equal power" in next(describe_gpus(two))
    assert list(describe_gpus(gpus(num=1))) == []


def test_lowest_clock_is_said_to_be_an_outlier_or_not() -> None:
    assert lowest_clock(gpus(clock_mhz=1710.0)) == "10.0 % below the median of the 7 others, an outlier"
    spread = {rank: replace(one, clock_mhz=1840.0 + 20 * rank) for rank, one in gpus().items()}
    assert lowest_clock(spread | {3: replace(spread[3], clock_mhz=1780.0)}).endswith("the 7 others, no outlier")
    assert lowest_clock(gpus()) == lowest_clock(gpus(num=1)) == ""
