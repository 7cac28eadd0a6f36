"""`triplepoint plan [STUDY...]`."""

import argparse
from pathlib import Path

from triplepoint.cli.arguments import add_results, make_parser, say


def parser() -> argparse.ArgumentParser:
    """Return the subcommand's parser."""
    made = make_parser("plan", "Expand studies to points and show which can run, and why others cannot.")
    made.add_argument("studies", nargs="*", metavar="STUDY", help="studies in CONFIG/studies; all if none is named")
    made.add_argument("--cluster", action="append", metavar="NAME", help="only points on this cluster; repeatable")
    made.add_argument("--simulated", action="append", metavar="NAME", help="simulate this cluster; repeatable")
    made.add_argument("--config", type=Path, default=Path("config"), metavar="DIR", help="folder of the configuration")
    made.add_argument("--write", action="store_true", help="write RESULTS/plan.json and point.json of each run")
    add_results(made)
    return made


def run(arguments: argparse.Namespace) -> None:
    """Show the plan, or write it."""
    from triplepoint.plan import render, select, write_plan

    plan = select(arguments.config, arguments.studies or None, arguments.cluster, arguments.simulated or ())
    if not arguments.write:
        print(render(plan))
        return
    write_plan(plan, arguments.results)
    say(f"plan: {len(plan.entries)} points, {len(plan.valid)} runs to have")
