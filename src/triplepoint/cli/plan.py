"""`triplepoint plan [STUDY...]`."""

import argparse
from functools import partial
from typing import TYPE_CHECKING

from triplepoint.cli.arguments import add_config, add_results, make_parser, say
from triplepoint.figures import NAMES, is_drawn

if TYPE_CHECKING:
    from triplepoint.config.plan import Plan


def parser() -> argparse.ArgumentParser:
    """Return the subcommand's parser."""
    made = make_parser(
        "plan", "Expand studies to points and show which can run and why others cannot, and what they will cost."
    )
    made.add_argument("studies", nargs="*", metavar="STUDY", help="studies in CONFIG/studies; all if none is named")
    made.add_argument("--cluster", action="append", metavar="NAME", help="only points on this cluster; repeatable")
    made.add_argument("--simulated", action="append", metavar="NAME", help="simulate this cluster; repeatable")
    made.add_argument(
        "--figure", action="append", choices=NAMES, metavar="NAME", help="only runs this figure draws; repeatable"
    )
    add_config(made)
    made.add_argument("--write", action="store_true", help="write RESULTS/plan.json and point.json of each run")
    made.add_argument("--summary", action="store_true", help="only what exists, and what is ahead will cost")
    add_results(made)
    return made


def run(arguments: argparse.Namespace) -> None:
    """Show the plan with what it costs, or write it."""
    from triplepoint.claims import claim_results
    from triplepoint.plan import only_needed, select, write_plan

    simulated, clusters = arguments.simulated or (), arguments.cluster
    if clusters is not None:
        # `select` takes a cluster named in both for one that is reached.
        clusters = [name for name in clusters if name not in simulated]
    plan = select(arguments.config, arguments.studies or None, clusters, simulated)
    if arguments.figure:
        plan = only_needed(plan, partial(is_drawn, names=arguments.figure), arguments.results)
    if not arguments.write:
        _show(plan, arguments)
        return
    with claim_results(arguments.results).acquire_or_refuse():
        write_plan(plan, arguments.results)
    say(f"plan: {len(plan.entries)} points, {len(plan.valid)} runs to have")


def _show(plan: "Plan", arguments: argparse.Namespace) -> None:
    from triplepoint.advise.cost import plan_cost
    from triplepoint.advise.summary import HEADINGS, cells, note, summarise
    from triplepoint.plan import Columns, render

    costs = plan_cost(plan, arguments.results, arguments.config)
    if not arguments.summary:
        notes = {cost.entry.run: told for cost in costs if (told := note(cost))}
        print(render(plan, Columns(HEADINGS, {cost.entry.run: cells(cost) for cost in costs}, notes)), end="\n\n")
    print(summarise(costs))
