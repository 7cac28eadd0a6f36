"""Fit of prediction intervals of inference to measured batches, for `triplepoint calibrate --inference`.

No constant is fitted here. Predicted times come from the models of kernels and collectives.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast, get_args

from triplepoint.calibrate.protocol import conformal_quantile, positive, to_yaml
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.point import Layout, Precision
from triplepoint.config.yaml_file import read_measured
from triplepoint.errors import UserError
from triplepoint.published.architecture import find_model
from triplepoint.published.fabric import usual_fabric
from triplepoint.published.network import StatedNetwork
from triplepoint.simulate.calibration import Calibration
from triplepoint.simulate.inference import InferenceStep, Serving, predict_inference
from triplepoint.simulate.inference_calibration import FittedServing, ServingCalibration, place_of
from triplepoint.simulate.job import Job
from triplepoint.simulate.stacks import find_stack

_HEADER = "# Written by `triplepoint calibrate --inference`.\n"


@dataclass(frozen=True)
class InferenceIntervals:
    """The procedure: see `calibrate.protocol`.

    Attributes:
        table: CSV of measured batches, with the columns that `read_cases` describes.
        config: Folder of the configuration.
    """

    table: Path
    config: Path

    def read(self) -> list["ServingCase"]:
        """Return all batches, also those that `left_out` excludes."""
        return read_cases(self.table, self.config)

    def fit(self, measured: list["ServingCase"]) -> ServingCalibration:
        """Return the intervals, from errors on held-out models. Raises `UserError` with fewer than two models."""
        cases = [case for case in measured if not case.left_out]
        if len({case.job.model.name for case in cases}) < 2:
            raise UserError(
                f"{self.table}: fewer than two models have batches; intervals are measured on a model left out of the "
                "fit, so add rows of another model"
            )
        reasons = list(dict.fromkeys(case.left_out for case in measured if case.left_out))
        fitted_to = ", without ".join([str(self.table), *([" and ".join(reasons)] if reasons else [])])
        return fit(cases, fitted_to, Calibration.load(self.config).fitted.widths.stack)

    def report(self, fitted: ServingCalibration) -> list[str]:
        """Return a line of text on the rows and the quantile of errors on held-out models."""
        rows, quantile = fitted.fitted.num_rows, fitted.fitted.quantile
        return [f"{self._target}: intervals from {rows} batches; quantile of models held out {quantile:.2f}"]

    def files(self, fitted: ServingCalibration) -> dict[Path, str]:
        """Return the text of `inference.yaml`."""
        return {self._target: _HEADER + to_yaml(fitted.fitted.model_dump(mode="json"), width=160, flow=None)}

    @property
    def _target(self) -> Path:
        return self.config / "calibration" / "inference.yaml"


@dataclass(frozen=True, eq=False)
class ServingCase:
    """One measured batch.

    Attributes:
        job: Model, layout and GPU type.
        serving: Prompt, output and batch size.
        step: Prediction.
        log_error: Logarithm of predicted over measured time.
        is_first_token: Whether the time to the first token was measured, instead of the whole batch.
        left_out: Reason to exclude the batch from the fit; empty where it is included.
    """

    job: Job
    serving: Serving
    step: InferenceStep
    log_error: float
    is_first_token: bool
    left_out: str = ""

    def score(self, calibration: ServingCalibration) -> float:
        """Return the absolute log error over its scale in a calibration."""
        first_token, _, whole = calibration.scales(self.job, self.serving, self.step)
        return abs(self.log_error) / (first_token if self.is_first_token else whole)


def read_cases(table: Path, config: Path) -> list[ServingCase]:
    """Read measured batches, and predict each.

    Args:
        table: CSV with columns gpu, precision, model, batch_size, tp, prompt_tokens, output_tokens, framework, one of
            tokens_per_s_per_gpu and time_to_first_token_s, and left_out, a reason or empty.
        config: Folder of the configuration.

    Raises:
        UserError: If the table is missing, or a row is incomplete or of an unknown model.
    """
    catalogue = Catalogue(config)
    cases = []
    for line, row in read_measured(table, _COLUMNS):
        try:
            cases.append(_case(row, catalogue, config))
        except ValueError as error:
            raise UserError(f"{table}:{line}: {error}; see the columns of tests/data/inference") from None
    return cases


_COLUMNS = (
    *("gpu", "precision", "model", "batch_size", "tp", "prompt_tokens", "output_tokens", "tokens_per_s_per_gpu"),
    *("time_to_first_token_s", "framework", "left_out"),
)


def _case(row: dict[str, str], catalogue: Catalogue, config: Path) -> ServingCase:
    name, gpu, tp = find_model(row["model"], config), catalogue.gpu(row["gpu"]), int(row["tp"])
    if not isinstance(name, str):
        raise ValueError(f"unknown model {row['model']!r}")
    fabric = usual_fabric(gpu, 8, StatedNetwork(), config)
    precision = row["precision"]
    if precision not in get_args(Precision):
        raise ValueError(f"unknown precision {precision!r}")
    stack = row["framework"]
    software, number_format = find_stack(stack, config), cast(Precision, precision)
    job = Job(
        catalogue.model(name), Layout(tp=tp), 1, 1, 1, gpu, fabric, software, precision=number_format, stack=stack
    )
    prompt, output, batch = (int(row[name]) for name in ("prompt_tokens", "output_tokens", "batch_size"))
    serving = Serving(prompt, output, batch, cache_element=1 if precision == "fp8" else 2)
    step = predict_inference(job, serving, config=config)
    if first_token_s := row["time_to_first_token_s"]:
        log_error = math.log(step.prefill_s / positive(first_token_s))
    else:
        log_error = math.log(positive(row["tokens_per_s_per_gpu"]) * tp / step.tokens_per_s)
    return ServingCase(job, serving, step, log_error, bool(first_token_s), row["left_out"])


def fit(cases: Sequence[ServingCase], fitted_to: str, unknown_stack_spread: float) -> ServingCalibration:
    """Return the quantile of errors, each predicted from the rows of other models, and the measured configurations.

    Args:
        cases: Measured rows of at least two models.
        fitted_to: Description of the rows.
        unknown_stack_spread: Standard deviation, in log, of an unmeasured software stack.
    """
    size = Counter(_cluster(case) for case in cases)
    scores, weights = [], []
    for case in cases:
        others = [other for other in cases if other.job.model.name != case.job.model.name]
        scores.append(case.score(_calibration(others, fitted_to, unknown_stack_spread, 1.0)))
        # Rows of one model on one GPU type are nearly one row, as in training.
        weights.append(1 / math.sqrt(size[_cluster(case)]))
    quantile = round(conformal_quantile(scores, weights), 4)
    return _calibration(cases, fitted_to, unknown_stack_spread, quantile)


def _calibration(
    cases: Sequence[ServingCase], fitted_to: str, unknown_stack_spread: float, quantile: float
) -> ServingCalibration:
    """Return the calibration with the configurations of the cases and the given quantile."""
    places = {place_of(case.job, case.serving): None for case in cases}
    fitted = FittedServing(fitted_to=fitted_to, num_rows=len(cases), quantile=quantile, places=list(places))
    return ServingCalibration(fitted, unknown_stack_spread)


def _cluster(case: ServingCase) -> tuple[str, str]:
    return case.job.gpu.name, case.job.model.name
