"""`triplepoint compare A B` and `triplepoint compare TABLE.csv`."""

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from triplepoint.cli.answer import Answer
from triplepoint.cli.arguments import (
    add_config,
    add_results,
    in_file,
    make_parser,
    out_file,
    out_file_with,
    require_different_files,
    say,
)
from triplepoint.cli.parse import add_rules, add_steps, load_rules
from triplepoint.cli.progress import Progress
from triplepoint.errors import UserError, clipped

_DETAILS = """\
A and B are each one of
  RUN          run id, a folder in RESULTS/runs, or its beginning; the beginning of several repeats means all of them
  FOLDER       a run's folder, parsed or raw, wherever it is
  TRACES       a trace, or a folder of the traces of one job, of any vendor that 'triplepoint trace' reads
  STUDY:POINT  all repeats of a point: settings (parallelism:model=gpt3-175b,tp=8,pp=4) or the beginning of its runs
The first sentence says why B is slower or hotter. Then come what changed, the parts of the step that take the time,
the kernels, and power, clocks, temperatures and energy. The parts add up to the difference of the step, and so do the
kernels. docs/compare.md says how.

TABLE.csv is your own measurements, one configuration a row:
  settings      as 'triplepoint predict' reads them (docs/config.md): model, cluster and global_batch_size, and
                what else says which point it is: tp, pp, micro_batch_size, recompute, engine, ... ; id is optional
  quantities    columns of table points in their unit: step_time_s, gpu_power_w, gpu_temp_max_c, ... ; a blank cell was
                not measured. docs/claims.md lists a few more, such as computation_kernels_s
  <quantity>_sd standard deviation of a quantity, optional: the 90 % interval of the value is 1.645 of them to each side

A row is compared with the run in RESULTS that has its settings; settings it leaves out may have any value, but only
one point may match. Where there is no such run, the row is compared with the prediction by the defaults of 'predict'.
agrees: the intervals of both overlap; differs: they do not; cannot tell: Triplepoint has no number (docs/claims.md).
"""
_EXAMPLES = (
    "triplepoint compare llama3-70b_h200x32_tp4-pp4-dp2 llama3-70b_h100x64_tp4-pp8-dp2 --html why.html",
    "triplepoint compare traces_a100/ traces_mi300x/ --json",
    "triplepoint compare measured.csv -o compared.csv",
)
_ANSWER = {
    "sentence": "why B is slower or hotter; for A and B alone, as all keys but rows",
    "first": "what A is: its word, origin, runs, traced ranks, profiled steps",
    "other": "the same of B",
    "changes": "what differs: area, name, and both values as text",
    "step": "the difference of the step and its parts, which add up to it; null without step times (s)",
    "changed_rank": "rank whose own work changed more than that of the others, whose parts `step` then has; null if "
    "there is none",
    "kernels": "matched kernels, with counts, summed time and what they add to the step (s)",
    "quantities": "columns of table points of A and B, the change with its interval, and whether it is beyond the "
    "spread",
    "notes": "what you need to know to read the numbers",
    "rows": "for TABLE.csv: the judged values, as the columns of OUT",
}
_MAX_WIDTH = 40
"""Longest text of a cell, since a table of a user may hold anything. Unit: character."""


def parser() -> argparse.ArgumentParser:
    """Return the subcommand's parser."""
    parser = make_parser(
        "compare",
        "Say why one run or trace is slower or hotter than another; or judge a table of own measured values.",
        _EXAMPLES,
        _DETAILS,
        _ANSWER,
    )
    parser.add_argument("first", metavar="A|TABLE.csv", help="run, folder, traces or STUDY:POINT; or a table, alone")
    parser.add_argument("other", nargs="?", metavar="B", help="what to compare with A (default: none, A is a table)")
    parser.add_argument(
        "--html", type=out_file_with(".html", ".htm"), metavar="FILE", help="write a page on A and B (default: none)"
    )
    parser.add_argument("-o", "--out", type=out_file, metavar="OUT", help="for TABLE.csv: CSV to write (default: none)")
    add_steps(parser)
    add_rules(parser)
    add_results(parser)
    add_config(parser)
    return parser


def run(arguments: argparse.Namespace) -> Answer:
    """Compare two sides, or the rows of a table."""
    if arguments.other is None:
        return _compare_table(arguments)
    if arguments.out is not None:
        raise UserError("compare: --out is of a table alone; with A and B use --json or --html FILE")
    return _compare_two(arguments)


def _compare_two(arguments: argparse.Namespace) -> Answer:
    from triplepoint.compare.comparison import compare_two
    from triplepoint.compare.sides import Context
    from triplepoint.compare.text import render

    with Progress("reading both sides") as progress:
        context = Context(arguments.results, arguments.config, load_rules(arguments), arguments.steps, progress)
        comparison = compare_two(arguments.first, arguments.other, context)
    if arguments.html is not None:
        from triplepoint.report.comparison import write_comparison

        write_comparison(comparison, arguments.html)
        say(f"compare: page in {arguments.html}")
    return Answer(comparison.content(), render(comparison))


def _compare_table(arguments: argparse.Namespace) -> Answer:
    from triplepoint.compare.own_values import COLUMNS, compare_table
    from triplepoint.files import csv_text, write_text

    source = _table_file(arguments)
    if arguments.out is not None:
        require_different_files(source, arguments.out)
    rows = compare_table(source, arguments.results, arguments.config, say)
    if arguments.out is not None:
        write_text(arguments.out, csv_text(COLUMNS, rows))
    counts = Counter(str(row["verdict"]) for row in rows)
    total = f"compare: {len(rows)} values: {', '.join(f'{count} {word}' for word, count in sorted(counts.items()))}"
    return Answer({"rows": rows}, f"{_table(rows)}\n{total}")


def _table_file(arguments: argparse.Namespace) -> Path:
    """Return the table of measured values. Raises `UserError` for a run or trace without a second one."""
    if arguments.html is not None:
        raise UserError("compare: --html needs two runs or traces, A and B")
    path = Path(arguments.first)
    is_trace = path.name.endswith((".json", ".json.gz", ".json.zst"))
    if path.is_dir() or is_trace or not (path.exists() or path.suffix == ".csv"):
        raise UserError(f"compare: {path} alone; name what it is compared with, 'triplepoint compare A B'")
    try:
        return in_file(arguments.first)
    except argparse.ArgumentTypeError as error:
        raise UserError(f"compare: {error}") from None


def _table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows as aligned text."""
    lines = [["id", "quantity", "measured", "ours", "interval of ours", "difference", "verdict", "by"]]
    for row in rows:
        has_ours = row["ours"] is not None
        lines.append(
            [
                clipped(row["id"], _MAX_WIDTH),
                row["quantity"],
                f"{row['measured']:.5g}",
                f"{row['ours']:.5g}" if has_ours else "",
                f"{row['ours_lo']:.5g} to {row['ours_hi']:.5g}" if has_ours else "",
                _difference(row) if has_ours else "",
                str(row["verdict"]),
                str(row["origin"]) if has_ours else clipped(row["reason"], _MAX_WIDTH),
            ]
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def _difference(row: dict[str, Any]) -> str:
    """Return the difference relative to the measured value in percent, absolute if that is 0."""
    if not row["measured"]:
        return f"{row['difference']:+.3g}"
    return f"{100 * row['difference'] / abs(row['measured']):+.1f} %"
