"""Step time of a job under a placement: which nodes hold which pipeline stages, and how many layers each stage has.

A placement is tried by the simulator itself, with the cooling and speed of slots as a passport has them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from triplepoint.advise.recommend.passport import Learned, contacts_over
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.cluster import ClusterConfig, place_of
from triplepoint.config.point import Point
from triplepoint.config.rules import refusal
from triplepoint.errors import PointError, UserError
from triplepoint.simulate.artefacts.simulate_run import job_of
from triplepoint.simulate.heat.nodes import is_known
from triplepoint.simulate.heat.warm import Start, Warm, slow_ranks, warm_up, with_factors
from triplepoint.simulate.job import Job
from triplepoint.simulate.memory.training import peak_memory
from triplepoint.simulate.power.gpu import Float
from triplepoint.simulate.power.load import Training
from triplepoint.simulate.predict.prediction import read_calibrations
from triplepoint.simulate.stacks import OF_ENGINE
from triplepoint.simulate.step import Prepared, Step, prepare_step

_OF_GPUS = ("bad_contact", "contact", "leakage", "power_limits_w", "blocked_airflow")
"""Conditions of single GPUs."""
BAD_CONTACT = 1.25
"""Contact from which a slot counts as faulty: five of the usual deviations of 4.5 % (`resistance_spread`)."""


class Placement(NamedTuple):
    """Which nodes hold which stages, and layers of stages.

    Attributes:
        nodes: Node of the run at every place of the host file.
        layers: Layers of every pipeline stage, as `pipeline_layers`; empty as the point has them.
        micro_batch_size: Sequences of a micro-batch; 0 as the point has them.
    """

    nodes: tuple[int, ...]
    layers: tuple[int, ...] = ()
    micro_batch_size: int = 0


AS_IT_IS = Placement(())
"""Layers and micro-batch as the point has them, whatever the nodes."""


class Outcome(NamedTuple):
    """A step under a placement.

    Attributes:
        step_time_s: Its length. Unit: s.
        factor: On the time of computation of every GPU against a sound one, by (node of the run, device).
        busy_s: Computation and exposed communication of every pipeline stage; shape (num_stages,). Unit: s.
    """

    step_time_s: float
    factor: Mapping[tuple[int, int], float]
    busy_s: Float


class Known(NamedTuple):
    """What is worked out of a job once: by layers and micro-batch, whichever nodes hold the stages.

    Attributes:
        prepared: Steps that are ready to run.
        fits: Whether they fit in memory.
        warm: The first placement that was followed, and what others begin at; by micro-batch alone.
    """

    prepared: dict[Placement, Prepared]
    fits: dict[Placement, bool]
    warm: dict[int, tuple[Placement, Start]]


@dataclass(frozen=True, eq=False)
class Site:
    """A job on a cluster.

    Attributes:
        point: The point.
        cluster: Where it runs, its parts as they are known.
        config: Folder of the configuration.
        known: What was worked out before of this job, whatever the state of the cluster.
    """

    point: Point
    cluster: ClusterConfig
    config: Path
    known: "Known" = field(default_factory=lambda: Known({}, {}, {}))

    @property
    def present(self) -> Placement:
        """The placement as it is."""
        return Placement(tuple(range(self.point.num_nodes)), self.layers)

    @cached_property
    def layers(self) -> tuple[int, ...]:
        """Layers of every stage as they are; empty with virtual stages, whose layers are left as they are."""
        return self.job().layout.stage_layers(self.point.model.num_layers) if self.point.layout.vp == 1 else ()

    @property
    def is_heat_known(self) -> bool:
        """Whether power and heat of its GPUs are described."""
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
        """Why the rules refuse the job, in one line; None where they do not."""
        return refusal(
            self.point, self._catalogue.cluster(self.point.cluster.name), self._catalogue.gpu_of(self.cluster)
        )

    def job(self, placement: Placement = AS_IT_IS) -> Job:
        """Return the job with the layers and the micro-batch of a placement.

        What its parts are, its passport says; nodes and power limits are those of `cluster`.

        Raises:
            PointError, UserError: If it cannot be simulated.
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
        """Return whether a placement can be simulated and surely fits in memory, or as surely as now."""
        key = self._of_stages(placement)
        if key not in self.known.fits:
            self.known.fits[key] = self._fits(placement)
        return self.known.fits[key]

    def _fits(self, placement: Placement) -> bool:
        try:
            memory = peak_memory(self.job(placement))
        except (PointError, UserError):
            return False
        return not memory.is_out_of_memory and (not memory.undecided or not self._is_memory_known)

    def _of_stages(self, placement: Placement) -> Placement:
        """Return what a placement says of stages alone, whichever nodes hold them."""
        size = placement.micro_batch_size or self.point.micro_batch_size
        return Placement((), placement.layers or self.layers, size)

    def _prepared(self, placement: Placement) -> Prepared:
        """Return what steps of a placement have in common, whatever GPUs are slow."""
        key = self._of_stages(placement)
        if key not in self.known.prepared:
            job = self.job(placement)
            constants = read_calibrations(self.config)[0].constants(job)
            self.known.prepared[key] = prepare_step(job, constants, self.config)
        return self.known.prepared[key]

    def quick_step(self, placement: Placement, factor: Mapping[tuple[int, int], float]) -> Step:
        """Return a step at given factors on the computation of GPUs, by (node, device); heat is not followed."""
        prepared = self._prepared(placement)
        by_rank = self._of_ranks(placement, factor, prepared.job.num_gpus)
        return prepared.run({rank: own for rank, own in by_rank.items() if own > 1.0})

    def step(self, placement: Placement, cluster: ClusterConfig | None = None) -> Outcome:
        """Return a step as power, heat and clocks leave it.

        Args:
            placement: The placement.
            cluster: Another state of the cluster than `cluster`.

        Raises:
            PointError: If GPUs cannot work under these conditions.
        """
        warm, slow = self.warm(placement, cluster)
        pace = min(warm.factor.values(), default=1.0)
        by_rank = with_factors(slow, {rank: own / pace for rank, own in warm.factor.items()})
        factor = {self._seat(placement, rank): max(own, 1.0) for rank, own in by_rank.items()}
        accounts = warm.load.ran.timeline.accounts
        busy_s = np.asarray((accounts.compute_s + accounts.exposed_comm_s).max(axis=1))
        return Outcome(warm.load.length_s, factor, busy_s)

    def warm(
        self, placement: Placement, cluster: ClusterConfig | None = None
    ) -> tuple[Warm[Training[Step]], dict[int, float]]:
        """Return a step with its power, heat and clocks, and the factors of ranks on GPUs that are slow by themselves.

        The first one of a micro-batch is followed as `predict` does. All others begin near it.

        Args:
            placement: The placement.
            cluster: Another state of the cluster than `cluster`.

        Raises:
            PointError: If GPUs cannot work under these conditions.
        """
        prepared, placed = self._prepared(placement), placed_on(cluster or self.cluster, placement.nodes)
        slow = slow_ranks(placed, prepared.job)

        def simulate(factor: Mapping[int, float]) -> Training[Step]:
            return Training(prepared.run(with_factors(slow, factor)))

        size = self._of_stages(placement).micro_batch_size
        near = self.known.warm.get(size)
        start = near and self._from(near, placement)
        warm = warm_up(simulate({}), simulate, placed, self.config, start=start)
        if near is None and warm.start is not None:
            self.known.warm[size] = placement, warm.start
        return warm, slow

    def _from(self, near: tuple[Placement, Start], placement: Placement) -> Start:
        """Return where a placement begins: what is known of a GPU under another one goes with it."""
        before, start = near
        order = [before.nodes.index(node) for node in placement.nodes]
        factor = {self._seat(before, rank): own for rank, own in start.factor.items()}
        return Start(
            {rank: factor[self._seat(placement, rank)] for rank in start.factor},
            start.power_w[order], start.ceiling[order],
        )  # fmt: skip

    def _seat(self, placement: Placement, rank: int) -> tuple[int, int]:
        """Return node and device of a rank."""
        place, device = divmod(rank, self.cluster.gpus_per_node)
        return placement.nodes[place], device

    def _of_ranks(
        self, placement: Placement, factor: Mapping[tuple[int, int], float], num_gpus: int
    ) -> dict[int, float]:
        return {rank: factor.get(self._seat(placement, rank), 1.0) for rank in range(num_gpus)}


