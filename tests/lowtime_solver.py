"""Solves a pipeline with the same choices of time and energy with lowtime, the solver of Perseus."""

import numpy as np

from triplepoint.advise.frontier.solve import Choices, Float
from triplepoint.simulate.timeline.schedule import Order

_UNIT_J = 1e-2


def least_energy_j(order: Order, choices: Choices, waiting_w: float, most_s: float, unit_s: float) -> float:
    """Return the least energy, by lowtime, with which all passes finish in time. Unit: J.

    The energy of waiting is not included.

    Args:
        order: Order of the passes in the pipeline. Sends take no time.
        choices: Time, in whole units, and energy of passes by clock. Costs between them are interpolated linearly.
        waiting_w: Power of a waiting GPU. Unit: W.
        most_s: Time until which all passes have to finish. Unit: s.
        unit_s: Unit of time of lowtime. Unit: s.
    """
    import networkx
    from lowtime.operation import CandidateExecutionOptions, DummyOperation, ExecutionOption, Operation, OperationSpec
    from lowtime.solver import PhillipsDessouky

    specs = {}
    for stage, kind, chunk in np.ndindex(choices.seconds.shape[:3]):
        seconds = choices.seconds[stage, kind, chunk]
        cost_j = choices.active_j[stage, kind, chunk] + seconds * (choices.standing_w[stage] - waiting_w)
        useful = slice(0, int(cost_j.argmin()) + 1)  # slower choices cost more than the cheapest one
        options = CandidateExecutionOptions(options=[
            ExecutionOption(real_time=(round(s / unit_s) + 0.25) * unit_s, unit_time=unit_s, cost=float(j), knob=index)
            for index, (s, j) in enumerate(zip(seconds[useful], cost_j[useful], strict=True))
        ])  # fmt: skip
        model = _PiecewiseLinearCost(np.rint(seconds[useful] / unit_s), cost_j[useful])
        specs[stage, kind, chunk] = OperationSpec(options=options, cost_model=model)
    graph = networkx.DiGraph()
    operations = []
    for task in range(order.kind.size):
        place = divmod(task, order.num_tasks)
        operations.append(Operation(spec=specs[place[0], int(order.kind[place]), int(order.chunk[place])]))
        graph.add_node(task, op=operations[-1])
    source, sink = order.kind.size, order.kind.size + 1
    graph.add_node(source, op=DummyOperation())
    graph.add_node(sink, op=DummyOperation())
    for stage in range(order.num_stages):
        first = stage * order.num_tasks
        graph.add_edge(source, first)
        graph.add_edge(first + order.num_tasks - 1, sink)
        graph.add_edges_from((first + place, first + place + 1) for place in range(order.num_tasks - 1))
    graph.add_edges_from(
        (int(needs), task) for task, needs in enumerate(order.needs.reshape(-1).tolist()) if needs >= 0
    )
    graph.graph.update(source_node=source, sink_node=sink)
    for result in PhillipsDessouky(graph).run():
        if result.real_time <= most_s:
            return _UNIT_J * sum(operation.get_cost() for operation in operations)
    raise AssertionError(f"lowtime is never as fast as {most_s} s")


class _PiecewiseLinearCost:
    """Cost model of lowtime, linear between points.

    Each unit of time costs a whole number of units of energy, so that a convex curve remains convex. If rounding makes
    it non-convex, lowtime 0.3.0 stops in its maximum flow ("no flow to cancel").
    """

    def __init__(self, times: Float, cost_j: Float) -> None:
        self._first = round(float(times[0]))
        costs = np.interp(np.arange(self._first, round(float(times[-1])) + 1), times, cost_j) / _UNIT_J
        falls = np.rint(-np.diff(costs))
        self._costs = np.rint(costs[0]) - np.concatenate([[0.0], np.cumsum(falls)])

    def __call__(self, quant_time: int) -> float:
        return float(self._costs[min(max(quant_time - self._first, 0), len(self._costs) - 1)])
