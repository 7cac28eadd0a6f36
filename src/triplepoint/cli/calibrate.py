"""`triplepoint calibrate IN.csv...`."""

import argparse
from pathlib import Path

from triplepoint.cli.arguments import make_parser, say


def parser() -> argparse.ArgumentParser:
    """Return the subcommand's parser."""
    made = make_parser(
        "calibrate",
        "Fit the one constant of each version of a software stack, and the spread of errors, to measured step times. "
        "Kernels and collectives are not touched: they are fitted to tables of their own.",
    )
    made.add_argument(
        "tables", nargs="+", type=Path, metavar="IN.csv", help="columns of 'triplepoint predict' and step_time_s"
    )
    made.add_argument("--stack", action="append", metavar="WORDS", help="only frameworks with these words; repeatable")
    made.add_argument("--max-gpus", type=int, metavar="N", help="only rows of N GPUs or fewer")
    made.add_argument("--config", type=Path, default=Path("config"), metavar="DIR", help="folder of the configuration")
    made.add_argument(
        "--out", type=Path, metavar="FILE", help="where to write (default: CONFIG/calibration/fitted.yaml)"
    )
    return made


def run(arguments: argparse.Namespace) -> None:
    """Fit and write the constants."""
    from triplepoint.simulate.calibration.measured import calibrate_tables

    out = arguments.out or arguments.config / "calibration" / "fitted.yaml"
    print(calibrate_tables(arguments.tables, out, arguments.config, arguments.stack, arguments.max_gpus, say))
