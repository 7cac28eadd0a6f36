"""Answer of a subcommand: as text for a person, or with `--json` as one JSON object."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triplepoint import __version__

if TYPE_CHECKING:
    from triplepoint.manifest import Manifest


@dataclass(frozen=True)
class Answer:
    """Output of a subcommand on standard output, and its exit status.

    Attributes:
        content: Keys of the JSON object in addition to `command` and `version`.
        text: Output without `--json`; may be empty.
        status: Exit status.
    """

    content: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""
    status: int = 0

    @classmethod
    def of_printed(cls, printed: str, status: int) -> "Answer":
        """Return the answer of a command that printed its output.

        Args:
            printed: The output: a JSON object or lines of text.
            status: Exit status.
        """
        try:
            content = json.loads(printed)
        except ValueError:
            content = None
        return cls(content if isinstance(content, dict) else {"lines": printed.splitlines()}, printed, status)

    def as_json(self, command: str) -> str:
        """Return the JSON object: `command`, `version` of Triplepoint, and the content; null for NaN and infinity."""
        return json.dumps({"command": command, "version": __version__} | plain(self.content), indent=1, allow_nan=False)


def answer_of_run(folder: Path, manifest: "Manifest") -> Answer:
    """Return the answer of a command that makes a run, with the keys `RUN_ANSWER`."""
    return Answer({"run": folder.name, "folder": folder, "status": manifest.status, "evidence": manifest.evidence})


def plain(value: Any) -> Any:
    """Convert a value for JSON: paths and enumerations to text, records to objects, NaN and infinity to null."""
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, str | bool | int) or value is None:
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset | range):
        return [plain(item) for item in (sorted(value) if isinstance(value, set | frozenset) else value)]
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if hasattr(value, "model_dump"):  # a pydantic model, checked without importing pydantic
        return plain(value.model_dump(mode="json"))
    if hasattr(value, "tolist"):  # a number or array of numpy, checked without importing numpy
        return plain(value.tolist())
    if isinstance(value, Path) or hasattr(value, "isoformat"):
        return str(value)
    raise TypeError(f"no JSON for {type(value).__name__}")
