"""Whether the step of a run is as predicted; advice from a prediction that does not hold is worth nothing."""

import numpy as np

from triplepoint.advise.recommend.passport import Learned
from triplepoint.advise.recommend.placement import Outcome, Site
from triplepoint.simulate.power.gpu import Float
from triplepoint.units import show_step
from triplepoint.why.answer import Answer

_SIMULATED_DIFFERENCE, _MEASURED_DIFFERENCE = 0.02, 0.05
"""Relative difference between the step of a run and the predicted one that needs no explanation: of a simulated run,
whose model is this one, and at least of a measured run, for which the 90 % interval of the model counts. Our choice."""
_NOT_SIMULATED = ("network", "launch", "data", "power limit")
"""Causes of a slow run that the prediction of its step does not have."""


def median_step_s(measured_s: Float) -> float | None:
    """Return the median measured step; None without a run. Unit: s."""
    return float(np.median(measured_s)) if measured_s.size else None


def unexplained_step(
    site: Site, learned: Learned | None, before: Outcome, measured_s: Float, explained: Answer | None
) -> str:
    """Return a sentence on a step that is longer or shorter than predicted; empty if it is as predicted.

    Args:
        site: The job.
        learned: Passport of its slots; None without one.
        before: Predicted step.
        measured_s: Measured step times. Unit: s.
        explained: Why the run is slow; None if that is not known.
    """
    predicted_s, step_s = before.step_time_s, median_step_s(measured_s)
    if step_s is None or learned is None:
        return ""
    is_simulated = learned.passport.is_simulated
    least = _SIMULATED_DIFFERENCE if is_simulated else _MEASURED_DIFFERENCE
    low_s, high_s = predicted_s * (1.0 - least), predicted_s * (1.0 + least)
    if not is_simulated:
        of_model_s = site.interval_of(predicted_s)
        low_s, high_s = min(low_s, of_model_s.lo), max(high_s, of_model_s.hi)
    if low_s <= step_s <= high_s:
        return ""
    taken = "simulated" if is_simulated else "measured"
    steps = f"Predicted step {show_step(predicted_s)}, {taken} {show_step(step_s)}"
    if step_s < predicted_s:
        return f"{steps}: the prediction does not hold for this run."
    unknown = [
        f"{finding.cause} of {finding.name}"
        for finding in (explained.findings if explained else ())
        if finding.cause in _NOT_SIMULATED
    ]
    if unknown:
        return f"{steps}: the prediction lacks what 'triplepoint why' names, {' and '.join(unknown)}."
    return f"{steps}: something that sensors do not show slows it; run 'triplepoint why {learned.passport.run}'."