def busy_of(step: Step) -> Float:
    """Return the computation of every pipeline stage, of its slowest replica; shape (num_stages,). Unit: s."""
    return np.asarray(step.timeline.accounts.compute_s.max(axis=1))


def placed_on(cluster: ClusterConfig, nodes: tuple[int, ...]) -> ClusterConfig:
    """Return a cluster whose nodes stand in another order: what is known of single GPUs and nodes moves with them."""
    place = {node: index for index, node in enumerate(nodes)}

    def moved(named: Mapping[str, float]) -> dict[str, float]:
        own = {place_of(name): value for name, value in named.items()}
        return {f"node{place[node]}.gpu{gpu}": value for (node, gpu), value in own.items() if node in place}

    before = cluster.conditions
    conditions = before.model_copy(update={
        **{name: moved(getattr(before, name)) for name in _OF_GPUS},
        "braked_nodes": sorted(place[node] for node in before.braked_nodes if node in place),
    })  # fmt: skip
    return cluster.model_copy(update={"slow_gpus": moved(cluster.slow_gpus), "conditions": conditions})


def as_placed(learned: Learned, point: Point) -> Learned:
    """Return what was learned of a run whose point says hosts or power limits: its cluster by place in rank order."""
    limits_w = {
        f"node{point.hosts.index(host) if point.hosts else host.removeprefix('node')}.gpu{device}": limit_w
        for (host, device), limit_w in point.power_limits_w.items()
    }
    cluster = learned.runs.cluster
    cluster = placed_on(cluster, point.node_order) if point.node_order else cluster
    cluster = cluster.model_copy(update={"conditions": cluster.conditions.with_limits(limits_w)})
    return replace(learned, runs=replace(learned.runs, cluster=cluster))


