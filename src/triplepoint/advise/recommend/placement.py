"""Placements of a job, and its step under a placement, simulated with the cooling and speed of slots of a passport.

A placement says which nodes hold which pipeline stages, and how many layers each stage has.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from triplepoint.advise.recommend.passport import BAD_CONTACT, Learned, contacts_over
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.cluster import ClusterConfig, place_of
from triplepoint.config.point import Point
from triplepoint.config.rules import refusal
from triplepoint.errors import PointError, UserError
from triplepoint.metrics import Z90, Interval
from triplepoint.simulate.artefacts.simulate_run import job_of
from triplepoint.simulate.heat.nodes import is_known
from triplepoint.simulate.heat.pace import Start
from triplepoint.simulate.heat.warm import Warm, slow_ranks, warm_up, with_factors
from triplepoint.simulate.intervals import interval
from triplepoint.simulate.job import Job
from triplepoint.simulate.memory.training import peak_memory
from triplepoint.simulate.power.gpu import Float
from triplepoint.simulate.power.load import Training
from triplepoint.simulate.predict.prediction import read_calibrations
from triplepoint.simulate.stacks import OF_ENGINE
from triplepoint.simulate.step import Prepared, Step, prepare_step

_GPU_CONDITIONS = ("bad_contact", "contact", "leakage", "power_limits_w", "blocked_airflow")
"""Keys of a cluster's conditions that are by GPU."""
MIN_EXCESS = 0.02
"""Excess of computation time over peers from which a GPU counts as slow, as in `ranks.parquet`."""

Seat = tuple[int, int]
"""Node of the run, and device."""


class Placement(NamedTuple):
    """Nodes and layers of pipeline stages, and the micro-batch.

    Attributes:
        nodes: Node of the run at each line of the host file, in rank order.
        layers: Layers of each pipeline stage, as `pipeline_layers`. Empty: those of the point.
        micro_batch_size: Sequences of a micro-batch. 0: that of the point.
    """

    nodes: tuple[int, ...]
    layers: tuple[int, ...] = ()
    micro_batch_size: int = 0


_OF_POINT = Placement(())
"""Layers and micro-batch of the point; nodes do not matter."""


class Outcome(NamedTuple):
    """A step under a placement.

    Attributes:
        step_time_s: Step time. Unit: s.
        factor: Computation time of each GPU over that of a healthy one.
        busy_s: Computation and exposed communication of each pipeline stage; shape (num_stages,). Unit: s.
    """

    step_time_s: float
    factor: Mapping[Seat, float]
    busy_s: Float


class Known(NamedTuple):
    """Cached results for a job that do not depend on which nodes hold the stages.

    Attributes:
        prepared: Prepared steps, by layers and micro-batch.
        fits: Whether the job fits in memory, by layers and micro-batch.
        warm: First placement simulated with heat, and the start for others, by micro-batch.
    """

    prepared: dict[Placement, Prepared]
    fits: dict[Placement, bool]
    warm: dict[int, tuple[Placement, Start]]


