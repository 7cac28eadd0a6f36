"""`triplepoint plan [STUDY...]`."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from triplepoint.cli.answer import Answer
from triplepoint.cli.arguments import add_config, add_results, make_parser, number, say
from triplepoint.errors import UserError
from triplepoint.figures import spec_of

if TYPE_CHECKING:
    from triplepoint.config.plan import Plan
    from triplepoint.config.study import Names
    from triplepoint.plan_cost import RunCost


def parser() -> argparse.ArgumentParser:
    """Return the subcommand's parser."""
    parser = make_parser(
        "plan",
        "Expand studies to points and show which can run and why others cannot, and what they will cost.",
        ["triplepoint plan microbatch", "triplepoint plan parallelism --simulated h200x32 --summary"],
        "Without --cluster, --simulated and --all-clusters, CONFIG/config.yaml decides, as in snakemake.",
        answer={
            "points": "each point: run, studies, and why it is invalid, or what of it exists and its cost",
            "summary": "lines on what exists and what is missing; with --write what was written",
        },
    )
    parser.add_argument("studies", nargs="*", metavar="STUDY", help="studies in CONFIG/studies (default: all)")
    parser.add_argument(
        "--cluster",
        action="append",
        metavar="NAME",
        help="only points on this cluster (default: CONFIG/config.yaml); repeatable",
    )
    parser.add_argument(
        "--simulated", action="append", metavar="NAME",
        help="simulate points on this cluster (default: CONFIG/config.yaml); repeatable",
    )  # fmt: skip
    parser.add_argument("--all-clusters", action="store_true", help="also points on all other clusters, reached or not")
    parser.add_argument(
        "--figure",
        action="append",
        metavar="[STUDY/]NAME",
        help="only the studies of this figure (default: all); repeatable",
    )
    add_config(parser)
    parser.add_argument(
        "--max-gpu-hours",
        type=number(0, 1e9, "GPU hours"),
        metavar="H",
        help="budget in GPU hours for studies that are not named (default: max_gpu_hours of CONFIG/config.yaml)",
    )
    parser.add_argument("--write", action="store_true", help="write RESULTS/plan.json and point.json of each run")
    parser.add_argument("--summary", action="store_true", help="show only what exists, and the cost of what is missing")
    add_results(parser)
    return parser


def run(arguments: argparse.Namespace) -> Answer:
    """Show the plan with its cost, or write it."""
    from triplepoint.claims import claim_results
    from triplepoint.figures.selection import figures_of
    from triplepoint.plan import select, write_plan

    plan = select(arguments.config, *_selection(arguments), arguments.results)
    figures_of(plan)  # refuses an unknown figure before anything is launched for it
    if not arguments.write:
        # Recorded runs have no cost.
        ahead = tuple(entry for entry in plan.entries if entry.planned.point.recorded is None)
        if ahead:
            return _answer(plan.model_copy(update={"entries": ahead}), arguments)
        line = f"{len(plan.entries)} recorded runs: nothing is ahead"
        return Answer({"points": [], "summary": [line]}, line)
    with claim_results(arguments.results).acquire_or_refuse():
        write_plan(plan, arguments.results)
    line = f"{len(plan.entries)} points, {len(plan.valid)} runs to have"
    say(f"plan: {line}")
    points = [_point(entry.run, entry.studies, entry.invalid_because) for entry in plan.entries]
    return Answer({"points": points, "summary": [line]})


def _selection(arguments: argparse.Namespace) -> "tuple[Names | None, Names | None, Names]":
    """Return studies, clusters and simulated clusters from the command line, else from `config.yaml`."""
    from triplepoint.config.study import read_selection

    of_figures = [study for name in arguments.figure or () for study in spec_of(name).studies]
    studies = tuple(dict.fromkeys(of_figures)) or tuple(arguments.studies) or None
    simulated = tuple(arguments.simulated or ())
    if arguments.all_clusters:
        if arguments.cluster:
            raise UserError("plan: --cluster and --all-clusters contradict each other; leave one out")
        return studies, None, simulated
    if arguments.cluster or arguments.simulated:
        # `select` does not simulate a cluster that is named in both.
        return studies, tuple(name for name in arguments.cluster or () if name not in simulated), simulated
    selection = read_selection(arguments.config)
    return studies or selection.studies, selection.clusters, selection.simulated


def _answer(plan: "Plan", arguments: argparse.Namespace) -> Answer:
    """Return the points of a plan with their cost, and the summary."""
    from triplepoint.doctor.config_files import gaps
    from triplepoint.plan import Columns, render
    from triplepoint.plan_cost import HEADINGS, cells, note, plan_cost, summarise

    costs = plan_cost(plan, arguments.results, arguments.config)
    summary = "\n".join([summarise(costs), *gaps(_machines(plan), arguments.config), *_beyond_budget(costs, arguments)])
    by_run = {cost.entry.run: cost for cost in costs}
    points = [_point(entry.run, entry.studies, entry.invalid_because, by_run.get(entry.run)) for entry in plan.entries]
    text = summary
    if not arguments.summary:
        notes = {cost.entry.run: line for cost in costs if (line := note(cost))}
        table = render(plan, Columns(HEADINGS, {cost.entry.run: cells(cost) for cost in costs}, notes))
        text = f"{table}\n\n{summary}"
    return Answer({"points": points, "summary": summary.splitlines()}, text)


def _machines(plan: "Plan") -> list[str]:
    """Return the GPU types and the clusters with GPUs of a plan."""
    clusters = [entry.planned.point.cluster for entry in plan.valid]
    return list(
        dict.fromkeys(name for cluster in clusters if cluster.gpu is not None for name in (cluster.gpu, cluster.name))
    )


def _beyond_budget(costs: "Sequence[RunCost]", arguments: argparse.Namespace) -> list[str]:
    """Return a line if Snakemake will ask before launches that exceed the budget; else nothing."""
    from triplepoint.config.study import read_selection
    from triplepoint.plan_cost import over_budget

    selection = read_selection(arguments.config)
    budget = selection.max_gpu_hours if arguments.max_gpu_hours is None else arguments.max_gpu_hours
    line = None if arguments.studies or selection.studies else over_budget(costs, budget)
    return [] if line is None else [f"beyond the budget, snakemake will ask before it launches: {line}"]


def _point(run: str, studies: tuple[str, ...], reason: str | None, cost: "RunCost | None" = None) -> dict[str, Any]:
    """Return one point of the plan for the JSON."""
    point: dict[str, Any] = {"run": run, "studies": studies, "invalid_because": reason}
    if cost is None:
        return point
    prediction = cost.prediction
    return point | {
        "have": cost.existing.state,
        "status": cost.existing.status or None,
        "predicted": prediction.status,
        "reason": prediction.reason or None,
        "step_time_s": prediction.step_time_s,
        "memory_gib": prediction.memory_gib,
        "wall_s": cost.wall_s,
        "gpu_hours": 0.0 if cost.is_simulated else cost.gpu_hours,
        "board_energy_kwh": 0.0 if cost.is_simulated else cost.board_energy_kwh,
    }
