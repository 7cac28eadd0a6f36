"""Predictions for a whole table: one configuration a row in, one prediction a row out."""

import csv
import difflib
import io
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields, replace
from pathlib import Path

from triplepoint.errors import UserError
from triplepoint.files import write_text
from triplepoint.simulate.calibration import Calibration
from triplepoint.simulate.job import Job
from triplepoint.simulate.memory.training import peak_memory
from triplepoint.simulate.predict.model import Prediction, predict
from triplepoint.simulate.predict.power import PowerPrediction
from triplepoint.simulate.predict.rows import COLUMNS, Row, read_row
from triplepoint.simulate.predict.serving import predict_serving
from triplepoint.simulate.predict.spelling import shown

OUTPUT = (
    # fmt: off
    "id",
    "status",
    "reason",
    "step_time_s",
    "step_time_lo_s",
    "step_time_hi_s",
    "tokens_per_s_per_gpu",
    "mfu",
    "memory_gib",
    "bubble_fraction",
    "exposed_comm_s",
    "bottleneck",
    "time_to_first_token_s",
    "time_to_first_token_lo_s",
    "time_to_first_token_hi_s",
    "time_per_output_token_s",
    "time_per_output_token_lo_s",
    "time_per_output_token_hi_s",
    "exposed_comm_per_output_token_s",
    # fmt: on
    *(part.name for part in fields(PowerPrediction)),
)
"""Columns of the output, in order."""

_PROGRESS_ROWS = 500
_NAMED = 10
_NEAR = 0.75
"""Likeness from which a column is taken for a misspelt one: `modle` and `precison` are, `kind` and `node` are not."""
_WORDS_OF_STUDIES = {
    "num_layers": "layers", "hidden_size": "hidden", "ffn_hidden_size": "ffn", "num_attention_heads": "heads",
    "num_query_groups": "kv_heads", "vocab_size": "vocab", "num_experts": "experts", "top_k": "topk",
    "sequence_length": "seq", "prompt_tokens": "seq", "num_gpus": "n_gpus", "micro_batch_size": "mbs",
    "global_batch_size": "gbs", "sequence_parallel": "seq_parallel", "data_parallel_sharding": "fsdp",
}  # fmt: skip
"""What studies and models call the same."""
_LARGEST_MICRO_BATCH = 4
"""Where a row does not say, at most so many sequences: beyond, published layouts gain nothing."""


def predict_table(source: Path, target: Path, config: Path, say: Callable[[str], None]) -> str:
    """Write predictions for the rows of a table, and return one line on them.

    Args:
        source: CSV with the columns `COLUMNS`; others are named and passed over.
        target: CSV with the columns `OUTPUT`, whole or not there.
        config: Folder of the configuration.
        say: Tells the user how far it is.

    Raises:
        UserError: If the table cannot be read at all, or the configuration is wrong.
    """
    calibration = Calibration.load(config)
    rows = read_table(source)
    if others := [shown(name) for name in (rows[0] if rows else ()) if name and name not in COLUMNS]:
        more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
        say(f"predict: columns that are not read: {', '.join(others[:_NAMED])}{more}")
    counts: dict[str, int] = {}
    text = io.StringIO()
    writer = csv.DictWriter(text, OUTPUT, lineterminator="\n")
    writer.writeheader()
    for number, cells in enumerate(rows, 1):
        row = read_row(cells, number, config)
        found = predict_row(row, calibration, config)
        counts[found.status] = counts.get(found.status, 0) + 1
        writer.writerow({"id": row.id} | _cells(found))
        if number % _PROGRESS_ROWS == 0:
            say(f"predict: {number} of {len(rows)} rows")
    write_text(target, text.getvalue())
    return f"predict: {len(rows)} rows to {target}: " + ", ".join(f"{n} {word}" for word, n in sorted(counts.items()))