@dataclass(frozen=True, eq=False)
class Site:
    """A job on a cluster.

    Attributes:
        point: The point.
        cluster: The cluster, with the known state of its GPUs.
        config: Folder of the configuration.
        known: Cached results for this job, which are valid for any state of the cluster.
    """

    point: Point
    cluster: ClusterConfig
    config: Path
    known: "Known" = field(default_factory=lambda: Known({}, {}, {}))

    @property
    def present(self) -> Placement:
        """The present placement."""
        return Placement(tuple(range(self.point.num_nodes)), self.layers)

    @cached_property
    def layers(self) -> tuple[int, ...]:
        """Present layers of each stage; empty with virtual stages, whose layers are not changed."""
        return self.job().layout.stage_layers(self.point.model.num_layers) if self.point.layout.vp == 1 else ()

    @property
    def is_heat_known(self) -> bool:
        """Whether the configuration describes power and heat of the GPUs."""
        gpu = self._catalogue.gpu_of(self.cluster)
        return gpu is not None and is_known(gpu, self.config)

    @cached_property
    def _catalogue(self) -> Catalogue:
        return Catalogue(self.config)

    @cached_property
    def _is_memory_known(self) -> bool:
        return not peak_memory(self.job()).undecided

    def with_micro_batch(self, size: int) -> "Site":
        """Return the job with another micro-batch."""
        return replace(self, point=self.point.model_copy(update={"micro_batch_size": size}))

    @cached_property
    def refusal(self) -> str | None:
        """Reason in one line why the rules refuse the job; None if they accept it."""
        return refusal(
            self.point, self._catalogue.cluster(self.point.cluster.name), self._catalogue.gpu_of(self.cluster)
        )

    def job(self, placement: Placement = _OF_POINT) -> Job:
        """Return the job with the layers and the micro-batch of a placement.

        Hosts, power limits and repeat of the point are removed: `cluster` describes its GPUs.

        Raises:
            PointError, UserError: If the job cannot be simulated.
        """
        point = self.point.model_copy(update={
            "repeat": 1, "parts_of_repeat": None, "hosts": (), "gpu_power_limits_w": (),
        })  # fmt: skip
        if placement.layers:
            layout = point.layout.model_copy(update={"pipeline_layers": placement.layers, "pipeline_ends": ()})
            point = point.model_copy(update={"layout": layout})
        if placement.micro_batch_size:
            point = point.model_copy(update={"micro_batch_size": placement.micro_batch_size})
        return job_of(point, self._catalogue, OF_ENGINE.get(point.engine))

    def fits(self, placement: Placement) -> bool:
        """Return whether a placement can be simulated and fits in memory, or is as undecided as at present."""
        key = self._stages_of(placement)
        if key not in self.known.fits:
            self.known.fits[key] = self._fits(placement)
        return self.known.fits[key]

    def _fits(self, placement: Placement) -> bool:
        try:
            memory = peak_memory(self.job(placement))
        except (PointError, UserError):
            return False
        return not memory.is_out_of_memory and (not memory.undecided or not self._is_memory_known)

    def _stages_of(self, placement: Placement) -> Placement:
        """Return layers and micro-batch of a placement without nodes, as the key of cached results."""
        size = placement.micro_batch_size or self.point.micro_batch_size
        return Placement((), placement.layers or self.layers, size)

    def _prepared(self, placement: Placement) -> Prepared:
        """Return the prepared step of a placement, which does not depend on the speed of GPUs."""
        key = self._stages_of(placement)
        if key not in self.known.prepared:
            job = self.job(placement)
            constants = read_calibrations(self.config)[0].constants(job)
            self.known.prepared[key] = prepare_step(job, constants, self.config)
        return self.known.prepared[key]

    def quick_step(self, placement: Placement, factor: Mapping[Seat, float]) -> Step:
        """Return a step with given factors on the computation time of GPUs, without a simulation of heat."""
        prepared = self._prepared(placement)
        by_rank = {rank: factor.get(self._seat(placement, rank), 1.0) for rank in range(prepared.job.num_gpus)}
        return prepared.run({rank: slower for rank, slower in by_rank.items() if slower > 1.0})

    def interval_of(self, step_time_s: float) -> Interval:
        """Return the 90 % interval of the model of a step time under the present placement. Unit: s."""
        calibration, step = read_calibrations(self.config)[0], self.quick_step(self.present, {})
        return interval(step_time_s, calibration.quantile, calibration.scale(self.job(), step.uncertainty))

    def step(self, placement: Placement, cluster: ClusterConfig | None = None) -> Outcome:
        """Return a step with power, heat and clocks.

        Args:
            placement: The placement.
            cluster: State of the cluster. None: that of the site.

        Raises:
            PointError: If GPUs would shut down under these conditions.
        """
        warm, slow = self.warm(placement, cluster)
        pace = min(warm.factor.values(), default=1.0)
        by_rank = with_factors(slow, {rank: slower / pace for rank, slower in warm.factor.items()})
        factor = {self._seat(placement, rank): max(slower, 1.0) for rank, slower in by_rank.items()}
        accounts = warm.load.ran.timeline.accounts
        busy_s = np.asarray((accounts.compute_s + accounts.exposed_comm_s).max(axis=1))
        return Outcome(warm.load.length_s, factor, busy_s)

    def warm(
        self, placement: Placement, cluster: ClusterConfig | None = None
    ) -> tuple[Warm[Training[Step]], dict[int, float]]:
        """Return a step with power, heat and clocks, and the factors of ranks on GPUs that are slow without heat.

        The first step with a micro-batch starts as in `predict`; later ones start from its result, which is faster.
        With faults each step starts as in `predict`: fans follow a far slower node only in part, and from another start
        they follow it further, which makes a step up to 5 % longer.

        Args:
            placement: The placement.
            cluster: State of the cluster. None: that of the site.

        Raises:
            PointError: If GPUs would shut down under these conditions.
        """
        prepared, placed = self._prepared(placement), placed_on(cluster or self.cluster, placement.nodes)
        slow = slow_ranks(placed, prepared.job)

        def simulate(factor: Mapping[int, float]) -> Training[Step]:
            return Training(prepared.run(with_factors(slow, factor)))

        size = self._stages_of(placement).micro_batch_size
        has_faults = placed.conditions != placed.conditions.without_faults
        first = None if has_faults else self.known.warm.get(size)
        start = first and self._start_from(first, placement)
        warm = warm_up(simulate({}), simulate, placed, self.config, start=start)
        if not has_faults and first is None and warm.start is not None:
            self.known.warm[size] = placement, warm.start
        return warm, slow

    def _start_from(self, first: tuple[Placement, Start], placement: Placement) -> Start:
        """Return the start for a placement: the state of each node under the first placement, in the new order."""
        before, start = first
        order = [before.nodes.index(node) for node in placement.nodes]
        factor = {self._seat(before, rank): slower for rank, slower in start.factor.items()}
        return Start(
            {rank: factor[self._seat(placement, rank)] for rank in start.factor},
            start.power_w[order], start.ceiling[order],
        )  # fmt: skip

    def _seat(self, placement: Placement, rank: int) -> Seat:
        """Return node and device of a rank."""
        place, device = divmod(rank, self.cluster.gpus_per_node)
        return placement.nodes[place], device


