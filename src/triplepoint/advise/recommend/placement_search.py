"""Search for a placement: which nodes hold which pipeline stages, and how many layers each stage has.

A mixed-integer program finds the optimum of a linear model of the pipeline. From there a descent moves single layers
and swaps pairs of nodes; each trial is simulated without heat. The caller simulates the results with heat.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, permutations

import numpy as np

from triplepoint.advise.recommend.placement import Placement, Seat, Site, busy_of
from triplepoint.errors import PointError, UserError
from triplepoint.simulate.power.gpu import Float

_SOLVER_S = 20.0
"""Time limit of the solver; the best solution by then starts the descent. Unit: s."""
_SOLVER_GAP = 1e-3
"""Relative distance from the optimum at which the solver stops."""
_MAX_TRIALS = 600
"""Simulated trials of one descent, about 10 ms each."""
_NUM_LIKELY = 6
"""Moves that are tried first, those with the shortest step in the linear model, of 30 to 60."""
_MIN_GAIN = 1e-4
"""Smallest share of a step that a move must gain."""
_TRIAL_EXCESS = 0.3
"""Slowdown of all GPUs with which the effect on stages is determined: that of a GPU with bad contact."""
_MIN_GAIN_OF_NODES = 1e-3
"""Smallest share of a step that another order of nodes must gain. Our choice."""


@dataclass(frozen=True, eq=False)
class Pipeline:
    """Linear model of a pipeline: a stage takes the factor of its slowest GPU times (layers * layer_s + end_s).

    Attributes:
        layer_s: Computation time of a layer for one micro-batch. Unit: s.
        end_s: Computation time of embedding and loss in each stage for one micro-batch; shape (num_stages,). Unit: s.
        num_layers: Layers of the model.
        num_microbatches: Micro-batches of a step.
        factor: Largest factor on the computation time of GPUs of a stage, for a node at a place of the host file;
            shape (num_nodes, num_places, num_stages), 0 where the place has no GPU of the stage.
    """

    layer_s: float
    end_s: Float
    num_layers: int
    num_microbatches: int
    factor: Float

    @property
    def num_stages(self) -> int:
        """Number of pipeline stages."""
        return len(self.end_s)

    def time_s(self, placement: Placement) -> float:
        """Return the step time: one micro-batch through all stages, and the others in the slowest stage. Unit: s."""
        places = np.arange(len(placement.nodes))
        slowest = self.factor[np.array(placement.nodes), places].max(axis=0)
        busy_s = slowest * (self.layer_s * np.array(placement.layers) + self.end_s)
        return float((self.num_microbatches - 1) * busy_s.max() + busy_s.sum())


def pipeline_of(site: Site, factor: Mapping[Seat, float]) -> Pipeline:
    """Return the linear model of a job with factors on the computation time of GPUs.

    The times follow from two simulated steps, one with a layer moved from the last stage to the first.
    """
    layout, num_microbatches = site.point.layout, site.point.num_microbatches
    layers = np.array(site.present.layers)
    present_s = busy_of(site.quick_step(site.present, {})) / num_microbatches
    layer_s = float(present_s[0] / layers[0]) if layers[0] else float(present_s.sum() / layers.sum())
    shifted = tuple(int(count) for count in layers + np.array([1, *[0] * (layout.pp - 2), -1])) if layout.pp > 1 else ()
    if shifted and min(shifted) >= 0:
        moved_s = busy_of(site.quick_step(Placement(site.present.nodes, shifted), {})) / num_microbatches
        layer_s = float(moved_s[0] - present_s[0])
    return Pipeline(layer_s, present_s - layer_s * layers, int(layers.sum()), num_microbatches, _factors(site, factor))


def slowdown_share(site: Site) -> float:
    """Return the slowdown of stages over that of all GPUs: below 1 if the host limits the stages."""
    seats = [(node, gpu) for node in site.present.nodes for gpu in range(site.cluster.gpus_per_node)]
    healthy_s, slower_s = (
        float(busy_of(site.quick_step(site.present, dict.fromkeys(seats, factor))).sum())
        for factor in (1.0, 1.0 + _TRIAL_EXCESS)
    )
    return (slower_s / healthy_s - 1.0) / _TRIAL_EXCESS


def _factors(site: Site, factor: Mapping[Seat, float]) -> Float:
    """Return the factors as `Pipeline.factor`."""
    per_node, pp, num_gpus = site.cluster.gpus_per_node, site.point.layout.pp, site.point.num_gpus
    num_nodes, per_stage = site.point.num_nodes, num_gpus // pp
    factors = np.zeros((num_nodes, num_nodes, pp))
    for rank in range(num_gpus):
        place, device, stage = rank // per_node, rank % per_node, rank // per_stage
        for node in range(num_nodes):
            factors[node, place, stage] = max(factors[node, place, stage], factor.get((node, device), 1.0))
    return factors


def solve(pipeline: Pipeline) -> Placement:
    """Return the placement with the shortest step in the linear model, by a mixed-integer program.

    Variables: which node is at which place, layers of stages, time of stages for a micro-batch, and the longest of
    these times. A constraint on the time of a stage by the factor of a node has a large constant, so that it applies
    only if the node is at the place.

    Args:
        pipeline: The model. Each stage has at least one layer.

    Raises:
        UserError: If the solver finds no solution within its time limit.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    matrix, low, high = _constraints(pipeline)
    num_nodes, num_stages = pipeline.factor.shape[0], pipeline.num_stages
    num_places = num_nodes * num_nodes
    cost = np.concatenate([
        np.zeros(num_places + num_stages), np.ones(num_stages), [pipeline.num_microbatches - 1.0],
    ])  # fmt: skip
    is_integer = np.concatenate([np.ones(num_places + num_stages), np.zeros(num_stages + 1)])
    lower = np.concatenate([np.zeros(num_places), np.ones(num_stages), np.zeros(num_stages + 1)])
    upper = np.concatenate([
        np.ones(num_places), np.full(num_stages, pipeline.num_layers), np.full(num_stages + 1, np.inf),
    ])  # fmt: skip
    solution = milp(
        cost, integrality=is_integer, bounds=Bounds(lower, upper), constraints=LinearConstraint(matrix, low, high),
        options={"time_limit": _SOLVER_S, "mip_rel_gap": _SOLVER_GAP},
    )  # fmt: skip
    if solution.x is None:
        raise UserError(f"recommend: no placement found: {solution.message}")
    at = solution.x[:num_places].reshape(num_nodes, num_nodes)
    layers = np.rint(solution.x[num_places : num_places + num_stages]).astype(int)
    return Placement(tuple(at.argmax(axis=0).tolist()), tuple(layers.tolist()))


