"""Plans of clocks: time, energy, power and heat of a step, and the plans on the frontier of time and energy."""

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
_MAX_TURNS, _TOLERANCE = 3, 1e-4
"""Solutions of a plan, each with the target corrected by the delay of sends and collectives, and relative tolerance of
the step time."""


@dataclass(frozen=True, eq=False)
class Plan:
    """Clocks of all passes, and the step with these clocks.

    Attributes:
        sharing: Which passes share a clock.
        clock_mhz: Clock of each task; shape (num_stages, num_tasks). Unit: MHz.
        step_s: Step time. Unit: s.
        gpu_energy_j: Energy of all GPUs in a step. Unit: J.
        stage_w: Mean power of a GPU of each stage; shape (num_stages,). Unit: W.
        node_w: Mean power of each node at the plug; shape (num_nodes,). Unit: W.
        gpu_temp_c: Mean temperature of the hottest die. Unit: degC.
        after_s: Time from the end of the last pass to the end of the step. Unit: s.
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
    """Plans for a job; each is computed once."""

    def __init__(self, site: Site) -> None:
        """Compute time and energy of the passes of a job at all clocks."""
        self.site, self.priced = site, price(site)
        order, durations = site.prepared.order, site.prepared.durations
        lag_s = np.where(order.is_sent, durations.send[order.boundary], 0.0)
        self.pipeline = Pipeline(order, lag_s, durations.is_send_blocking)
        self._known: dict[tuple[Sharing, float], Plan] = {}
        self._even: dict[float, Plan | None] = {}
        self._where = np.arange(order.num_stages)[:, None], order.kind, order.chunk

    @cached_property
    def fastest(self) -> Plan:
        """Plan with the highest steady clock of each pass under the power limit."""
        return self.evaluate(self.priced.choices.first[self._where], "direction")

    @cached_property
    def steady(self) -> Plan:
        """Plan with one clock for each stage, the highest at which all its passes are under the power limit."""
        first = self.priced.choices.first
        used = np.zeros(first.shape[0], dtype=np.int64)
        np.maximum.at(used, np.broadcast_to(self._where[0], self._where[1].shape), first[self._where])
        return self.evaluate(np.broadcast_to(used[:, None], self._where[1].shape), "stage")

    def plan(self, sharing: Sharing, step_s: float) -> Plan:
        """Return the plan of least energy with at most this step time.

        Raises:
            UserError: If no clocks within the power limit are fast enough.
        """
        known = self._known.get((sharing, step_s))
        if known is None:
            known = self._known[sharing, step_s] = self._plan(sharing, step_s)
        return known

    def even(self, step_s: float) -> Plan | None:
        """Return the plan with one clock for all stages that saves most within a step time; None if there is none."""
        if step_s not in self._even:
            self._even[step_s] = self._lowest_even(step_s)
        return self._even[step_s]

    def _lowest_even(self, step_s: float) -> Plan | None:
        """Search by bisection for the lowest clock within the step time, then upwards while energy falls."""
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
            plan = self.evaluate(np.full(shape, place), "job")
            if plan.step_s > step_s or (best is not None and plan.gpu_energy_j >= best.gpu_energy_j):
                break
            best = plan
        return best

    def _plan(self, sharing: Sharing, step_s: float) -> Plan:
        best = self.steady if sharing == "stage" else self.fastest
        if best.step_s > step_s * (1.0 + _TOLERANCE):
            raise UserError(
                f"a step takes {best.step_s:.4g} s at the highest steady clocks under the power limit, found a limit "
                f"of {step_s:.4g} s; raise --slowdown"
            )
        # A coarser sharing is a special case of a finer one, so a finer plan must not save less.
        shared = self._shared_by_more(sharing, step_s)
        if shared is not None and shared.gpu_energy_j < best.gpu_energy_j:
            best = replace(shared, sharing=sharing)
        waiting_w, target_s = self._waiting_w(sharing, step_s), step_s - best.after_s
        for _ in range(_MAX_TURNS):
            clock = self.pipeline.solve(self.priced.choices, sharing, target_s, waiting_w)
            plan = self.evaluate(clock, sharing)
            if plan.step_s <= step_s * (1.0 + _TOLERANCE):
                return plan if plan.gpu_energy_j < best.gpu_energy_j else best
            target_s = max(target_s - (plan.step_s - step_s), best.step_s - best.after_s)
        return best

    def _shared_by_more(self, sharing: Sharing, step_s: float) -> Plan | None:
        """Return the plan of the next coarser sharing; None if it is too slow."""
        if sharing == "stage":
            return self.even(step_s)
        if sharing == "direction":
            return self.plan("stage", step_s) if self.steady.step_s <= step_s else None
        return self.plan("direction", step_s)

    def _waiting_w(self, sharing: Sharing, step_s: float) -> Float:
        """Return the power of a waiting GPU of each stage at the mean clock of a similar plan. Unit: W."""
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
        """Return the plan with these clocks. A waiting GPU has the clock of the next pass.

        Args:
            clock: Index of the clock of each task; shape (num_stages, num_tasks).
            sharing: Which passes share a clock.
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

    def reevaluate(self, plan: Plan) -> Plan:
        """Return a plan of a similar job, whose GPUs have the same clocks, evaluated for this one."""
        return self.evaluate(np.searchsorted(-self.priced.clocks_mhz, -plan.clock_mhz), plan.sharing)

    def heaviest_w(self, plan: Plan) -> Float:
        """Return the power of a GPU in the heaviest pass of each stage at its clock; shape (num_stages,). Unit: W."""
        choices = self.priced.choices
        at = *self._where, np.searchsorted(-self.priced.clocks_mhz, -plan.clock_mhz)
        watts = choices.active_j[at] / np.maximum(choices.seconds[at], 1e-12)
        return np.asarray((watts + choices.standing_w[self._where[0], at[-1]]).max(axis=1))

    def _of_nodes(self, stage_w: Float) -> tuple[Float, float]:
        """Return the mean power of nodes, and the mean temperature of the hottest die, from the power of stages."""
        warm, machine = self.site.warm, self.site.warm.machine
        present_w = warm.trace.power_w.mean(axis=0)
        # GPUs of a stage differ as in the present step.
        change = np.append(stage_w / self._present_w, 1.0)[warm.seats.stage]
        gpus_w = present_w * change
        machine = machine.under_load(gpus_w)
        rise_k = (machine.responses @ gpus_w[..., None])[..., 0]
        used = warm.seats.weight > 0
        node = node_power_of(self.site.job.gpu, self.site.config)
        node_w = node_power_w(node, gpus_w * warm.num_alike, machine.fan_flow, warm.num_nics)
        return node_w, float((machine.inlet_c[:, None] + rise_k)[used].max())

    @cached_property
    def _present_w(self) -> Float:
        """Mean power of a GPU of each stage in the present step. Unit: W."""
        stage, mean_w = self.site.warm.seats.stage, self.site.warm.trace.power_w.mean(axis=0)
        return np.array([mean_w[stage == each].mean() for each in range(self.site.job.layout.pp)])
