"""`triplepoint project POINT`."""

import argparse
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triplepoint.cli.answer import Answer
from triplepoint.cli.arguments import (
    add_config,
    add_results,
    make_parser,
    number,
    out_figure,
    out_rows,
    out_study,
    plan_command,
    say,
    whole_number,
)
from triplepoint.errors import UserError

if TYPE_CHECKING:
    from triplepoint.advise.project.failures import Failures
    from triplepoint.advise.project.network import Network
    from triplepoint.advise.project.project import Question

_ABOUT = """\
SOURCE is one of
  POINT   .yaml, .yml or .json as 'triplepoint predict' reads it, or POINT:ID for one of several
  RUN     run id, or the folder of a run; step times of a measured run start from its median measured step
  FILE    of config/projection, which holds the whole question
The job is scaled by data parallelism: each replica stays as it is, and there are more or fewer of them.

columns, with 90 % intervals:
  efficiency         tokens per second and GPU, compared with the job as it is on the same network
  slowest GPU        how much longer the slowest GPU computes than the median one; interval over draws of parts
  all nodes          mean power at the plug, which is also the heat; without switches, storage and cooling
  energy             of all nodes, per trained token
  checkpoint every   time between checkpoints that gives the highest goodput
  goodput            share of the time spent on work that is kept

Assumptions, and how intervals were checked: docs/projection.md.
"""
_EXAMPLES = (
    "triplepoint project point.yaml",
    "triplepoint project llama3-70b_h200x32_tp4-pp4-dp2_mbs1_r1 --gpus 64,1024",
    "triplepoint project point.yaml --gpus 8192 --adapters 8x100 --adapters 8x800 --figure scale.pdf",
    "triplepoint project point.yaml --topology dragonfly --oversubscription 2 --failures 1:2:4 --restart 300",
)
_ANSWER = {
    "answer": "a few sentences",
    "start": "GPUs of the point",
    "measured_step_time_s": "median measured step that all follows from; null where it is the prediction",
    "study": "study of the sizes that the cluster has, or null",
    "rows": "a size on a network each, the point first: quantities, with _lo and _hi the ends of 90 % intervals",
    "known": "what leaving scale out of the fit showed: errors and share in the interval",
    "failures": "rate of failures (null: published curve), checkpoint_s, restart_s",
    "batch": "grown or fixed",
    "num_draws": "draws of parts",
    "figure": "file that was written, or null",
}
_QUESTION_OPTIONS = (
    "gpus", "batch", "topology", "oversubscription", "gpus_per_leaf", "adapters", "draws", "failures", "checkpoint",
    "restart",
)  # fmt: skip
"""Options that are keys of a file in `config/projection`."""
_MOST_DRAWS = 10_000
_MOST_GPUS = 10**7


def parser() -> argparse.ArgumentParser:
    """Return the subcommand's parser."""
    parser = make_parser(
        "project",
        "Project a training job to 1,000 to 100,000 GPUs: speed, power, heat, failures.",
        _EXAMPLES,
        _ABOUT,
        answer=_ANSWER,
    )
    parser.add_argument("point", metavar="SOURCE", help="the job to start from, see below")
    add_results(parser)
    parser.add_argument(
        "--gpus", type=_sizes, default=(), metavar="N,N",
        help="numbers of GPUs (default: near 1024, 8192, 32768, 102400; with --batch fixed, doublings that divide it)",
    )  # fmt: skip
    parser.add_argument(
        "--batch",
        choices=("grown", "fixed"),
        default="grown",
        help="whether the global batch grows or stays",
    )
    _add_network(parser)
    parser.add_argument("--draws", type=whole_number(_MOST_DRAWS), default=20, metavar="N", help="draws of GPU parts")
    _add_failures(parser)
    parser.add_argument("--figure", type=out_figure, metavar="FILE", help=".pdf, .png or .svg to draw (default: none)")
    parser.add_argument(
        "--study", type=out_study, metavar="FILE",
        help="write a study of the sizes that the cluster has, to check the efficiency (default: none)",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=out_rows, metavar="FILE", help="write the table projection, .parquet or .csv (default: none)"
    )
    add_config(parser)
    return parser


def _add_network(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--topology",
        action="append",
        default=[],
        choices=("fat_tree", "rail_optimised", "dragonfly"),
        help="switches; repeat it to compare (default: the cluster's)",
    )
    parser.add_argument(
        "--oversubscription", type=number(1, 64), metavar="RATIO",
        help="bandwidth into a leaf switch or group, over the bandwidth out of it (default: the cluster's)",
    )  # fmt: skip
    parser.add_argument(
        "--gpus-per-leaf",
        type=whole_number(_MOST_GPUS),
        metavar="N",
        help="GPUs below one leaf switch, or of one group (default: by topology)",
    )
    parser.add_argument(
        "--adapters", action="append", default=[], type=_adapters, metavar="NxGb/s",
        help="adapters of a node and Gb/s of each, such as 8x400; repeat it to compare (default: the cluster's)",
    )  # fmt: skip


