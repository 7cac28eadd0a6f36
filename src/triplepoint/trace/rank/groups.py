"""Process groups: what the launcher wrote down of them, what the trace says, and the role each plays."""

import re
from pathlib import Path
from typing import Any

import msgspec

from triplepoint.errors import UserError
from triplepoint.trace.kineto.reader import Header

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
    """Return the launcher's record beside a trace, an empty one if there is none.

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
        """Take what the launcher recorded, and what the trace's header says beside it."""
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
