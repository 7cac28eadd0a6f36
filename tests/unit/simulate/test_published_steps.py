"""Step times and seconds of kernels against the published study (GPT-3 175B on 32 H200), its other layouts apart."""

import statistics

import pytest

from tests.published_figures import (
    kernel_rows,
    kernel_seconds,
    microbatch_rows,
    point_of,
    rank_correlation,
    relative_steps,
)

FITTED_LAYOUT = "TP8-PP4"
"""Its relative step times are what the stack's host time was fitted to (config/calibration/stacks.yaml)."""


def test_relative_step_times_of_layouts_not_fitted_to() -> None:
    steps = relative_steps(list(microbatch_rows()))
    held_out = [abs(found / published - 1) for name, published, found in steps if not name.startswith(FITTED_LAYOUT)]
    assert len(held_out) == 12 and statistics.fmean(held_out) < 0.04
    assert rank_correlation(steps) > 0.93


def test_step_bound_by_the_host_has_far_less_kernels_than_time() -> None:
    (row,) = (row for row in microbatch_rows() if row.name == "TP8-PP4 mb1")
    kernels_s = kernel_seconds(point_of("gpt3-175b", "TP8-PP4", 1, "full"))["all"]
    assert kernels_s / row.predicted["step"] == pytest.approx(30 / 52, abs=0.1), "published: 30 s of about 52"


def test_seconds_of_kernels_of_fsdp() -> None:
    for row in kernel_rows():
        if "FSDP" in row.name:
            assert row.predicted["all"] == pytest.approx(row.published["all"], rel=0.15), row.name


def test_seconds_of_kernels_of_pipelines() -> None:
    rows = [row for row in kernel_rows() if "FSDP" not in row.name]
    for name in ("computation", "all"):
        errors = [abs(row.predicted[name] / row.published[name] - 1) for row in rows]
        assert len(errors) == 7 and statistics.fmean(errors) < 0.12, name
