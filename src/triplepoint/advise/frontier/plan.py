"""Time, energy, power and heat of a step at chosen clocks, and the plans on the frontier between time and energy."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from triplepoint.advise.frontier.passes import Site, price
from triplepoint.advise.frontier.solve import Float, Pipeline, Sharing
from triplepoint.errors import UserError
from triplepoint.simulate.heat.nodes import node_power_of
from triplepoint.simulate.power.node import node_power_w
from triplepoint.simulate.timeline.schedule import Int64
from triplepoint.simulate.timeline.tasks import run

SHARINGS: tuple[Sharing, ...] = ("stage", "direction", "pass")
_MOST_TURNS, _NEAR = 3, 1e-4
"""Times a plan is solved again with a time by which sends and collectives delay it, and how near is enough."""


@dataclass(frozen=True, eq=False)
class Plan:
    """Clocks of all passes, and what a step takes with them.

    Attributes:
        sharing: Which passes have one clock.
        clock_mhz: Of every task; shape (num_stages, num_tasks). Unit: MHz.
        step_s: Length of a step. Unit: s.
        gpu_energy_j: Of all GPUs in a step. Unit: J.
        stage_w: Mean power of a GPU of every stage; shape (num_stages,). Unit: W.
        node_w: Mean power of every node at the plug; shape (num_nodes,). Unit: W.
        gpu_temp_c: Mean temperature of the hottest die. Unit: degC.
        after_s: From the end of the last pass to that of the step. Unit: s.
    """

    sharing: Sharing
    clock_mhz: Float
    step_s: float
    gpu_energy_j: float
    stage_w: Float
    node_w: Float
    gpu_temp_c: float
    after_s: float


class Frontier:
    """A job whose clocks are chosen."""

    def __init__(self, site: Site) -> None:
        """Take the job."""
        self.site, self.priced = site, price(site)
        order, durations = site.prepared.order, site.prepared.durations
        lag_s = np.where(order.is_sent, durations.send[order.boundary], 0.0)
        self.pipeline = Pipeline(order, lag_s, durations.is_send_blocking)
        self._known: dict[tuple[Sharing, float], Plan] = {}
        self._even: dict[float, Plan | None] = {}
        self._where = np.arange(order.num_stages)[:, None], order.kind, order.chunk

    @cached_property
    def fastest(self) -> Plan:
        """The highest clocks that the power limit leaves every pass, held steadily."""
        return self.evaluate(self.priced.choices.first[self._where], "direction")

    @cached_property
    def steady(self) -> Plan:
        """One clock for each stage, the highest that the power limit leaves all of its passes."""
        first = self.priced.choices.first
        used = np.zeros(first.shape[0], dtype=np.int64)
        np.maximum.at(used, np.broadcast_to(self._where[0], self._where[1].shape), first[self._where])
        return self.evaluate(np.broadcast_to(used[:, None], self._where[1].shape), "stage")

    def plan(self, sharing: Sharing, step_s: float) -> Plan:
        """Return the plan of least energy whose step takes no longer.

        Raises:
            UserError: If no clocks within the power limit are fast enough.
        """
        known = self._known.get((sharing, step_s))
        if known is None:
            known = self._known[sharing, step_s] = self._plan(sharing, step_s)
        return known

    def even(self, step_s: float) -> Plan | None:
        """Return the lowest clock of all stages whose step takes no longer and saves energy; None if none is."""
        if step_s not in self._even:
            self._even[step_s] = self._lowest_even(step_s)
        return self._even[step_s]

    def _lowest_even(self, step_s: float) -> Plan | None:
        shape = self._where[1].shape
        index, best = int(self.priced.choices.first[self._where].max()), None
        after = len(self.priced.clocks_mhz)
        low, high = index, after
        # Lower clocks never make a step shorter.
        while low < high:
            middle = (low + high) // 2
            if self.evaluate(np.full(shape, middle), "job").step_s <= step_s:
                low = middle + 1
            else:
                high = middle
        for place in range(max(low - 1, index), index - 1, -1):
            made = self.evaluate(np.full(shape, place), "job")
            if made.step_s > step_s or (best is not None and made.gpu_energy_j >= best.gpu_energy_j):
                break
            best = made
        return best

    def _plan(self, sharing: Sharing, step_s: float) -> Plan:
        best = self.steady if sharing == "stage" else self.fastest
        if best.step_s > step_s * (1.0 + _NEAR):
            raise UserError(
                f"a step takes {best.step_s:.4g} s at the highest steady clocks under the power limit, found a limit "
                f"of {step_s:.4g} s; raise --slowdown"
            )
        # Clocks that fewer share are among those that more share: these never save less.
        shared = self._shared_by_more(sharing, step_s)
        if shared is not None and shared.gpu_energy_j < best.gpu_energy_j:
            best = replace(shared, sharing=sharing)
        waiting_w, target_s = self._waiting_w(sharing, step_s), step_s - best.after_s
        for _ in range(_MOST_TURNS):
            clock = self.pipeline.solve(self.priced.choices, sharing, target_s, waiting_w)
            made = self.evaluate(clock, sharing)
            if made.step_s <= step_s * (1.0 + _NEAR):
                return made if made.gpu_energy_j < best.gpu_energy_j else best
            target_s = max(target_s - (made.step_s - step_s), best.step_s - best.after_s)
        return best

    def _shared_by_more(self, sharing: Sharing, step_s: float) -> Plan | None:
        """Return the plan of the next coarser sharing; None where none is as fast."""
        if sharing == "stage":
            return self.even(step_s)
        if sharing == "direction":
            return self.plan("stage", step_s) if self.steady.step_s <= step_s else None
        return self.plan("direction", step_s)

    def _waiting_w(self, sharing: Sharing, step_s: float) -> Float:
        """Return what a GPU of every stage draws that waits, at about the clocks that it will have. Unit: W."""
        if sharing == "stage" or self.steady.step_s > step_s:
            like = self.steady
        else:
            like = self.plan("stage" if sharing == "direction" else "direction", step_s)
        clock_mhz, standing_w = like.clock_mhz.mean(axis=1), self.priced.choices.standing_w
        falling = self.priced.clocks_mhz[::-1]
        return np.array([
            np.interp(mhz, falling, watts[::-1]) for mhz, watts in zip(clock_mhz, standing_w, strict=True)
        ])  # fmt: skip

    def evaluate(self, clock: Int64, sharing: Sharing) -> Plan:
        """Return what a step takes with these clocks; GPUs that wait have the clock of the pass that follows.

        Args:
            clock: Of every task, index into the clocks; shape (num_stages, num_tasks).
            sharing: Which passes have one clock.
        """
        choices, order = self.priced.choices, self.site.prepared.order
        at = *self._where, clock
        durations = replace(self.site.prepared.durations, of_task=choices.seconds[at][..., None])
        timeline = run(durations, order)
        step_s, end = timeline.step_time_s, timeline.end[:, :, 0]
        since_s = np.diff(end, axis=1, prepend=0.0)
        since_s[:, -1] += step_s - end[:, -1]
        stage = np.arange(order.num_stages)
        energy_j = (choices.active_j[at] + choices.standing_w[self._where[0], clock] * since_s).sum(axis=1)
        energy_j += self.priced.rest_j[stage, clock[:, -1]]
        stage_w = energy_j / step_s
        node_w, temp_c = self._of_nodes(stage_w)
        num_ranks = self.site.job.num_gpus / order.num_stages
        passes_s = float((timeline.arrival if durations.is_send_blocking else timeline.end)[:, -1].max())
        return Plan(
            sharing, self.priced.clocks_mhz[clock], step_s, float(energy_j.sum() * num_ranks), stage_w, node_w, temp_c,
            step_s - passes_s,
        )  # fmt: skip

    def heaviest_w(self, plan: Plan) -> Float:
        """Return the power of a GPU in the heaviest pass of every stage at its clock; shape (num_stages,). Unit: W."""
        choices, falling = self.priced.choices, -self.priced.clocks_mhz
        at = *self._where, np.searchsorted(falling, -plan.clock_mhz)
        watts = choices.active_j[at] / np.maximum(choices.seconds[at], 1e-12)
        return np.asarray((watts + choices.standing_w[self._where[0], at[-1]]).max(axis=1))

    def _of_nodes(self, stage_w: Float) -> tuple[Float, float]:
        """Return the mean power of nodes, and the mean temperature of the hottest die, from the power of stages."""
        warm, machine = self.site.warm, self.site.warm.machine
        present_w = warm.trace.power_w.mean(axis=0)
        # Parts differ as they do in the step as it is.
        own = np.append(stage_w / self._present_w, 1.0)[warm.seats.stage]
        gpus_w = present_w * own
        machine = machine.under_load(gpus_w)
        rise_k = (machine.responses @ gpus_w[..., None])[..., 0]
        used = warm.seats.weight > 0
        node = node_power_of(self.site.job.gpu, self.site.config)
        node_w = node_power_w(node, gpus_w * warm.num_alike, machine.fan_flow, warm.num_nics)
        return node_w, float((machine.inlet_c[:, None] + rise_k)[used].max())

    @cached_property
    def _present_w(self) -> Float:
        """Mean power of a GPU of every stage in the step as it is. Unit: W."""
        stage, mean_w = self.site.warm.seats.stage, self.site.warm.trace.power_w.mean(axis=0)
        return np.array([mean_w[stage == each].mean() for each in range(self.site.job.layout.pp)])
