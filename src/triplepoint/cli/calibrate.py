"""`triplepoint calibrate IN.csv...`."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triplepoint.cli.arguments import add_config, in_file, make_parser, out_file, say, whole_number

if TYPE_CHECKING:
    from triplepoint.calibrate.protocol import Procedure


def parser() -> argparse.ArgumentParser:
    """Return the subcommand's parser."""
    made = make_parser(
        "calibrate",
        "Fit what GPU types and software stacks make of kernel times, and what is not known, to measured step times. "
        "Kernels and collectives are fitted to tables of their own, which 'triplepoint doctor --measure' writes, power "
        "and cooling to a recording, the heat of a cluster to runs on it.",
    )
    made.add_argument(
        "tables", nargs="*", type=in_file, metavar="IN.csv", help="columns of 'predict --published' and step_time_s"
    )
    made.add_argument(
        "--anew", action="store_true",
        help="fit everything to the tables alone (default: their stacks are added to what is fitted)",
    )  # fmt: skip
    made.add_argument("--stack", action="append", metavar="WORDS", help="only frameworks with these words; repeatable")
    made.add_argument("--max-gpus", type=whole_number(1_000_000), metavar="N", help="only rows of N GPUs or fewer")
    made.add_argument(
        "--collectives", type=in_file, metavar="FILE", help="fit links of a cluster to its collectives.csv"
    )
    made.add_argument("--kernels", type=in_file, metavar="FILE", help="fit kernels of a GPU type to its kernels.csv")
    made.add_argument(
        "--power", type=Path, metavar="DIR",
        help="fit power and cooling of a GPU type to a recording of kernels and of a step from rest to load, "
        "as triplepoint characterise --record writes it",
    )  # fmt: skip
    made.add_argument(
        "--heat", type=Path, nargs="+", metavar="RUN",
        help="learn inlet, resistances, preheat and fans of a cluster from runs on it, folders results/runs/RUN after "
        "the telemetry stage ('triplepoint telemetry RUN'); runs of different loads tell more. Writes "
        "CONFIG/clusters/CLUSTER-learned.yaml and its airflow",
    )  # fmt: skip
    made.add_argument(
        "--inference",
        type=in_file,
        metavar="FILE",
        help="intervals of inference from measured batches, columns as in tests/data/inference/tensorrt_llm.csv",
    )
    made.add_argument("--gpu", metavar="NAME", help="GPU type of that recording, a file in CONFIG/gpus")
    add_config(made)
    made.add_argument(
        "--out",
        type=out_file,
        metavar="FILE",
        help="where to write what tables say (default: CONFIG/calibration/fitted.yaml)",
    )
    return made


def run(arguments: argparse.Namespace) -> None:
    """Fit and write the constants."""
    from triplepoint.errors import UserError

    sources = (arguments.collectives, arguments.kernels, arguments.power, arguments.heat, arguments.inference)
    if not (arguments.tables or any(sources)):
        raise UserError(
            "calibrate: nothing to fit to; name a table IN.csv, or one with --collectives, --kernels or --inference, "
            "a recording with --power, or runs with --heat"
        )
    if bool(arguments.power) != bool(arguments.gpu):
        raise UserError("calibrate: --power and --gpu go together; name the recording and the GPU type it is of")
    if arguments.out and not arguments.tables:
        raise UserError("calibrate: --out is for constants fitted to tables IN.csv; others are written into --config")
    from triplepoint.calibrate.protocol import calibrate

    for procedure in _procedures(arguments):
        print("\n".join(calibrate(procedure)))


def _procedures(arguments: argparse.Namespace) -> "Iterator[Procedure[Any, Any]]":
    """Yield what was asked for, each imported as its turn comes."""
    config: Path = arguments.config
    if arguments.collectives:
        from triplepoint.calibrate.collectives import LinkParameters

        yield LinkParameters(arguments.collectives, config)
    if arguments.kernels:
        from triplepoint.calibrate.kernels import KernelTimes

        yield KernelTimes(arguments.kernels, config)
    if arguments.power:
        from triplepoint.calibrate.power_and_cooling import PowerAndCooling

        yield PowerAndCooling(arguments.power, arguments.gpu, config)
    if arguments.heat:
        from triplepoint.calibrate.heat import ChassisHeat

        yield ChassisHeat(arguments.heat, config)
    if arguments.tables:
        from triplepoint.calibrate.step_time import StepTimes
        from triplepoint.simulate.calibration import Calibration

        out = arguments.out or config / "calibration" / "fitted.yaml"
        known = None if arguments.anew else Calibration.load(config)
        yield StepTimes(arguments.tables, out, config, say, arguments.stack, arguments.max_gpus, known)
    if arguments.inference:
        from triplepoint.calibrate.inference import InferenceIntervals

        yield InferenceIntervals(arguments.inference, config)
