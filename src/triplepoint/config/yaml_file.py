"""Sections in YAML files, read with one-line errors."""

import re
from pathlib import Path
from typing import Any

import yaml

from triplepoint.config.base import Section, parse
from triplepoint.errors import UserError, nearest


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file.

    Raises:
        UserError: If the file is missing, is not YAML, or does not hold a mapping.
    """
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except FileNotFoundError:
        known = sorted(p.stem for p in path.parent.glob("*.yaml"))
        raise UserError(f"{path}: no such file{nearest(path.stem, known) if known else ''}") from None
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{path}: not readable as YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected a mapping of keys to values, found {type(content).__name__}")
    return content


def read(section: type[Section], path: Path) -> Section:
    """Read, check and return one section from a YAML file. Raises `UserError` as `read_yaml` and `parse` do."""
    return parse(section, read_yaml(path), path)


class _Loader(yaml.CSafeLoader if hasattr(yaml, "CSafeLoader") else yaml.SafeLoader):  # type: ignore[misc]
    """YAML that refuses a key given twice, which plain YAML settles silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return the mapping, or raise if a key stands in it twice."""
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.YAMLError(f"key {key!r} given twice, {str(node.start_mark).strip()}")
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


# YAML 1.1 reads 989.4e12 as text: its floats want a signed exponent.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:[0-9][0-9_]*)(?:\.[0-9]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)
