"""Search over placements: which nodes hold which pipeline stages, and how many layers each stage has.

A linear model of the pipeline is solved to its optimum by a mixed-integer program. From there single layers and pairs
of nodes are moved, each trial simulated. The caller follows what is found with heat.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, permutations

import numpy as np

from triplepoint.advise.recommend.placement import Placement, Site, busy_of
from triplepoint.errors import PointError, UserError
from triplepoint.simulate.power.gpu import Float

_SOLVER_S = 20.0
"""Most time of the solver; what it has found by then is a bound from above and goes on to the trials. Unit: s."""
_SOLVER_GAP = 1e-3
_MOST_TRIALS = 600
"""Simulated trials of one descent: about 10 ms each."""
_TRIED_FIRST = 6
"""Of 30 to 60 moves."""
_LEAST_BETTER = 1e-4
_TRIED_EXCESS = 0.3
"""How much slower all GPUs are made to see what that does to stages: as one with bad contact."""
_WORTH_MOVING = 1e-3
"""Share of a step that an order of nodes must gain to be changed. Our choice."""


@dataclass(frozen=True, eq=False)
class Pipeline:
    """A pipeline as linear model: a stage takes its slowest GPU's factor times (layers x layer + end).

    Attributes:
        layer_s: Computation of a layer for one micro-batch. Unit: s.
        end_s: What a stage computes beside its layers, embedding or loss, likewise; shape (num_stages,). Unit: s.
        num_layers: Of the model.
        num_microbatches: Of a step.
        factor: On the computation of a stage's GPUs on a node at a place of the host file; shape (num_nodes,
            num_places, num_stages), 0 where the place holds no GPU of the stage.
    """

    layer_s: float
    end_s: Float
    num_layers: int
    num_microbatches: int
    factor: Float

    @property
    def num_stages(self) -> int:
        """Pipeline stages."""
        return len(self.end_s)

    def time_s(self, placement: Placement) -> float:
        """Return the length of a step: every micro-batch at the slowest stage, and one through all stages. Unit: s."""
        places = np.arange(len(placement.nodes))
        slowest = self.factor[np.array(placement.nodes), places].max(axis=0)
        busy_s = slowest * (self.layer_s * np.array(placement.layers) + self.end_s)
        return float((self.num_microbatches - 1) * busy_s.max() + busy_s.sum())


def pipeline_of(site: Site, factor: Mapping[tuple[int, int], float]) -> Pipeline:
    """Return the linear model of a job with factors on the computation of GPUs, by (node, device).

    Layer and ends are read off two simulated steps, one with a layer moved from the last stage to the first.
    """
    layout, num_microbatches = site.point.layout, site.point.num_microbatches
    layers = np.array(site.present.layers)
    sound_s = busy_of(site.quick_step(site.present, {})) / num_microbatches
    layer_s = float(sound_s[0] / layers[0]) if layers[0] else float(sound_s.sum() / layers.sum())
    shifted = tuple(int(own) for own in layers + np.array([1, *[0] * (layout.pp - 2), -1])) if layout.pp > 1 else ()
    if shifted and min(shifted) >= 0:
        moved_s = busy_of(site.quick_step(Placement(site.present.nodes, shifted), {})) / num_microbatches
        layer_s = float(moved_s[0] - sound_s[0])
    return Pipeline(layer_s, sound_s - layer_s * layers, int(layers.sum()), num_microbatches, _factors(site, factor))


def passed_on_by_stages(site: Site) -> float:
    """Return how much longer stages compute over how much slower GPUs do: less than 1 where the host is slower."""
    places = [(node, gpu) for node in site.present.nodes for gpu in range(site.cluster.gpus_per_node)]
    sound, slower = (
        float(busy_of(site.quick_step(site.present, dict.fromkeys(places, factor))).sum())
        for factor in (1.0, 1.0 + _TRIED_EXCESS)
    )
    return (slower / sound - 1.0) / _TRIED_EXCESS


def _factors(site: Site, factor: Mapping[tuple[int, int], float]) -> Float:
    per_node, pp, num_gpus = site.cluster.gpus_per_node, site.point.layout.pp, site.point.num_gpus
    num_nodes, per_stage = site.point.num_nodes, num_gpus // pp
    found = np.zeros((num_nodes, num_nodes, pp))
    for rank in range(num_gpus):
        place, device, stage = rank // per_node, rank % per_node, rank // per_stage
        for node in range(num_nodes):
            found[node, place, stage] = max(found[node, place, stage], factor.get((node, device), 1.0))
    return found


def solve(pipeline: Pipeline, least: int = 1) -> Placement:
    """Return the placement of the linear model's shortest step, by a mixed-integer program.

    Variables are which node stands at which place, layers of stages, time of stages for a micro-batch and the longest
    of these. That a stage takes the factor of a node counts only if the node is there (large constant).

    Args:
        pipeline: The model.
        least: Layers that a stage has at least.

    Raises:
        UserError: If the solver finds nothing in its time.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    matrix, low, high = _constraints(pipeline, least)
    num_nodes, num_stages = pipeline.factor.shape[0], pipeline.num_stages
    num_places = num_nodes * num_nodes
    cost = np.concatenate([
        np.zeros(num_places + num_stages), np.ones(num_stages), [pipeline.num_microbatches - 1.0],
    ])  # fmt: skip
    whole = np.concatenate([np.ones(num_places + num_stages), np.zeros(num_stages + 1)])
    lower = np.concatenate([np.zeros(num_places), np.full(num_stages, least), np.zeros(num_stages + 1)])
    upper = np.concatenate([
        np.ones(num_places), np.full(num_stages, pipeline.num_layers), np.full(num_stages + 1, np.inf),
    ])  # fmt: skip
    found = milp(
        cost, integrality=whole, bounds=Bounds(lower, upper), constraints=LinearConstraint(matrix, low, high),
        options={"time_limit": _SOLVER_S, "mip_rel_gap": _SOLVER_GAP},
    )  # fmt: skip
    if found.x is None:
        raise UserError(f"recommend: no placement found: {found.message}")
    at = found.x[:num_places].reshape(num_nodes, num_nodes)
    layers = np.rint(found.x[num_places : num_places + num_stages]).astype(int)
    return Placement(tuple(at.argmax(axis=0).tolist()), tuple(layers.tolist()))


