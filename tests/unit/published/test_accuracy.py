"""Predictions against published measurements: thresholds just above what is reached; docs/simulation.md has targets.

The constants were fitted to these rows, one for each stack, so this is no held-out error: that is what
tests/benchmarks/predict_accuracy.py reports.
"""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from triplepoint.published.rows import read_row
from triplepoint.published.table import read_table
from triplepoint.simulate.predict.prediction import Prediction

CONFIG = Path("config")
DATA = Path("tests/data/throughput")
Cells = dict[str, str]


@pytest.fixture(scope="module")
def predicted() -> list[tuple[Cells, Prediction]]:
    tables = [read_table(DATA / name) for name in ("training_throughput.csv", "vtrain_single_node.csv")]
    rows = [cells for table in tables for cells in table if cells["step_time_s"]]
    return [(cells, read_row(cells, 1, CONFIG).predict(CONFIG)) for cells in rows]


def is_of(stack: str, precision: str = "", *, is_moe: bool | None = None) -> Callable[[Cells], bool]:
    def matches(cells: Cells) -> bool:
        has_experts = cells["experts"] not in ("", "0")
        is_alike = stack in cells["framework"] and precision in cells["precision"].lower()
        return is_alike and (is_moe is None or has_experts == is_moe)

    return matches


GROUPS = {
    "H100 BF16 dense, NeMo": (is_of("dgxc", "bf16", is_moe=False), 0.025),
    "H100 FP8 dense": (is_of("dgxc", "fp8", is_moe=False), 0.05),
    "H100 BF16 MoE, NeMo": (is_of("dgxc", "bf16", is_moe=True), 0.04),
    # With three hybrid rows, 19 to 21 % off: Nemotron 3 Nano, Super and Ultra.
    "H100 BF16, AutoModel": (is_of("AutoModel", "bf16"), 0.11),
    "H100 FP8 MoE, NeMo": (is_of("dgxc", "fp8", is_moe=True), 0.06),
    "H100 Megatron-Core scaling": (is_of("Megatron-Core"), 0.12),
    "Megatron SC'21": (is_of("Megatron-LM 2021"), 0.03),
    "recomputation paper": (is_of("Megatron-LM 2022"), 0.03),
    "FSDP on A100": (is_of("llm-foundry"), 0.08),
}


def errors(predicted: list[tuple[Cells, Prediction]], is_member: Callable[[Cells], bool]) -> np.ndarray:
    found = [one.step_time_s / float(cells["step_time_s"]) - 1 for cells, one in predicted if is_member(cells)]
    return np.array([error for error in found if not math.isnan(error)])


@pytest.mark.parametrize("name", GROUPS)
def test_mean_error_by_group(predicted: list[tuple[Cells, Prediction]], name: str) -> None:
    is_member, threshold = GROUPS[name]
    found = errors(predicted, is_member)
    assert len(found) >= 9
    assert np.abs(found).mean() <= threshold


@pytest.mark.parametrize(("prefix", "threshold"), [("T", 0.055), ("V", 0.075)])
def test_vtrain_error(predicted: list[tuple[Cells, Prediction]], prefix: str, threshold: float) -> None:
    found = errors(predicted, lambda cells: cells["id"][0] == prefix and "DeepSpeed" in cells["framework"])
    assert np.abs(found).mean() <= threshold
    assert abs(found.mean()) <= 0.05


def test_every_measured_row_is_predicted(predicted: list[tuple[Cells, Prediction]]) -> None:
    failed = [(cells["id"], one.status) for cells, one in predicted if math.isnan(one.step_time_s)]
    assert failed == []


def test_hybrid_row_lies_in_its_interval(predicted: list[tuple[Cells, Prediction]]) -> None:
    # Nemotron 3 Nano: the one measured row of a hybrid model; no kernel of its scans was measured. What it recomputed
    # is not stated: all is the least that fits here, 23 % too slow, and nothing would be 6 % too fast.
    (one,) = [one for cells, one in predicted if cells["id"] == "T0085"]
    assert one.step_time_lo_s <= 15.614 <= one.step_time_hi_s
    assert abs(one.step_time_s / 15.614 - 1) <= 0.25


def test_rows_that_ran_rarely_count_as_too_large(predicted: list[tuple[Cells, Prediction]]) -> None:
    assert np.mean([one.status == "oom" for _, one in predicted]) <= 0.01


def test_intervals_hold_nine_of_ten(predicted: list[tuple[Cells, Prediction]]) -> None:
    inside = [
        one.step_time_lo_s <= float(cells["step_time_s"]) <= one.step_time_hi_s
        for cells, one in predicted
        if not math.isnan(one.step_time_s)
    ]
    # Constants are of these rows too; widths are of rows left out, which are further off.
    assert 0.87 <= np.mean(inside) <= 0.96
