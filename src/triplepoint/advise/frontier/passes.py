"""Time and energy of the passes of a pipeline at each clock, from the models of kernels and power."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from triplepoint.advise.frontier.solve import Choices, Float
from triplepoint.config.cluster import ClusterConfig
from triplepoint.errors import PointError
from triplepoint.simulate.heat.nodes import is_known
from triplepoint.simulate.heat.pace import Start
from triplepoint.simulate.heat.warm import Lockable, Warm, slow_ranks, with_factors
from triplepoint.simulate.job import Job
from triplepoint.simulate.memory.training import peak_memory
from triplepoint.simulate.power.gpu import Clocks, clock_table, leakage_w
from triplepoint.simulate.power.load import Training
from triplepoint.simulate.power.work import UNITS
from triplepoint.simulate.predict.draws import Draw
from triplepoint.simulate.predict.prediction import read_calibrations
from triplepoint.simulate.step import Prepared, Step, prepare_step
from triplepoint.simulate.timeline.durations import Pass
from triplepoint.simulate.timeline.schedule import BACKWARD, BACKWARD_WEIGHT, FORWARD, Int64

GOVERNED_S = 0.05
"""Control period of a governor: of shorter passes it sees the mean power of a forward and a backward pass. Unit: s."""


@dataclass(frozen=True, eq=False)
class Site:
    """A training job on its cluster.

    Attributes:
        job: The job, with a pipeline.
        cluster: The cluster.
        config: Folder of the configuration.
        prepared: Step at the clocks of the calibration.
        lockable: The job, to simulate steps with locked clocks.
        warm: Step with power, heat and clocks, at present under the governor.
    """

    job: Job
    cluster: ClusterConfig
    config: Path
    prepared: Prepared
    lockable: Lockable[Training[Step]]
    warm: Warm[Training[Step]]

    @classmethod
    def of(cls, job: Job, cluster: ClusterConfig, config: Path) -> "Site":
        """Simulate the present step of a job.

        Args:
            job: The job.
            cluster: Its cluster.
            config: Folder of the configuration.

        Raises:
            PointError: If it has no pipeline, does not fit, or its clocks are unknown or held by a power brake.
        """
        if job.layout.pp == 1:
            raise PointError("pp: 1 is one stage, which waits for no other; a frontier needs a pipeline, set pp: 2")
        if not is_known(job.gpu, config):
            raise PointError(f"clocks and power of {job.gpu.name} are not known; see config/power")
        if cluster.conditions.braked_nodes:
            raise PointError("a power brake holds clocks, which nothing else sets; release it (braked_nodes)")
        memory = peak_memory(job)
        if memory.is_out_of_memory:
            raise PointError(f"does not fit on a rank of stage {memory.stage}: {memory.explain()}")
        prepared, once_more = _prepared(job, cluster, config)
        lockable = Lockable.of(once_more({}), once_more, cluster, config)
        # Stages run at their own clocks, as in the plans, not at that of the slowest GPU.
        return cls(job, cluster, config, prepared, lockable, lockable.locked({}))

    def drawn(self, draw: Draw) -> "Site":
        """Simulate the present step with what is unknown of the job drawn; starts from this one's steady state."""
        start, (prepared, once_more) = _started(self.warm), _prepared(draw.job, draw.cluster, self.config)
        lockable = Lockable.like(start, once_more, draw.cluster, self.config, draw.power_deviates)
        return Site(draw.job, draw.cluster, self.config, prepared, lockable, lockable.locked({}, start))

    def simulate(
        self, clock_limit_mhz: Mapping[int, float], like: Warm[Training[Step]] | None = None
    ) -> Warm[Training[Step]]:
        """Simulate the step with locked clocks.

        Args:
            clock_limit_mhz: Clock by stage. Unit: MHz.
            like: A similar job with these clocks, from whose steady state to start. None: start without one.
        """
        return self.lockable.locked(clock_limit_mhz, _started(like) if like else None)

    @cached_property
    def slower(self) -> Float:
        """Factor on the computation time of each stage due to slow GPUs of the cluster; shape (num_stages,)."""
        factor = np.ones(self.job.layout.pp)
        for rank, of_rank in slow_ranks(self.cluster, self.job).items():
            stage = self.job.mesh.place(rank).pp
            factor[stage] = max(factor[stage], of_rank)
        return factor

    @cached_property
    def table(self) -> Clocks:
        """Clocks of the GPU type, lowest first."""
        return clock_table(self.warm.machine.power.clocks)


def _prepared(
    job: Job, cluster: ClusterConfig, config: Path
) -> tuple[Prepared, Callable[[Mapping[int, float]], Training[Step]]]:
    """Return the data that all steps of a job share, and the function that simulates one with factors by rank."""
    prepared = prepare_step(job, read_calibrations(config)[0].constants(job), config)
    slow = slow_ranks(cluster, job)
    return prepared, lambda factor: Training(prepared.run(with_factors(slow, factor)))


def _started(warm: Warm[Training[Step]]) -> Start:
    assert warm.start is not None, "a job with a frontier has no power brake"
    return warm.start


@dataclass(frozen=True, eq=False)
class Priced:
    """What passes take at every clock, highest first.

    Attributes:
        choices: Times and energies of a GPU.
        clocks_mhz: Shape (num_clocks,). Unit: MHz.
        rest_j: Energy of gradients' reduction and of the update beyond waiting, of a GPU of every stage, at every
            clock; shape (num_stages, num_clocks). Unit: J.
    """

    choices: Choices
    clocks_mhz: Float
    rest_j: Float


