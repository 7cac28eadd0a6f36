"""Rows of GPUs, frameworks and networks that nothing was calibrated to: an answer, and a wider interval."""

import math
from pathlib import Path

import pytest

from tests.unit.published.cells import NEMOTRON
from triplepoint.published.rows import read_row
from triplepoint.simulate.calibration import Calibration
from triplepoint.simulate.predict.prediction import Prediction

CONFIG = Path("config")
CALIBRATION = Calibration.load(CONFIG)


def predict(**changes: str) -> Prediction:
    return read_row(NEMOTRON | changes, 1, CONFIG).predict(CONFIG)


def width(found: Prediction) -> float:
    return math.log(found.step_time_hi_s / found.step_time_lo_s)


UNSEEN = [
    {"gpu": "H200-SXM-141GB", "interconnect": ""},
    {"gpu": "B200-SXM-192GB", "interconnect": ""},
    {"gpu": "MI250 (GCD)", "interconnect": ""},
    {"gpu": "MI300X-192GB", "interconnect": ""},
    {"framework": "Some Trainer 3.1"},
    {"framework": ""},
    {"interconnect": "Miyabi"},
    {"interconnect": ""},
]


@pytest.mark.parametrize(
    "changes", UNSEEN, ids=lambda changes: " ".join(changes.values()).strip() or f"no {next(iter(changes))}"
)
def test_predict_row_of_what_was_never_calibrated(changes: dict[str, str]) -> None:
    found = predict(**changes)
    assert found.status in ("ok", "oom", "undecided")
    assert 0 < found.step_time_lo_s < found.step_time_s < found.step_time_hi_s < math.inf
    assert 0 < found.mfu < 0.85


@pytest.mark.parametrize("framework", ["Some Trainer 3.1", "Megatron-Core r0.99", ""])
def test_interval_is_wider_for_a_stack_never_calibrated(framework: str) -> None:
    assert width(predict(framework=framework)) > width(predict())


def test_interval_widens_with_every_octave_away() -> None:
    widths = [width(predict(n_gpus=str(64 * 4**n), dp=str(16 * 4**n), gbs=str(256 * 4**n))) for n in (2, 4, 6)]
    assert widths == sorted(widths)
    assert widths[2] > 1.2 * widths[0]