def busy_of(step: Step) -> Float:
    """Return the computation time of each pipeline stage in its slowest replica; shape (num_stages,). Unit: s."""
    return np.asarray(step.timeline.accounts.compute_s.max(axis=1))


def placed_on(cluster: ClusterConfig, nodes: tuple[int, ...]) -> ClusterConfig:
    """Return a cluster with its nodes in another order, and the conditions of nodes and GPUs reordered with them."""
    place = {node: index for index, node in enumerate(nodes)}

    def reorder(by_gpu: Mapping[str, float]) -> dict[str, float]:
        by_seat = {place_of(name): value for name, value in by_gpu.items()}
        return {f"node{place[node]}.gpu{gpu}": value for (node, gpu), value in by_seat.items() if node in place}

    before = cluster.conditions
    conditions = before.model_copy(update={
        **{name: reorder(getattr(before, name)) for name in _GPU_CONDITIONS},
        "braked_nodes": sorted(place[node] for node in before.braked_nodes if node in place),
    })  # fmt: skip
    return cluster.model_copy(update={"slow_gpus": reorder(cluster.slow_gpus), "conditions": conditions})


def as_placed(learned: Learned, point: Point) -> Learned:
    """Return a passport whose cluster has the node order and power limits of the point."""
    limits_w = {
        f"node{point.hosts.index(host) if point.hosts else host.removeprefix('node')}.gpu{device}": limit_w
        for (host, device), limit_w in point.power_limits_w.items()
    }
    cluster = learned.runs.cluster
    cluster = placed_on(cluster, point.node_order) if point.node_order else cluster
    cluster = cluster.model_copy(update={"conditions": cluster.conditions.with_limits(limits_w)})
    return replace(learned, runs=replace(learned.runs, cluster=cluster))


def learned_cluster(learned: Learned, shift: float = 0.0) -> ClusterConfig:
    """Return the cluster of a run with the inlet, contacts and leakage that the run shows.

    Args:
        learned: Passport of the run, and its data.
        shift: Standard deviations by which contacts of faulty slots are worse than estimated.
    """
    runs, slots = learned.runs, {(slot.node, slot.device): slot for slot in learned.passport.slots}
    inlet_c, contact = contacts_over(runs.machine, runs.observed[0])
    usual, bad = dict[str, float](), dict[str, float]()
    for place, slot in slots.items():
        factor = float(contact[place])
        if slot.contact.value < BAD_CONTACT:
            usual[slot.name] = factor
            continue
        # The 90 % interval of a passport is symmetric in the logarithm.
        factor *= (slot.contact.hi / slot.contact.value) ** (shift / Z90)
        usual[slot.name], bad[slot.name] = 1.0, float(np.clip(factor, 1.0, 20.0))
    known = {slot.name: slot.leakage for slot in slots.values() if slot.leakage is not None}
    leakage = dict.fromkeys(usual, 1.0) | runs.cluster.conditions.leakage | known
    conditions = runs.cluster.conditions.model_copy(update={
        "leakage": leakage, "inlet_temp_c": float(np.clip(inlet_c, 0.0, 60.0)), "contact": usual, "bad_contact": bad,
        "blocked_airflow": {}, "starts_at_rest": False,
    })  # fmt: skip
    return runs.cluster.model_copy(update={"conditions": conditions})


def with_usual_parts(cluster: ClusterConfig) -> ClusterConfig:
    """Return a cluster whose GPUs have the contact and leakage of their type, except those that its file declares."""
    names = [f"node{node}.gpu{gpu}" for node in range(cluster.num_nodes) for gpu in range(cluster.gpus_per_node)]
    usual, before = dict.fromkeys(names, 1.0), cluster.conditions
    conditions = before.model_copy(update={"contact": usual | before.contact, "leakage": usual | before.leakage})
    return cluster.model_copy(update={"conditions": conditions})


def with_slow_gpus(site: Site, learned: Learned, present: Outcome) -> Site:
    """Return the site with slow GPUs: those whose computation takes longer in traces than heat explains.

    Args:
        site: The site, with GPUs slowed by heat alone.
        learned: Passport of the run.
        present: Present step of the site.
    """
    slow = dict(site.cluster.slow_gpus)
    for slot in learned.passport.slots:
        by_heat = present.factor.get((slot.node, slot.device), 1.0)
        rest = (1.0 + (slot.compute_excess or 0.0)) / by_heat
        if rest > 1.0 + MIN_EXCESS and slot.name not in slow:
            slow[slot.name] = 1.0 / rest
    return replace(site, cluster=site.cluster.model_copy(update={"slow_gpus": slow}))
