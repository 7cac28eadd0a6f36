"""Errors of predicted inference against published measurements: `python -m tests.benchmarks.inference_accuracy`.

Prints how many rows lie in their intervals, also where the model is left out of what they were made from.
`triplepoint calibrate --inference tests/data/inference/tensorrt_llm.csv` makes the intervals.
"""

import math
from collections.abc import Callable

import numpy as np

from tests.published_serving import CONFIG, TABLE, is_shared, read_cases
from triplepoint.calibrate.inference import ServingCase, fit
from triplepoint.simulate.calibration import Calibration
from triplepoint.simulate.inference_calibration import ServingCalibration

GROUPS: dict[str, Callable[[ServingCase], bool]] = {
    "first token, A100": lambda case: case.is_first_token and case.job.gpu.name == "a100",
    "first token, H100": lambda case: case.is_first_token and case.job.gpu.name == "h100",
    "batches, A100": lambda case: not case.left_out and not case.is_first_token and case.job.gpu.name == "a100",
    "batches, H100": lambda case: not case.left_out and not case.is_first_token and case.job.gpu.name == "h100",
    "all of these": lambda case: not case.left_out,
    "batches, grouped queries": lambda case: is_shared(case) and not case.is_first_token,
}


def coverage(cases: list[ServingCase], calibration: Callable[[ServingCase], ServingCalibration]) -> float:
    """Return the share of rows within the intervals of a calibration of their own."""
    made = [(case.score(found), found.fitted.quantile) for case in cases for found in [calibration(case)]]
    return float(np.mean([score <= quantile for score, quantile in made]))


def without_model(cases: list[ServingCase], unknown: float) -> Callable[[ServingCase], ServingCalibration]:
    """Return a function to the calibration for a row, fitted to all rows of other models."""
    made = {
        name: fit([case for case in cases if case.job.model.name != name], str(TABLE), unknown)
        for name in {case.job.model.name for case in read_cases()}
    }
    return lambda case: made[case.job.model.name]


def main() -> None:
    unknown = Calibration.load(CONFIG).fitted.widths.stack
    cases = [case for case in read_cases() if not case.left_out]
    found = fit(cases, str(TABLE), unknown)
    held_out = without_model(cases, unknown)
    a100 = fit([case for case in cases if case.job.gpu.name == "a100"], str(TABLE), unknown)
    print(f"quantile {found.fitted.quantile}, from A100 alone {a100.fitted.quantile}")
    print("group, rows, mean error, in interval, model left out, from A100 alone, median factor")
    for name, belongs in GROUPS.items():
        rows = [case for case in read_cases() if belongs(case)]
        error = np.mean([abs(math.expm1(case.log_error)) for case in rows])
        shares = [coverage(rows, made) for made in (lambda case: found, held_out, lambda case: a100)]
        wide = np.median([math.exp(found.fitted.quantile * _scale(case, found)) for case in rows])
        print(f"{name}, {len(rows)}, {error:.3f}, {', '.join(f'{share:.2f}' for share in shares)}, {wide:.2f}")


def _scale(case: ServingCase, calibration: ServingCalibration) -> float:
    first, _, whole = calibration.scales(case.job, case.serving, case.step)
    return first if case.is_first_token else whole


if __name__ == "__main__":
    main()
