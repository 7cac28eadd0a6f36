"""`triplepoint why RUN|FOLDER|TRACES|FILE.parquet`."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from triplepoint.cli.answer import Answer
from triplepoint.cli.arguments import add_config, add_results, make_parser, out_rows, say
from triplepoint.cli.parse import add_rules, add_steps, load_rules
from triplepoint.cli.progress import Progress

if TYPE_CHECKING:
    pass

_ABOUT = """\
RUN|FOLDER|TRACES|FILE is one of
  RUN           run id, a folder in RESULTS/runs, or its beginning; or STUDY:POINT, as 'compare' reads it
  FOLDER        folder of a run, parsed or raw, or one that 'triplepoint trace --out' wrote
  TRACES        a folder of the traces of one job, or one trace, that 'triplepoint trace' reads
  FILE.parquet  operations of all workers and steps, as StragglerAnalysis publishes them (docs/why.md)

The slowdown is the time of a step over that of an ideal step, in which equal operations last equally long, by what-if
replay. Causes are named from clock, power, temperature, transfers, launches and data. The method is in docs/why.md.
"""
_ANSWER = {
    "answer": "what is slow, why, and what it costs, in a sentence",
    "name": "the job",
    "source": "what the answer is based on: traces, one rank, step times, recording (one without steps) or operations",
    "origin": "measured or simulated; null if the tables do not tell",
    "num_gpus": "GPUs of the job",
    "num_steps": "steps that were analysed",
    "step_time_s": "mean time of a step",
    "ideal_step_time_s": "mean time of a step of the ideal job",
    "slowdown": "step_time_s over ideal_step_time_s",
    "launch_slowdown": "slowdown that late launches alone cause",
    "slowdown_of_steps": "slowdown of each step",
    "slowdown_by_kind": "slowdown that each kind of operation causes",
    "slowdown_by_dp_rank": "slowdown that each data parallel rank causes",
    "slowdown_by_stage": "slowdown that each pipeline stage causes",
    "slowest_workers": "dp_rank and stage of each",
    "share_of_slowest_workers": "share of the slowdown that they cause, 0 to 1",
    "share_of_last_stage": "share of the slowdown that the last pipeline stage causes, 0 to 1",
    "gpu_power_w": "mean power of a GPU",
    "heat": "what heat explains, in a sentence",
    "step_times": "ranks against each other, drift, and far longer steps (s); null without measured steps",
    "gpus": "how the hottest GPU, and the GPU with the lowest clock, differ from the others, a sentence each",
    "causes": "rows of table why (docs/tables.md)",
    "notes": "what could not be determined, and why",
}
_EXAMPLES = (
    "triplepoint why llama3-70b_h200x32_tp4-pp4-dp2_mbs1_r1",
    "triplepoint why traces/ --out why.csv",
    "triplepoint why trace-AR.parquet --json",
)


def parser() -> argparse.ArgumentParser:
    """Return the subcommand's parser."""
    parser = make_parser(
        "why",
        "Say why a job is slow, per GPU and per step: causes, what each costs, what to do.",
        _EXAMPLES,
        _ABOUT,
        answer=_ANSWER,
    )
    parser.add_argument("source", metavar="RUN|FOLDER|TRACES|FILE", help="what to explain, see below")
    parser.add_argument(
        "-o", "--out", type=out_rows, metavar="OUT", help="table 'why' to write, .parquet or .csv (default: none)"
    )
    add_steps(parser)
    add_rules(parser)
    add_results(parser)
    add_config(parser)
    return parser


def run(arguments: argparse.Namespace) -> Answer:
    """Explain why a job is slow."""
    from triplepoint.compare.sides import Context
    from triplepoint.why.sources import why as why_of
    from triplepoint.why.text import render

    out: Path | None = arguments.out
    with Progress(f"reading {arguments.source}") as progress:
        context = Context(arguments.results, arguments.config, load_rules(arguments), arguments.steps, progress)
        why = why_of(arguments.source, context)
    if out is not None:
        from triplepoint.tables.why import WHY

        WHY.write_rows(out, why.rows())
        say(f"why: {len(why.rows())} rows in {out}")
    return Answer(why.content(), render(why))
