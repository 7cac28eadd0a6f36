"""Files of `config/` that people write begin with the line by which editors find their schema.

That they are valid by it is tested in test_files.py.
"""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCHEMAS = {"config": "config", "studies": "study", "models": "model", "clusters": "cluster", "gpus": "gpu"}
"""Schemas by the folder of the file; other folders hold what is fitted by programs here, or published."""
FILES = [ROOT / "config/config.yaml", *(p for kind in SCHEMAS for p in sorted((ROOT / "config" / kind).glob("*.yaml")))]
MARK = "# yaml-language-server: $schema="


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_file_names_its_schema(path: Path) -> None:
    first = path.read_text().partition("\n")[0]
    schema = ROOT / f"workflow/schemas/{SCHEMAS[path.parent.name]}.schema.json"
    assert first.startswith(MARK), f"begin it with '{MARK}{os.path.relpath(schema, path.parent)}'"
    assert (path.parent / first.removeprefix(MARK)).resolve() == schema
    assert schema.is_file()
