"""Process groups of a rank and sizes of collectives, from the launcher's record and the trace."""

import re
from pathlib import Path
from typing import Any

import msgspec

from triplepoint.errors import UserError
from triplepoint.trace.kineto.reader import Header, Message

DEFAULT_GROUP = "default"
"""Name of the only process group of a trace that names no group: torch's default one, of all ranks."""
_ELEMENT_BYTES = {
    "byte": 1, "char": 1, "signed char": 1, "unsigned char": 1, "bool": 1,
    "half": 2, "bfloat16": 2, "short": 2, "short int": 2,
    "float": 4, "int": 4, "complexhalf": 4,
    "double": 8, "long": 8, "long int": 8, "complexfloat": 8, "complexdouble": 16,
}  # fmt: skip
"""Size of an element by the profiler's name of its type: c10 scalar types and the C types behind them. Unit: byte."""


def message_bytes(kind: str, message: Message, num_ranks: int) -> int:
    """Return the size of a collective or transfer as nccl-tests counts it; -1 if unknown. Unit: byte.

    Args:
        kind: all_reduce, all_gather, ...; the size of a gather is that of the gathered buffer, of others the input's.
        message: Communication arguments of its event.
        num_ranks: Size of the process group; 0 if unknown.

    Source:
        nccl-tests, doc/PERFORMANCE.md.
    """
    num_in, num_out = message.in_elements, message.out_elements
    element_bytes = _element_bytes(message.dtype)
    if element_bytes and isinstance(num_in, int) and isinstance(num_out, int):
        return element_bytes * (num_out if kind in ("all_gather", "gather", "recv") else num_in)
    sizes = _sizes_of_first_argument(message.input_dims)
    element_bytes = _element_bytes(_first_text(message.input_types))
    if not sizes or not element_bytes:
        return -1
    if kind in ("all_gather", "gather"):
        return element_bytes * sum(sizes) * num_ranks if num_ranks else -1
    return element_bytes * sum(sizes)


def group_ranks(message: Message) -> tuple[int, ...]:
    """Return the global ranks of the process group; empty if they are missing or abbreviated."""
    ranks = message.group_ranks
    if isinstance(ranks, list):
        return tuple(rank for rank in ranks if isinstance(rank, int))
    if not isinstance(ranks, str) or not re.fullmatch(r"\[\s*\d+(\s*,\s*\d+)*\s*\]", ranks):
        return ()
    return tuple(int(rank) for rank in re.findall(r"\d+", ranks))


def peer_of(message: Message) -> int | None:
    """Return the other rank of a point-to-point transfer, None if the event does not name it.

    Source:
        PyTorch torch/csrc/profiler/util.cpp: `Dst Rank` of a send, `Src Rank` of a receive.
    """
    peers = [rank for rank in (message.source, message.destination) if isinstance(rank, int) and rank >= 0]
    return peers[0] if len(peers) == 1 else None


def group_size(message: Message) -> int:
    """Return the number of ranks in the process group, 0 if unknown."""
    size = message.group_size
    return size if isinstance(size, int) and size > 0 else len(group_ranks(message))


def tensor_sizes(dims: Any) -> list[int]:
    """Return the number of elements of every tensor in `Input Dims`, whatever the nesting of the lists."""
    if not isinstance(dims, list) or not dims:
        return []
    if all(isinstance(size, int) for size in dims):
        product = 1
        for size in dims:
            product *= size
        return [product]
    return [size for part in dims for size in tensor_sizes(part)]


def _sizes_of_first_argument(dims: Any) -> list[int]:
    """Return the sizes of the tensors in the first argument; other arguments repeat them or are options."""
    return tensor_sizes(dims[0]) if isinstance(dims, list) and dims else []


def _first_text(types: Any) -> str | None:
    return types[0] if isinstance(types, list) and types and isinstance(types[0], str) else None


def _element_bytes(name: Any) -> int:
    text = str(name).removeprefix("c10::").lower()
    return 1 if text.startswith("float8") else _ELEMENT_BYTES.get(text, 0)


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
"""Roles by the descriptions that torch and Megatron-LM (core/parallel_state.py) give their groups."""


class Group(msgspec.Struct, frozen=True):
    """One process group of the rank in the launcher's record."""

    role: str
    name: str
    ranks: tuple[int, ...] = ()


class RecordedCollective(msgspec.Struct):
    """One collective in the launcher's record, from the flight recorder. Unit: ns since 1970."""

    role: str
    t_ns: int


class GroupRecord(msgspec.Struct):
    """The launcher's record of a rank's process groups and collectives; empty if there is none."""

    groups: list[Group] = []
    collectives: list[RecordedCollective] = []

    def role_of(self, name: Any, description: Any) -> str | None:
        """Return the role (tp, dp, ...) of a process group by name, else by description; None if unknown."""
        roles = {group.name: group.role for group in self.groups}
        if str(name) in roles:
            return roles[str(name)]
        text = str(description)
        match = _DESCRIPTION.fullmatch(text)
        return match[1].lower() if match else _NAMED_ROLES.get(text)


def read_groups(path: Path) -> GroupRecord:
    """Return the launcher's record for a trace, an empty one if there is no such file.

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
    """The process groups of one rank, from the launcher's record and the trace's metadata."""

    def __init__(self, record: GroupRecord, header: Header) -> None:
        self.record = record
        self.header = header
        info = header.metadata.get("distributedInfo")
        groups = info.get("pg_config") if isinstance(info, dict) else None
        self._descriptions = {
            str(group.get("pg_name")): group.get("pg_desc")
            for group in (groups if isinstance(groups, list) else [])
            if isinstance(group, dict)
        }

    def of_role(self, role: str | None) -> Group | None:
        """Return the recorded process group of a role, None unless there is exactly one."""
        groups = [group for group in self.record.groups if group.role == role]
        return groups[0] if len(groups) == 1 else None

    def role(self, name: Any, description: Any = None) -> str | None:
        """Return the role of a process group, None if unknown."""
        if name is None and description is None:
            return None
        return self.record.role_of(name, description or self._descriptions.get(str(name)))