def _constraints(pipeline: Pipeline) -> tuple[Float, Float, Float]:
    """Return matrix, lower and upper bounds of the constraints of the program."""
    num_nodes, num_stages = pipeline.factor.shape[0], pipeline.num_stages
    num_places = num_nodes * num_nodes
    width = num_places + 2 * num_stages + 1
    max_layers = pipeline.num_layers - (num_stages - 1)
    rows, low, high = list[Float](), list[float](), list[float]()

    def add(row: Float, lowest: float, highest: float) -> None:
        rows.append(row)
        low.append(lowest)
        high.append(highest)

    # Each node is at one place, and each place has one node.
    for index in range(num_nodes):
        for cells in (range(index * num_nodes, (index + 1) * num_nodes), range(index, num_places, num_nodes)):
            row = np.zeros(width)
            row[list(cells)] = 1.0
            add(row, 1.0, 1.0)
    # The stages have all layers.
    row = np.zeros(width)
    row[num_places : num_places + num_stages] = 1.0
    add(row, pipeline.num_layers, pipeline.num_layers)
    # The longest time is at least that of each stage.
    for stage in range(num_stages):
        row = np.zeros(width)
        row[[num_places + num_stages + stage, width - 1]] = -1.0, 1.0
        add(row, 0.0, np.inf)
    for node, place, stage in np.argwhere(pipeline.factor > 0.0).tolist():
        factor = float(pipeline.factor[node, place, stage])
        # The time of the stage is at least that with this node, if the node is at this place.
        free_s = factor * (pipeline.layer_s * max_layers + float(pipeline.end_s[stage]))
        row = np.zeros(width)
        row[num_places + num_stages + stage] = 1.0
        row[num_places + stage] = -factor * pipeline.layer_s
        row[node * num_nodes + place] = -free_s
        add(row, factor * float(pipeline.end_s[stage]) - free_s, np.inf)
    return np.stack(rows), np.array(low), np.array(high)


