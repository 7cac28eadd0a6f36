"""Importers of telemetry that other tools recorded: one module for each format.

The module of a format declares the columns that it knows, with their column of table `telemetry` and unit; how a file
is recognised; and how its text is read into series. Formats share `declaration`, `text`, `cells`, `times` and `rows`.
`folder` reads all files of a folder and joins them by host and clock; `run` writes the imported run.
"""

from functools import cache
from importlib import import_module

from triplepoint.importers.declaration import Format

_MODULES = (
    "nvidia_smi",
    "nvidia_dmon",
    "dcgmi_dmon",
    "prometheus_json",
    "prometheus_text",
    "omnistat",
    "amd_smi",
    "rocm_smi",
    "wattameter",
    "charllm",
    "zeus",
)
"""Modules of formats, in the order in which they are tried: the first that recognises a file reads it."""


@cache
def formats() -> tuple[Format, ...]:
    """Return all formats that are recognised by the content of a file."""
    return tuple(import_module(f"triplepoint.importers.{name}").FORMAT for name in _MODULES)
