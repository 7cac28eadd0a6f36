"""Intervals of predicted inference, against what was published."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.published_serving import CONFIG, TABLE, is_shared, read_cases
from triplepoint.calibrate.inference import InferenceIntervals, ServingCase, fit
from triplepoint.config.yaml_file import read
from triplepoint.published.rows import read_row
from triplepoint.simulate.calibration import Calibration
from triplepoint.simulate.inference import Serving, predict_inference
from triplepoint.simulate.inference_calibration import FittedServing, ServingCalibration
from triplepoint.simulate.intervals import Uncertainty

UNKNOWN = Calibration.load(CONFIG).fitted.widths.stack
FILE = CONFIG / "calibration" / "inference.yaml"


def selected() -> list[ServingCase]:
    return [case for case in read_cases() if not case.left_out]


def test_inference_yaml_is_what_the_rows_give() -> None:
    stored, found = read(FittedServing, FILE), InferenceIntervals(TABLE, CONFIG).fit(list(read_cases())).fitted
    # Written again by `triplepoint calibrate --inference tests/data/inference/tensorrt_llm.csv`.
    assert stored.quantile == pytest.approx(found.quantile, rel=1e-3)
    assert (stored.num_rows, stored.places, stored.fitted_to) == (found.num_rows, found.places, found.fitted_to)


def test_rows_of_a_model_left_out_lie_in_their_intervals() -> None:
    inside = []
    for name in {case.job.model.name for case in selected()}:
        others = fit([case for case in selected() if case.job.model.name != name], str(TABLE), UNKNOWN)
        held_out = [case for case in selected() if case.job.model.name == name]
        inside += [case.score(others) <= others.fitted.quantile for case in held_out]
    assert len(inside) == 32 and np.mean(inside) >= 0.9


def test_intervals_say_something() -> None:
    calibration = ServingCalibration.load(CONFIG)
    ends = [calibration.intervals_of(case.job, case.serving, case.step).whole_s for case in selected()]
    assert np.median([math.sqrt(high / low) for low, high in ends]) < 1.5


def test_shared_keys_are_outside_more_often_than_one_in_ten() -> None:
    # Why they are left out: the software measured read keys once for every query head.
    calibration = ServingCalibration.load(CONFIG)
    rows = [case for case in read_cases() if is_shared(case) and not case.is_first_token]
    outside = [case for case in rows if case.score(calibration) > calibration.fitted.quantile]
    assert len(rows) == 13 and len(outside) >= 3
    assert all(case.log_error < 0 for case in outside)


def test_score_by_hand() -> None:
    case = next(case for case in selected() if not case.is_first_token)
    step = replace(
        case.step,
        prefill_s=1.0,
        decode_s=3.0,
        prefill_uncertainty=Uncertainty(0.1, 0.4, 1.0),
        decode_uncertainty=Uncertainty(0.3, 0.0, 1.0),
    )
    made = ServingCase(case.job, case.serving, step, -0.54, False)
    # No distance to a row that is known: 0.02 between runs of one job, 0.1 in a quarter of the time, 0.3 in the rest.
    known = ServingCalibration(read(FittedServing, FILE), 0.5)
    assert made.score(known) == pytest.approx(0.54 / 0.27)
    assert replace(made, is_first_token=True).score(known) == pytest.approx(0.54 / 0.12)
    # Two octaves more of GPUs, and software that was not measured.
    far = replace(case.job, layout=case.job.layout.model_copy(update={"dp": 4}))
    assert replace(made, job=far).score(known) == pytest.approx(0.54 / (0.27 * 1.2))
    other = replace(case.job, stack="PyTorch")
    assert replace(made, job=other).score(known) == pytest.approx(0.54 / (0.27 + 0.5))


@settings(max_examples=examples(20), deadline=None)
@given(prompt=st.integers(1, 4096), output=st.integers(1, 512), batch=st.integers(1, 128))
def test_intervals_hold_what_they_are_around(prompt: int, output: int, batch: int) -> None:
    job, serving = read_cases()[0].job, Serving(prompt, output, batch)
    step = predict_inference(job, serving, config=CONFIG)
    found = ServingCalibration.load(CONFIG).intervals_of(job, serving, step)
    around = (step.prefill_s, found.first_token_s), (step.time_per_output_token_s, found.per_token_s)
    for time_s, (low, high) in (*around, (step.whole_s, found.whole_s)):
        assert low < time_s < high and low * high == pytest.approx(time_s**2)
    widths = [high / low for low, high in (found.first_token_s, found.per_token_s)]
    whole = found.whole_s[1] / found.whole_s[0]
    assert min(widths) * (1 - 1e-9) <= whole <= max(widths) * (1 + 1e-9)


def test_a_predicted_row_has_both_intervals() -> None:
    cells = {"model": "Llama3-8B", "gpu": "H100-SXM-80GB", "n_gpus": "1", "seq": "1024", "gbs": "16"}
    row = read_row(
        cells | {"task": "inference", "output_tokens": "128", "framework": "TensorRT-LLM"}, 1, Path("config")
    )
    found = row.predict(CONFIG)
    assert found.status == "ok"
    assert found.step_time_lo_s < found.step_time_s < found.step_time_hi_s
    assert found.time_per_output_token_lo_s < found.time_per_output_token_s < found.time_per_output_token_hi_s
    assert found.time_to_first_token_lo_s < found.time_to_first_token_s < found.time_to_first_token_hi_s
