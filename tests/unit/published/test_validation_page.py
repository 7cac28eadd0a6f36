"""docs/validation.md is of the calibration that stands in config/."""

from tests.benchmarks.predict_accuracy import PAGE, digest


def test_the_page_is_of_this_calibration() -> None:
    assert f"Calibration {digest()}." in PAGE.read_text(), "python -m tests.benchmarks.predict_accuracy --write"
