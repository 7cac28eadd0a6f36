"""Predictions for a published table with one training run per row."""

import difflib
from collections.abc import Callable
from pathlib import Path

from triplepoint.config.yaml_file import read_csv
from triplepoint.errors import UserError, shown
from triplepoint.published.rows import COLUMNS, read_row
from triplepoint.simulate.predict.prediction import COLUMNS as OUTPUT
from triplepoint.simulate.predict.prediction import Prediction, read_calibrations, with_progress

_MOST_NAMED = 10
"""Most unknown columns that a message names."""
_NEAR = 0.75
"""Least similarity of a misspelt column: `modle` and `precison` have it, `kind` and `node` do not."""
_SAME = 0.9
"""Least similarity of a misspelt column where the correct one is present too: `precison` has it, `gpus` does not."""
_SYNONYMS = {
    "num_layers": "layers", "hidden_size": "hidden", "ffn_hidden_size": "ffn", "num_attention_heads": "heads",
    "num_query_groups": "kv_heads", "vocab_size": "vocab", "num_experts": "experts", "top_k": "topk",
    "sequence_length": "seq", "prompt_tokens": "seq", "num_gpus": "n_gpus", "micro_batch_size": "mbs",
    "global_batch_size": "gbs", "sequence_parallel": "seq_parallel", "data_parallel_sharding": "fsdp",
    "dtype": "precision", "number_format": "precision", "accelerator": "gpu", "world_size": "n_gpus",
    "gpu_count": "n_gpus", "stack": "framework", "network": "interconnect", "seq_len": "seq", "seqlen": "seq",
    "recomputation": "recompute", "activation_checkpointing": "recompute", "lora": "trainable",
    "lora_targets": "trainable", "lora_rank": "trainable", "sharding": "fsdp",
}  # fmt: skip
"""Columns by other names of the same quantity, as in studies, models and other tables."""


def predict_table(
    source: Path,
    config: Path,
    say: Callable[[str], None],
    with_power: bool = True,
    progress: Callable[[str], None] = lambda line: None,
) -> list[tuple[str, Prediction]]:
    """Predict each row of a table.

    Args:
        source: CSV with the columns `COLUMNS`. Other columns are named with `say` and ignored.
        config: Folder of the configuration.
        say: Called with a line on columns that are not read.
        with_power: Whether to predict power and heat.
        progress: Called with a line on how many rows are done.

    Returns:
        Identifier and prediction of each row.

    Raises:
        UserError: If the table cannot be read, or the configuration is invalid.
    """
    read_calibrations(config)
    table = read_table(source)
    if others := [shown(name) for name in (table[0] if table else ()) if name and name not in COLUMNS]:
        more = f" and {len(others) - _MOST_NAMED} more" if len(others) > _MOST_NAMED else ""
        say(f"predict: columns left unread: {', '.join(others[:_MOST_NAMED])}{more}")
    rows = [read_row(cells, number, config) for number, cells in enumerate(table, 1)]
    return [(row.id, row.predict(config, with_power)) for row in with_progress(rows, progress)]


def read_table(source: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV as text by column.

    Raises:
        UserError: If the file is missing or no table, or has no known column, or has one twice or misspelt.
    """
    header, rows = read_csv(source, COLUMNS, errors="replace")
    if not {*header} & {*COLUMNS} - {"id", "notes"}:
        raise UserError(f"{source}: no known column in its first line; expected a CSV with {', '.join(COLUMNS)}")
    _check_header(header, source)
    return [dict(zip(header, row, strict=False)) for _, row in rows]


def _check_header(header: list[str], source: Path) -> None:
    """Raise `UserError` on a known column that occurs twice or is misspelt, whose cells would be ignored.

    Columns of predictions are allowed, so that an output table can be read again.
    """
    known = {name.lower(): name for name in COLUMNS if name not in ("id", "notes")}
    for name in header:
        if name in COLUMNS and header.count(name) > 1:
            raise UserError(f"{source}: column {name!r} is there {header.count(name)} times; keep one")
        if name in COLUMNS or name in OUTPUT:
            continue
        low = name.lower().replace(" ", "_")
        near = difflib.get_close_matches(low, known, n=1, cutoff=_NEAR)
        meant = _SYNONYMS.get(low) or (known[near[0]] if near else None)
        is_twin = bool(near) and difflib.SequenceMatcher(None, low, near[0]).ratio() >= _SAME
        if meant and (meant not in header or is_twin):
            raise UserError(f"{source}: unknown column {shown(name)} (did you mean {meant!r}?)")
