"""`triplepoint sample FILE`: the sampler process that the agent of a node starts."""

import argparse
import os
import signal

from triplepoint.cli.arguments import make_parser, out_file, seconds


def parser() -> argparse.ArgumentParser:
    """Return the subcommand's parser."""
    parser = make_parser(
        "sample",
        "Sample this node's sensors into Arrow streams until SIGTERM.",
        ["triplepoint sample node0.arrow --device cuda"],
    )
    parser.add_argument(
        "out", type=out_file, metavar="FILE", help="Arrow stream to write; GPUs add FILE.fast beside it"
    )
    parser.add_argument("--device", choices=("cpu", "cuda", "rocm"), default="cpu", help="what the ranks compute on")
    parser.add_argument(
        "--period", type=seconds(0.001, 3600), default=0.2, metavar="S", help="seconds between samples of traffic, host"
    )
    parser.add_argument(
        "--fast-period", type=seconds(0.001, 3600), default=0.05, metavar="S", help="seconds between samples of power"
    )
    return parser


def run(arguments: argparse.Namespace) -> None:
    """Sample until SIGTERM."""
    # Arrow's own allocator reserves tens of megabytes; the sampler writes kilobytes per second.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    from triplepoint.processes import die_with_parent
    from triplepoint.telemetry.sampler import run_sampler

    die_with_parent(signal.SIGTERM)
    run_sampler(arguments.out, arguments.device, arguments.period, arguments.fast_period)
