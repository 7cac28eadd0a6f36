"""`triplepoint compare TABLE.csv`."""

import argparse
import csv
import io
from collections import Counter
from collections.abc import Sequence
from typing import Any

from triplepoint.cli.arguments import add_config, add_results, in_file, make_parser, out_file, say

_ABOUT = """\
TABLE.csv is your own measurements, one configuration a row:
  settings      as 'triplepoint predict' reads them (docs/config.md): model, cluster and global_batch_size, and
                what else says which point it is: tp, pp, micro_batch_size, recompute, engine, ... ; id is optional
  quantities    columns of table points in their unit: step_time_s, gpu_power_w, gpu_temp_max_c, ... ; a blank cell was
                not measured. docs/claims.md lists a few more, such as computation_kernels_s
  <quantity>_sd standard deviation of a quantity, optional: the value is taken to be known to 1.645 of them (90 %)

A row is held against the run in RESULTS that has the settings it states; the others may be any, but must not leave
several points. Where there is no such run it is held against the prediction, with the defaults of 'predict'.
agrees: the intervals of both overlap; differs: they do not; cannot tell: there is no number of ours (docs/claims.md).

example:
  triplepoint compare measured.csv -o compared.csv
"""
_WIDEST = 40


def parser() -> argparse.ArgumentParser:
    """Return the subcommand's parser."""
    made = make_parser("compare", "Judge a table of measured values by the results, or by the prediction.")
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    made.epilog = _ABOUT
    made.add_argument("source", type=in_file, metavar="TABLE.csv", help="measured values, one configuration a row")
    made.add_argument("-o", "--out", type=out_file, metavar="OUT", help="CSV to write (default: only print a table)")
    add_results(made)
    add_config(made)
    return made


def run(arguments: argparse.Namespace) -> None:
    """Compare the rows of a table."""
    from triplepoint.compare import COLUMNS, compare_table
    from triplepoint.files import write_text

    _check_apart(arguments)
    rows = compare_table(arguments.source, arguments.results, arguments.config, say)
    print(_table(rows))
    counts = Counter(str(row["verdict"]) for row in rows)
    print(f"compare: {len(rows)} values: {', '.join(f'{count} {word}' for word, count in sorted(counts.items()))}")
    if arguments.out is not None:
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_text(arguments.out, text.getvalue())


def _check_apart(arguments: argparse.Namespace) -> None:
    from triplepoint.errors import UserError

    source, out = arguments.source, arguments.out
    if out is not None and source.exists() and out.exists() and source.samefile(out):
        raise UserError(f"{out}: is the file that is read, {source}; name another one to write")


def _table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows as aligned text."""
    lines = [["id", "quantity", "measured", "ours", "interval of ours", "difference", "verdict", "by"]]
    for row in rows:
        has_ours = row["ours"] is not None
        lines.append(
            [
                _plain(row["id"]),
                row["quantity"],
                f"{row['measured']:.5g}",
                f"{row['ours']:.5g}" if has_ours else "",
                f"{row['ours_lo']:.5g} to {row['ours_hi']:.5g}" if has_ours else "",
                _difference(row) if has_ours else "",
                str(row["verdict"]),
                str(row["origin"]) if has_ours else _plain(row["reason"]),
            ]
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def _difference(row: dict[str, Any]) -> str:
    if not row["measured"]:
        return f"{row['difference']:+.3g}"
    return f"{100 * row['difference'] / abs(row['measured']):+.1f} %"


def _plain(text: str) -> str:
    """Return text on one line and of a few words: a table may hold anything."""
    line = "".join(letter if letter.isprintable() else "?" for letter in text)
    return line if len(line) <= _WIDEST else f"{line[: _WIDEST - 3]}..."
