"""Importers: telemetry that other tools recorded, one module for each format, which declares its columns once.

A format names the columns it knows, with our column and unit of each; how a file is recognised; and how its text
becomes series of numbers. What all formats share lies beside them: `declaration`, `text`, `cells`, `times`, `rows`.
`folder` reads a whole folder and puts the clocks and hosts of its files together.
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
"""In the order they are tried: a file is of the first format that recognises it."""


@cache
def formats() -> tuple[Format, ...]:
    """Return the formats that are recognised by what a file holds."""
    return tuple(import_module(f"triplepoint.importers.{name}").FORMAT for name in _MODULES)
