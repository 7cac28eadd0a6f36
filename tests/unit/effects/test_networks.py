"""Networks by name of their cluster, in order of bandwidth, and the sentence about them."""

import math

import pandas as pd

from triplepoint.effects.networks import answer, fastest, name_networks, networks_by_bandwidth, speedup_range
from triplepoint.effects.titles import Change


def points(*rows: tuple[str, str, float]) -> pd.DataFrame:
    table = pd.DataFrame(rows, columns=["cluster", "layout", "step_time_s"])
    table = table.assign(
        status="ok", origin="simulated", repeat=1, num_measured_steps=20, model="m", step_time_layout_sigma=0.0,
        tokens_per_s_per_gpu=1000 / table["step_time_s"],
    )  # fmt: skip
    return table.join(name_networks(table["cluster"]))


def test_name_networks_reads_adapters_and_their_speed() -> None:
    found = name_networks(pd.Series(["h200x32-4x100", "h200x32"]))
    assert found["network"].tolist() == ["4×100", "h200x32"]
    assert found["gbit_per_s"].iloc[0] == 400
    assert math.isnan(found["gbit_per_s"].iloc[1])


def test_networks_by_bandwidth_has_unknown_ones_last() -> None:
    found = points(*((name, "a", 1.0) for name in ("other", "x-8x400", "x-4x100", "x-1x400", "x-1x100")))
    assert networks_by_bandwidth(found) == ["1×100", "1×400", "4×100", "8×400", "other"]


def test_answer_compares_the_widest_with_the_narrowest() -> None:
    found = points(("x-1x100", "a", 10.0), ("x-1x100", "b", 5.0), ("x-8x400", "a", 2.0), ("x-8x400", "b", 4.0))
    change = answer(found)
    assert isinstance(change, Change)
    # Factors 5 and 1.25: their mean is 2.5, and an interval over two holds 1.
    assert change.sentence == "training on 8×400 Gb/s a node is up to 5.0 times as fast as on 1×100 in both layouts"
    assert change.short("step time") == "-80 to -20 %"
    assert speedup_range(change) == " (1.25 to 5 times by layout)"
    assert fastest(found) == {"m": "1×100: b first, ×2.0 [2.0, 2.0]\n8×400: a first, ×2.0 [2.0, 2.0]"}


def test_answer_of_one_network() -> None:
    found = points(("x-1x100", "a", 10.0), ("x-1x100", "b", 5.0))
    assert answer(found) == "No two networks to compare"
    assert fastest(found) == {"m": "1×100: b first, ×2.0 [2.0, 2.0]"}
