"""Process groups of a rank: the launcher's record, what the trace says, their roles, and the sizes of collectives."""

import re
from pathlib import Path
from typing import Any

import msgspec

from triplepoint.errors import UserError
from triplepoint.trace.kineto.reader import Header, Message

_ONLY = "default"
"""Name of the process group of a trace that names none at all: torch's first, of all ranks."""
_BYTES = {
    "byte": 1, "char": 1, "signed char": 1, "unsigned char": 1, "bool": 1,
    "half": 2, "bfloat16": 2, "short": 2, "short int": 2,
    "float": 4, "int": 4, "complexhalf": 4,
    "double": 8, "long": 8, "long int": 8, "complexfloat": 8, "complexdouble": 16,
}  # fmt: skip
"""Size of an element by its name in the profiler: c10 scalar types and the C types behind them. Unit: byte."""


def message_bytes(kind: str, message: Message, num_ranks: int) -> int:
    """Return the size of a collective as nccl-tests counts it; -1 where not known. Unit: byte.

    Args:
        kind: all_reduce, all_gather, ...: of a gather the gathered buffer counts, of all others what the rank gives.
        message: What its event says.
        num_ranks: Size of the process group; 0 where not known.

    Source:
        nccl-tests, doc/PERFORMANCE.md.
    """
    given, gathered = message.in_elements, message.out_elements
    element = _element_bytes(message.dtype)
    if element and isinstance(given, int) and isinstance(gathered, int):
        return element * (gathered if kind in ("all_gather", "gather", "recv") else given)
    shape = _first(message.input_dims)
    element = _element_bytes(_first_text(message.input_types))
    if not shape or not element:
        return -1
    if kind in ("all_gather", "gather"):
        return element * sum(shape) * num_ranks if num_ranks else -1
    return element * sum(shape)


def group_ranks(message: Message) -> tuple[int, ...]:
    """Return the global ranks of the process group, empty where not said in full."""
    text = message.group_ranks
    if isinstance(text, list):
        return tuple(rank for rank in text if isinstance(rank, int))
    if not isinstance(text, str) or not re.fullmatch(r"\[\s*\d+(\s*,\s*\d+)*\s*\]", text):
        return ()
    return tuple(int(rank) for rank in re.findall(r"\d+", text))


def peer_of(message: Message) -> int | None:
    """Return the global rank that a message goes to or comes from, None where its event does not say.

    Source:
        PyTorch torch/csrc/profiler/util.cpp: `Dst Rank` of a send, `Src Rank` of a receive.
    """
    told = [rank for rank in (message.source, message.destination) if isinstance(rank, int) and rank >= 0]
    return told[0] if len(told) == 1 else None


def group_size(message: Message) -> int:
    """Return the number of ranks in the process group, 0 where not known."""
    size = message.group_size
    return size if isinstance(size, int) and size > 0 else len(group_ranks(message))


def tensor_sizes(dims: Any) -> list[int]:
    """Return the number of elements of every tensor in `Input Dims`, however deep the lists."""
    if not isinstance(dims, list) or not dims:
        return []
    if all(isinstance(size, int) for size in dims):
        product = 1
        for size in dims:
            product *= size
        return [product]
    return [size for part in dims for size in tensor_sizes(part)]


def _first(dims: Any) -> list[int]:
    """Return the sizes of the tensors in the first argument: the others repeat them or are options."""
    return tensor_sizes(dims[0]) if isinstance(dims, list) and dims else []


def _first_text(types: Any) -> str | None:
    return types[0] if isinstance(types, list) and types and isinstance(types[0], str) else None


def _element_bytes(name: Any) -> int:
    text = str(name).removeprefix("c10::").lower()
    return 1 if text.startswith("float8") else _BYTES.get(text, 0)


_ROLES = "tp|pp|dp|cp|ep|edp|world"
_DESCRIPTION = re.compile(rf"(?:mesh_)?({_ROLES})", re.IGNORECASE)
_NAMED_ROLES = {
    "default_pg": "world",
    "TENSOR_MODEL_PARALLEL_GROUP": "tp",
    "PIPELINE_MODEL_PARALLEL_GROUP": "pp",
    "DATA_PARALLEL_GROUP": "dp",
    "DATA_PARALLEL_GROUP_WITH_CP": "dp",
    "CONTEXT_PARALLEL_GROUP": "cp",
    "EXPERT_MODEL_PARALLEL_GROUP": "ep",
    "EXPERT_DATA_PARALLEL_GROUP": "edp",
}
"""Descriptions that torch and Megatron-LM (core/parallel_state.py) give their groups."""


class Group(msgspec.Struct, frozen=True):
    """One process group of the rank, as the launcher made it."""

    role: str
    name: str
    ranks: tuple[int, ...] = ()


class Recorded(msgspec.Struct):
    """One collective as the launcher's flight recorder has it. Unit: ns since 1970."""

    role: str
    t_ns: int


class GroupRecord(msgspec.Struct):
    """What the launcher wrote down of a rank's process groups and collectives; empty where it wrote nothing."""

    groups: list[Group] = []
    collectives: list[Recorded] = []

    def role_of(self, name: Any, description: Any) -> str | None:
        """Return the role (tp, dp, ...) of a process group, None where not known."""
        known = {group.name: group.role for group in self.groups}
        if str(name) in known:
            return known[str(name)]
        text = str(description)
        found = _DESCRIPTION.fullmatch(text)
        return found[1].lower() if found else _NAMED_ROLES.get(text)


def read_groups(path: Path) -> GroupRecord:
    """Return the launcher's record that lies next to a trace, an empty one if there is none.

    Raises:
        UserError: If the record is damaged.
    """
    if not path.is_file():
        return GroupRecord()
    try:
        return msgspec.json.decode(path.read_bytes(), type=GroupRecord)
    except msgspec.MsgspecError as error:
        raise UserError(f"{path.name}: not a record of process groups ({error}); launch the run again") from None


class Groups:
    """The process groups of one rank."""

    def __init__(self, record: GroupRecord, header: Header) -> None:
        self.record = record
        self.header = header
        info = header.metadata.get("distributedInfo")
        listed = info.get("pg_config") if isinstance(info, dict) else None
        self._described = {
            str(group.get("pg_name")): group.get("pg_desc")
            for group in (listed if isinstance(listed, list) else [])
            if isinstance(group, dict)
        }

    def of_role(self, role: str | None) -> Group | None:
        """Return the recorded process group that plays a role, None unless there is exactly one."""
        groups = [group for group in self.record.groups if group.role == role]
        return groups[0] if len(groups) == 1 else None

    def role(self, name: Any, description: Any = None) -> str | None:
        """Return the role of a process group, None where not known."""
        if name is None and description is None:
            return None
        return self.record.role_of(name, description or self._described.get(str(name)))