def _constraints(pipeline: Pipeline, least: int) -> tuple[Float, Float, Float]:
    """Return matrix, lower and upper ends of the program's constraints."""
    num_nodes, num_stages = pipeline.factor.shape[0], pipeline.num_stages
    num_places = num_nodes * num_nodes
    width = num_places + 2 * num_stages + 1
    most_layers = pipeline.num_layers - least * (num_stages - 1)
    rows, low, high = list[Float](), list[float](), list[float]()

    def add(row: Float, lowest: float, highest: float) -> None:
        rows.append(row)
        low.append(lowest)
        high.append(highest)

    for one in range(num_nodes):
        for cells in (range(one * num_nodes, (one + 1) * num_nodes), range(one, num_places, num_nodes)):
            row = np.zeros(width)
            row[list(cells)] = 1.0
            add(row, 1.0, 1.0)
    row = np.zeros(width)
    row[num_places : num_places + num_stages] = 1.0
    add(row, pipeline.num_layers, pipeline.num_layers)
    for stage in range(num_stages):
        row = np.zeros(width)
        row[[num_places + num_stages + stage, width - 1]] = -1.0, 1.0
        add(row, 0.0, np.inf)
    for node, place, stage in np.argwhere(pipeline.factor > 0.0).tolist():
        factor = float(pipeline.factor[node, place, stage])
        # Where the node is not there, time is not held from below.
        free_s = factor * (pipeline.layer_s * most_layers + float(pipeline.end_s[stage]))
        row = np.zeros(width)
        row[num_places + num_stages + stage] = 1.0
        row[num_places + stage] = -factor * pipeline.layer_s
        row[node * num_nodes + place] = -free_s
        add(row, factor * float(pipeline.end_s[stage]) - free_s, np.inf)
    return np.stack(rows), np.array(low), np.array(high)


