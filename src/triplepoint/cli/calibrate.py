"""`triplepoint calibrate IN.csv...`."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triplepoint.cli.answer import Answer
from triplepoint.cli.arguments import add_config, in_file, in_table, make_parser, out_file, say, whole_number

if TYPE_CHECKING:
    from triplepoint.calibrate.protocol import Procedure


def parser() -> argparse.ArgumentParser:
    """Return the subcommand's parser."""
    parser = make_parser(
        "calibrate",
        "Fit the model to measurements. A table IN.csv of step times fits the constants of GPU types and software "
        "stacks, "
        "and the width of the intervals. Tables of 'triplepoint doctor --measure' fit kernels and collectives, a "
        "recording fits power and cooling, and runs fit the heat of their cluster.",
        [
            "triplepoint calibrate measured.csv",
            "triplepoint calibrate --collectives results/doctor/h200x32/20260101T000000/collectives.csv",
            "triplepoint calibrate --heat results/runs/RUN",
        ],
        answer={"report": "lines on what was fitted, and its error on data left out of the fit"},
    )
    parser.add_argument(
        "tables", nargs="*", type=in_table, metavar="IN.csv",
        help="columns of 'predict --published' and step_time_s; - for standard input",
    )  # fmt: skip
    parser.add_argument(
        "--anew", action="store_true",
        help="fit everything to the tables alone (default: add their stacks to the fitted ones)",
    )  # fmt: skip
    parser.add_argument(
        "--stack",
        action="append",
        metavar="WORDS",
        help="use only rows whose framework has these words; repeatable (default: all)",
    )
    parser.add_argument(
        "--max-gpus", type=whole_number(1_000_000), metavar="N", help="use only rows of N GPUs or fewer (default: all)"
    )
    parser.add_argument(
        "--collectives",
        type=in_file,
        metavar="FILE",
        help="fit links of a cluster to this collectives.csv (default: none)",
    )
    parser.add_argument(
        "--kernels", type=in_file, metavar="FILE", help="fit kernels of a GPU type to its kernels.csv (default: none)"
    )
    parser.add_argument(
        "--power", type=Path, metavar="DIR",
        help="fit power and cooling of a GPU type to a recording of kernels and of a step from rest to load, "
        "as 'triplepoint characterise --record' writes it (default: none)",
    )  # fmt: skip
    parser.add_argument(
        "--heat", type=Path, nargs="+", metavar="RUN",
        help="fit inlet, resistances, preheat and fans of a cluster to runs on it, folders results/runs/RUN after "
        "'triplepoint telemetry RUN'; runs of different loads fit better. Writes "
        "CONFIG/clusters/CLUSTER-learned.yaml and its airflow (default: none)",
    )  # fmt: skip
    parser.add_argument(
        "--inference",
        type=in_file,
        metavar="FILE",
        help="fit intervals of inference to measured batches, columns as in tests/data/inference/tensorrt_llm.csv "
        "(default: none)",
    )
    parser.add_argument(
        "--scaling", type=in_file, nargs="+", metavar="IN.csv",
        help="test predictions beyond 64 GPUs: fit to smaller rows, predict the larger ones; columns as IN.csv. Writes "
        "CONFIG/calibration/scaling.yaml, which 'triplepoint project' uses (default: none)",
    )  # fmt: skip
    parser.add_argument(
        "--gpu", metavar="NAME", help="GPU type of the recording of --power, a file in CONFIG/gpus (no default)"
    )
    add_config(parser)
    parser.add_argument(
        "--out",
        type=out_file,
        metavar="FILE",
        help="where to write the constants fitted to IN.csv (default: CONFIG/calibration/fitted.yaml)",
    )
    return parser


def run(arguments: argparse.Namespace) -> Answer:
    """Fit and write the constants."""
    from triplepoint.config.yaml_file import STANDARD_INPUT
    from triplepoint.errors import UserError

    sources = (
        arguments.collectives, arguments.kernels, arguments.power, arguments.heat, arguments.inference,
        arguments.scaling,
    )  # fmt: skip
    if not (arguments.tables or any(sources)):
        raise UserError(
            "calibrate: nothing to fit to; name a table IN.csv, or one with --collectives, --kernels, --inference or "
            "--scaling, a recording with --power, or runs with --heat"
        )
    if bool(arguments.power) != bool(arguments.gpu):
        raise UserError("calibrate: --power needs --gpu, and --gpu needs --power; give the recording and its GPU type")
    if arguments.out and not arguments.tables:
        raise UserError(
            "calibrate: --out takes only constants fitted to tables IN.csv; leave it out, the others are written "
            "below --config"
        )
    if arguments.tables.count(STANDARD_INPUT) > 1:
        raise UserError(
            "calibrate: '-' is given twice, but standard input can be read only once; give one of the tables as a file"
        )
    from triplepoint.calibrate.protocol import calibrate

    lines = [line for procedure in _procedures(arguments) for line in calibrate(procedure)]
    return Answer({"report": lines}, "\n".join(lines))


def _procedures(arguments: argparse.Namespace) -> "Iterator[Procedure[Any, Any]]":
    """Yield the procedures on the command line, each imported just before it runs."""
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
        present = None if arguments.anew else Calibration.load(config)
        yield StepTimes(arguments.tables, out, config, say, arguments.stack, arguments.max_gpus, present)
    if arguments.inference:
        from triplepoint.calibrate.inference import InferenceIntervals

        yield InferenceIntervals(arguments.inference, config)
    if arguments.scaling:
        from triplepoint.calibrate.scaling import Scaling

        yield Scaling(arguments.scaling, config, say)
