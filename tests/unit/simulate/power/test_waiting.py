"""What a GPU takes that waits for others in a kernel that polls, against public ones that hang."""

from pathlib import Path

import pytest

from triplepoint.simulate.power.gpu import Activity, gpu_power_w
from triplepoint.simulate.power.parameters import read_power

CONFIG = Path(__file__).parents[4] / "config"


def test_waiting_takes_what_a_hung_gpu_shows() -> None:
    """152 W at 38 degC in a hung all-gather; three at rest beside it differ by 8 W (github NVIDIA/nccl issue 1550)."""
    power = read_power("h100", CONFIG)
    found = float(gpu_power_w(power, Activity(awake=power.polling_share.value), 1980.0, 38.0))
    assert found == pytest.approx(152, abs=20)


def test_waiting_takes_more_than_rest_by_what_that_node_shows() -> None:
    """By 19 W: 152 against 133, the mean of 129 to 137; of it 2 W by dies that are 2 K warmer."""
    power = read_power("h100", CONFIG)
    waiting, rest = (Activity(awake=share) for share in (power.polling_share.value, 0.0))
    more = float(gpu_power_w(power, waiting, 1980.0, 38.0) - gpu_power_w(power, rest, 1980.0, 36.0))
    assert more == pytest.approx(19, abs=4), "half of what the three at rest are apart"


def test_rest_with_clocks_up_takes_what_that_node_shows() -> None:
    """Three GPUs of 34 to 37 degC beside it: 129 to 137 W; other nodes at rest take 109 to 117 W at 26 degC."""
    power = read_power("h100", CONFIG)
    assert float(gpu_power_w(power, Activity(awake=0.0), 1980.0, 36.0)) == pytest.approx(134, rel=0.18)
    assert float(gpu_power_w(power, Activity(awake=0.0), 1980.0, 26.0)) == pytest.approx(113, rel=0.1)