def search(site: Site, factor: Mapping[tuple[int, int], float]) -> list[Placement]:
    """Return placements that no single move makes shorter, shortest first, of those shorter than the present one.

    Args:
        site: The job.
        factor: On the computation of GPUs, by (node of the run, device).
    """
    starts, model = {site.present: None}, None
    if site.present.layers:
        model = _passed_on(site, factor)
        starts |= dict.fromkeys(map(solve, (pipeline_of(site, factor), model)))
    trials = Trials(site, factor)
    ends = {_descend(start, trials, model): None for start in starts}
    least_s = trials.time_s(site.present) * (1.0 - _LEAST_BETTER)
    return sorted((end for end in ends if trials.time_s(end) < least_s), key=trials.time_s)


def nearest(site: Site, factor: Mapping[tuple[int, int], float]) -> Placement:
    """Return where the linear model is shortest, untried; the present placement where layers stay as they are."""
    return solve(_passed_on(site, factor)) if site.present.layers else site.present


def _passed_on(site: Site, factor: Mapping[tuple[int, int], float]) -> Pipeline:
    """Return the linear model, GPUs as much slower as their stages are by them."""
    passed_on = passed_on_by_stages(site)
    return pipeline_of(site, {place: 1.0 + passed_on * (own - 1.0) for place, own in factor.items()})


def _descend(start: Placement, trials: "Trials", model: Pipeline | None) -> Placement:
    """Return where single moves lead from a placement, with hosts as they are if that is as good; none is better.

    Moves that a linear model has shortest are tried first, all others only where none of these is better.
    """
    best = start
    most = trials.number + _MOST_TRIALS
    while trials.number < most:
        near, least_s = list(_near(best)), trials.time_s(best) * (1.0 - _LEAST_BETTER)
        likely = sorted(near, key=model.time_s)[:_TRIED_FIRST] if model else []
        nearest = min(likely, key=trials.time_s, default=best)
        if trials.time_s(nearest) >= least_s:
            nearest = min(near, key=trials.time_s, default=best)
        if trials.time_s(nearest) >= least_s:
            break
        best = nearest
    same_hosts = best._replace(nodes=trials.site.present.nodes)
    return same_hosts if trials.time_s(same_hosts) <= trials.time_s(best) * (1.0 + _WORTH_MOVING) else best


class Trials:
    """Simulated steps of placements, each once."""

    def __init__(self, site: Site, factor: Mapping[tuple[int, int], float]) -> None:
        """Take the job and the factors on the computation of GPUs."""
        self.site, self.factor = site, factor
        self._known: dict[Placement, float] = {}

    @property
    def number(self) -> int:
        """How many placements were tried."""
        return len(self._known)

    def time_s(self, placement: Placement) -> float:
        """Return the length of a step; infinite where the placement cannot run. Unit: s."""
        if placement not in self._known:
            self._known[placement] = self._simulated_s(placement)
        return self._known[placement]

    def _simulated_s(self, placement: Placement) -> float:
        if not self.site.fits(placement):
            return float("inf")
        try:
            return self.site.quick_step(placement, self.factor).time_s
        except (PointError, UserError):
            return float("inf")


def _near(placement: Placement) -> Iterator[Placement]:
    """Yield placements that differ by one layer moved, or by two nodes exchanged."""
    for first, second in permutations(range(len(placement.layers)), 2):
        layers = list(placement.layers)
        layers[first] -= 1
        layers[second] += 1
        if layers[first] >= 1:
            yield placement._replace(layers=tuple(layers))
    for first, second in combinations(range(len(placement.nodes)), 2):
        nodes = list(placement.nodes)
        nodes[first], nodes[second] = nodes[second], nodes[first]
        yield placement._replace(nodes=tuple(nodes))


def every_placement(num_nodes: int, num_layers: int, num_stages: int, least: int = 1) -> Iterator[Placement]:
    """Yield all placements: what `solve` and `search` are tested against."""
    for nodes in permutations(range(num_nodes)):
        for cuts in combinations(range(1, num_layers - num_stages * (least - 1)), num_stages - 1):
            edges = (0, *cuts, num_layers - num_stages * (least - 1))
            layers = tuple(end - begin + least - 1 for begin, end in zip(edges, edges[1:], strict=False))
            yield Placement(nodes, layers)
