"""Which power limit a configuration gets for a power budget."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from triplepoint.advise.search import power_limits
from triplepoint.advise.search.candidate import Candidate, look
from triplepoint.advise.search.limits import Limits
from triplepoint.advise.search.power_limits import follow_within
from triplepoint.advise.search.space import Question, groups_of
from triplepoint.config.catalogue import Catalogue
from triplepoint.prices import UNPRICED

CONFIG = Path("config")
PEAK_KW = {
    None: 32.4, 650.0: 30.0, 600.0: 28.1, 550.0: 26.1, 500.0: 24.2, 450.0: 22.1, 400.0: 19.9, 350.0: 21.3,
    300.0: 20.2, 250.0: 17.0, 200.0: 14.2,
}  # fmt: skip
"""As of TP8 PP4 VP2 on 32 H200: at 400 W, peaks are lower than at 300 and 350 W, where clocks rise further in waits."""
LOWER_W = sorted(limit_w for limit_w in PEAK_KW if limit_w is not None)


@cache
def candidate() -> Candidate:
    values = {"num_gpus": [8], "tp": [4], "pp": [1], "vp": [1], "micro_batch_size": [1], "recompute": ["none"]}
    question = Question("llama3-8b", "h200x32", 32, values | {"data_parallel_sharding": ["optim"], "overlap": [[]]})
    (group,) = groups_of(question, Catalogue(CONFIG))
    return next(iter(look(group, CONFIG, 0.5).values()))


@pytest.mark.parametrize(
    ("budget_kw", "limit_w"), [(33, None), (22.2, 450), (20, 400), (19, 250), (16.9, 200), (1, 200)]
)
def test_limit_is_the_highest_that_keeps_to_the_budget_though_peaks_do_not_follow_limits(
    monkeypatch: pytest.MonkeyPatch, budget_kw: float, limit_w: float | None
) -> None:
    def follow(one: Candidate, *_: Any) -> Candidate:
        return replace(one, job_power_peak_w=1000 * PEAK_KW[one.power_limit_w])

    monkeypatch.setattr(power_limits, "follow", follow)
    found = follow_within(candidate(), CONFIG, True, UNPRICED, Limits(power_kw=budget_kw), LOWER_W)
    assert found.power_limit_w == limit_w
