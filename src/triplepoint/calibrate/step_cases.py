"""Measured training steps with their simulated times, to which constants of software stacks are fitted."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt

from triplepoint.errors import UserError, shown
from triplepoint.published.rows import read_row, settle
from triplepoint.published.table import read_table
from triplepoint.published.words import UnreadableError, read_number
from triplepoint.simulate.costs import Constants
from triplepoint.simulate.intervals import Uncertainty
from triplepoint.simulate.job import Job
from triplepoint.simulate.layouts import Laid
from triplepoint.simulate.step import simulate_step
from triplepoint.tables.traces import LONGEST_STEP_S, SHORTEST_STEP_S

Float = npt.NDArray[np.float64]

FACTORS = (0.75, 1.0, 1.3, 1.7)
"""Factors on kernel times at which each step is simulated."""
HOST_TIMES_S = (5e-6, 20e-6, 60e-6, 120e-6)
"""Host times per launch at which each step is simulated. Between all these constants, the logarithm of the step time is
a cubic of their logarithms. Unit: s."""

_LOG_FACTORS, _LOG_HOSTS = np.log(FACTORS), np.log(HOST_TIMES_S)
_FINE_LOG_FACTORS = np.linspace(math.log(0.55), math.log(2.3), 101)
"""Grid on which the exact factor of a row is interpolated."""


@dataclass(frozen=True, eq=False)
class Case:
    """One measured row, with its simulated times.

    Attributes:
        id: Identifier of the row.
        job: Model, layout, GPU type and software.
        measured_s: Measured time of a step. Unit: s.
        log_times: Logarithms of simulated times in s at `FACTORS` and `HOST_TIMES_S`; shape (4, 4).
        uncertainty: Uncertainty of the simulated times.
        gradient_share: Share of the simulated step that gradient reduction takes, 0 to 1.
    """

    id: str
    job: Job
    measured_s: float
    log_times: Float
    uncertainty: Uncertainty
    gradient_share: float = 0.0

    @property
    def laid(self) -> Laid:
        """The job with its gradient share, to compare layouts."""
        return Laid(self.job, self.gradient_share)

    @property
    def cluster(self) -> tuple[str, str, str]:
        """Stack, model and precision. Rows with the same ones count as little more than one row."""
        return self.job.stack, self.job.model.name, self.job.precision

    @property
    def model_size(self) -> tuple[int, int]:
        """Width and number of parameters, equal for models of the same size."""
        return self.job.model.hidden_size, self.job.model.num_parameters

    def predicted_s(self, constants: Constants) -> float:
        """Return the step time with given constants, interpolated between the simulated ones. Unit: s."""
        factor_weights = _cubic(math.log(constants.factor), _LOG_FACTORS)
        host_weights = _cubic(math.log(constants.host_s), _LOG_HOSTS)
        return math.exp(float(factor_weights @ self.log_times @ host_weights))

    def log_error(self, constants: Constants) -> float:
        """Return the logarithm of measured over simulated time."""
        return math.log(self.measured_s / self.predicted_s(constants))

    @cached_property
    def log_factor(self) -> float:
        """Logarithm of the factor that makes the simulated time equal the measured one, at the default host time."""
        log_times = self.log_times @ _cubic(math.log(Constants.host_s), _LOG_HOSTS)
        fine_log_times = _cubic(_FINE_LOG_FACTORS, _LOG_FACTORS) @ log_times
        return float(np.interp(math.log(self.measured_s), fine_log_times, _FINE_LOG_FACTORS))


def read_cases(source: Path, config: Path, say: Callable[[str], None] | None = None) -> list[Case]:
    """Read the rows of a table that have a step time and can be simulated.

    Args:
        source: CSV with the columns of `triplepoint predict --published` and `step_time_s`.
        config: Folder of the configuration.
        say: Called with a line of text on every skipped row, with the reason.

    Raises:
        UserError: If the table cannot be read or has no step times, or two rows have one id.
    """
    cases = []
    ids: set[str] = set()
    table = read_table(source)
    if table and "step_time_s" not in table[0]:
        raise UserError(f"{source}: no column step_time_s; calibration needs measured times")
    for number, cells in enumerate(table, 1):
        row = read_row(cells, number, config)
        reason = row.reason
        if row.id in ids:
            raise UserError(f"{source}: row {number}: id {shown(row.id)} is that of another row too; change one")
        ids.add(row.id)
        try:
            measured = read_number("step_time_s", cells.get("step_time_s", ""))
            if measured is not None and not SHORTEST_STEP_S <= measured <= LONGEST_STEP_S:
                raise UserError(f"step_time_s is {measured:g}, expected {SHORTEST_STEP_S:g} to {LONGEST_STEP_S:,.0f} s")
            if row.job is not None and measured:
                cases.append(make_case(row.id, settle(row), measured, config))
                continue
            reason = reason or "no step_time_s"
        except (UserError, UnreadableError) as error:
            reason = str(error)
        if say:
            say(f"{source}: {row.id} left out: {reason}")
    return cases


def make_case(id_: str, job: Job, measured_s: float, config: Path) -> Case:
    """Return a measured row with its simulated times. Raises `UserError` if the job cannot be simulated."""
    steps = [
        [simulate_step(job, Constants(factor=factor, host_s=host_s), config) for host_s in HOST_TIMES_S]
        for factor in FACTORS
    ]
    log_times = np.log([[step.time_s for step in row] for row in steps])
    usual = steps[1][1]
    return Case(id_, job, measured_s, log_times, usual.uncertainty, usual.gradient_share)


def cluster_weights(cases: Sequence[Case]) -> Float:
    """Return a weight for each row, such that a cluster of n similar rows weighs the square root of n."""
    size = Counter(case.cluster for case in cases)
    return np.array([1 / math.sqrt(size[case.cluster]) for case in cases])


def errors_by_host(cases: Sequence[Case], log_factors: Float, hosts_s: Float) -> Float:
    """Return log errors of rows at several host times.

    Args:
        cases: Measured rows.
        log_factors: Logarithms of the factors on their kernel times; shape (num_cases,).
        hosts_s: Host times per launch; shape (num_hosts,). Unit: s.

    Returns:
        Logarithms of measured over simulated time; shape (num_cases, num_hosts).
    """
    log_times, host_weights = np.array([case.log_times for case in cases]), _cubic(np.log(hosts_s), _LOG_HOSTS)
    at_factor = np.einsum("cfh,cf->ch", log_times, _cubic(log_factors, _LOG_FACTORS))
    return cast(Float, np.log([[case.measured_s] for case in cases]) - at_factor @ host_weights.T)


def _cubic(x: Float | float, knots: Float) -> Float:
    """Return the weights of the values at four knots that interpolate them cubically at x; shape of x, then (4,)."""
    weights = [np.prod([(x - other) / (knot - other) for other in knots if other != knot], axis=0) for knot in knots]
    return np.stack(weights, axis=-1)