def predict_row(row: Row, calibration: Calibration | None, config: Path) -> Prediction:
    """Return the prediction of one row; whatever is wrong with it is its status."""
    if row.job is None:
        assert row.status
        return Prediction(row.status, row.reason)
    try:
        if row.serving:
            return predict_serving(row.job, row.serving, config)
        return predict(settle(row), calibration, config)
    except (ArithmeticError, ValueError, MemoryError) as error:
        # Numbers nobody thought of; the other rows must not suffer.
        line = " ".join(str(error).split())[:200]
        return Prediction("unsupported", f"cannot be simulated: {type(error).__name__} {line}")


def settle(row: Row) -> Job:
    """Return the job of a row with what it left open made up: what fits in memory, as one would run it.

    Recomputation: the least that fits. Micro-batch: the largest of 1, 2, 4 that fits with it, 1 with a pipeline.
    """
    assert row.job is not None
    best = row.job
    for recompute in ("none", "selective", "full") if "recompute" in row.open_choices else (row.job.recompute,):
        for size in _micro_batches(row):
            best = replace(row.job, recompute=recompute, micro_batch_size=size)
            if not row.open_choices or peak_memory(best).total <= best.gpu.memory_capacity.value:
                return best
    return best


def _micro_batches(row: Row) -> list[int]:
    assert row.job is not None
    if "micro_batch" not in row.open_choices or row.job.layout.pp > 1:
        return [row.job.micro_batch_size]
    each = row.job.global_batch_size // row.job.layout.dp
    sizes = [size for size in (1, 2, 4) if size <= _LARGEST_MICRO_BATCH and each % size == 0]
    return sizes[::-1]


def read_table(source: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV as text by column.

    Raises:
        UserError: If the file is missing, is no table, lacks a column without which nothing can be predicted, or has a
            known one twice or misspelt.
    """
    try:
        text = source.read_text(encoding="utf-8-sig", errors="replace")
    except FileNotFoundError:
        raise UserError(f"{source}: no such file") from None
    except IsADirectoryError:
        raise UserError(f"{source}: is a folder, expected a CSV file") from None
    csv.field_size_limit(sys.maxsize)
    try:
        delimiter = max(",;\t", key=lambda found: len(_known(_header(text, found))))
        header = _header(text, delimiter)
    except csv.Error as error:
        raise UserError(f"{source}: not readable as CSV: {error}") from None
    if not _known(header) - {"id", "notes"}:
        raise UserError(f"{source}: no known column in its first line; expected a CSV with {', '.join(COLUMNS)}")
    _check_header(header, source)
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    next(lines)
    return list(_rows(lines, header, source))


def _header(text: str, delimiter: str) -> list[str]:
    return [name.strip() for name in next(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter), [])]


def _check_header(header: list[str], source: Path) -> None:
    """Refuse a known column that stands twice, or is misspelt: its cells would be passed over."""
    known = {name.lower(): name for name in COLUMNS if name not in ("id", "notes")}
    for name in header:
        if name in COLUMNS and header.count(name) > 1:
            raise UserError(f"{source}: column {name!r} stands {header.count(name)} times; keep one")
        if name in COLUMNS:
            continue
        low = name.lower().replace(" ", "_")
        near = difflib.get_close_matches(low, known, n=1, cutoff=_NEAR)
        meant = _WORDS_OF_STUDIES.get(low) or (known[near[0]] if near else None)
        if meant and meant not in header:
            raise UserError(f"{source}: unknown column {shown(name)} (did you mean {meant!r}?)")


def _known(header: list[str]) -> set[str]:
    return set(header) & set(COLUMNS)


def _rows(lines: Iterator[list[str]], header: list[str], source: Path) -> Iterator[dict[str, str]]:
    try:
        for line in lines:
            if any(cell.strip() for cell in line):
                yield dict(zip(header, line, strict=False))
    except csv.Error as error:
        raise UserError(f"{source}: not readable as CSV: {error}") from None


def _cells(found: Prediction) -> dict[str, object]:
    columns = asdict(found)
    return {name: _cell(value) for name, value in (columns | columns.pop("power")).items() if name != "power"}


def _cell(value: object) -> object:
    """Return a value as it is written: nothing for NaN, six digits of a number."""
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.6g}"
    return value
