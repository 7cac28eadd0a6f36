"""Words in the cells of published tables: numbers, precision, recomputation, adapters, sharding and task."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from triplepoint.config.point import Precision, Recompute, Sharding
from triplepoint.config.task import TARGETS, Lora, Target
from triplepoint.errors import shown

Cells = Mapping[str, str]
"""Text of a row by column."""

Overlap = frozenset[Literal["grad", "param", "tp"]]
"""Kinds of communication that are overlapped."""

_BLANK = re.compile(
    r"(n/?a|nan|null|-+|\?+|unknown|not (stated|given|applicable|published)\b.*|see recipe)?", re.DOTALL
)
_NUMBER = re.compile(r"([+-]?\d[\d_,]*(?:\.\d*)?(?:e[+-]?\d+)?)\s*(?:\(.*\))?", re.IGNORECASE | re.DOTALL)
_MAX_COUNT = 10**12
_MAX_RANK = 65_536
_USUAL_RANK = 16
"""Rank of LoRA adapters where none is stated: the default of studies. A choice."""


class UnreadableError(Exception):
    """A cell without a known meaning. The message gives its text and the expected one."""


class UnsupportedError(Exception):
    """A readable cell that asks for something the simulator does not support."""


def is_blank(text: str) -> bool:
    """Return whether a cell is blank: empty, `n/a`, `-`, `not stated`, `see recipe`."""
    return _BLANK.fullmatch(text.strip().lower()) is not None


def read_number(column: str, text: str) -> float | None:
    """Return the number in a cell, None for a blank one. `6 (assumed)` is 6.

    Raises:
        UnreadableError: If it is no finite number, or negative.
    """
    if is_blank(text):
        return None
    match = _NUMBER.fullmatch(text.strip())
    if not match:
        raise UnreadableError(f"{column} is {shown(text)}, expected a number")
    value = float(match[1].replace(",", "").replace("_", ""))
    if not math.isfinite(value) or value < 0:
        raise UnreadableError(f"{column} is {shown(text)}, expected a number of 0 or more")
    return value


def read_count(column: str, text: str) -> int | None:
    """Return the whole number in a cell, None for a blank one.

    Raises:
        UnreadableError: If the cell holds no whole number from 0 to 10^12.
    """
    value = read_number(column, text)
    if value is None:
        return None
    if value != int(value) or value > _MAX_COUNT:
        raise UnreadableError(f"{column} is {shown(text)}, expected a whole number")
    return int(value)


def count(cells: Cells, column: str) -> int | None:
    """Return the whole number of 1 or more in a cell, None for a blank one.

    Raises:
        UnreadableError: If the cell holds anything else.
    """
    value = read_count(column, cells.get(column, ""))
    if value is not None and value < 1:
        raise UnreadableError(f"{column} is {value}, expected 1 or more")
    return value


def need(cells: Cells, column: str) -> int:
    """Return the whole number of 1 or more in a cell.

    Raises:
        UnreadableError: If the cell is blank or holds anything else.
    """
    value = count(cells, column)
    if value is None:
        raise UnreadableError(f"{column} is blank, expected a whole number")
    return value


def read_precision(text: str, usual: Precision = "bf16") -> Precision:
    """Return the number format of GEMMs, or `usual` for a blank cell.

    Raises:
        UnreadableError: If the cell names no known format.
        UnsupportedError: If the simulator does not support the format.
    """
    low = text.lower()
    if is_blank(low):
        return usual
    if re.search(r"mxfp4|int8|mxfp6|tf32", low):
        others = "; fp32 is, without tensor cores" if "tf32" in low else ""
        raise UnsupportedError(f"precision {shown(text)} is not simulated; bf16, fp16, fp8, nvfp4 and fp32 are{others}")
    names: tuple[tuple[str, Precision], ...] = (
        (r"nvfp4|\bfp4", "nvfp4"),
        (r"fp8|float8|e4m3|mxfp8", "fp8"),
        (r"bf16|bfloat16", "bf16"),
        (r"fp16|float16|half", "fp16"),
        (r"fp32|float32", "fp32"),
    )
    for pattern, name in names:
        if re.search(pattern, low):
            return name
    raise UnreadableError(f"precision is {shown(text)}, expected bf16, fp16, fp8, nvfp4 or fp32")


def read_recompute(text: str) -> tuple[Recompute | None, int | None]:
    """Return the kind of recomputation and, with `full`, the layers of each (virtual) stage; None where not stated.

    Raises:
        UnreadableError: If the cell names no known kind.
    """
    low = text.lower().strip()
    if is_blank(low):
        return None, None
    if re.match(r"(none|no|off|false|0)\b", low):
        return "none", None
    if "selective" in low or "core attention" in low or "core_attn" in low:
        return "selective", None
    layers = re.search(r"(\d+)\s*layers?|layers?\s*[=:]?\s*(\d+)|block\s*[=:]?\s*(\d+)", low)
    if re.search(r"full|block|uniform|checkpoint|\b(yes|true|on|all)\b", low) or layers:
        return "full", int(next(number for number in layers.groups() if number)) if layers else None
    raise UnreadableError(f"recompute is {shown(text)}, expected none, selective or full")


def read_stages(text: str) -> tuple[int, ...]:
    """Return the layers of each pipeline stage; empty for a blank cell.

    Raises:
        UnreadableError: If they are no whole numbers.
    """
    if is_blank(text.strip()):
        return ()
    words = re.split(r"[\s,;]+", text.strip(" []()"))
    layers = tuple(int(word) for word in words if re.fullmatch("0|[1-9][0-9]{0,5}", word))
    if len(layers) != len(words):
        raise UnreadableError(f"pipeline_layers is {shown(text)}, expected the layers of each stage, such as 3 5")
    return layers


def read_lora(cell: str, notes: str, usual: tuple[Target, ...] = TARGETS) -> Lora | None:
    """Return the LoRA adapters that are trained; None if all parameters are.

    Args:
        cell: Column `trainable`, such as `LoRA`, `LoRA rank 8 on q_proj, v_proj` or `LoRA r=16 linear_qkv`.
        notes: Notes of the row, separated by semicolons, which count where the cell is blank.
        usual: Layers with adapters where the text names none.

    Raises:
        UnreadableError: If the rank is out of range.
        UnsupportedError: If the frozen base has 4 bits.
    """
    text = cell.lower()
    if is_blank(text):
        parts = [part.strip().lower() for part in notes.split(";")]
        text = next((part for part in parts if re.match(r"q?lora\b|peft\b", part)), "")
    if not re.search(r"lora|peft", text):
        return None
    if "qlora" in text:
        raise UnsupportedError("a frozen base in 4 bits (QLoRA) is not simulated; LoRA on 16 bits is")
    rank = re.search(r"(?:rank|dim|\br)\s*[=:]?\s*([+-]?\d+)\b", text) or re.search(
        r"lora[- (=:]*(\d+)(?=$|[\s,;)])", text
    )
    if rank and not 0 < int(rank[1]) < _MAX_RANK:
        raise UnreadableError(f"trainable is {shown(text)}, expected LoRA with a rank of 1 to {_MAX_RANK - 1}")
    targets = tuple(target for target, pattern in _TARGETS.items() if re.search(pattern, text))
    return Lora(rank=int(rank[1]) if rank else _USUAL_RANK, alpha=32.0, targets=targets or usual)


_TARGETS: dict[Target, str] = {
    "linear_qkv": r"qkv|\b[qkv]_(proj|lin)|\b(query|key|value)\b|\battention\b|all linear",
    "linear_proj": r"linear_proj|\bo_proj|out_proj|\battention\b|all linear",
    "linear_fc1": r"fc1|(gate|up|w1)_?(up_)?proj|\b(mlp|feed-forward)\b|all linear",
    "linear_fc2": r"fc2|(down|w2)_?proj|\b(mlp|feed-forward)\b|all linear",
}
"""Patterns of names of linear layers in Megatron-LM, Hugging Face and prose."""


@dataclass(frozen=True)
class Shards:
    """Data parallel sharding as a cell states it.

    Attributes:
        sharding: State that is sharded over the ranks.
        overlap: Communication stated as overlapped; None where not stated.
        shard_size: Ranks that parameters are sharded over; None where not stated.
        is_hybrid: Whether sharding is hybrid, with a copy of the shards in each group of ranks.
        keeps_gathered: Whether gathered parameters are kept until the backward pass.
        reshards: Whether the cell states that parameters are resharded after each pass.
    """

    sharding: Sharding
    overlap: Overlap | None = None
    shard_size: int | None = None
    is_hybrid: bool = False
    keeps_gathered: bool = False
    reshards: bool = False


def read_shards(text: str) -> Shards:
    """Read the sharding over data parallel ranks.

    Raises:
        UnreadableError: If the cell names no known sharding.
        UnsupportedError: If shards are offloaded to host memory.
    """
    low = text.lower()
    sharding = _sharding(low)
    if sharding is None:
        raise UnreadableError(f"fsdp is {shown(text)}, expected DDP, distributed optimizer, ZeRO-1 to 3 or FSDP")
    if re.search(r"(?<!no )(?<!no-)(?<!without )offload(?!\w*\s*[=:]\s*(?:false|no|off))", low):
        raise UnsupportedError("offload of shards to the host's memory is not simulated; column offload says of what")
    keeps = re.search(r"no[_ -]?reshard|reshard\w*\s*[=:]?\s*(?:false|no|off)\b", low) is not None
    size = re.search(r"shard(?:_size|ed over|ing over)?\s*[=:]?\s*(\d{1,7})\b", low)
    return Shards(
        sharding,
        _overlap(low),
        (int(size[1]) or None) if size else None,
        is_hybrid=re.search(_HYBRID, low) is not None,
        keeps_gathered=keeps,
        reshards="reshard" in low and not keeps,
    )


_HYBRID = r"hybrid|hsdp"


def _sharding(low: str) -> Sharding | None:
    kinds: tuple[tuple[str, Sharding], ...] = (
        (r"hybrid[_ -]?shard[_ -]?zero-?2", "optim_grads"),
        (_HYBRID, "optim_grads_params"),
        (r"no[_ -]?shard|no zero|^none|\bdp\s*=\s*1\b|^no$|^false$|zero-?\s?0", "no_shard"),
        (r"shard[_ -]?grad[_ -]?op|zero-?\s?(stage)?\s?2|optim_grads$", "optim_grads"),
        (
            r"zero-?\s?(stage)?\s?3|fsdp|full[_ -]?shard|fully.sharded|optim_grads_params|^(yes|true)$",
            "optim_grads_params",
        ),
        (r"zero-?\s?(stage)?\s?1|distributed[_ -]?optim|dist[_ -]?opt|^optim$", "optim"),
        (r"ddp|data.parallel", "no_shard"),
    )
    if is_blank(low):
        return "no_shard"
    return next((kind for pattern, kind in kinds if re.search(pattern, low.strip())), None)


def _overlap(low: str) -> Overlap | None:
    if "overlap" not in low:
        return None
    if re.search(r"(no|without)\b[^,;]*overlap", low):
        return frozenset()
    kinds: list[Literal["grad", "param"]] = [kind for kind in ("grad", "param") if kind in low]
    return frozenset(kinds or ("grad", "param"))


_INFERENCE, _TRAINING = r"infer|serv|decod|generat", r"train|tun|sft|lora"


def read_output_tokens(cells: Cells) -> int | None:
    """Return the tokens that a row of inference generates per prompt; None for a row of training.

    Raises:
        UnreadableError: If the task is neither, or the row does not state the number of tokens.
    """
    task = cells.get("task", "").lower()
    if is_blank(task) or re.search(_TRAINING, task):
        return None
    if not re.search(_INFERENCE, task):
        raise UnreadableError(f"task is {shown(task)}, expected training or inference")
    return need(cells, "output_tokens")


def read_sequence_parallel(text: str, tp: int) -> bool:
    """Return whether tensor parallel ranks split the sequence. `yes if tp > 1` is yes with such a `tp`.

    Raises:
        UnreadableError: If the cell says neither yes nor no.
    """
    low = text.lower().strip()
    if is_blank(low) or re.match(r"(no|false|off|0|none)\b", low):
        return False
    if not re.match(r"(yes|true|on|1|sp)\b", low):
        raise UnreadableError(f"seq_parallel is {shown(text)}, expected yes or no")
    return tp > 1
