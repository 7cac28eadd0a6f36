"""`triplepoint whatif POINTS [OTHER] [-f FACTOR ...]`."""

import argparse
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triplepoint.cli.answer import Answer
from triplepoint.cli.arguments import (
    add_config,
    add_prices,
    add_results,
    make_parser,
    out_figure,
    out_rows,
    read_prices,
    say,
)

if TYPE_CHECKING:
    from triplepoint.prices import Prices

_MOST_POINTS = 20

_ABOUT = """\
POINTS and OTHER are each one of
  FILE       configurations as 'triplepoint predict' reads them: .csv, .tsv, .txt, .yaml, .yml, .json, or a study
  FILE:ID    the configuration with this id, or with this number in a study
  RUN        run id, or the folder of a run: its point is simulated, its measured step is shown too
  COMPARISON a file of config/whatif: the fastest points of two clusters, for each model
With OTHER, name one point each: the answer is what makes OTHER slower or faster than POINTS. A factor's part is what
it costs OTHER more than POINTS.

Each factor is changed alone, then all together. What single changes do not explain is the 'interaction'. With up to
six factors every combination is simulated, and Shapley values split the whole change over the factors.
Intervals are 90 % intervals; errors that both sides share cancel. The method is in docs/whatif.md.

factors, as NAME or NAME=VALUE:
{factors}
"""
_EXAMPLES = (
    "triplepoint whatif point.yaml",
    "triplepoint whatif point.yaml -f adapters=8x400 -f cooling=liquid --price-kwh 0.15 --price-gpu-hour 2.5",
    "triplepoint whatif h200.yaml h100.yaml -f network -f pipeline -f memory --json",
    "triplepoint whatif config/whatif/scale_up_vs_out.yaml --out results/tables/whatif.parquet",
)


def parser() -> argparse.ArgumentParser:
    """Return the subcommand's parser."""
    parser = make_parser(
        "whatif",
        "Show what network, memory, power limit, heat or a faulty part cost a job, or why two jobs differ.",
        _EXAMPLES,
        _ABOUT.format(factors=_factors()),
        answer={
            "answer": "a sentence for each point and difference",
            "rows": "rows of table whatif (docs/tables.md)",
            "measured": "median measured step of each run that is named, in seconds",
        },
    )
    parser.add_argument("points", metavar="POINTS", help="points, a run or a comparison, see below")
    parser.add_argument(
        "other",
        metavar="OTHER",
        nargs="?",
        help="point to compare with POINTS (default: none)",
    )
    parser.add_argument(
        "-f", "--factor", action="append", default=[], metavar="FACTOR",
        help="factor to change, repeatable (default: network, scale_up, pipeline, memory, power_limit, cooling)",
    )  # fmt: skip
    add_prices(parser)
    parser.add_argument(
        "--no-shapley", action="store_true", help="do not simulate combinations: an eighth of the time with six factors"
    )
    parser.add_argument("--out", type=out_rows, metavar="OUT", help="file to write, .parquet or .csv (default: none)")
    parser.add_argument("--figure", type=out_figure, metavar="FILE", help=".pdf, .png or .svg to draw (default: none)")
    add_results(parser)
    add_config(parser)
    return parser


def _factors() -> str:
    """Return the lines of the help on factors and their values."""
    from triplepoint.whatif.factors import FACTORS

    lines = []
    for name, factor in FACTORS.items():
        default = f" (default: {factor.default})" if factor.default else ""
        lines += [f"  {name:<12} {factor.what}", f"  {'':<12} {factor.values}{default}"]
    return "\n".join(lines).replace("%", "%%")


def run(arguments: argparse.Namespace) -> Answer:
    """Explain points, the difference of two points, or a comparison."""
    out: Path | None = arguments.out
    prices = read_prices(arguments)
    rows = _rows(arguments, prices)
    if out is not None:
        from triplepoint.tables.whatif import WHATIF

        WHATIF.write_rows(out, rows)
        say(f"whatif: {len(rows)} rows to {out}")
    if arguments.figure is not None:
        from triplepoint.figures.write import save
        from triplepoint.whatif.figure import draw

        save(draw(rows), arguments.figure)
        say(f"whatif: figure in {arguments.figure}")
    measured = _measured(arguments)
    from triplepoint.whatif.text import headlines, render, render_measured

    content = {"answer": headlines(rows), "rows": rows, "measured": measured}
    if arguments.json or out is not None:
        return Answer(content)
    return Answer(content, "\n".join([render(rows), *render_measured(rows, measured)]))


def _measured(arguments: argparse.Namespace) -> dict[str, float]:
    """Return the median measured step of each run on the command line that was measured, not simulated. Unit: s."""
    from triplepoint.aggregate.steps import measured_step_s
    from triplepoint.errors import UserError

    measured_steps_s = {}
    for run in (text for text in (arguments.points, arguments.other) if text and not Path(text).exists()):
        with contextlib.suppress(UserError):  # a recording may have no measured step
            if (measured_s := measured_step_s(arguments.results / "runs" / run)) is not None:
                measured_steps_s[run] = measured_s
    return measured_steps_s


def _rows(arguments: argparse.Namespace, prices: "Prices") -> list[dict[str, Any]]:
    """Return the rows of table `whatif` for the points on the command line."""
    from triplepoint.cli.named_points import named_points
    from triplepoint.errors import UserError
    from triplepoint.whatif.case import Case
    from triplepoint.whatif.comparison import is_comparison, rows_of
    from triplepoint.whatif.explain import explain
    from triplepoint.whatif.factors import read_changes, without_power
    from triplepoint.whatif.rows import case_rows, difference_rows

    source, config = Path(arguments.points), arguments.config
    if source.is_file() and is_comparison(source):
        if arguments.other or arguments.factor:
            raise UserError(f"{source}: a comparison names its points and factors; leave OTHER and --factor out")
        return rows_of(source, config, prices, say)
    changes = read_changes(arguments.factor)
    requests = named_points(arguments.points, arguments, _MOST_POINTS)
    if arguments.other:
        requests += named_points(arguments.other, arguments, _MOST_POINTS)
        if len(requests) != 2:
            raise UserError(f"whatif: {len(requests)} points, a difference is of one each; name one as FILE:ID")
        if (requests[0].point, requests[0].stack) == (requests[1].point, requests[1].stack):
            raise UserError(f"{arguments.points} and {arguments.other}: both are the same point; name two that differ")
    cases = [Case.of(request, config) for request in requests]
    if not arguments.factor:
        changes, note = without_power(changes, cases, config)
        if note:
            say(f"whatif: {note}")
    explained = explain(cases, changes, config, prices, not arguments.no_shapley)
    if arguments.other:
        one, other = explained
        rows = [*case_rows(one, side="from"), *case_rows(other, side="to")]
        return rows + list(difference_rows((one, other), config))
    return [row for case in explained for row in case_rows(case)]
