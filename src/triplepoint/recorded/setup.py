"""What a recording is told before its job starts, checked: its study, what is known of the job, warm-up, command."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from triplepoint.config.catalogue import Catalogue
from triplepoint.config.yaml_file import read_yaml
from triplepoint.errors import UserError
from triplepoint.files import write_json
from triplepoint.provenance import COLLECTIVE_SETTINGS, OTHER_SETTINGS, git_state
from triplepoint.recorded.description import read_description
from triplepoint.recorded.marks import REQUEST
from triplepoint.recorded.studies import check_study


def make_setup(
    command: Sequence[str],
    config: Path,
    *,
    study: str,
    describe: Path | None,
    settings: Mapping[str, Any],
    name: str | None,
    warmup: int,
    folder: Path | None = None,
) -> dict[str, Any]:
    """Return what stands in `session.json`.

    Args:
        command: The job, for its name and the record.
        config: Folder of the configuration, for models and clusters that are named.
        study: Study of recorded runs it belongs to.
        describe: YAML file of what is known of the job; None for none.
        settings: The same as single settings, which go before the file's.
        name: What the job is called; None: as its script.
        warmup: First marked steps that are not measured.
        folder: Folder the job runs in, of which the commit is noted; None where it is not known.

    Raises:
        UserError: If one of them is wrong.
    """
    check_study(study)
    if warmup < 0:
        raise UserError(f"record: --warmup {warmup}: expected 0 or more steps")
    content = (read_yaml(describe) if describe else {}) | dict(settings)
    content["name"] = name or content.get("name") or name_of(command)
    read_description(describe, content, Catalogue(config) if config.is_dir() else None)
    commit, has_changed = git_state(folder) if folder else (None, None)
    return {
        "study": study,
        "describe": content,
        "warmup": warmup,
        "command": list(command),
        "commit": commit and f"{commit[:12]}{' with changes' if has_changed else ''}",
        "variables": [*COLLECTIVE_SETTINGS, *OTHER_SETTINGS],
    }


def describe_again(
    setup: Mapping[str, Any], config: Path, describe: Path | None, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what stands in `session.json` with more known of the job, or other than was said before.

    Raises:
        UserError: If a key or a value is wrong.
    """
    content = {**setup.get("describe", {}), **(read_yaml(describe) if describe else {}), **settings}
    read_description(describe, content, Catalogue(config) if config.is_dir() else None)
    return {**setup, "describe": content}


def name_of(command: Sequence[str]) -> str:
    """Return the name of the script that a command runs."""
    script = next((word for word in command if word.endswith(".py")), command[0] if command else "job")
    name = re.sub(r"[^a-z0-9.-]+", "-", Path(script).name.removesuffix(".py").lower()).strip(".-")
    return name[:40] or "job"


def read_window(text: str) -> tuple[int, int]:
    """Return the first step of a window and the one after its last.

    Raises:
        UserError: If the text is no window.
    """
    found = re.fullmatch(r"(\d{1,7}):(\d{1,7})", text)
    if not found or int(found[1]) >= int(found[2]):
        raise UserError(f"record: --profile {text[:40]!r}: expected FIRST:LAST, such as 20:22 for steps 20 and 21")
    return int(found[1]), int(found[2])


def ask_for_window(session: Path, first: int, last: int) -> None:
    """Ask the ranks of a recording to profile the steps from `first` up to, not including, `last`."""
    write_json(session / REQUEST, {"first": first, "num": last - first, "ranks": None})
