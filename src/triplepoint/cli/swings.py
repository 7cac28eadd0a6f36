"""`triplepoint swings RUN|FILE|POINT`."""

import argparse
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from triplepoint.cli.answer import Answer
from triplepoint.cli.arguments import (
    add_config,
    add_results,
    check_finished,
    in_file,
    make_parser,
    number,
    out_figure,
    run_folder,
    say,
    seconds,
    whole_number,
)
from triplepoint.errors import UserError

if TYPE_CHECKING:
    from triplepoint.advise.swings.answer import Capped, SwingAnswer
    from triplepoint.advise.swings.point import Evaluations, SimulatedPower
    from triplepoint.advise.swings.source import NodePower
    from triplepoint.advise.swings.spec import SwingSpec
    from triplepoint.predictions import Request
    from triplepoint.simulate.power.over_time import Meter

    Question = tuple[SwingSpec | None, tuple[float, float] | None, int]
    """Specification, band and number of jobs."""

_ABOUT = """\
SOURCE is one of
  RUN        run id, or the folder of a run: meters at the plug, or power sensors of GPUs where a node has no meter
  FILE       .parquet or .csv with t_s, time_ms or t_ns, and node and node_power_w, or a column for each node
  POINT      .yaml, .yml or .json as 'triplepoint predict' reads it, or POINT:ID for one of several: many steps of it
             are simulated

--spec names a YAML file with limits on range, ramps and bands of frequency. If power exceeds one, the answer says what
a floor, storage, a power limit or staggered jobs would do. Both forms of file are in docs/swings.md.
"""
_EXAMPLES = (
    "triplepoint swings node_power.parquet --spec grid.yaml --figure swings.pdf",
    "triplepoint swings point.yaml --band 0.1:5 --spec grid.yaml --jobs 4",
    "triplepoint swings config/studies/swings.yaml --period 2.005 --window 2 --evaluate 12:5659 --steps 288",
)
_ANSWER = {
    "answer": "two sentences",
    "name": "the run, file or point",
    "origin": "measured, simulated, or file where nothing says which",
    "num_nodes": "nodes",
    "num_samples": "samples of each",
    "period_s": "time between samples",
    "window_s": "what a sample is the mean of, 0 where not known",
    "seen_hz": "highest frequency that samples show",
    "band_hz": "the band looked at, or the part of it that is seen",
    "levels": "node and rack that swing most, and the job: range, ramps, strongest line, band; intervals: 90 % of each",
    "together": "coherence and correlation of nodes, and the line they make of the job",
    "spectrum": "of the job: frequencies_hz and amplitudes_w, at most 500 (docs/swings.md)",
    "verdicts": "each line of the specification: found with its 90 % interval (lo, hi), limit, margin, verdict in "
    "words, and passes, null where the interval holds the limit",
    "remedies": "stagger, floor, storage, cap: whether it is enough, what it takes and costs",
    "notes": "what could not be told, and why",
}
_POINT_SUFFIXES = (".yaml", ".yml", ".json")
_STEPS = 64
"""Steps of a point that are simulated."""
_CAPS = (0.9, 0.8, 0.7)
"""Power limits to try if a point exceeds a limit of the specification and no cap is given, over the present one."""


def parser() -> argparse.ArgumentParser:
    """Return the subcommand's parser."""
    parser = make_parser(
        "swings",
        "Show how far and how fast the power of a job swings, whether limits allow it, and what would smooth it.",
        _EXAMPLES,
        _ABOUT,
        answer=_ANSWER,
    )
    parser.add_argument("source", metavar="SOURCE", help="run, file or point, see below")
    parser.add_argument("--spec", type=in_file, metavar="FILE", help="YAML with limits (default: no limits)")
    parser.add_argument(
        "--band",
        type=_band,
        metavar="LOW:HIGH",
        help="band of frequencies in Hz; refused unless readings show all of it (default: what they show of 0.1:20)",
    )
    parser.add_argument(
        "--jobs", type=whole_number(1000), default=1, metavar="N", help="ask about N independent jobs in one hall"
    )
    parser.add_argument(
        "--nodes-per-rack", type=whole_number(), metavar="N", help="nodes that share a rack (default: the cluster's)"
    )
    parser.add_argument(
        "--window", type=seconds(0, 3600), metavar="S",
        help="time a reading is averaged over (default: from sensor cards; of a point, the same as --period)",
    )  # fmt: skip
    parser.add_argument(
        "--period", type=seconds(1e-3, 3600), metavar="S",
        help="of a point, time between readings of its meters (default: as fine as it is simulated)",
    )  # fmt: skip
    parser.add_argument(
        "--steps", type=whole_number(10000), metavar="N", help=f"of a point, steps to simulate (default: {_STEPS})"
    )
    parser.add_argument(
        "--evaluate", type=_evaluations, metavar="EVERY:SEQUENCES",
        help="of a point, an evaluation of so many sequences after every so many steps (default: none)",
    )  # fmt: skip
    parser.add_argument(
        "--cap", action="append", default=[], type=number(0, 1e5, "watts", is_least_allowed=False), metavar="W",
        help="of a point, power limit of GPUs to try; repeatable (default: 90, 80 and 70 %% if power exceeds a limit)",
    )  # fmt: skip
    parser.add_argument("--figure", type=out_figure, metavar="OUT", help=".pdf, .png or .svg to write (default: none)")
    add_results(parser)
    add_config(parser)
    return parser


def _band(text: str) -> tuple[float, float]:
    low, _, high = text.partition(":")
    try:
        band = float(low), float(high)
    except ValueError:
        band = math.nan, math.nan
    if not 0 < band[0] < band[1] < math.inf:
        raise argparse.ArgumentTypeError(f"found {text[:40]!r}, expected LOW:HIGH in Hz, such as 0.1:20")
    return band