def search(site: Site, factor: Mapping[Seat, float]) -> list[Placement]:
    """Return placements with a shorter step than the present one that no single move improves, shortest first.

    Args:
        site: The job.
        factor: Factors on the computation time of GPUs.
    """
    starts, model = {site.present: None}, None
    if site.present.layers:
        model = _host_limited_pipeline(site, factor)
        starts |= dict.fromkeys(map(solve, (pipeline_of(site, factor), model)))
    trials = Trials(site, factor)
    ends = {_descend(start, trials, model): None for start in starts}
    limit_s = trials.time_s(site.present) * (1.0 - _MIN_GAIN)
    return sorted((end for end in ends if trials.time_s(end) < limit_s), key=trials.time_s)


def linear_optimum(site: Site, factor: Mapping[Seat, float]) -> Placement:
    """Return the optimum of the linear model; the present placement if its layers cannot change."""
    return solve(_host_limited_pipeline(site, factor)) if site.present.layers else site.present


def _host_limited_pipeline(site: Site, factor: Mapping[Seat, float]) -> Pipeline:
    """Return the linear model with the slowdown of GPUs reduced to its effect on their stages."""
    share = slowdown_share(site)
    return pipeline_of(site, {seat: 1.0 + share * (slower - 1.0) for seat, slower in factor.items()})


def _descend(start: Placement, trials: "Trials", model: Pipeline | None) -> Placement:
    """Return a placement that no single move improves, reached from a start by moves to shorter steps.

    The moves that the linear model predicts to be shortest are tried first, all others only if none of those is better.
    The result keeps the present order of nodes if that is about as good.
    """
    best = start
    max_number = trials.number + _MAX_TRIALS
    while trials.number < max_number:
        neighbours, limit_s = list(_neighbours(best)), trials.time_s(best) * (1.0 - _MIN_GAIN)
        likely = sorted(neighbours, key=model.time_s)[:_NUM_LIKELY] if model else []
        shortest = min(likely, key=trials.time_s, default=best)
        if trials.time_s(shortest) >= limit_s:
            shortest = min(neighbours, key=trials.time_s, default=best)
        if trials.time_s(shortest) >= limit_s:
            break
        best = shortest
    same_nodes = best._replace(nodes=trials.site.present.nodes)
    return same_nodes if trials.time_s(same_nodes) <= trials.time_s(best) * (1.0 + _MIN_GAIN_OF_NODES) else best


class Trials:
    """Step times of placements, each simulated once without heat."""

    def __init__(self, site: Site, factor: Mapping[Seat, float]) -> None:
        """Start without trials.

        Args:
            site: The job.
            factor: Factors on the computation time of GPUs.
        """
        self.site, self.factor = site, factor
        self._known: dict[Placement, float] = {}

    @property
    def number(self) -> int:
        """Number of placements tried."""
        return len(self._known)

    def time_s(self, placement: Placement) -> float:
        """Return the step time; infinite if the placement cannot run. Unit: s."""
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


def _neighbours(placement: Placement) -> Iterator[Placement]:
    """Yield the placements with one layer moved to another stage, or with two nodes swapped."""
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
