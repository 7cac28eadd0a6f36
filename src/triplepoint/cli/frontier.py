"""`triplepoint frontier RUN|POINT`."""

import argparse

from triplepoint.cli.answer import Answer
from triplepoint.cli.arguments import add_config, add_results, make_parser, number, out_figure, out_file, say
from triplepoint.errors import PointError
from triplepoint.units import KILO

_ABOUT = """\
SOURCE is one of
  RUN        run id, or the folder of a run: its point is simulated
  POINT      .yaml, .yml, .json or .csv as 'triplepoint predict' reads it, or POINT:ID for one of several

Passes that other stages do not wait for can run at lower clocks. The plan has one clock for each pipeline stage, held
through the step, and is simulated as a whole. Budgets are means over a step, at the plug. The script that sets clocks
is printed; nothing is applied. The method is in docs/frontier.md.
"""
_EXAMPLES = (
    "triplepoint frontier RUN",
    "triplepoint frontier point.yaml --slowdown 5 --figure frontier.pdf",
    "triplepoint frontier point.yaml --max-node-power 6 --max-temp 75 --script clocks.sh",
)
_ANSWER = {
    "answer": "one sentence",
    "name": "the run or point",
    "num_stages": "pipeline stages",
    "num_microbatches": "micro-batches",
    "bubble_fraction": "share of a step in which ranks wait for other stages",
    "is_held_by_power_limit": "whether the power limit costs more than 1 % of a step",
    "present": "the step as it is: time, energy of GPUs, power at the plug, hottest die, throttling",
    "slowdown": "by which share a step may take longer",
    "verified": "the same with the plan",
    "change": "energy of GPUs saved by the plan and longer step, as shares, each with its 90 % interval (lo, hi)",
    "is_advised": "whether the plan is needed for a budget, or the whole interval of its saving is positive",
    "steady": "the same at the highest steady clocks under the power limit; null where it does not lower clocks",
    "steady_change": "as change, of the highest steady clocks; null where the limit does not lower clocks",
    "stages": "clock of each stage, power of a GPU in its heaviest pass, clocks by direction",
    "plans": "the plan, and those with clocks for each direction and pass: time, energy, power, clocks, intervals",
    "frontier": "such plans for other lengths of a step, without intervals",
    "script": "shell script that locks clocks; null where they save nothing with certainty",
}


def parser() -> argparse.ArgumentParser:
    """Return the subcommand's parser."""
    parser = make_parser(
        "frontier",
        "Choose the clocks of pipeline stages that save energy at a given step time, or keep a power budget.",
        _EXAMPLES,
        _ABOUT,
        answer=_ANSWER,
    )
    parser.add_argument("source", metavar="SOURCE", help="run or point, see below")
    parser.add_argument(
        "--slowdown", type=number(0, 100, "percent"), metavar="PERCENT",
        help="how much longer a step may take (default: 1; with a budget not kept now, as little as it needs)",
    )  # fmt: skip
    budgets = {
        "node-power": ("KW", 1e3, "budget of the mean power over a step of the node that draws most"),
        "rack-power": ("KW", 1e4, "the same of the rack that draws most; the cluster needs nodes_per_rack"),
        "power": ("KW", 1e6, "the same of all nodes of the job together"),
        "temp": ("DEGC", 150, "limit of the hottest GPU"),
    }
    for name, (unit, most, what) in budgets.items():
        limit = number(0, most, "kW" if unit == "KW" else "degC", is_least_allowed=False)
        parser.add_argument(f"--max-{name}", type=limit, metavar=unit, help=f"{what} (default: none)")
    parser.add_argument("--figure", type=out_figure, metavar="OUT", help=".pdf, .png or .svg to write (default: none)")
    parser.add_argument(
        "--script", type=out_file, metavar="FILE", help="file for the script that sets clocks (default: none)"
    )
    add_results(parser)
    add_config(parser)
    return parser


def run(arguments: argparse.Namespace) -> Answer:
    """Choose the clocks of pipeline stages."""
    from triplepoint.advise.frontier.frontier import Budget, advise
    from triplepoint.advise.frontier.text import content, render, script
    from triplepoint.cli.named_points import named_points
    from triplepoint.config.plan import run_id
    from triplepoint.files import write_text
    from triplepoint.simulate.limits import check_order
    from triplepoint.simulate.predict.point import job_on_cluster

    (request,) = named_points(arguments.source, arguments, 1)
    name, point = run_id(request.point), request.point
    if request.invalid_because:
        raise PointError(f"{request.where}: {request.invalid_because}")
    if point.task == "inference":
        raise PointError(f"{request.where}: inference; a frontier is of training with a pipeline")
    powers_kw = arguments.max_node_power, arguments.max_rack_power, arguments.max_power
    node_w, rack_w, hall_w = (None if most is None else KILO * most for most in powers_kw)
    budget = Budget(node_w, rack_w, hall_w, arguments.max_temp)
    slowdown = None if arguments.slowdown is None else arguments.slowdown / 100.0
    try:
        job, cluster = job_on_cluster(point, arguments.config, request.stack)
        if reason := check_order(point):
            raise PointError(reason)
        answer = advise(name, job, cluster, arguments.config, slowdown, budget)
    except PointError as error:
        raise PointError(f"{arguments.source}: {error}") from None
    if arguments.script is not None and not answer.is_useful:
        say("frontier: no script is written, since no clocks are worth setting with certainty")
    elif arguments.script is not None:
        write_text(arguments.script, script(answer))
        say(f"frontier: script in {arguments.script}")
    if arguments.figure is not None:
        from triplepoint.advise.frontier.figure import draw
        from triplepoint.figures.write import save

        save(draw(answer), arguments.figure)
        say(f"frontier: figure in {arguments.figure}")
    return Answer(content(answer), render(answer))