def price(site: Site) -> Priced:
    """Return time and energy of the passes of a job at each clock."""
    job, work = site.job, site.warm.load.workload
    num_stages, num_chunks = job.layout.pp, site.prepared.order.num_chunks
    seconds = np.zeros((num_stages, 3, num_chunks, len(site.table.mhz)))
    active_j = np.zeros_like(seconds)
    is_split = site.prepared.order.is_split
    rest_j = np.zeros((num_stages, len(site.table.mhz)))
    durations = site.prepared.durations
    for stage, done in enumerate(site.prepared.stages):
        for chunk, parts in enumerate(done.chunks):
            backward = (parts.backward_input,) if is_split else (parts.backward_input, parts.backward_weight)
            of_kind = {FORWARD: (parts.forward,), BACKWARD: backward, BACKWARD_WEIGHT: (parts.backward_weight,)}
            for kind, operations in of_kind.items():
                timed = _timed(site, kind, stage, chunk)
                seconds[stage, kind, chunk], active_j[stage, kind, chunk] = _at_clocks(
                    site, work.of_all(operations), timed, float(site.slower[stage])
                )
        alone = Pass(durations.optimizer.compute[stage, :1], durations.optimizer.comm[stage, :1])
        rest_j[stage] = _at_clocks(site, work.of(done.optimizer) + work.of(done.gradient_sync), alone, 1.0)[1]
    standing_w = np.stack([_standing_w(site, stage) for stage in range(num_stages)])
    first = _within_limit(site, seconds, active_j, standing_w)
    choices = Choices(seconds[..., ::-1].copy(), active_j[..., ::-1].copy(), standing_w[:, ::-1].copy(), first)
    return Priced(choices, site.table.mhz[::-1].copy(), rest_j[:, ::-1].copy())


def _timed(site: Site, kind: int, stage: int, chunk: int) -> Pass:
    durations, is_split = site.prepared.durations, site.prepared.order.is_split
    halves = (durations.forward, durations.backward_input, durations.backward_weight)
    parts = halves[1:] if kind == BACKWARD and not is_split else (halves[kind],)
    compute, comm = (
        np.sum([getattr(part, name)[stage, chunk] for part in parts], axis=0) for name in ("compute", "comm")
    )
    host_s = sum(part.host_at((stage, chunk, 0)) for part in parts)
    return Pass(compute, comm, np.asarray(host_s / np.maximum(compute, 1e-12)))


def _at_clocks(site: Site, work: Float, timed: Pass, slower: float) -> tuple[Float, Float]:
    """Return time, and energy minus that of waiting, of some work at each clock, lowest first.

    Args:
        site: The job.
        work: Busy time of the units of a GPU at the calibrated clock; shape (len(UNITS),). Unit: s.
        timed: Time of the work at the calibrated clock; arrays of shape (1,).
        slower: Factor on the computation time at any clock.
    """
    power, table = site.warm.machine.power, site.table
    awake, tensor, sm, hbm, link, bound = work
    assert UNITS == ("awake", "tensor", "sm", "hbm", "link", "clock_bound")
    share = power.calibrated_clock.value / power.clocks.max_clock.value
    # At the highest clock, work that scales with the clock takes less time.
    highest = awake - bound * (1.0 - share)
    kernels = highest + bound * share * table.stretch + hbm * table.starved
    factor = kernels / awake if awake > 0.0 else np.ones_like(kernels)
    seconds = timed.slowed(factor * slower).total
    switching = (power.tensor.value * tensor + power.sm.value * sm) * table.energy_share
    moving = power.hbm.value * hbm + power.link.value * link
    tree_w = power.clock_tree.value * (1.0 - _polling(site)) * table.energy_share * table.share
    return seconds, switching + moving + tree_w * kernels * slower


def _polling(site: Site) -> float:
    return site.warm.machine.power.polling_share.value if site.job.num_gpus > 1 else 0.0


def _standing_w(site: Site, stage: int) -> Float:
    """Return the power of a waiting GPU of a stage at each clock, at its mean temperature in the job. Unit: W."""
    machine, table = site.warm.machine, site.table
    of_stage = site.warm.seats.stage == stage
    temp_c, leaks = site.warm.trace.temp_c.mean(axis=0)[of_stage], machine.devices.leakage[of_stage]
    leakage = leakage_w(machine.power, table.mhz[:, None], temp_c) * leaks
    tree_w = machine.power.clock_tree.value * _polling(site) * table.energy_share * table.share
    fixed_w = machine.power.base.value + machine.power.memory_idle.value
    return np.asarray(fixed_w + leakage.mean(axis=1) + tree_w)


def _within_limit(site: Site, seconds: Float, active_j: Float, standing_w: Float) -> Int64:
    """Return the index of the highest clock at which each pass is under the power limit, counted from the highest."""
    limit_w = float(site.warm.machine.limits_w.min())
    both_s, both_j = seconds.sum(axis=1, keepdims=True), active_j.sum(axis=1, keepdims=True)
    is_short = (seconds < GOVERNED_S).all(axis=(1, 3), keepdims=True)
    mean_w = np.where(is_short, both_j / np.maximum(both_s, 1e-12), active_j / np.maximum(seconds, 1e-12))
    over = mean_w + standing_w[:, None, None] > limit_w
    return np.asarray(np.minimum(over.sum(axis=-1), over.shape[-1] - 1), dtype=np.int64)
