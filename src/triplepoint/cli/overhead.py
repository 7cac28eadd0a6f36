"""`triplepoint overhead OUT`: effect of sampling on step times."""

import argparse
from pathlib import Path

from triplepoint.cli.answer import Answer
from triplepoint.cli.arguments import make_parser, out_file, seconds, whole_number
from triplepoint.text import signed_percent

_LEAST_PAIRS = 6
"""Fewest pairs whose range covers the median with 95 %: 1 - 2 / 2**5 = 94 %, 1 - 2 / 2**6 = 97 %."""


def parser() -> argparse.ArgumentParser:
    """Return the subcommand's parser."""
    parser = make_parser(
        "overhead",
        "Time training steps with the sampler running and stopped, in random order.",
        ["triplepoint overhead results/sensors/overhead.json --device cpu --pairs 10"],
        answer={"file": "file that was written", "loops": "by loop: change of step time, its interval, pairs"},
    )
    parser.add_argument("out", type=out_file, metavar="FILE", help="JSON file to write")
    parser.add_argument("--device", choices=("cpu", "cuda", "rocm"), default="cuda", help="what trains")
    parser.add_argument(
        "--pairs",
        type=whole_number(10_000, least=_LEAST_PAIRS),
        default=30,
        metavar="N",
        help="pairs of blocks of half a second, 6 or more",
    )
    parser.add_argument(
        "--fast-period", type=seconds(0.001, 60), default=0.05, metavar="S", help="seconds between samples of power"
    )
    parser.add_argument(
        "--from", dest="source", type=Path, metavar="FOLDER", help="use overhead.parquet of FOLDER (default: measure)"
    )
    return parser


def run(arguments: argparse.Namespace) -> Answer:
    """Measure the overhead, or read a measurement; write it and return it as text."""
    from dataclasses import asdict

    from triplepoint.files import write_json
    from triplepoint.telemetry.overhead import from_folder, from_loop

    if arguments.source:
        overheads = from_folder(arguments.source)
    else:
        overheads = from_loop(arguments.device, arguments.pairs, arguments.fast_period)
    loops = {loop: asdict(overhead) for loop, overhead in overheads.items()}
    write_json(arguments.out, loops)
    lines = []
    for loop, overhead in overheads.items():
        interval = f"95 % interval {signed_percent(overhead.low, 3)} to {signed_percent(overhead.high, 3)}"
        lines.append(f"{loop}: step time {signed_percent(overhead.change, 3)}, {interval}, {overhead.num_pairs} pairs")
    return Answer({"file": arguments.out, "loops": loops}, "\n".join(lines))
