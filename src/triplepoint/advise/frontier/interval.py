"""90 % intervals of what plans save and of how much longer a step is, from draws of what is unknown.

Each draw simulates the present step and the plan, so errors cancel as far as both steps share them.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from triplepoint.advise.frontier.passes import Site
from triplepoint.advise.frontier.plan import Frontier, Plan
from triplepoint.metrics import Interval
from triplepoint.simulate.heat.warm import Warm
from triplepoint.simulate.power.load import Training
from triplepoint.simulate.predict.draws import Draw, interval_of, simulate_draws, time_sigma_of
from triplepoint.simulate.predict.prediction import read_calibrations
from triplepoint.simulate.step import Step


class Change(NamedTuple):
    """A step with other clocks against the present one.

    Attributes:
        saved: Share of the energy of GPUs that it saves. Unit: 1.
        longer: Share by which the step is longer. Unit: 1.
    """

    saved: float
    longer: float


class ChangeInterval(NamedTuple):
    """90 % intervals of a change. Unit: 1.

    Attributes:
        saved: Of the share of energy that it saves.
        longer: Of the share by which the step is longer.
    """

    saved: Interval
    longer: Interval


def intervals_of(
    site: Site, plan: Plan, nominal: Mapping[str, Change], others: Mapping[str, Plan]
) -> dict[str, ChangeInterval]:
    """Return the intervals of changes by a plan and by others.

    The plan is simulated in each draw. Others are sums over passes, corrected by the ratio of the simulated step of the
    plan to its sum, as in the answer.

    Args:
        site: The job.
        plan: The plan.
        nominal: Changes without errors by name: of the plan as `plan`, and of the others.
        others: Other plans by name.

    Raises:
        PointError: If GPUs would shut down in most draws.
    """
    like = simulate_locked(site, plan)
    time_sigma = time_sigma_of(site.job, site.warm.load.ran.uncertainty, read_calibrations(site.config)[0])
    drawn = simulate_draws(
        site.job, site.cluster, site.config, time_sigma, lambda draw: drawn_changes(site, draw, plan, like, others)
    )
    return {
        name: ChangeInterval(
            interval_of(change.saved, [each[name].saved for each in drawn]),
            interval_of(change.longer, [each[name].longer for each in drawn]),
        )
        for name, change in nominal.items()
    }


def drawn_changes(
    site: Site, draw: Draw, plan: Plan, like: Warm[Training[Step]], others: Mapping[str, Plan]
) -> dict[str, Change]:
    """Return the changes by a plan, as `plan`, and by others in a draw.

    Args:
        site: The job.
        draw: The job with what is unknown of it drawn.
        plan: The plan.
        like: Step of the job with the plan, not drawn.
        others: Other plans by name.

    Raises:
        PointError: If GPUs would shut down.
    """
    drawn = site.drawn(draw)
    locked = simulate_locked(drawn, plan, like)
    energy, time = energy_j(locked) / energy_j(drawn.warm), locked.load.length_s / drawn.warm.load.length_s
    found = {"plan": Change(1.0 - energy, time - 1.0)}
    if others:
        frontier = Frontier(drawn)
        summed = frontier.reevaluate(plan)
        for name, other in others.items():
            again = summed if other is plan else frontier.reevaluate(other)
            longer = time * again.step_s / summed.step_s - 1.0
            found[name] = Change(1.0 - energy * again.gpu_energy_j / summed.gpu_energy_j, longer)
    return found


def energy_j(warm: Warm[Training[Step]]) -> float:
    """Return the energy of all GPUs of a job in a step. Unit: J."""
    mean_w = np.average(warm.trace.power_w.mean(axis=0), weights=warm.seats.weight)
    return float(mean_w) * warm.load.job.num_gpus * warm.load.length_s


def simulate_locked(site: Site, plan: Plan, like: Warm[Training[Step]] | None = None) -> Warm[Training[Step]]:
    """Simulate a step with the lowest clock of each stage in a plan; `like` is that of a similar job, if any."""
    return site.simulate(dict(enumerate(plan.clock_mhz.min(axis=1).tolist())), like)