def learned_cluster(learned: Learned, shift: float = 0.0) -> ClusterConfig:
    """Return the cluster of a run with inlet and contacts as the run shows them.

    Args:
        learned: What was learned from the run.
        shift: By how many standard deviations contacts of faulty slots are worse than estimated.
    """
    runs, slots = learned.runs, {(slot.node, slot.device): slot for slot in learned.passport.slots}
    inlet_c, contact = contacts_over(runs.machine, runs.observed[0])
    usual, bad = dict[str, float](), dict[str, float]()
    for place, slot in slots.items():
        own = float(contact[place])
        if own < BAD_CONTACT:
            usual[slot.name] = own
            continue
        # The interval of a passport is symmetric in the logarithm: a deviation is 1/1.645 of its half.
        own *= (slot.contact.hi / slot.contact.value) ** (shift / 1.645)
        usual[slot.name], bad[slot.name] = 1.0, float(np.clip(own, 1.0, 20.0))
    known = {slot.name: slot.leakage for slot in slots.values() if slot.leakage is not None}
    leakage = dict.fromkeys(usual, 1.0) | runs.cluster.conditions.leakage | known
    conditions = runs.cluster.conditions.model_copy(update={
        "leakage": leakage, "inlet_temp_c": float(np.clip(inlet_c, 0.0, 60.0)), "contact": usual, "bad_contact": bad,
        "blocked_airflow": {}, "starts_at_rest": False,
    })  # fmt: skip
    return runs.cluster.model_copy(update={"conditions": conditions})


def with_usual_parts(cluster: ClusterConfig) -> ClusterConfig:
    """Return a cluster whose parts are all as their type has them, but for what its file says of single GPUs."""
    names = [f"node{node}.gpu{gpu}" for node in range(cluster.num_nodes) for gpu in range(cluster.gpus_per_node)]
    usual, before = dict.fromkeys(names, 1.0), cluster.conditions
    conditions = before.model_copy(update={"contact": usual | before.contact, "leakage": usual | before.leakage})
    return cluster.model_copy(update={"conditions": conditions})


def with_slow_gpus(site: Site, learned: Learned, present: Outcome) -> Site:
    """Return the site with GPUs whose computation is slower by traces than their heat explains.

    Args:
        site: The site, its GPUs slowed by heat alone.
        learned: What was learned from the run.
        present: Its step as it is.
    """
    slow = dict(site.cluster.slow_gpus)
    for slot in learned.passport.slots:
        by_heat = present.factor.get((slot.node, slot.device), 1.0)
        left = (1.0 + (slot.compute_excess or 0.0)) / by_heat
        if left > 1.0 + LEAST_SLOWER and slot.name not in slow:
            slow[slot.name] = 1.0 / left
    return replace(site, cluster=site.cluster.model_copy(update={"slow_gpus": slow}))


LEAST_SLOWER = 0.02
"""Computation beyond that of peers below which an outlier costs nobody much, as in `ranks.parquet`."""