def _add_failures(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--failures", type=_rates, metavar="RATE",
        help="failures per 1,000 node-days, or LOW:RATE:HIGH with its interval (default: published curve)",
    )  # fmt: skip
    parser.add_argument(
        "--checkpoint", type=number(1e-3, 86400), metavar="S", help="seconds a checkpoint stops the job (default: 33)"
    )
    parser.add_argument(
        "--restart",
        type=number(0, 86400),
        metavar="S",
        help="seconds from a failure to the restart (default: 300)",
    )


def _sizes(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"[1-9]\d{0,14}(,[1-9]\d{0,14}){0,31}", text):
        raise argparse.ArgumentTypeError(f"found {text[:40]!r}, expected whole numbers, such as 1024,8192")
    return tuple(int(word) for word in text.split(","))


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _adapters(text: str) -> tuple[int, float]:
    from triplepoint.advise.project.network import read_adapters

    try:
        return read_adapters(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _rates(text: str) -> tuple[float, ...]:
    rates = [_float(word) for word in text.split(":")]
    if len(rates) not in (1, 3) or not all(0 < rate <= 1e5 for rate in rates) or rates != sorted(rates):
        raise argparse.ArgumentTypeError(f"found {text[:40]!r}, expected RATE or LOW:RATE:HIGH, such as 2.3:3.9:6.5")
    return tuple(rates)


def run(arguments: argparse.Namespace) -> Answer:
    """Project a point; write the study, table and figure on request."""
    from triplepoint.advise.project import text as answer
    from triplepoint.advise.project.project import project
    from triplepoint.figures.marks import DEVICES
    from triplepoint.files import write_text

    question = _question(arguments)
    if len(question.networks) > (most := len(DEVICES)):  # the figure has a colour for each
        raise UserError(f"project: {len(question.networks)} networks, at most {most} are compared at once")
    if arguments.study is not None:
        answer.check_study(question, arguments.config)
    projection = project(question, arguments.config)
    rows, text, figure = answer.rows(projection), answer.render(projection), arguments.figure
    if arguments.study is not None:
        write_text(arguments.study, answer.study_of(projection, arguments.config))
        command = plan_command(arguments.study, arguments.config, [question.request.point.cluster.name])
        text += f"\n\nNext: {command}"
    if figure is not None or arguments.out is not None:
        _write(rows, arguments.out, figure)
        if figure:
            say(f"project: figure in {figure}")
    content = {
        "answer": answer.headline(projection), "start": projection.start, "rows": rows, "known": projection.known,
        "failures": question.failures, "batch": question.batch, "num_draws": question.num_draws, "figure": figure,
        "measured_step_time_s": question.measured_s, "study": arguments.study,
    }  # fmt: skip
    return Answer(content, text)


def _question(arguments: argparse.Namespace) -> "Question":
    """Return the question, from a file in `config/projection` or from options."""
    from triplepoint.advise.project.file import is_projection, read_question
    from triplepoint.advise.project.network import Network
    from triplepoint.advise.project.project import Question
    from triplepoint.aggregate.steps import measured_step_s
    from triplepoint.cli.named_points import named_points

    path = Path(arguments.point)
    if is_projection(path):
        defaults = parser().parse_args([arguments.point])
        if given := [name for name in _QUESTION_OPTIONS if getattr(arguments, name) != getattr(defaults, name)]:
            option = given[0].replace("_", "-")
            raise UserError(f"project: {path} says what is asked; leave out --{option}, or give a point")
        return read_question(path, arguments.config)
    (request,) = named_points(arguments.point, arguments, 1)
    networks, failures = _networks(arguments), _failures(arguments)
    folder = arguments.results / "runs" / request.id
    starts_as_run = request.where == folder and networks == (Network(),)
    measured_s = measured_step_s(folder) if starts_as_run else None
    return Question(request, arguments.gpus, networks, arguments.batch, arguments.draws, failures, measured_s)


def _write(rows: list[dict[str, Any]], out: Path | None, figure: Path | None) -> None:
    """Write the table and draw the figure, if their paths are given."""
    from triplepoint.tables.projection import PROJECTION

    if out is not None:
        PROJECTION.write_rows(out, rows)
    if figure is not None:
        from triplepoint.figures.projection import draw
        from triplepoint.figures.write import save

        save(draw({"projection": PROJECTION.from_rows(rows).to_pandas()})[0], figure)


def _networks(arguments: argparse.Namespace) -> "tuple[Network, ...]":
    from triplepoint.advise.project.network import Network

    adapters, topologies = dict.fromkeys(arguments.adapters) or (None,), dict.fromkeys(arguments.topology) or (None,)
    return tuple(
        Network(topology, arguments.oversubscription, each, arguments.gpus_per_leaf)
        for topology in topologies
        for each in adapters
    )


def _failures(arguments: argparse.Namespace) -> "Failures":
    from triplepoint.advise.project.failures import Failures

    given: dict[str, Any] = {"checkpoint_s": arguments.checkpoint, "restart_s": arguments.restart}
    if rates := arguments.failures:
        given |= {"rate": rates[len(rates) // 2], "rate_lo": rates[0], "rate_hi": rates[-1]}
    return Failures(**{name: value for name, value in given.items() if value is not None})