def _evaluations(text: str) -> tuple[int, int]:
    if not re.fullmatch(r"[1-9]\d{0,5}:[1-9]\d{0,8}", text):
        raise argparse.ArgumentTypeError(f"found {text[:40]!r}, expected EVERY:SEQUENCES, such as 12:5659")
    every, sequences = text.split(":")
    return int(every), int(sequences)


def run(arguments: argparse.Namespace) -> Answer:
    """Report the power swings of a recording or a simulated point."""
    from triplepoint.advise.swings.answer import answer_of
    from triplepoint.advise.swings.spec import read_spec
    from triplepoint.advise.swings.text import headline, render

    out: Path | None = arguments.figure
    spec = read_spec(arguments.spec) if arguments.spec else None
    question = spec, arguments.band, arguments.jobs
    if _is_point(arguments.source):
        answer = _answer_of_point(arguments, question)
    else:
        answer = answer_of(_read_power(arguments), *question)
    if out is not None:
        from triplepoint.advise.swings.figure import draw
        from triplepoint.figures.write import save

        save(draw(answer), out)
        say(f"swings: figure in {out}")
    text = render(answer)
    if answer.spec is None:
        text += "\n\nNext: --spec FILE.yaml judges the swings by limits of a grid; docs/swings.md has an example."
    return Answer({"answer": headline(answer)} | answer.content(), text)


def _is_point(source: str) -> bool:
    return Path(source).suffix in _POINT_SUFFIXES or Path(source.rpartition(":")[0]).suffix in _POINT_SUFFIXES


def _answer_of_point(arguments: argparse.Namespace, question: "Question") -> "SwingAnswer":
    """Return the swings of a simulated point, also under power caps if they are given or a limit is exceeded."""
    from triplepoint.advise.swings.answer import BAND_HZ, answer_of, with_capped
    from triplepoint.advise.swings.point import drawn_over_steps, simulate_power
    from triplepoint.cli.named_points import named_points

    (request,) = named_points(arguments.source, arguments, 1)
    simulated = simulate_power(request, arguments.config)
    power, (meter, evaluations) = _over_steps(simulated, arguments), _readings(arguments)
    spec, band_hz, _ = question
    lowest_hz = min([(band_hz or BAND_HZ)[0], *(band.low_hz for band in (spec.bands if spec else ()))])
    drawn = drawn_over_steps(simulated, lowest_hz, evaluations, meter, power)
    answer = answer_of(power, *question, drawn)
    caps = list(arguments.cap)
    if not caps and any(verdict.passes is not True for verdict in answer.verdicts):
        caps = [share * simulated.point.power_limit_w for share in _CAPS]
    capped = [_simulate_cap(request, arguments, cap_w, simulated.step.length_s) for cap_w in caps]
    return with_capped(answer, question[2], capped) if capped else answer


def _over_steps(simulated: "SimulatedPower", arguments: argparse.Namespace) -> "NodePower":
    """Return the power of nodes over many steps, as meters show it if their period is given."""
    from triplepoint.advise.swings.point import over_steps

    meter, evaluations = _readings(arguments)
    power = over_steps(simulated, arguments.steps or _STEPS, evaluations, meter)
    return replace(power, nodes_per_rack=arguments.nodes_per_rack or power.nodes_per_rack)


def _readings(arguments: argparse.Namespace) -> "tuple[Meter | None, Evaluations | None]":
    """Return the meters of a point and its evaluations, None where there are none."""
    from triplepoint.advise.swings.point import Evaluations
    from triplepoint.simulate.power.over_time import Meter

    meter = None
    if arguments.period is not None:
        meter = Meter(arguments.period, arguments.period if arguments.window is None else arguments.window)
    elif arguments.window is not None:
        raise UserError("--window of a point needs --period: without it there are no meters, whose readings are means")
    return meter, Evaluations(*arguments.evaluate) if arguments.evaluate else None


def _simulate_cap(request: "Request", arguments: argparse.Namespace, cap_w: float, step_s: float) -> "Capped":
    """Return the power under a power limit of GPUs.

    Args:
        request: The point.
        arguments: Command line.
        cap_w: Power limit. Unit: W.
        step_s: Step time without it. Unit: s.
    """
    from triplepoint.advise.swings.answer import Capped
    from triplepoint.advise.swings.point import simulate_power

    simulated = simulate_power(request, arguments.config, cap_w)
    return Capped(cap_w, simulated.step.length_s / step_s, _over_steps(simulated, arguments))


def _read_power(arguments: argparse.Namespace) -> "NodePower":
    """Return the recorded power of a file or a run."""
    from triplepoint.advise.swings.source import SUFFIXES, read_file, read_run

    for option in ("period", "steps", "evaluate", "cap"):
        if getattr(arguments, option):
            raise UserError(f"--{option} is of a point; {arguments.source} is a recording")
    path = Path(arguments.source)
    if path.suffix in SUFFIXES:
        if not path.is_file():
            raise UserError(f"{path}: no such file; expected readings of power, or a run id")
        power = read_file(path)
    else:
        arguments.run = arguments.source
        folder = run_folder(arguments)
        check_finished(folder, "a point file is simulated: 'triplepoint swings point.yaml'")
        power = read_run(folder, arguments.config)
    window_s = power.window_s if arguments.window is None else arguments.window
    if arguments.window is not None and window_s >= power.lasts_s:
        raise UserError(
            f"--window {window_s:g}: {arguments.source} lasts {power.lasts_s:.3g} s; give the time that a reading is "
            "averaged over, less than that"
        )
    return replace(power, window_s=window_s, nodes_per_rack=arguments.nodes_per_rack or power.nodes_per_rack)
