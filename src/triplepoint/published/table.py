"""Predictions for a published table, one training run a row."""

import difflib
from collections.abc import Callable
from pathlib import Path

from triplepoint.config.yaml_file import read_csv
from triplepoint.errors import UserError, shown
from triplepoint.published.rows import COLUMNS, read_row
from triplepoint.simulate.predict.prediction import COLUMNS as OUTPUT
from triplepoint.simulate.predict.prediction import Prediction, read_calibrations, with_progress

_NAMED = 10
_NEAR = 0.75
"""Likeness from which a column is taken for a misspelt one: `modle` and `precison` are, `kind` and `node` are not."""
_SAME = 0.9
"""Likeness from which it is one although the right one is there too: `precison` beside `precision`, not `gpus`."""
_WORDS_OF_STUDIES = {
    "num_layers": "layers", "hidden_size": "hidden", "ffn_hidden_size": "ffn", "num_attention_heads": "heads",
    "num_query_groups": "kv_heads", "vocab_size": "vocab", "num_experts": "experts", "top_k": "topk",
    "sequence_length": "seq", "prompt_tokens": "seq", "num_gpus": "n_gpus", "micro_batch_size": "mbs",
    "global_batch_size": "gbs", "sequence_parallel": "seq_parallel", "data_parallel_sharding": "fsdp",
    "dtype": "precision", "number_format": "precision", "accelerator": "gpu", "world_size": "n_gpus",
    "gpu_count": "n_gpus", "stack": "framework", "network": "interconnect", "seq_len": "seq", "seqlen": "seq",
    "recomputation": "recompute", "activation_checkpointing": "recompute", "lora": "trainable",
    "lora_targets": "trainable", "lora_rank": "trainable", "sharding": "fsdp",
}  # fmt: skip
"""What studies, models and other people call the same."""


def predict_table(
    source: Path,
    config: Path,
    say: Callable[[str], None],
    with_power: bool = True,
    progress: Callable[[str], None] = lambda line: None,
) -> list[tuple[str, Prediction]]:
    """Return the prediction of each row of a table by the row's id.

    Args:
        source: CSV with the columns `COLUMNS`; others are named and passed over.
        config: Folder of the configuration.
        say: Called with a line on columns that are not read.
        with_power: Whether power and heat are wanted.
        progress: Called with a line on how many rows are done.

    Raises:
        UserError: If the table cannot be read at all, or the configuration is wrong.
    """
    read_calibrations(config)
    rows = read_table(source)
    if others := [shown(name) for name in (rows[0] if rows else ()) if name and name not in COLUMNS]:
        more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
        say(f"predict: columns left unread: {', '.join(others[:_NAMED])}{more}")
    understood = [read_row(cells, number, config) for number, cells in enumerate(rows, 1)]
    return [(row.id, row.predict(config, with_power)) for row in with_progress(understood, progress)]


def read_table(source: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV as text by column.

    Raises:
        UserError: If the file is missing, is no table, lacks a column without which nothing can be predicted, or has a
            known one twice or misspelt.
    """
    header, rows = read_csv(source, COLUMNS, errors="replace")
    if not {*header} & {*COLUMNS} - {"id", "notes"}:
        raise UserError(f"{source}: no known column in its first line; expected a CSV with {', '.join(COLUMNS)}")
    _check_header(header, source)
    return [dict(zip(header, row, strict=False)) for _, row in rows]


def _check_header(header: list[str], source: Path) -> None:
    """Refuse a known column that stands twice, or is misspelt: its cells would be passed over. Those of OUT may be."""
    known = {name.lower(): name for name in COLUMNS if name not in ("id", "notes")}
    for name in header:
        if name in COLUMNS and header.count(name) > 1:
            raise UserError(f"{source}: column {name!r} is there {header.count(name)} times; keep one")
        if name in COLUMNS or name in OUTPUT:
            continue
        low = name.lower().replace(" ", "_")
        near = difflib.get_close_matches(low, known, n=1, cutoff=_NEAR)
        meant = _WORDS_OF_STUDIES.get(low) or (known[near[0]] if near else None)
        is_twin = bool(near) and difflib.SequenceMatcher(None, low, near[0]).ratio() >= _SAME
        if meant and (meant not in header or is_twin):
            raise UserError(f"{source}: unknown column {shown(name)} (did you mean {meant!r}?)")
