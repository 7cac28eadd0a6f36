"""Subcommands called in this process."""

import sys

import pandas  # noqa: F401 - subcommands that do without it hide it from whoever comes after
import pytest


@pytest.fixture(autouse=True)
def _same_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
