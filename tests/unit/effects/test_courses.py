"""Courses over a step and spectra of jobs: by hand, and for a sine of a known frequency."""

import numpy as np
import pytest
from pandas import DataFrame

from triplepoint.effects.courses import over_step
from triplepoint.effects.swings import answer, notes, spectrum


def test_over_step_takes_the_mean_of_each_gpu_first() -> None:
    rows = [(0, 0.1, 100.0), (0, 0.2, 100.0), (0, 0.3, 160.0), (0, 0.9, 50.0), (1, 0.4, 200.0), (2, 0.6, 70.0)]
    rows += [(1, 0.41, 200.0), (1, 0.42, 200.0), (2, 0.61, 70.0), (2, 0.62, 70.0)]
    samples = DataFrame(rows, columns=["rank", "t_s", "gpu_power_w"])
    found = over_step(samples, "gpu_power_w", 1.0)
    # Three parts: the median number of samples of a GPU.
    assert found["t_end_s"].round(3).tolist() == [0.333, 0.667, 1.0]
    assert found["mean"].tolist() == pytest.approx([120.0, 135.0, 50.0])
    assert found["lowest"].tolist() == pytest.approx([120.0, 70.0, 50.0])
    assert found["highest"].tolist() == pytest.approx([120.0, 200.0, 50.0])


def test_over_step_of_nothing_is_empty() -> None:
    samples = DataFrame({"rank": [0], "t_s": [0.5], "gpu_power_w": [np.nan]})
    assert over_step(samples, "gpu_power_w", 1.0).empty


def test_spectrum_has_its_top_at_the_frequency_of_a_sine() -> None:
    t_s = np.arange(0.0, 300.0, 1.5)
    found = spectrum(DataFrame({"t_s": t_s, "job_power_w": 1e4 * (1 + 0.05 * np.sin(2 * np.pi * 0.1 * t_s))}))
    top = found.loc[found["amplitude"].idxmax()]
    assert top["frequency_hz"] == pytest.approx(0.1, abs=5e-4)
    assert top["amplitude"] == pytest.approx(0.05, rel=0.02)
    assert found["frequency_hz"].min() >= 8 / 300


def test_answer_has_repeats_in_brackets_and_the_published_number() -> None:
    repeats = DataFrame(
        {"run": ["a", "b"], "job_power_swing_fraction": [0.14, 0.18], "job_power_line_hz": [0.09, 0.092]}
    )
    published = DataFrame({"run": ["a"], "quantity": ["job_power_swing_fraction"], "published": [0.151]})
    assert answer(repeats, "a job") == "The power of a job swings by 16.0 % [14.0, 18.0] of its mean"
    assert notes(repeats, published) == (
        "swing 16.0 % [14.0, 18.0]\npublished 15.1 %", "strongest at 0.0910 Hz [0.0900, 0.0920]",
    )  # fmt: skip
