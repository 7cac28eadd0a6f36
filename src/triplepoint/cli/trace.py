"""`triplepoint trace FILES|FOLDER --out DIR`, or `--run RUN` for a run of the pipeline."""

import argparse
import gc
from pathlib import Path

from triplepoint.cli.answer import Answer
from triplepoint.cli.arguments import add_results, make_parser, out_folder, run_folder, say, whole_number
from triplepoint.cli.parse import add_rules, add_steps, load_rules
from triplepoint.cli.progress import Progress
from triplepoint.errors import USER_ERROR, UserError


def parser() -> argparse.ArgumentParser:
    """Return the subcommand's parser."""
    parser = make_parser(
        "trace",
        "Analyse traces of PyTorch (Kineto), Nsight Systems (nsys export --type sqlite), rocprof or MLCommons' Chakra, "
        "one per rank of a job: where each rank's time went, which kernels ran, which collectives waited for whom, and "
        "what the step's time depends on.",
        ["triplepoint trace traces/ --out out", "triplepoint trace report.sqlite --out out --csv"],
        answer={
            "folder": "folder of the tables",
            "summary": "lines of the summary; with --run those on slow GPUs",
            "damaged": "by file, what of it could not be read; empty with --run",
        },
    )
    parser.add_argument(
        "traces",
        nargs="*",
        type=Path,
        metavar="FILE|FOLDER|-",
        help="traces, folders of them, or pipes ('-': standard input); with --run, folders of parsed ranks (default: "
        "all of the run)",
    )
    parser.add_argument("--out", type=out_folder, metavar="DIR", help="folder for the tables (no default)")
    parser.add_argument("--csv", action="store_true", help="write breakdown.csv, kernels.csv and the tables as CSV too")
    parser.add_argument("--chakra", action="store_true", help="write the GPU work of every rank as a Chakra trace too")
    parser.add_argument(
        "--jobs", type=whole_number(), metavar="N", help="traces to parse at once (default: one per core)"
    )
    parser.add_argument(
        "--parity",
        choices=["hta"],
        help="write breakdown.csv and kernels.csv with the rows and classes of HTA, and no tables (default: tables)",
    )
    add_steps(parser)
    parser.add_argument("--run", metavar="RUN", help="join the parsed ranks of this run (default: analyse files)")
    parser.add_argument("--parse", action="store_true", help="with --run: parse the run's traces first")
    add_rules(parser)
    add_results(parser)
    return parser


def run(arguments: argparse.Namespace) -> Answer:
    """Analyse loose files, or join the parsed ranks of a run."""
    gc.disable()  # it would go through millions of objects, none of them in a cycle, again and again
    if not (arguments.run or arguments.traces):
        raise UserError("trace: name either traces with --out DIR, or a run with --run RUN")
    if arguments.chakra and (arguments.run or arguments.parity):
        raise UserError("--chakra reads files, without --parity; for a run use 'triplepoint export STUDY --to chakra'")
    if arguments.run:
        from triplepoint.slow_nodes import note_slow_gpus
        from triplepoint.trace.run_traces import join_run, trace_run

        if arguments.parse:
            with Progress("parsing traces") as progress:
                trace_run(run_folder(arguments), load_rules(arguments), progress, arguments.jobs, note=say)
        else:
            join_run(run_folder(arguments), arguments.traces)
        slow = list(note_slow_gpus(run_folder(arguments)))
        for line in slow:
            say(f"{arguments.run}: {line}; launches continue without it where they can")
        return Answer({"folder": run_folder(arguments), "summary": slow, "damaged": {}})
    if arguments.out is None:
        raise UserError("trace: --out DIR is missing; name the folder for the tables")
    from triplepoint.trace.loose_traces import trace_files, trace_files_as_hta

    options = {"csv": arguments.csv, "chakra": arguments.chakra, "num_jobs": arguments.jobs, "steps": arguments.steps}
    with Progress("reading traces") as progress:
        if arguments.parity:
            analysis = trace_files_as_hta(arguments.traces, arguments.out, progress)
        else:
            analysis = trace_files(arguments.traces, arguments.out, load_rules(arguments), progress, **options)
    for name, damage in analysis.damaged.items():
        say(f"triplepoint: {name}: {damage}; the tables hold what could be read")
    content = {"folder": arguments.out, "summary": analysis.summary.splitlines(), "damaged": analysis.damaged}
    return Answer(content, analysis.summary, 0 if analysis.is_any_whole else USER_ERROR)
